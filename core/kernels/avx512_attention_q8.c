/* avx512_attention_q8.c: attention over tiles of q8_0 (kv_q8.h) and q4 (kv_q4.h) with VNNI.
 *
 * Queries are taken in blocks of up to eight, in groups of up to four; a group's sums stay in registers:
 *
 *     scores   lanes are positions, a dword holds four dimensions; K is made unsigned for vpdpbusd and the 128
 *              (q4: 15) come off by the sum's start
 *     softmax  a query at a time
 *     grid     e · scale of V, put on u8 for each tile and block of 32 dimensions
 *     output   lanes are dimensions, a dword holds four positions; first the whole tiles that all queries of the
 *              group see, then the rest
 *
 * All groups of a block take a tile before the next one, while it is in the first cache. Between tiles, what comes
 * after the run is brought near a few lines at a time. */
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/kv_q4.h"
#include "core/kernels/vec512.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#define UNROLL_IF_KNOWN /* clang unrolls counts that it knows, and warns of others */
#else
#define UNROLL _Pragma("GCC unroll 8")
#define UNROLL_IF_KNOWN UNROLL
#endif
#define GROUP 4u
#define BLOCK 8u
/* Blocks of 32 dimensions whose scores are made in one go. */
#define CHUNK 8u

/* A chunk of a group's queries, quantised. */
struct chunk {
    int8_t q[CHUNK][GROUP][KV_Q8_BLOCK];
    float d[CHUNK][GROUP];
    int32_t sum[CHUNK][GROUP];
};

/* The weights of a group for one block of 32 dimensions: dword of positions 4i … 4i+3 of query q at
 * u[tile][q / 2][dword_at(q, i)]. */
struct grid {
    uint32_t u[KV_RUN_TILES][GROUP / 2][16] __attribute__((aligned(64)));
    float step[KV_RUN_TILES + 3][GROUP];
};

INLINE uint32_t dword_at(int q, int i)
{
    return 4 * ((uint32_t)i % 4) + 2 * ((uint32_t)q % 2) + (uint32_t)i / 4;
}

/* What is to be brought near, a few lines at a time. */
struct feed {
    const struct attention_piece *piece, *end;
    const char *at;
    uint32_t lines; /* a time */
};

INLINE void feed_some(struct feed *f)
{
    for (uint32_t i = 0; i < f->lines && f->piece < f->end; i++, f->at += 64) {
        if (f->at >= (const char *)f->piece->at + f->piece->bytes) {
            if (++f->piece == f->end)
                return;
            f->at = f->piece->at;
        }
        _mm_prefetch(f->at, _MM_HINT_T1);
    }
}

static struct feed feed_begin(const struct attention_run *run, uint32_t times)
{
    size_t lines = 0;
    for (uint32_t i = 0; i < run->n_ahead; i++)
        lines += run->ahead[i].bytes / 64;
    return (struct feed){.piece = run->ahead,
                         .end = run->ahead + run->n_ahead,
                         .at = run->n_ahead > 0 ? run->ahead->at : NULL,
                         .lines = (uint32_t)(lines / times) + 1};
}

/* Lane q: the largest of m[q], unsigned. */
INLINE __m128i largest_of_four(const __m512i m[GROUP])
{
    const __m512i four = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    const __m512i a = _mm512_max_epu32(_mm512_shuffle_i32x4(m[0], m[1], 0x44),
                                       _mm512_shuffle_i32x4(m[0], m[1], 0xee));
    const __m512i b = _mm512_max_epu32(_mm512_shuffle_i32x4(m[2], m[3], 0x44),
                                       _mm512_shuffle_i32x4(m[2], m[3], 0xee));
    __m512i c =
        _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    c = _mm512_max_epu32(c, _mm512_shuffle_epi32(c, _MM_PERM_BADC));
    c = _mm512_max_epu32(c, _mm512_shuffle_epi32(c, _MM_PERM_CDAB));
    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(four, c));
}

/* 16 largest magnitudes become the steps of the grids that they span, of `most` steps each: magnitude / most, 0 if it
 * is tiny, NaN if it is not finite; per_step: most / magnitude, 0 in both cases. */
INLINE void make_steps(float *steps, float *per_step, float most)
{
    const __m512 largest = _mm512_loadu_ps(steps);
    const __mmask16 broken =
        _mm512_cmpge_epu32_mask(_mm512_castps_si512(largest), _mm512_set1_epi32(0x7f800000));
    const __mmask16 fine =
        _mm512_cmp_ps_mask(largest, _mm512_set1_ps(PACK_TINY), _CMP_GE_OQ) & (__mmask16)~broken;
    const __m512 step = _mm512_maskz_div_ps(fine, largest, _mm512_set1_ps(most));
    _mm512_storeu_ps(steps, _mm512_mask_mov_ps(step, broken, _mm512_set1_ps(NAN)));
    _mm512_storeu_ps(per_step, _mm512_maskz_div_ps(fine, _mm512_set1_ps(most), largest));
}

/* `blocks` blocks of the head of nq queries from b0 on, quantised as kv_q8_query does. Where a number is not finite, the
 * step says so and the quants mean nothing. */
INLINE void quantise_queries(int nq, const struct attention_query *queries, uint32_t dim,
                             uint32_t b0, uint32_t blocks, struct chunk *chunk)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    float per_step[CHUNK][GROUP];
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t b = 0; b < blocks; b++) {
            const uint32_t n = kv_q8_in_block(dim, b0 + b);
            const __mmask16 first = first16(n), second = first16(n > 16 ? n - 16 : 0);
            __m512i x[GROUP];
            UNROLL
            for (int q = 0; q < (int)GROUP; q++) {
                x[q] = _mm512_setzero_si512();
                if (q >= nq)
                    continue;
                const float *at = queries[q].q + (b0 + b) * KV_Q8_BLOCK;
                const __m512 x0 = _mm512_maskz_loadu_ps(first, at),
                             x1 = _mm512_maskz_loadu_ps(second, at + 16);
                if (pass == 0) {
                    x[q] = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                                            _mm512_and_si512(_mm512_castps_si512(x1), magnitude));
                    continue;
                }
                const __m512 scale = _mm512_set1_ps(per_step[b][q]);
                const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, scale));
                const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, scale));
                _mm_storeu_si128((void *)chunk->q[b][q], _mm512_cvtepi32_epi8(q0));
                _mm_storeu_si128((void *)(chunk->q[b][q] + 16), _mm512_cvtepi32_epi8(q1));
                chunk->sum[b][q] = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
            }
            if (pass == 0)
                _mm_storeu_ps(chunk->d[b], _mm_castsi128_ps(largest_of_four(x)));
        }
        for (uint32_t b = 0; b < blocks && pass == 0; b += 4)
            make_steps(chunk->d[b], per_step[b], 127.0f);
    }
}

/* Where the scales of block b stand in a tile. */
INLINE size_t scale_at(bool q4, uint32_t dim, uint32_t b)
{
    return q4 ? kv_q4_scale_at(dim, b, 0) : kv_q8_scale_at(dim, b, 0);
}

/* Dword w of 16 positions, the first or the second: quants plus 128 (q4: plus 15). */
INLINE __m512i load_keys(bool q4, const uint8_t *k, uint32_t w, uint32_t half)
{
    if (!q4)
        return _mm512_xor_si512(_mm512_loadu_si512((const void *)(k + 128 * w + 64 * half)),
                                _mm512_set1_epi8(-128));
    const __m512i x = _mm512_loadu_si512((const void *)(k + 128 * (w / 2) + 64 * half));
    return _mm512_and_si512(w % 2 == 0 ? _mm512_slli_epi16(x, 1) : _mm512_srli_epi16(x, 3),
                            _mm512_set1_epi8(30));
}

/* The quants of four positions, dword i of the tile, for 16 dimensions. */
INLINE __m512i load_values(bool q4, const uint8_t *v, size_t stride, int i)
{
    if (!q4)
        return _mm512_loadu_si512((const void *)(v + (size_t)i * stride));
    const __m512i odd =
        _mm512_set4_epi32(0x0f0d0b09, 0x07050301, (int32_t)0xfffdfbf9, (int32_t)0xf7f5f3f1);
    const __m512i x = _mm512_loadu_si512((const void *)(v + (size_t)(i / 2) * stride));
    return _mm512_shuffle_epi8(
        odd, _mm512_and_si512(i % 2 == 0 ? x : _mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)));
}

/* Continues the scores of nq queries against a tile by block b of `words` dwords; i: its place in the chunk. */
INLINE void score_block(bool q4, int nq, uint32_t words, uint32_t dim, const struct chunk *chunk,
                        uint32_t i, const uint8_t *tile, uint32_t b, __m512 f[GROUP][2])
{
    const uint8_t *k =
        tile + (q4 ? kv_q4_k_at(b * KV_Q8_BLOCK, 0) : kv_q8_k_at(b * KV_Q8_BLOCK / 4, 0));
    const uint8_t *scales = tile + scale_at(q4, dim, b);
    __m512i s[GROUP][2];

    UNROLL
    for (int q = 0; q < nq; q++)
        s[q][0] = s[q][1] = _mm512_set1_epi32(chunk->sum[i][q] * (q4 ? -KV_Q4_MOST : -128));
    UNROLL_IF_KNOWN
    for (uint32_t w = 0; w < words; w++) {
        const __m512i k0 = load_keys(q4, k, w, 0), k1 = load_keys(q4, k, w, 1);
        UNROLL
        for (int q = 0; q < nq; q++) {
            int32_t word;
            memcpy(&word, chunk->q[i][q] + 4 * w, sizeof(word));
            s[q][0] = _mm512_dpbusd_epi32(s[q][0], k0, _mm512_set1_epi32(word));
            s[q][1] = _mm512_dpbusd_epi32(s[q][1], k1, _mm512_set1_epi32(word));
        }
    }
    UNROLL
    for (int h = 0; h < 2; h++) {
        const __m512 kd = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(scales + 32 * h)));
        UNROLL
        for (int q = 0; q < nq; q++)
            f[q][h] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[q][h]),
                                      _mm512_mul_ps(kd, _mm512_set1_ps(chunk->d[i][q])), f[q][h]);
    }
}

/* Scaled scores of nq queries against a tile by the blocks [b0, b0 + blocks) of the head. */
INLINE void score_tile(bool q4, int nq, const struct attention_run *run, const struct chunk *chunk,
                       uint32_t b0, uint32_t blocks, uint32_t t, float (*scores)[KV_RUN_POSITIONS])
{
    float *const at = scores[0] + t * KV_TILE_POSITIONS;
    const __m512 scale = _mm512_set1_ps(run->scale);
    const bool last = b0 + blocks == kv_q8_blocks(run->dim);
    __m512 f[GROUP][2];

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int h = 0; h < 2; h++)
        f[q][h] =
            b0 == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(at + q * KV_RUN_POSITIONS + 16 * h);
    for (uint32_t i = 0; i < blocks; i++) {
        const uint32_t n = kv_q8_in_block(run->dim, b0 + i);
        if (n > KV_Q8_BLOCK - 4)
            score_block(q4, nq, 8, run->dim, chunk, i, run->k[t], b0 + i, f);
        else
            score_block(q4, nq, kv_q8_padded(n) / 4, run->dim, chunk, i, run->k[t], b0 + i, f);
    }
    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int h = 0; h < 2; h++)
        _mm512_storeu_ps(at + q * KV_RUN_POSITIONS + 16 * h,
                         last ? _mm512_mul_ps(f[q][h], scale) : f[q][h]);
}

/* e · scale of 16 positions; of those < count only, if `part`. */
INLINE __m512 weight(bool part, const float *e, __m512 vd, uint32_t left)
{
    return part ? _mm512_maskz_mul_ps(first16(left), _mm512_loadu_ps(e), vd)
                : _mm512_mul_ps(_mm512_loadu_ps(e), vd);
}

/* Puts the weights of nq queries for block b of the values of tiles [begin, end) on their grids. part: a query may see
 * only a part of these tiles. */
INLINE void make_grid(bool q4, int nq, bool part, const struct attention_run *run,
                      const struct attention_query *queries,
                      const float (*weights)[KV_RUN_POSITIONS], uint32_t begin, uint32_t end,
                      uint32_t b, struct grid *grid)
{
    float per_step[KV_RUN_TILES + 3][GROUP];
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t t = begin; t < end; t++) {
            const uint8_t *scales = (const uint8_t *)run->v[t] + scale_at(q4, run->dim, b);
            const __m512 vd0 = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)scales));
            const __m512 vd1 = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(scales + 32)));
            __m512i x[GROUP];
            UNROLL
            for (int q = 0; q < (int)GROUP; q++) {
                x[q] = _mm512_setzero_si512();
                if (q >= nq)
                    continue;
                const float *e = weights[q] + t * KV_TILE_POSITIONS;
                const uint32_t left = queries[q].count - t * KV_TILE_POSITIONS;
                const __m512 w0 = weight(part, e, vd0, left),
                             w1 = weight(part, e + 16, vd1, left > 16 ? left - 16 : 0);
                const __m512 scale = _mm512_set1_ps(pass == 0 ? 0 : per_step[t][q]);
                x[q] = pass == 0
                           ? _mm512_max_epu32(_mm512_castps_si512(w0), _mm512_castps_si512(w1))
                           : _mm512_packus_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(w0, scale)),
                                                 _mm512_cvtps_epi32(_mm512_mul_ps(w1, scale)));
            }
            if (pass == 0) {
                _mm_storeu_ps(grid->step[t], _mm_castsi128_ps(largest_of_four(x)));
                continue;
            }
            _mm512_store_si512((void *)grid->u[t][0], _mm512_packus_epi16(x[0], x[1]));
            if (nq > 2)
                _mm512_store_si512((void *)grid->u[t][1], _mm512_packus_epi16(x[2], x[3]));
        }
        for (uint32_t t = begin; t < end && pass == 0; t += 4)
            make_steps(grid->step[t], per_step[t], KV_Q8_GRID);
    }
}

/* Continues the outputs of nq queries, the nd vectors of block b, over tiles [begin, end). */
INLINE void weigh_block(bool q4, int nq, int nd, const struct attention_run *run,
                        const struct attention_query *queries, const struct grid *grid,
                        uint32_t begin, uint32_t end, uint32_t b, struct feed *feed)
{
    const uint32_t d = b * KV_Q8_BLOCK;
    const size_t stride = 4 * (size_t)(q4 ? kv_q4_padded(run->dim) : kv_q8_padded(run->dim));
    const __mmask16 last = first16(run->dim - d - 16 * ((uint32_t)nd - 1));
    __m512 out[GROUP][2];

    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        out[q][j] = _mm512_maskz_loadu_ps(j + 1 < nd ? 0xffff : last, queries[q].out + d + 16 * j);
    for (uint32_t t = begin; t < end; t++) {
        const uint8_t *v = (const uint8_t *)run->v[t] + 4 * (size_t)d;
        __m512i s[GROUP][2];
        UNROLL
        for (int q = 0; q < nq; q++)
            s[q][0] = s[q][1] = _mm512_setzero_si512();
        feed_some(feed);
        UNROLL
        for (int i = 0; i < 8; i++) {
            __m512i x[2];
            UNROLL
            for (int j = 0; j < nd; j++)
                x[j] = load_values(q4, v + 64 * j, stride, i);
            UNROLL
            for (int q = 0; q < nq; q++) {
                const __m512i u = _mm512_set1_epi32((int32_t)grid->u[t][q / 2][dword_at(q, i)]);
                UNROLL
                for (int j = 0; j < nd; j++)
                    s[q][j] = _mm512_dpbusd_epi32(s[q][j], u, x[j]);
            }
        }
        UNROLL
        for (int q = 0; q < nq; q++) {
            const __m512 step = _mm512_set1_ps(grid->step[t][q]);
            UNROLL
            for (int j = 0; j < nd; j++)
                out[q][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[q][j]), step, out[q][j]);
        }
    }
    UNROLL
    for (int q = 0; q < nq; q++)
        UNROLL
    for (int j = 0; j < nd; j++)
        _mm512_mask_storeu_ps(queries[q].out + d + 16 * j, j + 1 < nd ? 0xffff : last, out[q][j]);
}

/* Continues the outputs of nq queries, block b, over tiles [begin, end). */
INLINE void weigh(bool q4, int nq, bool part, const struct attention_run *run,
                  const struct attention_query *queries, const float (*weights)[KV_RUN_POSITIONS],
                  uint32_t begin, uint32_t end, uint32_t b, struct feed *feed)
{
    struct grid grid;
    make_grid(q4, nq, part, run, queries, weights, begin, end, b, &grid);
    if (kv_q8_in_block(run->dim, b) > 16)
        weigh_block(q4, nq, 2, run, queries, &grid, begin, end, b, feed);
    else
        weigh_block(q4, nq, 1, run, queries, &grid, begin, end, b, feed);
}

typedef void quantise_fn(const struct attention_query *queries, uint32_t dim, uint32_t b0,
                         uint32_t blocks, struct chunk *chunk);
typedef void score_fn(const struct attention_run *run, const struct chunk *chunk, uint32_t b0,
                      uint32_t blocks, uint32_t t, float (*scores)[KV_RUN_POSITIONS]);
typedef void weigh_fn(const struct attention_run *run, const struct attention_query *queries,
                      const float (*weights)[KV_RUN_POSITIONS], uint32_t begin, uint32_t end,
                      uint32_t b, struct feed *feed);

#define GROUP_OF(type, q4, nq)                                                                     \
    static void score_##type##_##nq(const struct attention_run *run, const struct chunk *chunk,    \
                                    uint32_t b0, uint32_t blocks, uint32_t t,                      \
                                    float(*scores)[KV_RUN_POSITIONS])                              \
    {                                                                                              \
        score_tile(q4, nq, run, chunk, b0, blocks, t, scores);                                     \
    }                                                                                              \
    static void weigh_##type##_##nq(const struct attention_run *run,                               \
                                    const struct attention_query *queries,                         \
                                    const float(*weights)[KV_RUN_POSITIONS], uint32_t begin,       \
                                    uint32_t end, uint32_t b, struct feed *feed)                   \
    {                                                                                              \
        weigh(q4, nq, false, run, queries, weights, begin, end, b, feed);                          \
    }
#define QUERIES_OF(nq)                                                                             \
    static void quantise_##nq(const struct attention_query *queries, uint32_t dim, uint32_t b0,    \
                              uint32_t blocks, struct chunk *chunk)                                \
    {                                                                                              \
        quantise_queries(nq, queries, dim, b0, blocks, chunk);                                     \
    }                                                                                              \
    GROUP_OF(q8, false, nq)                                                                        \
    GROUP_OF(q4, true, nq)
QUERIES_OF(1)
QUERIES_OF(2)
QUERIES_OF(3)
QUERIES_OF(4)

/* By type (q8_0, q4) and queries of the group − 1. */
static quantise_fn *const quantise_group[GROUP] = {quantise_1, quantise_2, quantise_3, quantise_4};
static score_fn *const score_group[2][GROUP] = {{score_q8_1, score_q8_2, score_q8_3, score_q8_4},
                                                {score_q4_1, score_q4_2, score_q4_3, score_q4_4}};
static weigh_fn *const weigh_group[2][GROUP] = {{weigh_q8_1, weigh_q8_2, weigh_q8_3, weigh_q8_4},
                                                {weigh_q4_1, weigh_q4_2, weigh_q4_3, weigh_q4_4}};

/* Tiles that a query does not see whole, or not together with its group. */
static void weigh_rest(bool q4, const struct attention_run *run,
                       const struct attention_query *query,
                       const float (*weights)[KV_RUN_POSITIONS], uint32_t begin, uint32_t b,
                       struct feed *feed)
{
    const uint32_t end = (query->count + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS;
    if (begin < end && q4)
        weigh(true, 1, true, run, query, weights, begin, end, b, feed);
    else if (begin < end)
        weigh(false, 1, true, run, query, weights, begin, end, b, feed);
}

/* Queries q … of n, in groups. */
static uint32_t group_at(uint32_t n, uint32_t q)
{
    return n - q < GROUP ? n - q : GROUP;
}

static void make_scores(bool q4, const struct attention_run *run,
                        const struct attention_query *queries, uint32_t n, uint32_t tiles,
                        struct feed *feed, float (*scores)[KV_RUN_POSITIONS])
{
    const uint32_t blocks = kv_q8_blocks(run->dim);
    struct chunk chunks[BLOCK / GROUP];

    for (uint32_t b0 = 0; b0 < blocks; b0 += CHUNK) {
        const uint32_t some = blocks - b0 < CHUNK ? blocks - b0 : CHUNK;
        for (uint32_t q = 0; q < n; q += GROUP)
            quantise_group[group_at(n, q) - 1](&queries[q], run->dim, b0, some, &chunks[q / GROUP]);
        for (uint32_t t = 0; t < tiles; t++) {
            feed_some(feed);
            for (uint32_t q = 0; q < n; q += GROUP)
                score_group[q4][group_at(n, q) - 1](run, &chunks[q / GROUP], b0, some, t,
                                                    &scores[q]);
        }
    }
}

static void make_outputs(bool q4, const struct attention_run *run, struct attention_query *queries,
                         uint32_t n, const float (*weights)[KV_RUN_POSITIONS], struct feed *feed)
{
    uint32_t whole[BLOCK / GROUP];
    for (uint32_t q = 0; q < n; q++) {
        const uint32_t tiles = queries[q].count / KV_TILE_POSITIONS;
        whole[q / GROUP] = q % GROUP == 0 || tiles < whole[q / GROUP] ? tiles : whole[q / GROUP];
        memset(queries[q].out, 0, (size_t)run->dim * sizeof(float));
    }
    for (uint32_t b = 0; b < kv_q8_blocks(run->dim); b++) {
        for (uint32_t q = 0; q < n; q += GROUP)
            if (whole[q / GROUP] > 0)
                weigh_group[q4][group_at(n, q) - 1](run, &queries[q], &weights[q], 0,
                                                    whole[q / GROUP], b, feed);
        for (uint32_t q = 0; q < n; q++)
            weigh_rest(q4, run, &queries[q], &weights[q], whole[q / GROUP], b, feed);
    }
}

/* n ≤ BLOCK queries. */
static void attend(bool q4, const struct attention_run *run, struct attention_query *queries,
                   uint32_t n, struct feed *feed)
{
    float weights[BLOCK][KV_RUN_POSITIONS] __attribute__((aligned(64)));
    uint32_t largest = 0;

    for (uint32_t q = 0; q < n; q++)
        largest = queries[q].count > largest ? queries[q].count : largest;
    check(run->tiles <= KV_RUN_TILES && largest <= run->tiles * KV_TILE_POSITIONS);
    make_scores(q4, run, queries, n, (largest + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS, feed,
                weights);
    for (uint32_t q = 0; q < n; q++)
        max512(&queries[q], weights[q]);
    for (uint32_t q = 0; q < n; q++)
        exp_sum512(&queries[q], weights[q]);
    make_outputs(q4, run, queries, n, (const float(*)[KV_RUN_POSITIONS])weights, feed);
}

static void attend_all(bool q4, const struct attention_run *run, struct attention_query *queries,
                       uint32_t n)
{
    const uint32_t blocks = (n + BLOCK - 1) / BLOCK, groups = (n + GROUP - 1) / GROUP;
    struct feed feed = feed_begin(run, run->tiles * (blocks + groups * kv_q8_blocks(run->dim)) + 1);
    for (uint32_t i = 0; i < n; i += BLOCK)
        attend(q4, run, queries + i, n - i < BLOCK ? n - i : BLOCK, &feed);
}

static void attention_q8_0(const struct attention_run *run, struct attention_query *queries,
                           uint32_t n)
{
    attend_all(false, run, queries, n);
}

static void attention_q4(const struct attention_run *run, struct attention_query *queries,
                         uint32_t n)
{
    attend_all(true, run, queries, n);
}

void avx512_fill_attention_q8(struct kernels *k)
{
    k->store_k[KV_Q8_0] = kv_q8_store_k;
    k->store_v[KV_Q8_0] = kv_q8_store_v;
    k->store_k[KV_Q4] = kv_q4_store_k;
    k->store_v[KV_Q4] = kv_q4_store_v;
    k->hadamard = kv_q4_hadamard;
    k->attention[KV_Q8_0] = attention_q8_0;
    k->attention[KV_Q4] = attention_q4;
}
