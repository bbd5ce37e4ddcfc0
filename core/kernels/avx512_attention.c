/* avx512_attention.c: KV stores and attention with AVX-512.
 *
 * Queries are taken in blocks of up to four that share every load of K and V:
 *
 *     scores   K [dim][32 positions]: lanes are positions; one fma chain a lane over the dimensions
 *     softmax  a query at a time over its own positions
 *     output   V [positions][dim]: lanes are dimensions; one fma chain a lane over the positions, first those
 *              that all queries of the block see, then each query's own rest
 *
 * q8_0 (kv_q8.h) has its own scores: lanes are positions, a dword holds four dimensions; K is made unsigned for
 * vpdpbusd and the 128 come off by the sum's start. Its V is brought to f32 on the way. */
#include <math.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/kv_q8.h"
#include "core/kernels/vec512.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
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

/* One block of 32 dimensions of the queries, quantised. */
struct block_q8 {
    int8_t q[BLOCK][KV_Q8_BLOCK];
    float d[BLOCK];
    int32_t start[BLOCK]; /* −128·Σq */
};

/* Continues the scores of nq queries against a tile by block b of `words` dwords. */
INLINE void score_block_q8(int nq, uint32_t words, const struct block_q8 *block, const uint8_t *tile,
                           uint32_t dim, uint32_t b, float (*scores)[KV_RUN_POSITIONS])
{
    const uint8_t *k = tile + kv_q8_k_at(b * KV_Q8_BLOCK / 4, 0), *scales = tile + kv_q8_scale_at(dim, b, 0);
    const __m512i flip = _mm512_set1_epi8(-128);
    __m512i s[BLOCK][2];

    UNROLL
    for (int q = 0; q < nq; q++)
        s[q][0] = s[q][1] = _mm512_set1_epi32(block->start[q]);
    for (uint32_t w = 0; w < words; w++, k += 4 * KV_TILE_POSITIONS) {
        const __m512i k0 = _mm512_xor_si512(_mm512_loadu_si512((const void *)k), flip);
        const __m512i k1 = _mm512_xor_si512(_mm512_loadu_si512((const void *)(k + 64)), flip);
        UNROLL
        for (int q = 0; q < nq; q++) {
            int32_t word;
            memcpy(&word, block->q[q] + 4 * w, sizeof(word));
            s[q][0] = _mm512_dpbusd_epi32(s[q][0], k0, _mm512_set1_epi32(word));
            s[q][1] = _mm512_dpbusd_epi32(s[q][1], k1, _mm512_set1_epi32(word));
        }
    }
    UNROLL
    for (int h = 0; h < 2; h++) {
        const __m512 kd = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(scales + 32 * h)));
        UNROLL
        for (int q = 0; q < nq; q++) {
            const __m512 d = _mm512_mul_ps(kd, _mm512_set1_ps(block->d[q]));
            float *f = scores[q] + 16 * h;
            const __m512 before = b == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(f);
            _mm512_storeu_ps(f, _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[q][h]), d, before));
        }
    }
}

/* Scaled scores of nq queries against all tiles; a block of the head is taken through them before the next one. */
INLINE void score_q8(int nq, const struct attention_run *run, const struct attention_query *queries,
                     uint32_t tiles, float (*scores)[KV_RUN_POSITIONS])
{
    const __m512 scale = _mm512_set1_ps(run->scale);

    for (uint32_t b = 0; b < kv_q8_blocks(run->dim); b++) {
        const uint32_t n = kv_q8_in_block(run->dim, b);
        struct block_q8 block;
        for (int q = 0; q < nq; q++) {
            int32_t sum = 0;
            kv_q8_query(queries[q].q + b * KV_Q8_BLOCK, n, block.q[q], &block.d[q]);
            for (uint32_t i = 0; i < KV_Q8_BLOCK; i++)
                sum += block.q[q][i];
            block.start[q] = -128 * sum;
        }
        for (uint32_t t = 0; t < tiles; t++) {
            float(*out)[KV_RUN_POSITIONS] = (float(*)[KV_RUN_POSITIONS])(scores[0] + t * KV_TILE_POSITIONS);
            if (n > KV_Q8_BLOCK - 4)
                score_block_q8(nq, 8, &block, run->k[t], run->dim, b, out);
            else
                score_block_q8(nq, kv_q8_padded(n) / 4, &block, run->k[t], run->dim, b, out);
        }
    }
    for (int q = 0; q < nq; q++)
        for (uint32_t p = 0; p < tiles * KV_TILE_POSITIONS; p += 16)
            _mm512_storeu_ps(scores[q] + p, _mm512_mul_ps(_mm512_loadu_ps(scores[q] + p), scale));
}

/* Scales of V, two blocks from dimension d on, of the tiles that hold positions [begin, end); · 2⁻²⁴, as
 * values come from to_top. */
INLINE void scales_q8(const struct attention_run *run, uint32_t blocks, uint32_t begin, uint32_t end,
                      uint32_t d, float (*scales)[KV_RUN_POSITIONS])
{
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t p = begin & ~15u; p < end; p += 16) {
            const uint8_t *from = (const uint8_t *)run->v[p / KV_TILE_POSITIONS] +
                                  kv_q8_scale_at(run->dim, d / KV_Q8_BLOCK + b, p % KV_TILE_POSITIONS);
            const __m512 s = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
            _mm512_storeu_ps(scales[b] + p, _mm512_mul_ps(s, _mm512_set1_ps(0x1p-24f)));
        }
}

/* Shuffles that bring byte p of each dword to its top: the quant times 2²⁴. */
static const uint32_t to_top[4][4] = {{0x00808080, 0x04808080, 0x08808080, 0x0c808080},
                                      {0x01808080, 0x05808080, 0x09808080, 0x0d808080},
                                      {0x02808080, 0x06808080, 0x0a808080, 0x0e808080},
                                      {0x03808080, 0x07808080, 0x0b808080, 0x0f808080}};

/* 16 dimensions of position p of a run, exactly. */
INLINE __m512 value_q8(const void *tile, uint32_t dim, uint32_t d, uint32_t p, float scale)
{
    const uint8_t *quants = (const uint8_t *)tile + kv_q8_v_at(dim, d, p % KV_TILE_POSITIONS & ~3u);
    const __m512i x = _mm512_loadu_si512((const void *)quants);
    const __m512i top = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)to_top[p % 4]));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_shuffle_epi8(x, top)), _mm512_set1_ps(scale));
}

/* Turns a query's scores into weights; sets its max and sum. */
static void softmax(struct attention_query *query, float *scores)
{
    const uint32_t count = query->count;
    __m512 m = _mm512_set1_ps(-INFINITY), s = _mm512_setzero_ps();

    for (uint32_t p = 0; p < count; p += 16)
        m = _mm512_mask_max_ps(m, first16(count - p), m, _mm512_loadu_ps(scores + p));
    query->max = _mm512_reduce_max_ps(m) + 0.0f;
    m = _mm512_set1_ps(query->max);
    for (uint32_t p = 0; p < count; p += 16) {
        const __mmask16 mask = first16(count - p);
        __m512 e = exp512(_mm512_sub_ps(_mm512_loadu_ps(scores + p), m));
        _mm512_storeu_ps(scores + p, e);
        s = _mm512_mask_add_ps(s, mask, s, e);
    }
    query->sum = tree16_512(s);
}

/* Continues the outputs of nq queries, nd vectors of dimensions from d on, over positions [begin, end). */
INLINE void weigh(enum kv_type type, int nq, int nd, const struct attention_run *run,
                  const struct attention_query *queries, const float (*weights)[KV_RUN_POSITIONS],
                  uint32_t begin, uint32_t end, uint32_t d)
{
    float scales[DIM_VECTORS / 2][KV_RUN_POSITIONS];
    __m512 out[BLOCK][DIM_VECTORS];
    const __mmask16 last = first16(run->dim - d - 16 * ((uint32_t)nd - 1));

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        out[q][j] = _mm512_maskz_loadu_ps(j + 1 < nd ? 0xffff : last, queries[q].out + d + 16 * j);
    if (type == KV_Q8_0)
        scales_q8(run, ((uint32_t)nd + 1) / 2, begin, end, d, scales);
    for (uint32_t p = begin; p < end; p++) {
        const void *tile = run->v[p / KV_TILE_POSITIONS];
        const size_t at = (size_t)(p % KV_TILE_POSITIONS) * run->dim + d;
        __m512 v[DIM_VECTORS];
        UNROLL
        for (int j = 0; j < nd; j++)
            v[j] = type == KV_Q8_0 ? value_q8(tile, run->dim, d + 16 * (uint32_t)j, p, scales[j / 2][p])
                   : j + 1 < nd    ? load_tile(type, tile, at + 16 * (size_t)j)
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
    if (type == KV_Q8_0) {
        score_q8(nq, run, queries, tiles, weights);
        t = tiles;
    }
    for (; t + (uint32_t)wide <= tiles; t += (uint32_t)wide)
        score_tiles(type, nq, wide, run, queries, t, weights);
    for (; t < tiles; t++)
        score_tiles(type, nq, 1, run, queries, t, weights);
    for (int q = 0; q < nq; q++) {
        if (queries[q].count > 0) {
            softmax(&queries[q], weights[q]);
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
ATTENTION(attention_q8_0, KV_Q8_0)

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

static void store_k_q8_0(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                         uint32_t dim)
{
    kv_q8_store(false, tile, pos, n, x, ldx, dim);
}

static void store_v_q8_0(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                         uint32_t dim)
{
    kv_q8_store(true, tile, pos, n, x, ldx, dim);
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
    const __m512 a = exp512(_mm512_set1_ps(*max - m)), b = exp512(_mm512_set1_ps(run_max - m));
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
    k->store_k[KV_Q8_0] = store_k_q8_0;
    k->store_v[KV_Q8_0] = store_v_q8_0;
    k->attention[KV_F32] = attention_f32;
    k->attention[KV_F16] = attention_f16;
    k->attention[KV_Q8_0] = attention_q8_0;
    k->attention_merge = merge;
    k->attention_finish = finish;
}
