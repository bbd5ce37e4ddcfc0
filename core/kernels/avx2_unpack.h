/* avx2_unpack.h: half a panel (8 rows) → what avx2_products.c multiplies: group g of four columns as bytes, and the scales.
 * Forced inline: type, block and group are constants there. */
#ifndef KERNELS_AVX2_UNPACK_H
#define KERNELS_AVX2_UNPACK_H

#include "core/kernels/dot256.h"
#include "core/kernels/vec256.h"
#include "core/kernels/weight_traits.h"

INLINE __m256 load_half(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const void *)p));
}

INLINE __m256i load_ymm(const uint8_t *p)
{
    return _mm256_load_si256((const void *)p);
}

INLINE bool has_bits(enum weight_type type)
{
    return type == WEIGHT_Q5_0 || type == WEIGHT_Q5_1 || type == WEIGHT_Q5_K;
}

/* Types whose weights are signed bytes; to vpdpbusd they come with 128 added. */
INLINE bool is_signed(enum weight_type type)
{
    return type == WEIGHT_Q8_0 || type == WEIGHT_IQ4_NL || type == WEIGHT_IQ4_XS;
}

/* Types with scales of 16 columns. */
INLINE bool has_halves(enum weight_type type)
{
    return type == WEIGHT_Q2_K || type == WEIGHT_Q3_K;
}

/* Where block i's quants begin in its unit. */
INLINE uint32_t quants_at(enum weight_type type, uint32_t i)
{
    switch (type) {
    case WEIGHT_Q8_0:
        return 64 + 512 * i;
    case WEIGHT_Q6_K:
        return Q6_QUANTS + Q6_BLOCK_BYTES * i;
    case WEIGHT_Q2_K:
        return HALVES_QUANTS + PAIRS_BYTES * i;
    case WEIGHT_Q3_K:
        return HALVES_QUANTS + (PAIRS_BYTES + BITS_BYTES) * i;
    case WEIGHT_IQ4_XS:
        return XS_QUANTS + NIBBLES_BYTES * i;
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        return K_QUANTS + (NIBBLES_BYTES + (has_bits(type) ? BITS_BYTES : 0)) * i;
    default:
        return (has_min(type) ? 128 : 64) + (NIBBLES_BYTES + (has_bits(type) ? BITS_BYTES : 0)) * i;
    }
}

/* With 128 added, which turns the sign bit over. */
INLINE __m256i raised(__m256i v)
{
    return _mm256_xor_si256(v, _mm256_set1_epi8(-128));
}

/* Values that nibbles stand for; MXFP4's plus 16. */
INLINE __m256i look_up(enum weight_type type, __m256i nibbles)
{
    const int8_t *table = type == WEIGHT_MXFP4 ? mxfp4_values : iq4_values;
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    if (type == WEIGHT_MXFP4)
        values = _mm256_add_epi8(values, _mm256_set1_epi8(16));
    else if (DOT256_EXACT)
        values = raised(values);
    return _mm256_shuffle_epi8(values, nibbles);
}

/* Group g (columns 4g … 4g+3) of 8 rows; half = 0 or 32: which rows. Unsigned, but for is_signed types without
 * vpdpbusd. */
INLINE __m256i group(enum weight_type type, const uint8_t *quants, uint32_t half, int g)
{
    const __m256i low = _mm256_set1_epi8(15);
    if (type == WEIGHT_Q8_0) {
        const __m256i v = load_ymm(quants + 64 * g + half);
        return DOT256_EXACT ? raised(v) : v;
    }
    if (type == WEIGHT_Q6_K) {
        __m256i v = load_ymm(quants + 64 * (g / 2) + half);
        __m256i high = load_ymm(quants + Q6_LOW_BYTES + 64 * (g / 4) + half);
        v = _mm256_and_si256(g & 1 ? _mm256_srli_epi32(v, 4) : v, low);
        high = g % 4 == 0   ? high
               : g % 4 == 1 ? _mm256_srli_epi32(high, 2)
               : g % 4 == 2 ? _mm256_slli_epi32(high, 4)
                            : _mm256_slli_epi32(high, 2);
        return _mm256_or_si256(v, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
    }
    if (type == WEIGHT_Q2_K || type == WEIGHT_Q3_K) {
        __m256i v = load_ymm(quants + 64 * (g / 4) + half);
        v = _mm256_and_si256(_mm256_srli_epi32(v, 2 * (g % 4)), _mm256_set1_epi8(3));
        if (type == WEIGHT_Q3_K) {
            __m256i bits = load_ymm(quants + PAIRS_BYTES + half);
            bits = g <= 2 ? _mm256_slli_epi32(bits, 2 - g) : _mm256_srli_epi32(bits, g - 2);
            v = _mm256_or_si256(v, _mm256_and_si256(bits, _mm256_set1_epi8(4)));
        }
        return v;
    }
    __m256i v = load_ymm(quants + 64 * (g % 4) + half);
    v = _mm256_and_si256(g >= 4 ? _mm256_srli_epi32(v, 4) : v, low);
    if (has_bits(type)) {
        __m256i bits = load_ymm(quants + NIBBLES_BYTES + half);
        bits = g <= 4 ? _mm256_slli_epi32(bits, 4 - g) : _mm256_srli_epi32(bits, g - 4);
        v = _mm256_or_si256(v, _mm256_and_si256(bits, _mm256_set1_epi8(16)));
    }
    if (type == WEIGHT_IQ4_NL || type == WEIGHT_IQ4_XS || type == WEIGHT_MXFP4)
        return look_up(type, v);
    return v;
}

/* Scale and minimum of block i of a unit, rows of the half. */
INLINE void scales(enum weight_type type, const uint8_t *unit, uint32_t i, uint32_t half, __m256 *d,
                   __m256 *m)
{
    if (has_halves(type)) {
        *d = load_half(unit + K_D + half / 2);
        if (type == WEIGHT_Q2_K)
            *m = load_half(unit + K_DMIN + half / 2);
    } else if (type == WEIGHT_MXFP4) {
        *d = _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(unit + 16 * i + half / 4))), 23));
    } else if (type == WEIGHT_IQ4_XS) {
        __m128i sc = _mm_loadl_epi64((const void *)(unit + XS_SC + 16 * i + half / 4));
        *d = _mm256_mul_ps(load_half(unit + K_D + half / 2),
                           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc)));
    } else {
        *d = load_half(unit + 32 * i + half / 2);
        if (has_min(type))
            *m = load_half(unit + UNIT_M + 32 * i + half / 2);
    }
}

/* Sub-scales of the first (h = 0) or second 16 columns of a Q6_K block. */
INLINE __m256i sub_scales(const uint8_t *unit, uint32_t i, uint32_t h, uint32_t half)
{
    return _mm256_cvtepi8_epi32(
        _mm_loadl_epi64((const void *)(unit + Q6_SC + 32 * i + 16 * h + half / 4)));
}

/* Scales (Q3_K: signed) or scales and minimums (Q2_K: s + 16 m) of both halves of 8 rows, as pairs of words. */
INLINE __m256i scale_pairs(enum weight_type type, const uint8_t *unit, uint32_t i, uint32_t half)
{
    const __m128i v = _mm_load_si128((const void *)(unit + HALVES_SC + 32 * i + half / 2));
    return type == WEIGHT_Q3_K ? _mm256_cvtepi8_epi16(v) : _mm256_cvtepu8_epi16(v);
}

#endif
