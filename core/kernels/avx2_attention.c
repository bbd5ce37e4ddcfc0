/* avx2_attention.c: KV stores and attention with AVX2, as avx512_attention.c with halves of its vectors and blocks of
 * up to three queries. */
#include <math.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/forced_inline.h"
#include "core/kernels/half.h"
#include "core/kernels/vec256.h"

#define BLOCK 3u
#define DIM_VECTORS 4u

/* 8 numbers of a tile from element i on. */
INLINE __m256 load_tile(enum kv_type type, const void *tile, size_t i)
{
    if (type == KV_F32)
        return _mm256_loadu_ps((const float *)tile + i);
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const uint16_t *)tile + i)));
}

/* As load_tile for the first n numbers, zeros behind them. */
INLINE __m256 load_tile_first(enum kv_type type, const void *tile, size_t i, uint32_t n)
{
    if (n >= 8)
        return load_tile(type, tile, i);
    if (type == KV_F32)
        return _mm256_maskload_ps((const float *)tile + i, first8(n));
    uint16_t half[8] = {0};
    memcpy(half, (const uint16_t *)tile + i, n * sizeof(*half));
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)half));
}

/* Scaled scores of nq queries against one tile. */
INLINE void score_tile(enum kv_type type, int nq, const struct attention_run *run,
                       const struct attention_query *queries, uint32_t tile,
                       float scores[BLOCK][KV_RUN_POSITIONS])
{
    const void *k = run->k[tile];
    const __m256 scale = _mm256_set1_ps(run->scale);
    __m256 s[BLOCK][4];

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s[q][j] = _mm256_setzero_ps();
    for (uint32_t d = 0; d < run->dim; d++) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            const __m256 v = load_tile(type, k, (size_t)d * KV_TILE_POSITIONS + 8 * (size_t)j);
            UNROLL
            for (int q = 0; q < nq; q++)
                s[q][j] = _mm256_fmadd_ps(v, _mm256_set1_ps(queries[q].q[d]), s[q][j]);
        }
    }
    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < 4; j++)
        _mm256_storeu_ps(scores[q] + tile * KV_TILE_POSITIONS + 8 * j,
                         _mm256_mul_ps(s[q][j], scale));
}

/* Continues the outputs of nq queries, nd vectors of dimensions from d on, over positions [begin, end). */
INLINE void weigh(enum kv_type type, int nq, int nd, const struct attention_run *run,
                  const struct attention_query *queries, const float (*weights)[KV_RUN_POSITIONS],
                  uint32_t begin, uint32_t end, uint32_t d)
{
    const uint32_t last = run->dim - d - 8 * ((uint32_t)nd - 1);
    __m256 out[BLOCK][DIM_VECTORS];

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        out[q][j] = load_first8(queries[q].out, d + 8 * (uint32_t)j, run->dim);
    for (uint32_t p = begin; p < end; p++) {
        const void *tile = run->v[p / KV_TILE_POSITIONS];
        const size_t at = (size_t)(p % KV_TILE_POSITIONS) * run->dim + d;
        UNROLL
        for (int j = 0; j < nd; j++) {
            const __m256 v = j + 1 < nd ? load_tile(type, tile, at + 8 * (size_t)j)
                                        : load_tile_first(type, tile, at + 8 * (size_t)j, last);
            UNROLL
            for (int q = 0; q < nq; q++)
                out[q][j] = _mm256_fmadd_ps(_mm256_set1_ps(weights[q][p]), v, out[q][j]);
        }
    }
    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        store_first8(queries[q].out, d + 8 * (uint32_t)j, run->dim, out[q][j]);
}

INLINE void weigh_dims(enum kv_type type, int nq, const struct attention_run *run,
                       const struct attention_query *queries,
                       const float (*weights)[KV_RUN_POSITIONS], uint32_t begin, uint32_t end)
{
    for (uint32_t d = 0; d < run->dim && begin < end; d += 8 * DIM_VECTORS) {
        const uint32_t vectors = (run->dim - d + 7) / 8;
        switch (vectors) {
        case 1:
            weigh(type, nq, 1, run, queries, weights, begin, end, d);
            break;
        case 2:
            weigh(type, nq, 2, run, queries, weights, begin, end, d);
            break;
        case 3:
            weigh(type, nq, 3, run, queries, weights, begin, end, d);
            break;
        default:
            weigh(type, nq, 4, run, queries, weights, begin, end, d);
        }
    }
}

/* nq ≤ BLOCK queries. */
INLINE void attend(enum kv_type type, int nq, const struct attention_run *run,
                   struct attention_query *queries)
{
    float weights[BLOCK][KV_RUN_POSITIONS] __attribute__((aligned(64)));
    uint32_t largest = 0, common = KV_RUN_POSITIONS;

    for (int q = 0; q < nq; q++) {
        largest = queries[q].count > largest ? queries[q].count : largest;
        common = queries[q].count < common ? queries[q].count : common;
        memset(queries[q].out, 0, (size_t)run->dim * sizeof(float));
    }
    check(run->tiles <= KV_RUN_TILES && largest <= run->tiles * KV_TILE_POSITIONS);
    for (uint32_t t = 0; t * KV_TILE_POSITIONS < largest; t++)
        score_tile(type, nq, run, queries, t, weights);
    for (int q = 0; q < nq; q++) {
        if (queries[q].count > 0) {
            softmax256(&queries[q], weights[q]);
        } else {
            queries[q].max = -INFINITY;
            queries[q].sum = 0;
        }
    }
    weigh_dims(type, nq, run, queries, (const float(*)[KV_RUN_POSITIONS])weights, 0, common);
    for (int q = 0; q < nq && nq > 1; q++)
        weigh_dims(type, 1, run, &queries[q], (const float(*)[KV_RUN_POSITIONS])weights[q], common,
                   queries[q].count);
}

#define ATTEND(name, type, nq)                                                                     \
    static __attribute__((noinline)) void name##_##nq(const struct attention_run *run,             \
                                                      struct attention_query *queries)             \
    {                                                                                              \
        attend(type, nq, run, queries);                                                            \
    }
#define ATTENTION(name, type)                                                                      \
    ATTEND(name, type, 1)                                                                          \
    ATTEND(name, type, 2)                                                                          \
    ATTEND(name, type, 3)                                                                          \
    static void name(const struct attention_run *run, struct attention_query *queries, uint32_t n) \
    {                                                                                              \
        for (; n >= 3; queries += 3, n -= 3)                                                       \
            name##_3(run, queries);                                                                \
        if (n == 2)                                                                                \
            name##_2(run, queries);                                                                \
        else if (n == 1)                                                                           \
            name##_1(run, queries);                                                                \
    }

ATTENTION(attention_f32, KV_F32)
ATTENTION(attention_f16, KV_F16)

INLINE __m128i to_half(__m256 v)
{
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static void store_k_f16(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                        uint32_t dim)
{
    uint16_t *out = (uint16_t *)tile + pos;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < dim; d += 8) {
            uint16_t half[8];
            _mm_storeu_si128((void *)half, to_half(load_first8(x + i * ldx, d, dim)));
            for (uint32_t j = 0; j < 8 && d + j < dim; j++)
                out[(size_t)(d + j) * KV_TILE_POSITIONS + i] = half[j];
        }
}

static void store_v_f16(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                        uint32_t dim)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *out = (uint16_t *)tile + (size_t)(pos + i) * dim;
        for (uint32_t d = 0; d < dim; d += 8) {
            uint16_t half[8];
            _mm_storeu_si128((void *)half, to_half(load_first8(x + i * ldx, d, dim)));
            memcpy(out + d, half, (dim - d < 8 ? dim - d : 8) * sizeof(*half));
        }
    }
}

static void merge(float *max, float *sum, float *out, float run_max, float run_sum,
                  const float *run_out, uint32_t dim)
{
    if (run_max == -INFINITY)
        return;
    if (*max == -INFINITY) {
        *max = run_max;
        *sum = run_sum;
        memcpy(out, run_out, (size_t)dim * sizeof(*out));
        return;
    }
    const float m = run_max > *max ? run_max : *max;
    const __m256 a = exp256(_mm256_set1_ps(*max - m)), b = exp256(_mm256_set1_ps(run_max - m));
    *max = m;
    *sum = _mm256_cvtss_f32(
        _mm256_fmadd_ps(_mm256_set1_ps(run_sum), b, _mm256_mul_ps(_mm256_set1_ps(*sum), a)));
    for (uint32_t i = 0; i < dim; i += 8) {
        __m256 o = _mm256_mul_ps(load_first8(out, i, dim), a);
        store_first8(out, i, dim, _mm256_fmadd_ps(load_first8(run_out, i, dim), b, o));
    }
}

static void finish(float *out, float sum, uint32_t dim)
{
    const __m256 s = _mm256_set1_ps(sum);
    for (uint32_t i = 0; i < dim; i += 8)
        store_first8(out, i, dim, _mm256_div_ps(load_first8(out, i, dim), s));
}

void avx2_fill_attention(struct kernels *k)
{
    k->store_k[KV_F16] = store_k_f16;
    k->store_v[KV_F16] = store_v_f16;
    k->attention[KV_F32] = attention_f32;
    k->attention[KV_F16] = attention_f16;
    k->attention_merge = merge;
    k->attention_finish = finish;
}
