/* vec512.h: what the AVX-512 files share. */
#ifndef KERNELS_VEC512_H
#define KERNELS_VEC512_H

#include <immintrin.h>
#include <math.h>

#include "core/kernels/kernels_priv.h"

/* The first n of 16 lanes. */
static inline __mmask16 first16(uint32_t n)
{
    return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* The tree of kernels.h over 16 lanes. */
static inline float tree16_512(__m512 s)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

enum fold { FOLD_MAX, FOLD_MAX_BITS, FOLD_SUM };

static inline __m512 combine(enum fold fold, __m512 a, __m512 b)
{
    if (fold == FOLD_SUM)
        return _mm512_add_ps(a, b);
    if (fold == FOLD_MAX)
        return _mm512_max_ps(a, b);
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/* Lane q: the 16 lanes of m[q], folded as kernels.h has it: those 8 apart, 4, 2, 1. */
static inline __m128 fold_four(enum fold fold, const __m512 m[4])
{
    const __m512i four = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    const __m512 a = combine(fold, _mm512_shuffle_f32x4(m[0], m[1], 0x44),
                             _mm512_shuffle_f32x4(m[0], m[1], 0xee));
    const __m512 b = combine(fold, _mm512_shuffle_f32x4(m[2], m[3], 0x44),
                             _mm512_shuffle_f32x4(m[2], m[3], 0xee));
    __m512 c = combine(fold, _mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    c = combine(fold, c, _mm512_permute_ps(c, 0x4e));
    c = combine(fold, c, _mm512_permute_ps(c, 0xb1));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(four, c));
}

/* What sources written for registers of any width call (float_products.inc). */
typedef __m512 lanes16;

static inline lanes16 zero_lanes(void)
{
    return _mm512_setzero_ps();
}

static inline lanes16 load_lanes(const float *x)
{
    return _mm512_loadu_ps(x);
}

static inline lanes16 fma_lanes(lanes16 x, lanes16 y, lanes16 z)
{
    return _mm512_fmadd_ps(x, y, z);
}

static inline float fold_lanes(lanes16 s)
{
    return tree16_512(s);
}

/* e^x of kernels_priv.h without its power of two: *t is EXP_MAGIC and that power. */
static inline __m512 exp512_fraction(__m512 x, __m512 *t)
{
    const __m512 magic = _mm512_set1_ps(EXP_MAGIC);
    *t = _mm512_fmadd_ps(x, _mm512_set1_ps(EXP_LOG2E), magic);
    const __m512 n = _mm512_sub_ps(*t, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_HIGH), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_LOW), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(EXP_P0), r, _mm512_set1_ps(EXP_P1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_P2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_P3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_P4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_P5));
    return _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
}

/* Numbers whose exp is not taken for 0; NaN is one. */
static inline __mmask16 exp512_alive(__m512 x)
{
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_LOW), _CMP_NLT_UQ);
}

/* exp of kernels_priv.h. */
static inline __m512 exp512(__m512 x)
{
    /* max and min return the second operand if one is NaN. */
    const __m512 v =
        _mm512_min_ps(_mm512_set1_ps(EXP_HIGH), _mm512_max_ps(_mm512_set1_ps(EXP_LOW), x));
    __m512 t;
    const __m512 y = exp512_fraction(v, &t);
    const __m512i power = _mm512_slli_epi32(
        _mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127 - EXP_MAGIC_BITS)), 23);
    return _mm512_maskz_mul_ps(exp512_alive(x), y, _mm512_castsi512_ps(power));
}

/* exp512 of numbers ≤ 0, in fewer operations: what lies below EXP_LOW is masked away whatever it became, and the
 * power is applied exactly. */
static inline __m512 exp512_falling(__m512 x)
{
    __m512 t;
    const __m512 y = exp512_fraction(x, &t);
    return _mm512_maskz_scalef_ps(exp512_alive(x), y, _mm512_sub_ps(t, _mm512_set1_ps(EXP_MAGIC)));
}

/* Sets a query's max: of its scores. */
static inline void max512(struct attention_query *query, const float *scores)
{
    const uint32_t count = query->count, whole = count & ~31u;
    __m512 m = _mm512_set1_ps(-INFINITY), n = m;
    for (uint32_t p = 0; p < whole; p += 32) {
        m = _mm512_max_ps(m, _mm512_loadu_ps(scores + p));
        n = _mm512_max_ps(n, _mm512_loadu_ps(scores + p + 16));
    }
    if (count > whole)
        m = _mm512_mask_max_ps(m, first16(count - whole), m, _mm512_loadu_ps(scores + whole));
    if (count > whole + 16)
        n = _mm512_mask_max_ps(n, first16(count - whole - 16), n,
                               _mm512_loadu_ps(scores + whole + 16));
    query->max = count == 0 ? -INFINITY : _mm512_reduce_max_ps(_mm512_max_ps(m, n)) + 0.0f;
}

/* Turns a query's scores into weights, zeros behind them up to a multiple of 16; sets its sum. */
static inline void exp_sum512(struct attention_query *query, float *scores)
{
    const uint32_t count = query->count, whole = count & ~15u;
    const __m512 m = _mm512_set1_ps(query->max);
    __m512 s = _mm512_setzero_ps();
    for (uint32_t p = 0; p < whole; p += 16) {
        const __m512 e = exp512_falling(_mm512_sub_ps(_mm512_loadu_ps(scores + p), m));
        _mm512_storeu_ps(scores + p, e);
        s = _mm512_add_ps(s, e);
    }
    if (whole < count) {
        const __m512 e = exp512_falling(_mm512_sub_ps(_mm512_loadu_ps(scores + whole), m));
        _mm512_storeu_ps(scores + whole, _mm512_maskz_mov_ps(first16(count - whole), e));
        s = _mm512_mask_add_ps(s, first16(count - whole), s, e);
    }
    query->sum = tree16_512(s);
}

void avx512_fill_vector(struct kernels *k);
void avx512_fill_products(struct kernels *k);
void avx512_fill_float_products(struct kernels *k);
void avx512_fill_attention(struct kernels *k);
void avx512_fill_attention_q8(struct kernels *k);
void avx512_fill_store_q8(struct kernels *k);

#endif
