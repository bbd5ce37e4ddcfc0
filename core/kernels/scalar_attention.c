/* scalar_attention.c: the reference of KV stores and attention. */
#include <math.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/half.h"
#include "core/kernels/kv_q4.h"
#include "core/kernels/scalar_priv.h"

static float tile_at(enum kv_type type, const void *tile, size_t i)
{
    return type == KV_F32 ? ((const float *)tile)[i] : f16_to_f32(((const uint16_t *)tile)[i]);
}

static void tile_set(enum kv_type type, void *tile, size_t i, float v)
{
    if (type == KV_F32)
        ((float *)tile)[i] = v;
    else
        ((uint16_t *)tile)[i] = f32_to_f16(v);
}

static void store_k(enum kv_type type, void *tile, uint32_t pos, uint32_t n, const float *x,
                    size_t ldx, uint32_t dim)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < dim; d++)
            tile_set(type, tile, (size_t)d * KV_TILE_POSITIONS + pos + i, x[i * ldx + d]);
}

static void store_v(enum kv_type type, void *tile, uint32_t pos, uint32_t n, const float *x,
                    size_t ldx, uint32_t dim)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < dim; d++)
            tile_set(type, tile, (size_t)(pos + i) * dim + d, x[i * ldx + d]);
}

static void store_k_f32(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                        uint32_t dim)
{
    store_k(KV_F32, tile, pos, n, x, ldx, dim);
}

static void store_k_f16(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                        uint32_t dim)
{
    store_k(KV_F16, tile, pos, n, x, ldx, dim);
}

static void store_v_f32(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                        uint32_t dim)
{
    store_v(KV_F32, tile, pos, n, x, ldx, dim);
}

static void store_v_f16(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                        uint32_t dim)
{
    store_v(KV_F16, tile, pos, n, x, ldx, dim);
}

/* Scales and quants of q8_0 and q4. */
static float scale_at(enum kv_type type, const uint8_t *tile, uint32_t dim, uint32_t b,
                      uint32_t pos)
{
    return f16_to_f32(load_u16(
        tile + (type == KV_Q4 ? kv_q4_scale_at(dim, b, pos) : kv_q8_scale_at(dim, b, pos))));
}

static int32_t k_quant(enum kv_type type, const uint8_t *tile, uint32_t d, uint32_t pos)
{
    return type == KV_Q4 ? kv_q4_get(tile[kv_q4_k_at(d, pos)], d & 4)
                         : (int8_t)tile[kv_q8_k_at(d / 4, pos) + d % 4];
}

static int32_t v_quant(enum kv_type type, const uint8_t *tile, uint32_t dim, uint32_t d,
                       uint32_t pos)
{
    return type == KV_Q4 ? kv_q4_get(tile[kv_q4_v_at(dim, d, pos)], pos & 4)
                         : (int8_t)tile[kv_q8_v_at(dim, d, pos)];
}

/* Score of position pos of a tile, not yet scaled. */
static float q_score(enum kv_type type, const uint8_t *tile, const struct query_block *blocks,
                     uint32_t dim, uint32_t pos)
{
    float f = 0;
    for (uint32_t b = 0; b < kv_q8_blocks(dim); b++) {
        const uint32_t n = kv_q8_in_block(dim, b);
        int32_t sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += k_quant(type, tile, b * KV_Q8_BLOCK + i, pos) * blocks[b].q[i];
        f = fmaf((float)sum, scale_at(type, tile, dim, b, pos) * blocks[b].d, f);
    }
    return f;
}

static float score_at(enum kv_type type, const void *tile, const struct attention_query *query,
                      uint32_t dim, uint32_t pos)
{
    float f = 0;
    if (type == KV_Q8_0 || type == KV_Q4)
        return q_score(type, tile, query->blocks, dim, pos);
    for (uint32_t d = 0; d < dim; d++)
        f = fmaf(tile_at(type, tile, (size_t)d * KV_TILE_POSITIONS + pos), query->q[d], f);
    return f;
}

/* Weights of a tile's positions < n for block b of the values, on their grid; returns its step. */
static float q_weights(enum kv_type type, const uint8_t *tile, uint32_t dim, uint32_t b,
                       const float *e, uint32_t n, int32_t u[KV_TILE_POSITIONS])
{
    float w[KV_TILE_POSITIONS];
    uint32_t largest = 0;
    for (uint32_t p = 0; p < n; p++) {
        w[p] = e[p] * scale_at(type, tile, dim, b, p);
        u[p] = 0;
        largest = f32_to_bits(w[p]) > largest ? f32_to_bits(w[p]) : largest;
    }
    if (largest >= 0x7f800000)
        return NAN;
    const float most = bits_to_f32(largest);
    if (most < PACK_TINY)
        return 0;
    for (uint32_t p = 0; p < n; p++)
        u[p] = (int32_t)(f32_to_bits(w[p] * (KV_Q8_GRID / most) + EXP_MAGIC) - EXP_MAGIC_BITS);
    return most / KV_Q8_GRID;
}

/* Adds a tile's first n positions to the outputs. */
static void q_weigh(enum kv_type type, const void *tile, uint32_t dim, const float *e, uint32_t n,
                    float *out)
{
    int32_t u[KV_TILE_POSITIONS];
    float g = 0;
    for (uint32_t d = 0; d < dim; d++) {
        int32_t sum = 0;
        if (d % KV_Q8_BLOCK == 0)
            g = q_weights(type, tile, dim, d / KV_Q8_BLOCK, e, n, u);
        for (uint32_t p = 0; p < n; p++)
            sum += u[p] * v_quant(type, tile, dim, d, p);
        out[d] = fmaf((float)sum, g, out[d]);
    }
}

static void attend(enum kv_type type, const struct attention_run *run,
                   struct attention_query *query)
{
    float e[KV_RUN_POSITIONS], s[16] = {0};
    const uint32_t count = query->count;
    const bool quantised = type == KV_Q8_0 || type == KV_Q4;

    check(count <= run->tiles * KV_TILE_POSITIONS && run->tiles <= KV_RUN_TILES);
    query->max = -INFINITY;
    for (uint32_t p = 0; p < count; p++) {
        const void *tile = run->k[p / KV_TILE_POSITIONS];
        e[p] = score_at(type, tile, query, run->dim, p % KV_TILE_POSITIONS) * run->scale;
        query->max = e[p] > query->max ? e[p] : query->max;
    }
    query->max += 0.0f; /* -0 becomes +0 */
    for (uint32_t p = 0; p < count; p++) {
        e[p] = scalar_exp(e[p] - query->max);
        s[p % 16] += e[p];
    }
    query->sum = scalar_tree16(s);
    for (uint32_t d = 0; d < run->dim; d++)
        query->out[d] = 0;
    for (uint32_t p = 0; p < count && quantised; p += KV_TILE_POSITIONS)
        q_weigh(type, run->v[p / KV_TILE_POSITIONS], run->dim, e + p,
                count - p < KV_TILE_POSITIONS ? count - p : KV_TILE_POSITIONS, query->out);
    for (uint32_t p = 0; p < count && !quantised; p++) {
        const void *tile = run->v[p / KV_TILE_POSITIONS];
        for (uint32_t d = 0; d < run->dim; d++)
            query->out[d] =
                fmaf(e[p], tile_at(type, tile, (size_t)(p % KV_TILE_POSITIONS) * run->dim + d),
                     query->out[d]);
    }
}

static void attention_f32(const struct attention_run *run, struct attention_query *queries,
                          uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        attend(KV_F32, run, &queries[i]);
}

static void attention_f16(const struct attention_run *run, struct attention_query *queries,
                          uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        attend(KV_F16, run, &queries[i]);
}

static void attention_q8_0(const struct attention_run *run, struct attention_query *queries,
                           uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        attend(KV_Q8_0, run, &queries[i]);
}

static void attention_q4(const struct attention_run *run, struct attention_query *queries,
                         uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        attend(KV_Q4, run, &queries[i]);
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
    float m = run_max > *max ? run_max : *max;
    float a = scalar_exp(*max - m), b = scalar_exp(run_max - m);
    *max = m;
    *sum = fmaf(run_sum, b, *sum * a);
    for (uint32_t i = 0; i < dim; i++)
        out[i] = fmaf(run_out[i], b, out[i] * a);
}

static void finish(float *out, float sum, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        out[i] /= sum;
}

void scalar_fill_attention(struct kernels *k)
{
    k->store_k[KV_F32] = store_k_f32;
    k->store_k[KV_F16] = store_k_f16;
    k->store_v[KV_F32] = store_v_f32;
    k->store_v[KV_F16] = store_v_f16;
    k->store_k[KV_Q8_0] = kv_q8_store_k;
    k->store_v[KV_Q8_0] = kv_q8_store_v;
    k->store_k[KV_Q4] = kv_q4_store_k;
    k->store_v[KV_Q4] = kv_q4_store_v;
    k->hadamard = kv_q4_hadamard;
    k->quantise_query = kv_q8_quantise_query;
    k->attention[KV_F32] = attention_f32;
    k->attention[KV_F16] = attention_f16;
    k->attention[KV_Q8_0] = attention_q8_0;
    k->attention[KV_Q4] = attention_q4;
    k->attention_merge = merge;
    k->attention_finish = finish;
}
