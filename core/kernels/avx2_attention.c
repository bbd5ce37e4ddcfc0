/* avx2_attention.c: KV stores and attention with AVX2, as avx512_attention.c with halves of its vectors and blocks of
 * up to three queries. */
#include <math.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/half.h"
#include "core/kernels/kv_q8.h"
#include "core/kernels/vec256.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
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

/* One block of 32 dimensions of the queries, quantised. */
struct block_q8 {
    int8_t q[BLOCK][KV_Q8_BLOCK];
    float d[BLOCK];
};

/* Continues the scores of nq queries against 8 positions of a tile, from `pos` on, by block b. */
INLINE void score_block_q8(int nq, uint32_t words, const struct block_q8 *block, const uint8_t *tile,
                           uint32_t dim, uint32_t b, uint32_t pos, float (*scores)[KV_RUN_POSITIONS])
{
    const uint8_t *k = tile + kv_q8_k_at(b * KV_Q8_BLOCK / 4, pos);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i s[BLOCK];

    UNROLL
    for (int q = 0; q < nq; q++)
        s[q] = _mm256_setzero_si256();
    for (uint32_t w = 0; w < words; w++, k += 4 * KV_TILE_POSITIONS) {
        const __m256i v = _mm256_loadu_si256((const void *)k);
        UNROLL
        for (int q = 0; q < nq; q++) {
            int32_t word;
            memcpy(&word, block->q[q] + 4 * w, sizeof(word));
            const __m256i x = _mm256_set1_epi32(word);
            /* |q| · (k with q's sign): a pair's sum is at most 2 · 127² and fits 16 bits. */
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(v, x));
            s[q] = _mm256_add_epi32(s[q], _mm256_madd_epi16(pairs, ones));
        }
    }
    const __m256 kd = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(tile + kv_q8_scale_at(dim, b, pos))));
    UNROLL
    for (int q = 0; q < nq; q++) {
        const __m256 d = _mm256_mul_ps(kd, _mm256_set1_ps(block->d[q]));
        const __m256 before = b == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(scores[q]);
        _mm256_storeu_ps(scores[q], _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[q]), d, before));
    }
}

/* Scaled scores of nq queries against all tiles; a block of the head is taken through them before the next one. */
INLINE void score_q8(int nq, const struct attention_run *run, const struct attention_query *queries,
                     uint32_t tiles, float (*scores)[KV_RUN_POSITIONS])
{
    const __m256 scale = _mm256_set1_ps(run->scale);

    for (uint32_t b = 0; b < kv_q8_blocks(run->dim); b++) {
        const uint32_t n = kv_q8_in_block(run->dim, b);
        struct block_q8 block;
        for (int q = 0; q < nq; q++)
            kv_q8_query(queries[q].q + b * KV_Q8_BLOCK, n, block.q[q], &block.d[q]);
        for (uint32_t p = 0; p < tiles * KV_TILE_POSITIONS; p += 8) {
            const uint8_t *tile = run->k[p / KV_TILE_POSITIONS];
            float(*out)[KV_RUN_POSITIONS] = (float(*)[KV_RUN_POSITIONS])(scores[0] + p);
            if (n > KV_Q8_BLOCK - 4)
                score_block_q8(nq, 8, &block, tile, run->dim, b, p % KV_TILE_POSITIONS, out);
            else
                score_block_q8(nq, kv_q8_padded(n) / 4, &block, tile, run->dim, b, p % KV_TILE_POSITIONS, out);
        }
    }
    for (int q = 0; q < nq; q++)
        for (uint32_t p = 0; p < tiles * KV_TILE_POSITIONS; p += 8)
            _mm256_storeu_ps(scores[q] + p, _mm256_mul_ps(_mm256_loadu_ps(scores[q] + p), scale));
}

/* Scales of V, the block from dimension d on, of the tiles that hold positions [begin, end); · 2⁻²⁴, as values come
 * from to_top. */
INLINE void scales_q8(const struct attention_run *run, uint32_t begin, uint32_t end, uint32_t d, float *scales)
{
    for (uint32_t p = begin & ~7u; p < end; p += 8) {
        const uint8_t *from = (const uint8_t *)run->v[p / KV_TILE_POSITIONS] +
                              kv_q8_scale_at(run->dim, d / KV_Q8_BLOCK, p % KV_TILE_POSITIONS);
        const __m256 s = _mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
        _mm256_storeu_ps(scales + p, _mm256_mul_ps(s, _mm256_set1_ps(0x1p-24f)));
    }
}

/* Shuffles that bring byte p of each dword to its top: the quant times 2²⁴. */
static const uint32_t to_top[4][8] = {
    {0x00808080, 0x04808080, 0x08808080, 0x0c808080, 0x00808080, 0x04808080, 0x08808080, 0x0c808080},
    {0x01808080, 0x05808080, 0x09808080, 0x0d808080, 0x01808080, 0x05808080, 0x09808080, 0x0d808080},
    {0x02808080, 0x06808080, 0x0a808080, 0x0e808080, 0x02808080, 0x06808080, 0x0a808080, 0x0e808080},
    {0x03808080, 0x07808080, 0x0b808080, 0x0f808080, 0x03808080, 0x07808080, 0x0b808080, 0x0f808080}};

/* Turns a query's scores into weights; sets its max and sum. */
static void softmax(struct attention_query *query, float *scores)
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

/* 8 dimensions of position p of a run, exactly. */
INLINE __m256 value_q8(const void *tile, uint32_t dim, uint32_t d, uint32_t p, float scale)
{
    const uint8_t *quants = (const uint8_t *)tile + kv_q8_v_at(dim, d, p % KV_TILE_POSITIONS & ~3u);
    const __m256i x = _mm256_loadu_si256((const void *)quants);
    const __m256i top = _mm256_loadu_si256((const void *)to_top[p % 4]);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_shuffle_epi8(x, top)), _mm256_set1_ps(scale));
}

/* Continues the outputs of nq queries, nd vectors of dimensions from d on, over positions [begin, end). */
INLINE void weigh(enum kv_type type, int nq, int nd, const struct attention_run *run,
                  const struct attention_query *queries, const float (*weights)[KV_RUN_POSITIONS],
                  uint32_t begin, uint32_t end, uint32_t d)
{
    const uint32_t last = run->dim - d - 8 * ((uint32_t)nd - 1);
    __m256 out[BLOCK][DIM_VECTORS];
    float scales[KV_RUN_POSITIONS];

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        out[q][j] = load_first8(queries[q].out, d + 8 * (uint32_t)j, run->dim);
    if (type == KV_Q8_0)
        scales_q8(run, begin, end, d, scales);
    for (uint32_t p = begin; p < end; p++) {
        const void *tile = run->v[p / KV_TILE_POSITIONS];
        const size_t at = (size_t)(p % KV_TILE_POSITIONS) * run->dim + d;
        UNROLL
        for (int j = 0; j < nd; j++) {
            const __m256 v =
                type == KV_Q8_0 ? value_q8(tile, run->dim, d + 8 * (uint32_t)j, p, scales[p])
                : j + 1 < nd    ? load_tile(type, tile, at + 8 * (size_t)j)
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
    if (type == KV_Q8_0)
        score_q8(nq, run, queries, (largest + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS, weights);
    for (uint32_t t = 0; t * KV_TILE_POSITIONS < largest && type != KV_Q8_0; t++)
        score_tile(type, nq, run, queries, t, weights);
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
ATTENTION(attention_q8_0, KV_Q8_0)

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
    k->store_k[KV_Q8_0] = store_k_q8_0;
    k->store_v[KV_Q8_0] = store_v_q8_0;
    k->attention[KV_F32] = attention_f32;
    k->attention[KV_F16] = attention_f16;
    k->attention[KV_Q8_0] = attention_q8_0;
    k->attention_merge = merge;
    k->attention_finish = finish;
}
