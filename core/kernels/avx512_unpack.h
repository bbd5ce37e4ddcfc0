/* avx512_unpack.h: 16 rows x 32 columns of a panel → what avx512_products.c multiplies: unsigned bytes, group g of
 * four columns in register g, and the block's scales. Forced inline: type and block are constants there. */
#ifndef KERNELS_AVX512_UNPACK_H
#define KERNELS_AVX512_UNPACK_H

#include "core/kernels/vec512.h"
#include "core/kernels/weight_traits.h"

/* Weights of 16 rows x 32 columns. */
struct block512 {
    __m512i q[8];
    __m512 d, m;
    __m512i sc0, sc1; /* Q4_K, Q5_K: sc0; Q6_K: of the halves; Q3_K: both in sc0; Q2_K: unpack_q2 */
};

INLINE __m512 load_half(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const void *)p));
}

INLINE __m512i load_zmm(const uint8_t *p)
{
    return _mm512_load_si512((const void *)p);
}

INLINE void unpack_nibbles(const uint8_t *src, __m512i q[8])
{
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m512i v = load_zmm(src + 64 * j);
        q[j] = _mm512_and_si512(v, low);
        q[j + 4] = _mm512_and_si512(_mm512_srli_epi32(v, 4), low);
    }
}

/* Adds 16 where group g's bit (bit 8i + g of the row's dword) is set. */
INLINE void unpack_bits(const uint8_t *src, __m512i q[8])
{
    const __m512i sixteen = _mm512_set1_epi8(16), bits = load_zmm(src);
    UNROLL
    for (int g = 0; g < 8; g++) {
        __m512i at = g <= 4 ? _mm512_slli_epi32(bits, 4 - g) : _mm512_srli_epi32(bits, g - 4);
        /* q | (at & 16) */
        q[g] = _mm512_ternarylogic_epi32(q[g], at, sixteen, 0xf8);
    }
}

INLINE void unpack_q6(const uint8_t *src, __m512i q[8])
{
    const __m512i low = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(0x30);
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m512i high = load_zmm(src + Q6_LOW_BYTES + 64 * h);
        __m512i a = load_zmm(src + 128 * h), b = load_zmm(src + 128 * h + 64);
        q[4 * h] = _mm512_or_si512(_mm512_and_si512(a, low), _mm512_and_si512(high, pair));
        q[4 * h + 1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(a, 4), low),
                                       _mm512_and_si512(_mm512_srli_epi32(high, 2), pair));
        q[4 * h + 2] = _mm512_or_si512(_mm512_and_si512(b, low),
                                       _mm512_and_si512(_mm512_slli_epi32(high, 4), pair));
        q[4 * h + 3] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(b, 4), low),
                                       _mm512_and_si512(_mm512_slli_epi32(high, 2), pair));
    }
}

/* Nibbles become the table's values plus what makes them unsigned. */
INLINE void unpack_table(const uint8_t *src, const int8_t *table, int plus, __m512i q[8])
{
    const __m512i values = _mm512_add_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table)), _mm512_set1_epi8((char)plus));
    unpack_nibbles(src, q);
    UNROLL
    for (int g = 0; g < 8; g++)
        q[g] = _mm512_shuffle_epi8(values, q[g]);
}

INLINE void unpack_pairs(const uint8_t *src, __m512i q[8])
{
    const __m512i low = _mm512_set1_epi8(3);
    UNROLL
    for (int g = 0; g < 8; g++)
        q[g] = _mm512_and_si512(_mm512_srli_epi32(load_zmm(src + 64 * (g / 4)), 2 * (g % 4)), low);
}

/* Block i of Q2_K: sc0 has words sc0, sc1; sc1 has −m1, m1 − m0, which times the seeds (−8·Σx of all and of the
 * first 16) give 8 (m0·Σ first + m1·Σ second). */
INLINE void unpack_q2(const uint8_t *unit, uint32_t i, struct block512 *b)
{
    const __m512i v =
        _mm512_cvtepu8_epi16(_mm256_load_si256((const void *)(unit + HALVES_SC + 32 * i)));
    const __m512i m = _mm512_srli_epi16(v, 4);
    b->d = load_half(unit + K_D);
    b->m = load_half(unit + K_DMIN);
    b->sc0 = _mm512_and_si512(v, _mm512_set1_epi16(15));
    b->sc1 = _mm512_sub_epi16(_mm512_and_si512(m, _mm512_set1_epi32((int)0xffff0000)),
                              _mm512_rol_epi32(m, 16));
    unpack_pairs(unit + HALVES_QUANTS + PAIRS_BYTES * i, b->q);
}

/* Block i of Q3_K: quants plus 4. */
INLINE void unpack_q3(const uint8_t *unit, uint32_t i, struct block512 *b)
{
    const uint8_t *pairs = unit + HALVES_QUANTS + (PAIRS_BYTES + BITS_BYTES) * i;
    const __m512i four = _mm512_set1_epi8(4), bits = load_zmm(pairs + PAIRS_BYTES);
    b->d = load_half(unit + K_D);
    b->sc0 = _mm512_cvtepi8_epi16(_mm256_load_si256((const void *)(unit + HALVES_SC + 32 * i)));
    unpack_pairs(pairs, b->q);
    UNROLL
    for (int g = 0; g < 8; g++) {
        __m512i at = g <= 2 ? _mm512_slli_epi32(bits, 2 - g) : _mm512_srli_epi32(bits, g - 2);
        b->q[g] = _mm512_ternarylogic_epi32(b->q[g], at, four, 0xf8);
    }
}

INLINE uint32_t unit_bytes(enum weight_type type)
{
    switch (type) {
    case WEIGHT_Q8_0:
        return 1088;
    case WEIGHT_Q4_0:
    case WEIGHT_IQ4_NL:
    case WEIGHT_MXFP4:
        return 576;
    case WEIGHT_Q4_1:
        return 640;
    case WEIGHT_Q5_0:
        return 704;
    case WEIGHT_Q5_1:
        return 768;
    case WEIGHT_Q2_K:
        return 1344;
    case WEIGHT_Q3_K:
        return 1856;
    case WEIGHT_IQ4_XS:
        return 2240;
    case WEIGHT_Q4_K:
        return 2368;
    case WEIGHT_Q5_K:
        return 2880;
    default:
        return 3392;
    }
}

/* Block i of a unit. */
INLINE void unpack(enum weight_type type, const uint8_t *unit, uint32_t i, struct block512 *b)
{
    switch (type) {
    case WEIGHT_Q8_0:
        b->d = load_half(unit + 32 * i);
        UNROLL
        for (int g = 0; g < 8; g++)
            b->q[g] = _mm512_xor_si512(load_zmm(unit + 64 + 512 * i + 64 * g),
                                       _mm512_set1_epi8((char)0x80));
        break;
    case WEIGHT_Q4_0:
        b->d = load_half(unit + 32 * i);
        unpack_nibbles(unit + 64 + NIBBLES_BYTES * i, b->q);
        break;
    case WEIGHT_Q4_1:
        b->d = load_half(unit + 32 * i);
        b->m = load_half(unit + UNIT_M + 32 * i);
        unpack_nibbles(unit + 128 + NIBBLES_BYTES * i, b->q);
        break;
    case WEIGHT_Q5_0:
        b->d = load_half(unit + 32 * i);
        unpack_nibbles(unit + 64 + (NIBBLES_BYTES + BITS_BYTES) * i, b->q);
        unpack_bits(unit + 64 + (NIBBLES_BYTES + BITS_BYTES) * i + NIBBLES_BYTES, b->q);
        break;
    case WEIGHT_Q5_1:
        b->d = load_half(unit + 32 * i);
        b->m = load_half(unit + UNIT_M + 32 * i);
        unpack_nibbles(unit + 128 + (NIBBLES_BYTES + BITS_BYTES) * i, b->q);
        unpack_bits(unit + 128 + (NIBBLES_BYTES + BITS_BYTES) * i + NIBBLES_BYTES, b->q);
        break;
    case WEIGHT_IQ4_NL:
        b->d = load_half(unit + 32 * i);
        unpack_table(unit + 64 + NIBBLES_BYTES * i, iq4_values, 128, b->q);
        break;
    case WEIGHT_IQ4_XS:
        b->d = _mm512_mul_ps(load_half(unit + K_D),
                             _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                                 _mm_load_si128((const void *)(unit + XS_SC + 16 * i)))));
        unpack_table(unit + XS_QUANTS + NIBBLES_BYTES * i, iq4_values, 128, b->q);
        break;
    case WEIGHT_MXFP4:
        b->d = _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu8_epi32(_mm_load_si128((const void *)(unit + 16 * i))), 23));
        unpack_table(unit + 64 + NIBBLES_BYTES * i, mxfp4_values, 16, b->q);
        break;
    case WEIGHT_Q2_K:
        unpack_q2(unit, i, b);
        break;
    default:
        unpack_q3(unit, i, b);
    }
}

/* Quants and sub-scales of block i. */
INLINE void unpack256(enum weight_type type, const uint8_t *unit, uint32_t i, struct block512 *b)
{
    if (type == WEIGHT_Q6_K) {
        const uint8_t *sc = unit + Q6_SC + 32 * i;
        b->sc0 = _mm512_cvtepi8_epi32(_mm_load_si128((const void *)sc));
        b->sc1 = _mm512_cvtepi8_epi32(_mm_load_si128((const void *)(sc + 16)));
        unpack_q6(unit + Q6_QUANTS + Q6_BLOCK_BYTES * i, b->q);
        return;
    }
    const uint8_t *src =
        unit + K_QUANTS + (NIBBLES_BYTES + (type == WEIGHT_Q5_K ? BITS_BYTES : 0)) * i;
    b->sc0 = _mm512_cvtepu8_epi32(_mm_load_si128((const void *)(unit + K_SC + 16 * i)));
    unpack_nibbles(src, b->q);
    if (type == WEIGHT_Q5_K)
        unpack_bits(src + NIBBLES_BYTES, b->q);
}

#endif
