/* scalar_attention.c: the reference of KV stores and attention. */
#include <math.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/half.h"
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

static void attend(enum kv_type type, const struct attention_run *run,
                   struct attention_query *query)
{
    float e[KV_RUN_POSITIONS], s[16] = {0};
    const uint32_t count = query->count;

    check(count <= run->tiles * KV_TILE_POSITIONS && run->tiles <= KV_RUN_TILES);
    query->max = -INFINITY;
    for (uint32_t p = 0; p < count; p++) {
        const void *tile = run->k[p / KV_TILE_POSITIONS];
        float score = 0;
        for (uint32_t d = 0; d < run->dim; d++)
            score = fmaf(tile_at(type, tile, (size_t)d * KV_TILE_POSITIONS + p % KV_TILE_POSITIONS),
                         query->q[d], score);
        e[p] = score * run->scale;
        query->max = e[p] > query->max ? e[p] : query->max;
    }
    query->max += 0.0f; /* -0 becomes +0 */
    for (uint32_t p = 0; p < count; p++) {
        e[p] = scalar_exp(e[p] - query->max);
        s[p % 16] += e[p];
    }
    query->sum = scalar_tree16(s);
    for (uint32_t d = 0; d < run->dim; d++) {
        float out = 0;
        for (uint32_t p = 0; p < count; p++)
            out = fmaf(e[p],
                       tile_at(type, run->v[p / KV_TILE_POSITIONS],
                               (size_t)(p % KV_TILE_POSITIONS) * run->dim + d),
                       out);
        query->out[d] = out;
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
    k->attention[KV_F32] = attention_f32;
    k->attention[KV_F16] = attention_f16;
    k->attention_merge = merge;
    k->attention_finish = finish;
}
