/* kernels.h: the table of compute kernels and what each slot promises.
 *
 * Every tier (scalar, avx2, avxvnni, avx512, amx) fills the same table; select.h chooses one. A slot's result
 * depends on its operands alone: never on how many columns, rows or queries share a call, on
 * threads or on tiles, and it is the same in every tier, bit for bit (the integer parts are exact
 * and the float parts are one fixed sequence of roundings, written at each slot). fma is one
 * rounding, · and + are one each.
 *
 * Every thread that calls a slot must have run kernels_enter_thread() (team.h does it for its
 * threads).
 *
 * Trees: "16 lanes" means s[i mod 16] = fma(a, b, s[i mod 16]) over i ascending from +0, then
 * s[i] += s[i+8], s[i] += s[i+4], s[i] += s[i+2], s[0] + s[1].
 *
 * Nothing here allocates, locks or fails; pointers need the alignment of their element unless said.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/kernels/weights.h"

/* --- Activations ----------------------------------------------------------------------
 *
 * n columns (tokens) of `cols` numbers, packed for products; one layout for all tiers, each column
 * on its own cache lines, so that threads may pack different columns:
 *
 *     data + c * stride:  ACTS_Q8      struct act_block x ⌈cols/64⌉·2       (48 B per 32; padding is zero)
 *                         ACTS_Q8_256  struct act_block256 x ⌈cols/256⌉·8   (the same)
 *                         ACTS_F32     float x ⌈cols/16⌉·16                 (zeros behind cols)
 *
 * An AMX tile can be loaded from either Q8 as it is: rows = columns, row stride = stride. */
struct act_block {
    int8_t q[32]; /* round-half-even(x · (127 / amax)), within ±127 */
    float d;      /* amax / 127; 0 if amax < 1e-30 */
    float dsum;   /* d · (float)Σq */
    /* −8·Σq: starts an integer sum of weights stored with a zero point of 8 (· 2^k: others) */
    int32_t seed;
    int32_t seed16; /* −8·Σq over the first 16 */
};

/* One of the eight blocks of 256 columns that share a scale: products of Q4_K, Q5_K and Q6_K stay integers over
 * them, which takes an eighth off their time. A block's own range is kept to a power of two: with A the largest
 * magnitude of the 256 and a the block's, shift = the least s in 0 … 3 with a ≤ A · 2^(s−3), and
 * q = round-half-even(x · ((127 / A) · 2^(3−shift))), within ±127; x is about q · d · 2^shift. All zero if A < 1e-30. */
struct act_block256 {
    int8_t q[32];
    int32_t shift;
    int32_t seeds
        [2]; /* −32·Σq of the first and the second 16: starts sums of weights with a zero point of 32 */
    union {
        float d;         /* first of the eight: (A / 127) / 8 */
        int16_t sums[2]; /* odd ones: Σq · 2^shift of the block before and of this one; else 0 */
    };
};

struct acts {
    enum acts_kind kind;
    uint32_t cols;
    size_t stride; /* bytes from a column to the next: acts_stride(kind, cols), a multiple of 64 */
    uint8_t *data; /* 64-byte aligned; borrowed */
};

/* Bytes of one packed column. */
size_t acts_stride(enum acts_kind kind, uint32_t cols);

static inline struct acts acts_make(enum acts_kind kind, uint32_t cols, void *data)
{
    return (struct acts){kind, cols, acts_stride(kind, cols), (uint8_t *)data};
}

static inline void *acts_column(const struct acts *a, uint32_t c)
{
    return a->data + (size_t)c * a->stride;
}

/* Column kernels: cols numbers at x → the packed column at dst. False if an x (or the normed x) is
 * not finite; the column is then all zeros, so that it harms no other column. */
typedef bool pack_fn(const float *x, uint32_t cols, void *dst);
/* RMS norm, then pack: y = (x · r) · w, r = 1 / sqrt(Σx² / cols + eps); Σx² in 16 lanes. */
typedef bool norm_pack_fn(const float *x, const float *w, float eps, uint32_t cols, void *dst);

/* --- Products -------------------------------------------------------------------------
 *
 * y[c·ldy + r] (+)= Σ_k W[r][k] · X[c0 + c][k] for rows r of panels [p0, p1), r < rows, and c < n.
 * x->kind must be weight_info(w->type)->acts and x->cols = w->cols. Exactly these outputs are
 * written; with `add` the finished product is added to what is there (one rounding).
 *
 * Over 32-blocks ascending, f from +0; dw, m, dmin the weight block's scales as f32, dy = d, dsum
 * as packed:
 *
 *     Q8_0 Q4_0 Q5_0       f = fma((float)Σ(q−zp)·x, dw·dy, f)
 *     IQ4_NL IQ4_XS MXFP4  the same, the table's values for q−zp; IQ4_XS: dw = d·sc
 *     Q4_1 Q5_1            f = fma((float)Σq·x, dw·dy, f); f = fma(m, dsum, f)
 *     Q3_K                 f = fma((float)(sc0·i0 + sc1·i1), d·dy, f), i = Σ(q−zp)·x of each 16
 *     Q2_K                 the same; f = fma(−(float)(m0·b0 + m1·b1), dmin·dy, f), b = Σx of each 16
 *     F32 F16 BF16         16 lanes over the columns
 *
 * Over 256 columns ascending, activations with one scale dy = d for them (ACTS_Q8_256), X = q · 2^shift; all
 * sums exact in int32:
 *
 *     Q4_K Q5_K            i = Σ sc·(Σq·X of each 32), b = Σ m·(ΣX of each 32);
 *                          f = fma(fma(−(float)b, dmin, (float)i · d), dy, f)
 *     Q6_K                 i = Σ sc·(Σ(q−32)·X of each 16); f = fma((float)i, d·dy, f)
 *
 * Output rows may be finished in any order. */
typedef void product_fn(const struct matrix *w, uint32_t p0, uint32_t p1, const struct acts *x,
                        uint32_t c0, uint32_t n, float *y, size_t ldy, bool add);

/* Some CPUs read memory faster in several streams than in one. With streams of 2 or 4, products of up to so many columns
 * cut their panels into that many runs and go through these side by side; same bits. */
#define KERNELS_STREAM_COLUMNS 2u

/* --- KV tiles and attention -----------------------------------------------------------
 *
 * A tile is one KV head's 32 positions of one page, K as [dim][32 positions],
 * V as [32 positions][dim]:
 *
 *     K: dim 0: p0 p1 … p31 | dim 1: p0 p1 … p31 | …
 *     V: position 0: d0 d1 … | position 1: d0 d1 … | …
 *
 * 64-byte aligned. Tiles of q8_0 hold int8 with an f16 scale for each position and 32 dimensions (kv_q8.h), tiles
 * of q4 the same with 4 bits (kv_q4.h). Heads are put through `hadamard` before they come to q4, which spreads single
 * large numbers over all; that is the caller's part. */
#define KV_TILE_POSITIONS 32u
#define KV_RUN_TILES 8u
#define KV_RUN_POSITIONS 256u

enum kv_type { KV_F32, KV_F16, KV_Q8_0, KV_Q4, KV_TYPES };

/* Bytes of one K or V tile, padded to 64. */
size_t kv_tile_bytes(enum kv_type type, uint32_t dim);
/* "f16" → KV_F16; false if unknown. And back. */
bool kv_type_parse(const char *text, enum kv_type *type);
const char *kv_type_name(enum kv_type type);

/* Writes n positions [pos, pos+n) ≤ 32 of a tile, rounding to its type (f16: nearest even, overflow
 * to infinity; q8_0: d = amax / 127 rounded to f16, q = round-half-even(x · (1 / d)) within ±127, all zero if
 * amax < 1e-30 or d = 0; d is NaN if an x is not finite; q4: q is one of −15, −13 … 15, that is 2n − 15 with
 * n = round-half-even(x · (0.5 / d) + 7.5) within 0 … 15, d the one of amax / 15, / 16 and / 17, rounded to f16, with the
 * least sum of squared errors, the first one of several; 0 and NaN as before); other positions keep theirs.
 * x + i·ldx: the head's dim numbers at position pos + i. */
typedef void kv_store_fn(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                         uint32_t dim);

/* 32 dimensions of a query, the last block padded with zeros, as the quantised types' scores take them. */
struct query_block {
    int8_t q[32]; /* as activations are packed */
    float d;      /* likewise; NaN if a number is not finite, the quants mean nothing then */
    int32_t sum;  /* Σq */
};

/* ⌈dim/32⌉ blocks of a query: once, for all its runs. */
typedef void quantise_query_fn(const float *x, uint32_t dim, struct query_block *blocks);

/* One query of one head against one run of 256 positions. The queries of a call share the KV head;
 * they may be the heads of its group, several token positions, or both. */
struct attention_query {
    const float *q;                   /* f32, f16: dim numbers, after RoPE */
    const struct query_block *blocks; /* q8_0, q4: of these, quantised */
    float *out;                       /* dim numbers: Σ e_p · v_p, not divided by the sum */
    uint32_t count; /* positions of the run that it sees: 0 … 256 (t + 1 − 256·run, clipped) */
    /* written: the largest scaled score, Σ e_p; count 0: −inf, 0 (and out all zero) */
    float max, sum;
};

struct attention_run {
    uint32_t dim;                /* head size, any ≥ 1 */
    float scale;                 /* 1/√(head size) or what the model says */
    uint32_t tiles;              /* tiles given: at least ⌈largest count / 32⌉ */
    const void *k[KV_RUN_TILES]; /* tile i holds positions 32i … 32i+31 of the run */
    const void *v[KV_RUN_TILES];
    bool cold; /* nobody has brought these tiles near */
    /* What this thread reads after this run, if it knows: a kernel may bring it near meanwhile. */
    const struct attention_piece *ahead;
    uint32_t n_ahead;
};

struct attention_piece {
    const void *at;
    size_t bytes;
};

/* score_p = (fma chain over dims ascending from +0 of k·q) · scale; max over p < count;
 * e_p = exp(score_p − max); sum: 16 lanes (lane = p mod 16, plain +); out_d = fma chain over p ascending from +0
 * of e_p · v. Positions ≥ count are not read into any result, whatever their bytes. If a score is +infinity or
 * NaN, sum and out are NaN and max means nothing.
 *
 * q8_0, q4: the query comes quantised per 32 dimensions; the chain of a score is, over these blocks ascending,
 * f = fma((float)Σ k·q, kd·qd, f) with the exact integer sum. out is made of integers too: for each tile
 * and block of 32 dimensions, over the positions < count of the tile,
 *
 *     w_p = e_p · vd_p, W = the largest; g = W / 255; u_p = round-half-even(w_p · (255 / W))    within 0 … 255
 *     out_d = fma((float)Σ u_p · v_pd, g, out_d)                                              tiles ascending
 *
 * W < 1e-30: g = 0, u = 0; a w that is not finite: g = NaN, u = 0. */
typedef void attention_fn(const struct attention_run *run, struct attention_query *queries,
                          uint32_t n);

struct kernels {
    const char *tier; /* "scalar", "avx2", "avxvnni", "avx512", "amx" */

    pack_fn *pack[ACTS_KINDS];
    norm_pack_fn *norm_pack[ACTS_KINDS];
    product_fn *product[WEIGHT_TYPES];
    /* The same in 2 and in 4 streams, for n ≤ KERNELS_STREAM_COLUMNS; = product where a tier has none. */
    product_fn *streamed[2][WEIGHT_TYPES];
    uint32_t
        streams; /* 1, 2 or 4: which of them kernels_product gives; 1 until its owner sets it */

    kv_store_fn *store_k[KV_TYPES];
    kv_store_fn *store_v[KV_TYPES];
    quantise_query_fn *quantise_query;
    attention_fn *attention[KV_TYPES];
    /* Folds a later run (max, sum, out) of the same query into the state of the earlier ones:
     * m = larger max; a = exp(*max − m), b = exp(run_max − m); sum = fma(run_sum, b, sum·a), out
     * likewise. An empty run changes nothing; an empty state takes the run's numbers. Runs must
     * come in order. */
    void (*attention_merge)(float *max, float *sum, float *out, float run_max, float run_sum,
                            const float *run_out, uint32_t dim);
    /* out[i] = out[i] / sum. */
    void (*attention_finish)(float *out, float sum, uint32_t dim);

    /* y[i] = (x[i] · r) · w[i], as norm_pack without the packing. y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, float eps, uint32_t n);
    /* y[i] = (gate[i] / (1 + exp(−gate[i]))) · up[i]. y may be either. */
    void (*silu_mul)(float *y, const float *gate, const float *up, uint32_t n);
    /* y[i] = y[i] + x[i]. */
    void (*add)(float *y, const float *x, uint32_t n);
    /* Rotates `heads` heads of x (head h at x + h·dim) by the position's table of `pairs` cosines
     * and sines: (a, b) → (a·cos − b·sin, a·sin + b·cos), each product rounded. Pairs are (2i,
     * 2i+1) in rope_norm and (i, i+pairs) in rope_neox; dimensions from 2·pairs on stay as they
     * are. */
    void (*rope_norm)(float *x, uint32_t heads, uint32_t dim, const float *cos, const float *sin,
                      uint32_t pairs);
    void (*rope_neox)(float *x, uint32_t heads, uint32_t dim, const float *cos, const float *sin,
                      uint32_t pairs);

    /* The normalised Hadamard transform of each block of 2^k numbers of a head, 2^k the largest power of two that
     * divides dim: for half = 1, 2, 4 … (a, b) → (a + b, a − b) over pairs half apart; then · 1 / sqrt(2^k). Scalar
     * products stay what they were, and doing it again undoes it (both but for rounding). */
    void (*hadamard)(float *x, uint32_t dim);

    /* y[i] = exp(x[i]): relative error ≤ 2e-7; exactly 1 at 0, exactly 0 below −87.3; from 88.37 on
     * the value at 88.37 (finite); NaN stays NaN. y may be x. */
    void (*exp)(float *y, const float *x, uint32_t n);
    /* Largest of n ≥ 1 finite numbers. */
    float (*max)(const float *x, uint32_t n);
    /* y[i] = exp(x[i] − max), returns their sum (16 lanes, plain +). y may be x. */
    float (*exp_sum)(float *y, const float *x, uint32_t n, float max);
    /* Lowest index of the largest of n ≥ 1 finite numbers. */
    uint32_t (*argmax)(const float *x, uint32_t n);
    /* Whether all n are finite. */
    bool (*finite)(const float *x, uint32_t n);
};

/* The product to call for n columns. */
static inline product_fn *kernels_product(const struct kernels *k, enum weight_type type,
                                          uint32_t n)
{
    if (k->streams == 1 || n > KERNELS_STREAM_COLUMNS)
        return k->product[type];
    return k->streamed[k->streams == 4][type];
}

/* Sets this thread's MXCSR: round to nearest, FTZ and DAZ on, exceptions masked. */
void kernels_enter_thread(void);

#endif
