/* vec256.h: what the AVX2 files share. 16 lanes are two registers: lanes 0-7 and 8-15. */
#ifndef KERNELS_VEC256_H
#define KERNELS_VEC256_H

#include <immintrin.h>
#include <math.h>

#include "core/kernels/kernels_priv.h"

struct lanes16 {
    __m256 a, b;
};

/* The first n of 8 lanes, as maskload wants it. */
static inline __m256i first8(uint32_t n)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > 8 ? 8 : (int32_t)n), index);
}

/* x[i … i+8), zeros from x[n] on; i may be ≥ n. */
static inline __m256 load_first8(const float *x, uint32_t i, uint32_t n)
{
    if (i + 8 <= n)
        return _mm256_loadu_ps(x + i);
    return i < n ? _mm256_maskload_ps(x + i, first8(n - i)) : _mm256_setzero_ps();
}

static inline void store_first8(float *y, uint32_t i, uint32_t n, __m256 v)
{
    if (i + 8 <= n)
        _mm256_storeu_ps(y + i, v);
    else if (i < n)
        _mm256_maskstore_ps(y + i, first8(n - i), v);
}

/* The tree of kernels.h. */
static inline float tree16_256(struct lanes16 s)
{
    __m256 a = _mm256_add_ps(s.a, s.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* What sources written for registers of any width call (float_products.inc). */
typedef struct lanes16 lanes16;

static inline lanes16 zero_lanes(void)
{
    return (lanes16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline lanes16 load_lanes(const float *x)
{
    return (lanes16){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}

static inline lanes16 fma_lanes(lanes16 x, lanes16 y, lanes16 z)
{
    return (lanes16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

static inline float fold_lanes(lanes16 s)
{
    return tree16_256(s);
}

/* exp of kernels_priv.h. */
static inline __m256 exp256(__m256 x)
{
    const __m256 low = _mm256_set1_ps(EXP_LOW), magic = _mm256_set1_ps(EXP_MAGIC);
    const __m256 alive = _mm256_cmp_ps(x, low, _CMP_NLT_UQ);
    /* max and min return the second operand if one is NaN. */
    __m256 v = _mm256_min_ps(_mm256_set1_ps(EXP_HIGH), _mm256_max_ps(low, x));
    __m256 t = _mm256_fmadd_ps(v, _mm256_set1_ps(EXP_LOG2E), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_HIGH), v);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EXP_P0), r, _mm256_set1_ps(EXP_P1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_P2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_P3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_P4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_P5));
    __m256 y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127 - EXP_MAGIC_BITS)), 23);
    return _mm256_and_ps(alive, _mm256_mul_ps(y, _mm256_castsi256_ps(power)));
}

static inline float max8(__m256 m)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

/* Turns a query's scores into weights; sets its max and sum. */
static inline void softmax256(struct attention_query *query, float *scores)
{
    const uint32_t count = query->count;
    const __m256 nothing = _mm256_set1_ps(-INFINITY);
    struct lanes16 s = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 m = nothing;

    for (uint32_t p = 0; p < count; p += 8)
        m = _mm256_max_ps(m, _mm256_blendv_ps(nothing, _mm256_loadu_ps(scores + p),
                                              _mm256_castsi256_ps(first8(count - p))));
    query->max = max8(m) + 0.0f;
    m = _mm256_set1_ps(query->max);
    for (uint32_t p = 0; p < count; p += 8) {
        __m256 e = exp256(_mm256_sub_ps(_mm256_loadu_ps(scores + p), m));
        _mm256_storeu_ps(scores + p, e);
        e = _mm256_and_ps(e, _mm256_castsi256_ps(first8(count - p)));
        if (p & 8)
            s.b = _mm256_add_ps(s.b, e);
        else
            s.a = _mm256_add_ps(s.a, e);
    }
    query->sum = tree16_256(s);
}

void avx2_fill_vector(struct kernels *k);
void avx2_fill_products(struct kernels *k);
void avxvnni_fill_products(struct kernels *k); /* the same source */
void avx2_fill_float_products(struct kernels *k);
void avx2_fill_attention(struct kernels *k);
void avx2_fill_attention_q8(struct kernels *k);

#endif
