/* avx512_attention.c: KV stores and attention with AVX-512.
 *
 * Queries are taken in blocks of up to four that share every load of K and V:
 *
 *     scores   K [dim][32 positions]: lanes are positions; one fma chain a lane over the dimensions
 *     softmax  a query at a time over its own positions
 *     output   V [positions][dim]: lanes are dimensions; one fma chain a lane over the positions, first those
 *              that all queries of the block see, then each query's own rest
 *
 * q8_0 has its own file. */
#include <math.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/forced_inline.h"
#include "core/kernels/vec512.h"

#define BLOCK 4u
#define DIM_VECTORS 4u

/* 16 numbers of a tile from element i on. */
INLINE __m512 load_tile(enum kv_type type, const void *tile, size_t i)
{
    if (type == KV_F32)
        return _mm512_loadu_ps((const float *)tile + i);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const uint16_t *)tile + i)));
}

INLINE __m512 load_tile_mask(enum kv_type type, const void *tile, size_t i, __mmask16 mask)
{
    if (type == KV_F32)
        return _mm512_maskz_loadu_ps(mask, (const float *)tile + i);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)tile + i));
}

/* Scaled scores of nq queries against nt tiles from `tile` on. */
INLINE void score_tiles(enum kv_type type, int nq, int nt, const struct attention_run *run,
                        const struct attention_query *queries, uint32_t tile,
                        float scores[BLOCK][KV_RUN_POSITIONS])
{
    __m512 s[BLOCK][4][2];

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int t = 0; t < nt; t++)
        s[q][t][0] = s[q][t][1] = _mm512_setzero_ps();
    for (uint32_t d = 0; d < run->dim; d++) {
        UNROLL
        for (int t = 0; t < nt; t++) {
            const void *k = run->k[tile + (uint32_t)t];
            __m512 k0 = load_tile(type, k, (size_t)d * KV_TILE_POSITIONS);
            __m512 k1 = load_tile(type, k, (size_t)d * KV_TILE_POSITIONS + 16);
            UNROLL
            for (int q = 0; q < nq; q++) {
                __m512 v = _mm512_set1_ps(queries[q].q[d]);
                s[q][t][0] = _mm512_fmadd_ps(k0, v, s[q][t][0]);
                s[q][t][1] = _mm512_fmadd_ps(k1, v, s[q][t][1]);
            }
        }
    }
    const __m512 scale = _mm512_set1_ps(run->scale);
    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int t = 0; t < nt; t++) {
        float *out = scores[q] + (tile + (uint32_t)t) * KV_TILE_POSITIONS;
        _mm512_storeu_ps(out, _mm512_mul_ps(s[q][t][0], scale));
        _mm512_storeu_ps(out + 16, _mm512_mul_ps(s[q][t][1], scale));
    }
}

/* Continues the outputs of nq queries, nd vectors of dimensions from d on, over positions [begin, end). */
INLINE void weigh(enum kv_type type, int nq, int nd, const struct attention_run *run,
                  const struct attention_query *queries, const float (*weights)[KV_RUN_POSITIONS],
                  uint32_t begin, uint32_t end, uint32_t d)
{
    __m512 out[BLOCK][DIM_VECTORS];
    const __mmask16 last = first16(run->dim - d - 16 * ((uint32_t)nd - 1));

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        out[q][j] = _mm512_maskz_loadu_ps(j + 1 < nd ? 0xffff : last, queries[q].out + d + 16 * j);
    for (uint32_t p = begin; p < end; p++) {
        const void *tile = run->v[p / KV_TILE_POSITIONS];
        const size_t at = (size_t)(p % KV_TILE_POSITIONS) * run->dim + d;
        __m512 v[DIM_VECTORS];
        UNROLL
        for (int j = 0; j < nd; j++)
            v[j] = j + 1 < nd ? load_tile(type, tile, at + 16 * (size_t)j)
                              : load_tile_mask(type, tile, at + 16 * (size_t)j, last);
        UNROLL
        for (int q = 0; q < nq; q++) {
            const __m512 e = _mm512_set1_ps(weights[q][p]);
            UNROLL
            for (int j = 0; j < nd; j++)
                out[q][j] = _mm512_fmadd_ps(e, v[j], out[q][j]);
        }
    }
    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        _mm512_mask_storeu_ps(queries[q].out + d + 16 * j, j + 1 < nd ? 0xffff : last, out[q][j]);
}

INLINE void weigh_dims(enum kv_type type, int nq, const struct attention_run *run,
                       const struct attention_query *queries,
                       const float (*weights)[KV_RUN_POSITIONS], uint32_t begin, uint32_t end)
{
    for (uint32_t d = 0; d < run->dim && begin < end; d += 16 * DIM_VECTORS) {
        const uint32_t vectors = (run->dim - d + 15) / 16;
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
    const int wide = nq == 1 ? 4 : 2;

    for (int q = 0; q < nq; q++) {
        largest = queries[q].count > largest ? queries[q].count : largest;
        common = queries[q].count < common ? queries[q].count : common;
        memset(queries[q].out, 0, (size_t)run->dim * sizeof(float));
    }
    check(run->tiles <= KV_RUN_TILES && largest <= run->tiles * KV_TILE_POSITIONS);
    const uint32_t tiles = (largest + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS;
    uint32_t t = 0;
    for (; t + (uint32_t)wide <= tiles; t += (uint32_t)wide)
        score_tiles(type, nq, wide, run, queries, t, weights);
    for (; t < tiles; t++)
        score_tiles(type, nq, 1, run, queries, t, weights);
    for (int q = 0; q < nq; q++)
        max512(&queries[q], weights[q]);
    for (int q = 0; q < nq; q++)
        exp_sum512(&queries[q], weights[q]);
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
    ATTEND(name, type, 4)                                                                          \
    static void name(const struct attention_run *run, struct attention_query *queries, uint32_t n) \
    {                                                                                              \
        for (; n >= 4; queries += 4, n -= 4)                                                       \
            name##_4(run, queries);                                                                \
        if (n == 3)                                                                                \
            name##_3(run, queries);                                                                \
        else if (n == 2)                                                                           \
            name##_2(run, queries);                                                                \
        else if (n == 1)                                                                           \
            name##_1(run, queries);                                                                \
    }

ATTENTION(attention_f32, KV_F32)
ATTENTION(attention_f16, KV_F16)

INLINE __m256i to_half(__m512 v)
{
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static void store_k_f16(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                        uint32_t dim)
{
    uint16_t *out = (uint16_t *)tile + pos;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < dim; d += 16) {
            uint16_t half[16] __attribute__((aligned(32)));
            const uint32_t left = dim - d < 16 ? dim - d : 16;
            _mm256_store_si256((void *)half,
                               to_half(_mm512_maskz_loadu_ps(first16(left), x + i * ldx + d)));
            for (uint32_t j = 0; j < left; j++)
                out[(size_t)(d + j) * KV_TILE_POSITIONS + i] = half[j];
        }
}

static void store_v_f16(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                        uint32_t dim)
{
    uint16_t *out = (uint16_t *)tile + (size_t)pos * dim;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < dim; d += 16) {
            const __mmask16 mask = first16(dim - d);
            _mm256_mask_storeu_epi16(out + (size_t)i * dim + d, mask,
                                     to_half(_mm512_maskz_loadu_ps(mask, x + i * ldx + d)));
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
    const __m512 both = exp512(_mm512_castps128_ps512(_mm_setr_ps(*max - m, run_max - m, 0, 0)));
    const __m512 a = _mm512_broadcastss_ps(_mm512_castps512_ps128(both));
    const __m512 b = _mm512_broadcastss_ps(_mm_movehdup_ps(_mm512_castps512_ps128(both)));
    *max = m;
    *sum = _mm512_cvtss_f32(
        _mm512_fmadd_ps(_mm512_set1_ps(run_sum), b, _mm512_mul_ps(_mm512_set1_ps(*sum), a)));
    for (uint32_t i = 0; i < dim; i += 16) {
        const __mmask16 mask = first16(dim - i);
        __m512 o = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, out + i), a);
        _mm512_mask_storeu_ps(out + i, mask,
                              _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, run_out + i), b, o));
    }
}

static void finish(float *out, float sum, uint32_t dim)
{
    const __m512 s = _mm512_set1_ps(sum);
    for (uint32_t i = 0; i < dim; i += 16) {
        const __mmask16 mask = first16(dim - i);
        _mm512_mask_storeu_ps(out + i, mask,
                              _mm512_div_ps(_mm512_maskz_loadu_ps(mask, out + i), s));
    }
}

void avx512_fill_attention(struct kernels *k)
{
    k->store_k[KV_F16] = store_k_f16;
    k->store_v[KV_F16] = store_v_f16;
    k->attention[KV_F32] = attention_f32;
    k->attention[KV_F16] = attention_f16;
    k->attention_merge = merge;
    k->attention_finish = finish;
}
