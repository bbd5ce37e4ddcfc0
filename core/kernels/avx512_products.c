/* avx512_products.c: products of quantised weights with VNNI.
 *
 * A tile is a panel (16 rows) times up to eight columns. Per 32 columns of K the weights are unpacked into eight
 * registers, register g holding columns 4g … 4g+3 of the 16 rows as bytes; each column multiplies them by its
 * eight dwords, broadcast from memory, in one integer accumulator, and folds that into its own f32
 * accumulator. Weights are made unsigned for vpdpbusd; the zero point comes off by starting the integer sum
 * at −zp·Σx, which the packed activations carry. The sum is made in two chains, so that fewer columns
 * hide the latency. Q4_K, Q5_K and Q6_K stay integers over 256 columns (tile256): what multiplies costs time
 * here, and a vector product, a scale and a fold a block are one instruction less each.
 *
 * Panels are read one after the other: on Zen 4 one stream a thread is as fast as memory (measured: 30 GB/s
 * where two streams give 26 and four 15); up to two columns the hardware prefetches best by itself, from
 * three on the out-of-order window no longer reaches far enough ahead. */
#include <stdbool.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/vec512.h"
#include "core/kernels/weights_priv.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define MAX_NC 8
/* A single tile prefetches so far ahead, from so many columns on. Of several tiles, the last one fetches the
 * whole next panel. */
#define PREFETCH_BYTES 4608u
#define PREFETCH_FROM 3u

/* Weights of 16 rows x 32 columns. */
struct block512 {
    __m512i q[8];
    __m512 d, m;
    __m512i sc0, sc1; /* Q3_K: both halves' in sc0; Q2_K: unpack_q2 */
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

INLINE bool has_min(enum weight_type type)
{
    return type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1;
}

/* Integers over 256 columns, activations with one scale for them. */
INLINE bool is_256(enum weight_type type)
{
    return type == WEIGHT_Q4_K || type == WEIGHT_Q5_K || type == WEIGHT_Q6_K;
}

INLINE uint32_t unit_blocks(enum weight_type type)
{
    switch (type) {
    case WEIGHT_Q2_K:
    case WEIGHT_Q3_K:
    case WEIGHT_IQ4_XS:
        return 8;
    default:
        return 2;
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

/* sum += weights · the column's group g, broadcast by the instruction itself: compilers load it to a register
 * for all panels of a tile and run out of registers. */
INLINE __m512i dot(__m512i sum, __m512i weights, const int8_t *x, int g)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sum)
            : "v"(weights), "m"(*(const int32_t(*)[1])(const void *)(x + 4 * g)));
    return sum;
}

/* sum + the eight groups. */
INLINE __m512i dot_block(__m512i sum, const __m512i q[8], const int8_t *x)
{
    __m512i other = _mm512_setzero_si512();
    UNROLL
    for (int g = 0; g < 8; g += 2) {
        sum = dot(sum, q[g], x, g);
        other = dot(other, q[g + 1], x, g + 1);
    }
    return _mm512_add_epi32(sum, other);
}

/* The two seeds as words of every dword: −8 · 32 · 127 fits. */
INLINE __m512i seeds(const struct act_block *x)
{
    int64_t both;
    memcpy(&both, (const char *)x + offsetof(struct act_block, seed), sizeof(both));
    return _mm512_shuffle_epi8(_mm512_set1_epi64(both), _mm512_set1_epi32(0x05040100));
}

/* Sums of the two halves, begun at `first` and `second`, as words of a dword: at most 16 · 4 · 127. */
INLINE __m512i dot_halves(const struct block512 *b, const struct act_block *x, __m512i first,
                          __m512i second)
{
    UNROLL
    for (int g = 0; g < 4; g++) {
        first = dot(first, b->q[g], x->q, g);
        second = dot(second, b->q[g + 4], x->q, g + 4);
    }
    return _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16));
}

/* f += block · column. */
INLINE __m512 accumulate(enum weight_type type, const struct block512 *b, const struct act_block *x,
                         __m512 f)
{
    __m512i sum;
    if (type == WEIGHT_Q2_K) {
        const __m512i zero = _mm512_setzero_si512();
        sum = _mm512_madd_epi16(dot_halves(b, x, zero, zero), b->sc0);
    } else if (type == WEIGHT_Q3_K) {
        /* Zero point 4: half the seed. */
        __m512i first = _mm512_srai_epi32(_mm512_set1_epi32(x->seed16), 1);
        __m512i second = _mm512_srai_epi32(_mm512_set1_epi32(x->seed - x->seed16), 1);
        sum = _mm512_madd_epi16(dot_halves(b, x, first, second), b->sc0);
    } else {
        sum = has_min(type) ? _mm512_setzero_si512() : _mm512_set1_epi32(x->seed);
        if (type == WEIGHT_Q8_0 || type == WEIGHT_IQ4_NL || type == WEIGHT_IQ4_XS)
            sum = _mm512_slli_epi32(sum, 4);
        if (type == WEIGHT_Q5_0 || type == WEIGHT_MXFP4)
            sum = _mm512_slli_epi32(sum, 1);
        sum = dot_block(sum, b->q, x->q);
    }
    f = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(b->d, _mm512_set1_ps(x->d)), f);
    if (has_min(type))
        f = _mm512_fmadd_ps(b->m, _mm512_set1_ps(x->dsum), f);
    if (type == WEIGHT_Q2_K) {
        __m512i min = _mm512_srai_epi32(_mm512_madd_epi16(seeds(x), b->sc1), 3);
        f = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min), _mm512_mul_ps(b->m, _mm512_set1_ps(x->d)), f);
    }
    return f;
}

/* One panel times nc columns. */
struct tile {
    const uint8_t *w;
    size_t ahead; /* bytes from what is read to what is prefetched; 0: nothing */
    uint32_t units;
    const uint8_t *x; /* first column */
    size_t stride;
    float *y; /* the panel's rows of the first column */
    size_t ldy;
    __mmask16 rows;
    bool add;
};

typedef void tile_fn(const struct tile *t);

INLINE void tile_store(const struct tile *t, int nc, const __m512 f[MAX_NC])
{
    UNROLL
    for (int c = 0; c < nc; c++) {
        float *y = t->y + (size_t)c * t->ldy;
        __m512 v = f[c];
        if (t->add)
            v = _mm512_add_ps(_mm512_maskz_loadu_ps(t->rows, y), v);
        _mm512_mask_storeu_ps(y, t->rows, v);
    }
}

/* Column c of a tile whose columns 0, 3 and 6 are at x: few registers address all. */
INLINE const void *column(const uint8_t *const x[3], size_t stride, int c)
{
    return x[c / 3] + (size_t)(c % 3) * stride;
}

/* Fetches block i of `blocks` of what lies `ahead` of a unit. */
INLINE void prefetch(const uint8_t *unit, size_t ahead, uint32_t bytes, uint32_t i)
{
    if (ahead)
        for (uint32_t line = 0; line < bytes; line += 64)
            _mm_prefetch((const char *)unit + ahead + bytes * i + line, _MM_HINT_T0);
}

INLINE void tile_run(enum weight_type type, int nc, const struct tile *t)
{
    const uint32_t bytes = unit_bytes(type), blocks = unit_blocks(type);
    const size_t stride = t->stride, ahead = t->ahead;
    const uint8_t *w = t->w;
    const uint8_t *x[3] = {t->x, t->x + 3 * stride, t->x + 6 * stride};
    __m512 f[MAX_NC];

    UNROLL
    for (int c = 0; c < nc; c++)
        f[c] = _mm512_setzero_ps();
    for (uint32_t u = 0; u < t->units; u++) {
        for (uint32_t i = 0; i < blocks; i++) {
            struct block512 b;
            prefetch(w, ahead, bytes / blocks, i);
            unpack(type, w, i, &b);
            UNROLL
            for (int c = 0; c < nc; c++)
                f[c] =
                    accumulate(type, &b, (const struct act_block *)column(x, stride, c) + i, f[c]);
        }
        w += bytes;
        UNROLL
        for (int c = 0; c < 3; c++)
            x[c] += blocks * sizeof(struct act_block);
    }
    tile_store(t, nc, f);
}

/* sum + block i of a unit · the columns at x, not yet shifted. */
INLINE __m512i scaled_dots(enum weight_type type, const __m512i q[8], const __m512i sc[2],
                           const struct act_block256 *x)
{
    if (type != WEIGHT_Q6_K)
        return _mm512_mullo_epi32(dot_block(_mm512_setzero_si512(), q, x->q), sc[0]);
    __m512i first = _mm512_set1_epi32(x->seeds[0]), second = _mm512_set1_epi32(x->seeds[1]);
    UNROLL
    for (int g = 0; g < 4; g++) {
        first = dot(first, q[g], x->q, g);
        second = dot(second, q[g + 4], x->q, g + 4);
    }
    return _mm512_add_epi32(_mm512_mullo_epi32(first, sc[0]), _mm512_mullo_epi32(second, sc[1]));
}

/* Quants and sub-scales of block i. */
INLINE void unpack256(enum weight_type type, const uint8_t *unit, uint32_t i, __m512i q[8],
                      __m512i sc[2])
{
    if (type == WEIGHT_Q6_K) {
        for (uint32_t h = 0; h < 2; h++)
            sc[h] = _mm512_cvtepi8_epi32(
                _mm_load_si128((const void *)(unit + Q6_SC + 32 * i + 16 * h)));
        unpack_q6(unit + Q6_QUANTS + Q6_BLOCK_BYTES * i, q);
        return;
    }
    const uint8_t *src =
        unit + K_QUANTS + (NIBBLES_BYTES + (type == WEIGHT_Q5_K ? BITS_BYTES : 0)) * i;
    sc[0] = _mm512_cvtepu8_epi32(_mm_load_si128((const void *)(unit + K_SC + 16 * i)));
    unpack_nibbles(src, q);
    if (type == WEIGHT_Q5_K)
        unpack_bits(src + NIBBLES_BYTES, q);
}

/* f[c] += the unit's scales · sums[c], minimums off. */
INLINE void fold256(enum weight_type type, int nc, const uint8_t *unit, const uint8_t *const x[3],
                    size_t stride, const __m512i sums[MAX_NC], __m512 f[MAX_NC])
{
    const __m512 d = load_half(unit + K_D), dmin = load_half(unit + K_DMIN);
    __m512i m[4];
    if (type != WEIGHT_Q6_K)
        UNROLL
    for (uint32_t k = 0; k < 4; k++)
        m[k] = _mm512_cvtepu8_epi16(_mm256_load_si256((const void *)(unit + K_M + 32 * k)));
    UNROLL
    for (int c = 0; c < nc; c++) {
        const struct act_block256 *b = column(x, stride, c);
        const __m512 dy = _mm512_set1_ps(b->d), sum = _mm512_cvtepi32_ps(sums[c]);
        if (type == WEIGHT_Q6_K) {
            f[c] = _mm512_fmadd_ps(sum, _mm512_mul_ps(d, dy), f[c]);
            continue;
        }
        __m512i min = _mm512_setzero_si512();
        UNROLL
        for (int k = 0; k < 4; k++) {
            int32_t pair;
            memcpy(&pair, b[2 * k + 1].sums, sizeof(pair));
            min = _mm512_dpwssd_epi32(min, m[k], _mm512_set1_epi32(pair));
        }
        f[c] = _mm512_fmadd_ps(
            _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min), dmin, _mm512_mul_ps(sum, d)), dy, f[c]);
    }
}

INLINE void tile256(enum weight_type type, int nc, const struct tile *t)
{
    const uint32_t bytes = unit_bytes(type);
    const size_t stride = t->stride, ahead = t->ahead;
    const uint8_t *w = t->w;
    const uint8_t *x[3] = {t->x, t->x + 3 * stride, t->x + 6 * stride};
    __m512 f[MAX_NC];

    UNROLL
    for (int c = 0; c < nc; c++)
        f[c] = _mm512_setzero_ps();
    for (uint32_t u = 0; u < t->units; u++) {
        __m512i sums[MAX_NC];
        UNROLL
        for (int c = 0; c < nc; c++)
            sums[c] = _mm512_setzero_si512();
        for (uint32_t i = 0; i < 8; i++) {
            __m512i q[8], sc[2];
            prefetch(w, ahead, bytes / 8, i);
            unpack256(type, w, i, q, sc);
            UNROLL
            for (int c = 0; c < nc; c++) {
                const struct act_block256 *b =
                    (const struct act_block256 *)column(x, stride, c) + i;
                sums[c] = _mm512_add_epi32(sums[c], _mm512_sllv_epi32(scaled_dots(type, q, sc, b),
                                                                      _mm512_set1_epi32(b->shift)));
            }
        }
        fold256(type, nc, w, x, stride, sums, f);
        w += bytes;
        UNROLL
        for (int c = 0; c < 3; c++)
            x[c] += 8 * sizeof(struct act_block256);
    }
    tile_store(t, nc, f);
}

static void product(tile_fn *const fns[MAX_NC + 1], const struct matrix *w, uint32_t p0,
                    uint32_t p1, const struct acts *x, uint32_t c0, uint32_t n, float *y,
                    size_t ldy, bool add)
{
    const uint32_t tiles = (n + MAX_NC - 1) / MAX_NC;
    struct tile t = {.units = w->units, .stride = x->stride, .ldy = ldy, .add = add};

    check(x->kind == weight_info(w->type)->acts && x->cols == w->cols);
    for (uint32_t p = p0; p < p1; p++) {
        uint32_t c = 0;
        t.w = w->data + p * w->panel_bytes;
        t.rows = first16(w->rows - p * PANEL_ROWS);
        for (uint32_t k = 0; k < tiles; k++) {
            const uint32_t columns = (n - c) / (tiles - k);
            t.x = acts_column(x, c0 + c);
            t.y = y + (size_t)c * ldy + (size_t)p * PANEL_ROWS;
            if (tiles > 1)
                t.ahead = k + 1 == tiles ? w->panel_bytes : 0;
            else
                t.ahead = n < PREFETCH_FROM ? 0 : PREFETCH_BYTES;
            fns[columns](&t);
            c += columns;
        }
    }
}

#define TILE(type, nc)                                                                             \
    static void tile_##type##_##nc(const struct tile *t)                                           \
    {                                                                                              \
        if (is_256(WEIGHT_##type))                                                                 \
            tile256(WEIGHT_##type, nc, t);                                                         \
        else                                                                                       \
            tile_run(WEIGHT_##type, nc, t);                                                        \
    }
#define TILES(type)                                                                                \
    TILE(type, 1)                                                                                  \
    TILE(type, 2)                                                                                  \
    TILE(type, 3)                                                                                  \
    TILE(type, 4)                                                                                  \
    TILE(type, 5)                                                                                  \
    TILE(type, 6)                                                                                  \
    TILE(type, 7)                                                                                  \
    TILE(type, 8)                                                                                  \
    static void product_##type(const struct matrix *w, uint32_t p0, uint32_t p1,                   \
                               const struct acts *x, uint32_t c0, uint32_t n, float *y,            \
                               size_t ldy, bool add)                                               \
    {                                                                                              \
        static tile_fn *const fns[MAX_NC + 1] = {                                                  \
            NULL,                                                                                  \
            tile_##type##_1,                                                                       \
            tile_##type##_2,                                                                       \
            tile_##type##_3,                                                                       \
            tile_##type##_4,                                                                       \
            tile_##type##_5,                                                                       \
            tile_##type##_6,                                                                       \
            tile_##type##_7,                                                                       \
            tile_##type##_8,                                                                       \
        };                                                                                         \
        product(fns, w, p0, p1, x, c0, n, y, ldy, add);                                            \
    }

TILES(Q8_0)
TILES(Q4_0)
TILES(Q4_1)
TILES(Q5_0)
TILES(Q5_1)
TILES(Q4_K)
TILES(Q5_K)
TILES(Q6_K)
TILES(IQ4_NL)
TILES(IQ4_XS)
TILES(MXFP4)
TILES(Q2_K)
TILES(Q3_K)

void avx512_fill_products(struct kernels *k)
{
    k->product[WEIGHT_Q8_0] = product_Q8_0;
    k->product[WEIGHT_Q4_0] = product_Q4_0;
    k->product[WEIGHT_Q4_1] = product_Q4_1;
    k->product[WEIGHT_Q5_0] = product_Q5_0;
    k->product[WEIGHT_Q5_1] = product_Q5_1;
    k->product[WEIGHT_Q4_K] = product_Q4_K;
    k->product[WEIGHT_Q5_K] = product_Q5_K;
    k->product[WEIGHT_Q6_K] = product_Q6_K;
    k->product[WEIGHT_IQ4_NL] = product_IQ4_NL;
    k->product[WEIGHT_IQ4_XS] = product_IQ4_XS;
    k->product[WEIGHT_MXFP4] = product_MXFP4;
    k->product[WEIGHT_Q2_K] = product_Q2_K;
    k->product[WEIGHT_Q3_K] = product_Q3_K;
}
