/* avx2_attention_q8.c: attention over tiles of q8_0 (kv_q8.h) with AVX2; the steps of avx512_attention_q8.c with blocks
 * of up to three queries. The weights have eight bits, which with V's do not fit vpmaddubsw: V's bytes are widened to
 * 16 bits on the way, even and odd positions apart. */
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/forced_inline.h"
#include "core/kernels/half.h"
#include "core/kernels/kv_q8.h"
#include "core/kernels/vec256.h"

#define BLOCK 3u

/* Continues the scores of nq queries against 8 positions of a tile, from `pos` on, by block b. */
INLINE void score_block_q8(int nq, uint32_t words, const struct attention_query *queries,
                           const uint8_t *tile, uint32_t dim, uint32_t b, uint32_t pos,
                           float (*scores)[KV_RUN_POSITIONS])
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
            memcpy(&word, queries[q].blocks[b].q + 4 * w, sizeof(word));
            const __m256i x = _mm256_set1_epi32(word);
            /* |q| · (k with q's sign): a pair's sum is at most 2 · 127² and fits 16 bits. */
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(v, x));
            s[q] = _mm256_add_epi32(s[q], _mm256_madd_epi16(pairs, ones));
        }
    }
    const __m256 kd =
        _mm256_cvtph_ps(_mm_loadu_si128((const void *)(tile + kv_q8_scale_at(dim, b, pos))));
    UNROLL
    for (int q = 0; q < nq; q++) {
        const __m256 d = _mm256_mul_ps(kd, _mm256_set1_ps(queries[q].blocks[b].d));
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
        for (uint32_t p = 0; p < tiles * KV_TILE_POSITIONS; p += 8) {
            const uint8_t *tile = run->k[p / KV_TILE_POSITIONS];
            float(*out)[KV_RUN_POSITIONS] = (float(*)[KV_RUN_POSITIONS])(scores[0] + p);
            if (n > KV_Q8_BLOCK - 4)
                score_block_q8(nq, 8, queries, tile, run->dim, b, p % KV_TILE_POSITIONS, out);
            else
                score_block_q8(nq, kv_q8_padded(n) / 4, queries, tile, run->dim, b,
                               p % KV_TILE_POSITIONS, out);
        }
    }
    for (int q = 0; q < nq; q++)
        for (uint32_t p = 0; p < tiles * KV_TILE_POSITIONS; p += 8)
            _mm256_storeu_ps(scores[q] + p, _mm256_mul_ps(_mm256_loadu_ps(scores[q] + p), scale));
}

/* The weights of a block of queries for 32 dimensions: of positions 4i … 4i+3 of a tile, dword 4i has the even ones,
 * dword 4i+1 the odd ones, 16 bits each. */
struct grid {
    uint32_t u[KV_RUN_TILES][BLOCK][KV_TILE_POSITIONS];
    float step[KV_RUN_TILES][BLOCK];
};

/* Puts a query's weights of a tile, its first n positions, for block b of the values on their grid. */
INLINE float make_grid(const uint8_t *tile, uint32_t dim, uint32_t b, const float *e, uint32_t n,
                       uint32_t u[KV_TILE_POSITIONS])
{
    const uint8_t *scales = tile + kv_q8_scale_at(dim, b, 0);
    __m256i largest = _mm256_setzero_si256();
    __m256 w[4];
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        const __m256 vd = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(scales + 16 * j)));
        const __m256i seen = n > 8 * j ? first8(n - 8 * j) : _mm256_setzero_si256();
        w[j] =
            _mm256_and_ps(_mm256_mul_ps(_mm256_loadu_ps(e + 8 * j), vd), _mm256_castsi256_ps(seen));
        largest = _mm256_max_epu32(largest, _mm256_castps_si256(w[j]));
    }
    __m128i m =
        _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    const uint32_t bits = (uint32_t)_mm_cvtsi128_si32(m);
    const float most = _mm_cvtss_f32(_mm_castsi128_ps(m));
    if (bits >= 0x7f800000 || most < PACK_TINY) {
        memset(u, 0, KV_TILE_POSITIONS * sizeof(*u));
        return bits >= 0x7f800000 ? NAN : 0.0f;
    }
    const __m256 scale = _mm256_set1_ps(KV_Q8_GRID / most);
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        const __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(w[j], scale));
        _mm256_storeu_si256(
            (void *)(u + 8 * j),
            _mm256_or_si256(x, _mm256_slli_epi32(_mm256_shuffle_epi32(x, 0x4e), 16)));
    }
    return most / KV_Q8_GRID;
}

/* Continues the outputs of nq queries, nd vectors from dimension d on, over tiles [begin, end). */
INLINE void weigh_dims(int nq, int nd, const struct attention_run *run,
                       const struct attention_query *queries, const struct grid *grid,
                       uint32_t begin, uint32_t end, uint32_t d)
{
    const size_t stride = 4 * (size_t)kv_q8_padded(run->dim);
    __m256 out[BLOCK][2];

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        out[q][j] = load_first8(queries[q].out, d + 8 * (uint32_t)j, run->dim);
    for (uint32_t t = begin; t < end; t++) {
        const uint8_t *v = (const uint8_t *)run->v[t] + 4 * (size_t)d;
        __m256i s[BLOCK][2];
        UNROLL
        for (int q = 0; q < nq; q++)
            s[q][0] = s[q][1] = _mm256_setzero_si256();
        for (uint32_t i = 0; i < KV_TILE_POSITIONS; i += 4, v += stride)
            UNROLL
        for (int j = 0; j < nd; j++) {
            const __m256i x = _mm256_loadu_si256((const void *)(v + 32 * j));
            const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8),
                          odd = _mm256_srai_epi16(x, 8);
            UNROLL
            for (int q = 0; q < nq; q++) {
                const __m256i u0 = _mm256_set1_epi32((int32_t)grid->u[t][q][i]);
                const __m256i u1 = _mm256_set1_epi32((int32_t)grid->u[t][q][i + 1]);
                s[q][j] = _mm256_add_epi32(s[q][j], _mm256_add_epi32(_mm256_madd_epi16(even, u0),
                                                                     _mm256_madd_epi16(odd, u1)));
            }
        }
        UNROLL
        for (int q = 0; q < nq; q++)
            UNROLL
        for (int j = 0; j < nd; j++)
            out[q][j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[q][j]),
                                        _mm256_set1_ps(grid->step[t][q]), out[q][j]);
    }
    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        store_first8(queries[q].out, d + 8 * (uint32_t)j, run->dim, out[q][j]);
}

/* Continues the outputs of nq queries over tiles [begin, end); each sees at least a position of the last one. */
INLINE void weigh(int nq, const struct attention_run *run, const struct attention_query *queries,
                  const float (*weights)[KV_RUN_POSITIONS], uint32_t begin, uint32_t end)
{
    struct grid grid;
    for (uint32_t b = 0; b < kv_q8_blocks(run->dim) && begin < end; b++) {
        const uint32_t d = b * KV_Q8_BLOCK, last = d + kv_q8_in_block(run->dim, b);
        for (uint32_t t = begin; t < end; t++)
            for (int q = 0; q < nq; q++)
                grid.step[t][q] =
                    make_grid(run->v[t], run->dim, b, weights[q] + t * KV_TILE_POSITIONS,
                              queries[q].count - t * KV_TILE_POSITIONS, grid.u[t][q]);
        for (uint32_t at = d; at < last; at += 16)
            if (last - at > 8)
                weigh_dims(nq, 2, run, queries, &grid, begin, end, at);
            else
                weigh_dims(nq, 1, run, queries, &grid, begin, end, at);
    }
}

/* nq ≤ BLOCK queries. */
INLINE void attend(int nq, const struct attention_run *run, struct attention_query *queries)
{
    float weights[BLOCK][KV_RUN_POSITIONS] __attribute__((aligned(64)));
    uint32_t largest = 0, common = KV_RUN_TILES;

    for (int q = 0; q < nq; q++) {
        const uint32_t tiles = (queries[q].count + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS;
        largest = tiles > largest ? tiles : largest;
        common = tiles < common ? tiles : common;
        memset(queries[q].out, 0, (size_t)run->dim * sizeof(float));
    }
    check(run->tiles <= KV_RUN_TILES && largest <= run->tiles);
    score_q8(nq, run, queries, largest, weights);
    for (int q = 0; q < nq; q++) {
        if (queries[q].count > 0) {
            softmax256(&queries[q], weights[q]);
        } else {
            queries[q].max = -INFINITY;
            queries[q].sum = 0;
        }
    }
    weigh(nq, run, queries, (const float(*)[KV_RUN_POSITIONS])weights, 0, common);
    for (int q = 0; q < nq && nq > 1; q++)
        weigh(1, run, &queries[q], (const float(*)[KV_RUN_POSITIONS])weights[q], common,
              (queries[q].count + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS);
}

#define ATTEND(nq)                                                                                 \
    static __attribute__((noinline)) void attend_##nq(const struct attention_run *run,             \
                                                      struct attention_query *queries)             \
    {                                                                                              \
        attend(nq, run, queries);                                                                  \
    }
ATTEND(1)
ATTEND(2)
ATTEND(3)

static void attention_q8_0(const struct attention_run *run, struct attention_query *queries,
                           uint32_t n)
{
    for (; n >= BLOCK; queries += BLOCK, n -= BLOCK)
        attend_3(run, queries);
    if (n == 2)
        attend_2(run, queries);
    else if (n == 1)
        attend_1(run, queries);
}

void avx2_fill_attention_q8(struct kernels *k)
{
    k->store_k[KV_Q8_0] = kv_q8_store_k;
    k->store_v[KV_Q8_0] = kv_q8_store_v;
    k->quantise_query = kv_q8_quantise_query;
    k->attention[KV_Q8_0] = attention_q8_0;
}
