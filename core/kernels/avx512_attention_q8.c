/* avx512_attention_q8.c: attention over tiles of q8_0 (kv_q8.h) and q4 (kv_q4.h) with VNNI.
 *
 * Queries are taken in groups of up to four, whose sums stay in registers:
 *
 *     scores   lanes are positions, a dword holds four dimensions; K is made unsigned for vpdpbusd and the 128
 *              (q4: 15) come off by the sum's start; positions that a query does not see get -infinity
 *     softmax  all queries of the group side by side
 *     grid     e · scale of V, put on u8 for each tile and block of 32 dimensions
 *     output   lanes are dimensions, a dword holds four positions
 *
 * Two groups take a tile before the next one, while it is in the first cache. Between tiles, what comes after the
 * run is brought near a few lines at a time. */
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/forced_inline.h"
#include "core/kernels/kv_q4.h"
#include "core/kernels/vec512.h"

#ifdef __clang__
#define UNROLL_IF_KNOWN /* clang unrolls counts that it knows, and warns of others */
#else
#define UNROLL_IF_KNOWN UNROLL
#endif
#define GROUP 4u
#define GROUPS 2u
/* Tiles that are brought near before their turn where nobody else did. */
#define COLD_TILES 2u
/* Fewer queries than these leave no time for it: the CPU's own way of reading ahead is better then. */
#define COLD_QUERIES 12u
/* The weights of a group for one block of 32 dimensions: dword of positions 4i … 4i+3 of query q at
 * u[tile][q / 2][dword_at(q, i)]. */
struct grid {
    uint32_t u[KV_RUN_TILES][GROUP / 2][16] __attribute__((aligned(64)));
    float step[KV_RUN_TILES][GROUP];
};

INLINE uint32_t dword_at(int q, int i)
{
    return 4 * ((uint32_t)i % 4) + 2 * ((uint32_t)q % 2) + (uint32_t)i / 4;
}

/* A group: what its queries see together, and the largest scores by lane. */
struct group {
    uint32_t first, n; /* queries */
    uint32_t whole;    /* tiles that all see whole */
    uint32_t tiles;    /* that one of them sees a part of */
    __m512 most[GROUP];
};

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

/* Positions of tile t below count, a bit each. */
INLINE uint32_t mask_of(uint32_t count, uint32_t t)
{
    const uint32_t before = t * KV_TILE_POSITIONS, left = count > before ? count - before : 0;
    return left >= KV_TILE_POSITIONS ? UINT32_MAX : (1u << left) - 1;
}

/* Continues the scores of nq queries against a tile by block b of `words` dwords. */
INLINE void score_block(bool q4, int nq, uint32_t words, uint32_t dim,
                        const struct attention_query *queries, const uint8_t *tile, uint32_t b,
                        __m512 f[GROUP][2])
{
    const uint8_t *k =
        tile + (q4 ? kv_q4_k_at(b * KV_Q8_BLOCK, 0) : kv_q8_k_at(b * KV_Q8_BLOCK / 4, 0));
    const uint8_t *scales = tile + scale_at(q4, dim, b);
    __m512i s[GROUP][2];

    UNROLL
    for (int q = 0; q < nq; q++) {
        const __m512i sum = _mm512_set1_epi32(queries[q].blocks[b].sum);
        s[q][0] = s[q][1] =
            q4 ? _mm512_sub_epi32(sum, _mm512_slli_epi32(sum, 4))
               : _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7));
    }
    UNROLL_IF_KNOWN
    for (uint32_t w = 0; w < words; w++) {
        const __m512i k0 = load_keys(q4, k, w, 0), k1 = load_keys(q4, k, w, 1);
        UNROLL
        for (int q = 0; q < nq; q++) {
            int32_t word;
            memcpy(&word, queries[q].blocks[b].q + 4 * w, sizeof(word));
            s[q][0] = _mm512_dpbusd_epi32(s[q][0], k0, _mm512_set1_epi32(word));
            s[q][1] = _mm512_dpbusd_epi32(s[q][1], k1, _mm512_set1_epi32(word));
        }
    }
    UNROLL
    for (int h = 0; h < 2; h++) {
        const __m512 kd = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(scales + 32 * h)));
        UNROLL
        for (int q = 0; q < nq; q++)
            f[q][h] =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[q][h]),
                                _mm512_mul_ps(kd, _mm512_set1_ps(queries[q].blocks[b].d)), f[q][h]);
    }
}

/* Scaled scores of nq queries against tile t. part: not all of them see it whole. */
INLINE void score_tile(bool q4, int nq, bool part, const struct attention_run *run,
                       const struct attention_query *queries, uint32_t t,
                       float (*scores)[KV_RUN_POSITIONS], __m512 most[GROUP])
{
    float *const at = scores[0] + t * KV_TILE_POSITIONS;
    const __m512 scale = _mm512_set1_ps(run->scale), nothing = _mm512_set1_ps(-INFINITY);
    __m512 f[GROUP][2];

    UNROLL
    for (int q = 0; q < nq; q++)
        f[q][0] = f[q][1] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < kv_q8_blocks(run->dim); b++) {
        const uint32_t n = kv_q8_in_block(run->dim, b);
        if (n > KV_Q8_BLOCK - 4)
            score_block(q4, nq, 8, run->dim, queries, run->k[t], b, f);
        else
            score_block(q4, nq, kv_q8_padded(n) / 4, run->dim, queries, run->k[t], b, f);
    }
    UNROLL
    for (int q = 0; q < nq; q++) {
        __m512 s0 = _mm512_mul_ps(f[q][0], scale), s1 = _mm512_mul_ps(f[q][1], scale);
        if (part) {
            const uint32_t seen = mask_of(queries[q].count, t);
            s0 = _mm512_mask_mov_ps(nothing, (__mmask16)seen, s0);
            s1 = _mm512_mask_mov_ps(nothing, (__mmask16)(seen >> 16), s1);
        }
        _mm512_storeu_ps(at + q * KV_RUN_POSITIONS, s0);
        _mm512_storeu_ps(at + q * KV_RUN_POSITIONS + 16, s1);
        most[q] = _mm512_max_ps(most[q], _mm512_max_ps(s0, s1));
    }
}

/* exp512_falling, with the power added to the exponent's bits: no result is so small that it would not be normal. A NaN
 * stays one as its last bits are zero, which is true of those that come from scales. */
INLINE __m512 exp_score(__m512 x)
{
    __m512 t;
    const __m512 y = exp512_fraction(x, &t);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(
        exp512_alive(x), _mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

/* Turns the scores of nq queries against `tiles` tiles into weights; sets max and sum. */
INLINE void soften(int nq, struct attention_query *queries, uint32_t tiles,
                   float (*scores)[KV_RUN_POSITIONS], const __m512 most[GROUP])
{
    __m512 m[GROUP], s[GROUP];
    float out[GROUP];

    UNROLL
    for (int q = 0; q < (int)GROUP; q++) {
        m[q] = most[q < nq ? q : 0];
        s[q] = _mm512_setzero_ps();
    }
    /* −0 becomes +0. */
    _mm_storeu_ps(out, _mm_add_ps(fold_four(FOLD_MAX, m), _mm_setzero_ps()));
    UNROLL
    for (int q = 0; q < nq; q++) {
        queries[q].max = out[q];
        m[q] = _mm512_set1_ps(queries[q].count > 0 ? out[q] : 0);
    }
    for (uint32_t p = 0; p < tiles * KV_TILE_POSITIONS; p += 16)
        UNROLL
    for (int q = 0; q < nq; q++) {
        const __m512 e = exp_score(_mm512_sub_ps(_mm512_loadu_ps(scores[q] + p), m[q]));
        _mm512_storeu_ps(scores[q] + p, e);
        s[q] = _mm512_add_ps(s[q], e);
    }
    _mm_storeu_ps(out, fold_four(FOLD_SUM, s));
    UNROLL
    for (int q = 0; q < nq; q++)
        queries[q].sum = out[q];
}

/* The grids of the largest weights of four queries: their steps and the steps a unit, of which a weight that is not
 * finite leaves NaN and 0, a tiny one zeros. */
INLINE __m128 grid_steps(__m128 largest, __m128 *per_step)
{
    const __m128 grid = _mm_set1_ps(KV_Q8_GRID);
    const __mmask8 broken =
        _mm_cmpge_epu32_mask(_mm_castps_si128(largest), _mm_set1_epi32(0x7f800000));
    const __mmask8 fine =
        _mm_cmp_ps_mask(largest, _mm_set1_ps(PACK_TINY), _CMP_GE_OQ) & (__mmask8)~broken;
    *per_step = _mm_maskz_div_ps(fine, grid, largest);
    return _mm_mask_mov_ps(_mm_maskz_div_ps(fine, largest, grid), broken, _mm_set1_ps(NAN));
}

/* Puts the weights of nq queries for block b of the values of tiles [begin, end) on their grids. part: not all queries see
 * these tiles whole. */
INLINE void make_grid(bool q4, int nq, bool part, const struct attention_run *run,
                      const struct attention_query *queries,
                      const float (*weights)[KV_RUN_POSITIONS], uint32_t begin, uint32_t end,
                      uint32_t b, struct grid *grid)
{
    for (uint32_t t = begin; t < end; t++) {
        const uint8_t *scales = (const uint8_t *)run->v[t] + scale_at(q4, run->dim, b);
        const __m512 vd0 = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)scales));
        const __m512 vd1 = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(scales + 32)));
        __m512 w[GROUP][2], most[GROUP];
        __m512i x[GROUP];
        float per_step[GROUP];
        __m128 per;
        UNROLL
        for (int q = 0; q < nq; q++) {
            const float *e = weights[q] + t * KV_TILE_POSITIONS;
            const uint32_t seen = part ? mask_of(queries[q].count, t) : UINT32_MAX;
            w[q][0] = _mm512_maskz_mul_ps((__mmask16)seen, _mm512_loadu_ps(e), vd0);
            w[q][1] = _mm512_maskz_mul_ps((__mmask16)(seen >> 16), _mm512_loadu_ps(e + 16), vd1);
            most[q] = combine(FOLD_MAX_BITS, w[q][0], w[q][1]);
        }
        UNROLL
        for (int q = nq; q < (int)GROUP; q++)
            most[q] = _mm512_setzero_ps();
        _mm_storeu_ps(grid->step[t], grid_steps(fold_four(FOLD_MAX_BITS, most), &per));
        _mm_storeu_ps(per_step, per);
        UNROLL
        for (int q = 0; q < nq; q++) {
            const __m512 scale = _mm512_set1_ps(per_step[q]);
            x[q] = _mm512_packus_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(w[q][0], scale)),
                                       _mm512_cvtps_epi32(_mm512_mul_ps(w[q][1], scale)));
        }
        UNROLL
        for (int q = nq; q < (int)GROUP; q++)
            x[q] = _mm512_setzero_si512();
        _mm512_store_si512((void *)grid->u[t][0], _mm512_packus_epi16(x[0], x[1]));
        if (nq > 2)
            _mm512_store_si512((void *)grid->u[t][1], _mm512_packus_epi16(x[2], x[3]));
    }
}

/* Sets the outputs of nq queries, the nd vectors of block b. */
INLINE void weigh_block(bool q4, int nq, int nd, const struct attention_run *run,
                        const struct attention_query *queries, const struct grid *grid,
                        uint32_t tiles, uint32_t b, struct feed *feed)
{
    const uint32_t d = b * KV_Q8_BLOCK;
    const size_t stride = 4 * (size_t)(q4 ? kv_q4_padded(run->dim) : kv_q8_padded(run->dim));
    const __mmask16 last = first16(run->dim - d - 16 * ((uint32_t)nd - 1));
    __m512 out[GROUP][2];

    UNROLL
    for (int q = 0; q < nq; q++)
        out[q][0] = out[q][1] = _mm512_setzero_ps();
    for (uint32_t t = 0; t < tiles; t++) {
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

/* Sets the outputs of a group of nq queries. */
INLINE void weigh(bool q4, int nq, const struct attention_run *run,
                  const struct attention_query *queries, const struct group *group,
                  const float (*weights)[KV_RUN_POSITIONS], struct feed *feed)
{
    struct grid grid;
    for (uint32_t b = 0; b < kv_q8_blocks(run->dim); b++) {
        make_grid(q4, nq, false, run, queries, weights, 0, group->whole, b, &grid);
        make_grid(q4, nq, true, run, queries, weights, group->whole, group->tiles, b, &grid);
        if (kv_q8_in_block(run->dim, b) > 16)
            weigh_block(q4, nq, 2, run, queries, &grid, group->tiles, b, feed);
        else
            weigh_block(q4, nq, 1, run, queries, &grid, group->tiles, b, feed);
    }
}

/* What the pieces (a tile, a block) on their way hand on; a piece's place is its number modulo the ring. */
struct line {
    __m512 w[2][GROUP][2]; /* weights by scale of V */
    uint32_t u[2][GROUP / 2][16] __attribute__((aligned(64)));
    float per_step[2][GROUP], step[4][GROUP];
};

/* The first of a piece's three stations: e · scale and the steps of the grid, for one query. */
INLINE void take_weights(int q, const float (*weights)[KV_RUN_POSITIONS], uint32_t t, __m512 vd0,
                         __m512 vd1, __m512 w[GROUP][2], __m512 most[GROUP])
{
    const float *e = weights[q] + t * KV_TILE_POSITIONS;
    w[q][0] = _mm512_mul_ps(_mm512_loadu_ps(e), vd0);
    w[q][1] = _mm512_mul_ps(_mm512_loadu_ps(e + 16), vd1);
    most[q] = combine(FOLD_MAX_BITS, w[q][0], w[q][1]);
}

INLINE void take_steps(struct line *line, uint32_t i, const __m512 most[GROUP])
{
    __m128 per_step;
    _mm_storeu_ps(line->step[i % 4], grid_steps(fold_four(FOLD_MAX_BITS, most), &per_step));
    _mm_storeu_ps(line->per_step[i % 2], per_step);
}

/* The second: half h of a query's weights onto the grid. */
INLINE __m512i to_grid(const struct line *line, uint32_t i, int q, int h)
{
    return _mm512_cvtps_epi32(
        _mm512_mul_ps(line->w[i % 2][q][h], _mm512_set1_ps(line->per_step[i % 2][q])));
}

INLINE void store_grid(int nq, struct line *line, uint32_t i, const __m512i x[GROUP])
{
    _mm512_store_si512((void *)line->u[i % 2][0], _mm512_packus_epi16(x[0], x[1]));
    if (nq > 2)
        _mm512_store_si512((void *)line->u[i % 2][1], _mm512_packus_epi16(x[2], x[3]));
}

/* Where a piece is. */
struct piece {
    uint32_t t, b;
};

/* The next one; the last block's first tile again behind the last. */
INLINE struct piece piece_next(struct piece p, uint32_t tiles, uint32_t blocks)
{
    p.t++;
    if (p.t == tiles) {
        p.t = 0;
        p.b += p.b + 1 < blocks;
    }
    return p;
}

/* weigh for heads of whole blocks where no scale is NaN, infinite or negative, so that the zero weight of an unseen position stays
 * zero. Products keep two pipes busy, what makes grids the other two: three pieces are on their way, each at its own
 * station, and their instructions take turns. */
INLINE void weigh_line(bool q4, int nq, const struct attention_run *run,
                       const struct attention_query *queries, const struct group *group,
                       const float (*weights)[KV_RUN_POSITIONS], struct feed *feed)
{
    const uint32_t tiles = group->tiles, blocks = run->dim / KV_Q8_BLOCK, n = tiles * blocks;
    const size_t stride = 4 * (size_t)run->dim;
    struct piece ahead = {0, 0}, here = {0, 0};
    struct line line;
    __m512i s[GROUP][2], x[GROUP];
    __m512 out[GROUP][2], most[GROUP];

    UNROLL
    for (int q = 0; q < (int)GROUP; q++) {
        most[q] = _mm512_setzero_ps();
        x[q] = _mm512_setzero_si512();
        out[q][0] = out[q][1] = _mm512_setzero_ps();
    }
    /* Pieces −2 and −1 bring the line to its first product. */
    for (uint32_t i = 0; i < n + 2; i++) {
        const uint8_t *scales = (const uint8_t *)run->v[ahead.t] + scale_at(q4, run->dim, ahead.b);
        const __m512 vd0 = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)scales));
        const __m512 vd1 = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(scales + 32)));
        if (i < 2) {
            UNROLL
            for (int q = 0; q < nq; q++)
                take_weights(q, weights, ahead.t, vd0, vd1, line.w[i], most);
            take_steps(&line, i, most);
            if (i == 1) {
                UNROLL
                for (int q = 0; q < nq; q++)
                    x[q] = _mm512_packus_epi32(to_grid(&line, 0, q, 0), to_grid(&line, 0, q, 1));
                store_grid(nq, &line, 0, x);
            }
            ahead = piece_next(ahead, tiles, blocks);
            continue;
        }
        const uint8_t *v = (const uint8_t *)run->v[here.t] + 4 * (size_t)KV_Q8_BLOCK * here.b;
        __m512i y = _mm512_setzero_si512();
        feed_some(feed);
        UNROLL
        for (int q = 0; q < nq; q++)
            s[q][0] = s[q][1] = _mm512_setzero_si512();
        UNROLL
        for (int k = 0; k < 8; k++) {
            const __m512i v0 = load_values(q4, v, stride, k),
                          v1 = load_values(q4, v + 64, stride, k);
            UNROLL
            for (int q = 0; q < nq; q++) {
                const __m512i u = _mm512_set1_epi32((int32_t)line.u[i % 2][q / 2][dword_at(q, k)]);
                s[q][0] = _mm512_dpbusd_epi32(s[q][0], u, v0);
                s[q][1] = _mm512_dpbusd_epi32(s[q][1], u, v1);
            }
            if (k / 2 < nq) {
                const __m512i z = to_grid(&line, i + 1, k / 2, k % 2);
                if (k % 2 == 1)
                    x[k / 2] = _mm512_packus_epi32(y, z);
                y = z;
            }
            if (k < nq)
                take_weights(k, weights, ahead.t, vd0, vd1, line.w[i % 2], most);
            if (k == 4)
                take_steps(&line, i, most);
        }
        store_grid(nq, &line, i + 1, x);
        UNROLL
        for (int q = 0; q < nq; q++) {
            const __m512 step = _mm512_set1_ps(line.step[(i + 2) % 4][q]);
            out[q][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[q][0]), step, out[q][0]);
            out[q][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[q][1]), step, out[q][1]);
        }
        if (here.t + 1 == tiles)
            UNROLL
        for (int q = 0; q < nq; q++) {
            _mm512_storeu_ps(queries[q].out + here.b * KV_Q8_BLOCK, out[q][0]);
            _mm512_storeu_ps(queries[q].out + here.b * KV_Q8_BLOCK + 16, out[q][1]);
            out[q][0] = out[q][1] = _mm512_setzero_ps();
        }
        here = piece_next(here, tiles, blocks);
        ahead = piece_next(ahead, tiles, blocks);
    }
}

/* Whether all scales of the values of the tiles that not all of the group see are finite and not negative: an unseen
 * position may hold anything, and 0 times that must be +0. */
INLINE bool scales_fine(bool q4, const struct attention_run *run, const struct group *group)
{
    const __m512i infinite = _mm512_set1_epi16(0x7c00);
    __mmask32 broken = 0;
    for (uint32_t t = group->whole; t < group->tiles; t++)
        for (uint32_t b = 0; b < kv_q8_blocks(run->dim); b++) {
            const __m512i x = _mm512_loadu_si512(
                (const void *)((const uint8_t *)run->v[t] + scale_at(q4, run->dim, b)));
            broken |= _mm512_cmpge_epu16_mask(x, infinite);
        }
    return broken == 0;
}

typedef void score_fn(const struct attention_run *run, const struct attention_query *queries,
                      struct group *group, uint32_t t, float (*scores)[KV_RUN_POSITIONS]);
typedef void finish_fn(const struct attention_run *run, struct attention_query *queries,
                       const struct group *group, float (*scores)[KV_RUN_POSITIONS],
                       struct feed *feed);

#define GROUP_OF(type, q4, nq)                                                                     \
    static void score_##type##_##nq(const struct attention_run *run,                               \
                                    const struct attention_query *queries, struct group *group,    \
                                    uint32_t t, float(*scores)[KV_RUN_POSITIONS])                  \
    {                                                                                              \
        if (t < group->whole)                                                                      \
            score_tile(q4, nq, false, run, queries, t, scores, group->most);                       \
        else if (t < group->tiles)                                                                 \
            score_tile(q4, nq, true, run, queries, t, scores, group->most);                        \
    }                                                                                              \
    static void finish_##type##_##nq(const struct attention_run *run,                              \
                                     struct attention_query *queries, const struct group *group,   \
                                     float(*scores)[KV_RUN_POSITIONS], struct feed *feed)          \
    {                                                                                              \
        soften(nq, queries, group->tiles, scores, group->most);                                    \
        const float(*const weights)[KV_RUN_POSITIONS] = (const float(*)[KV_RUN_POSITIONS])scores;  \
        if (run->dim % KV_Q8_BLOCK == 0 && group->tiles > 0 && scales_fine(q4, run, group))        \
            weigh_line(q4, nq, run, queries, group, weights, feed);                                \
        else                                                                                       \
            weigh(q4, nq, run, queries, group, weights, feed);                                     \
    }
#define QUERIES_OF(nq) GROUP_OF(q8, false, nq) GROUP_OF(q4, true, nq)
QUERIES_OF(1)
QUERIES_OF(2)
QUERIES_OF(3)
QUERIES_OF(4)

/* By type (q8_0, q4) and queries of the group − 1. */
static score_fn *const score_group[2][GROUP] = {{score_q8_1, score_q8_2, score_q8_3, score_q8_4},
                                                {score_q4_1, score_q4_2, score_q4_3, score_q4_4}};
static finish_fn *const finish_group[2][GROUP] = {
    {finish_q8_1, finish_q8_2, finish_q8_3, finish_q8_4},
    {finish_q4_1, finish_q4_2, finish_q4_3, finish_q4_4}};

/* The group of queries [first, first + n). */
static void group_make(struct group *group, const struct attention_query *queries, uint32_t first,
                       uint32_t n)
{
    uint32_t least = queries[first].count, largest = least;
    for (uint32_t q = first + 1; q < first + n; q++) {
        least = queries[q].count < least ? queries[q].count : least;
        largest = queries[q].count > largest ? queries[q].count : largest;
    }
    group->first = first;
    group->n = n;
    group->whole = least / KV_TILE_POSITIONS;
    group->tiles = (largest + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS;
    for (uint32_t q = 0; q < GROUP; q++)
        group->most[q] = _mm512_set1_ps(-INFINITY);
}

static void bring_tile(const void *tile, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)tile + i, _MM_HINT_T0);
}

/* Groups that go through the tiles together. cold: the first to do so, and the tiles are far. */
static void attend(bool q4, bool cold, const struct attention_run *run,
                   struct attention_query *queries, struct group *groups, uint32_t n_groups,
                   struct feed *feed)
{
    const size_t bytes = kv_tile_bytes(q4 ? KV_Q4 : KV_Q8_0, run->dim);
    float scores[GROUPS][GROUP][KV_RUN_POSITIONS] __attribute__((aligned(64)));
    uint32_t tiles = 0;

    for (uint32_t g = 0; g < n_groups; g++)
        tiles = groups[g].tiles > tiles ? groups[g].tiles : tiles;
    check(run->tiles <= KV_RUN_TILES && tiles <= run->tiles);
    for (uint32_t t = 0; t < COLD_TILES && t < tiles && cold; t++)
        bring_tile(run->k[t], bytes);
    for (uint32_t t = 0; t < tiles; t++) {
        if (cold && t + COLD_TILES < tiles)
            bring_tile(run->k[t + COLD_TILES], bytes);
        else if (cold)
            bring_tile(run->v[t + COLD_TILES - tiles], bytes);
        feed_some(feed);
        for (uint32_t g = 0; g < n_groups; g++)
            score_group[q4][groups[g].n - 1](run, queries + groups[g].first, &groups[g], t,
                                             scores[g]);
    }
    for (uint32_t g = 0; g < n_groups; g++)
        finish_group[q4][groups[g].n - 1](run, queries + groups[g].first, &groups[g], scores[g],
                                          feed);
}

/* In groups of nearly one size: a query by itself costs as much as two. */
static void attend_all(bool q4, const struct attention_run *run, struct attention_query *queries,
                       uint32_t n)
{
    const uint32_t all = (n + GROUP - 1) / GROUP, sets = (all + GROUPS - 1) / GROUPS;
    struct feed feed = feed_begin(run, run->tiles * (sets + all * kv_q8_blocks(run->dim)) + 1);
    struct group groups[GROUPS];
    const bool cold = run->cold && n >= COLD_QUERIES;
    for (uint32_t i = 0, first = 0, end; i < all; i++, first = end) {
        end = n * (i + 1) / all;
        group_make(&groups[i % GROUPS], queries, first, end - first);
        if (i % GROUPS == GROUPS - 1 || i + 1 == all)
            attend(q4, cold && i < GROUPS, run, queries, groups, i % GROUPS + 1, &feed);
    }
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
    k->store_k[KV_Q4] = kv_q4_store_k;
    k->store_v[KV_Q4] = kv_q4_store_v;
    k->hadamard = kv_q4_hadamard;
    k->attention[KV_Q8_0] = attention_q8_0;
    k->attention[KV_Q4] = attention_q4;
}
