/* ops_attention.c: KV stores, attention, merging of runs. */
#define _GNU_SOURCE
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/base/xalloc.h"
#include "core/kernels/half.h"
#include "expect.h"
#include "guarded.h"
#include "pairs.h"

static bool same_float(float a, float b)
{
    return f32_to_bits(a) == f32_to_bits(b) || (isnan(a) && isnan(b));
}

static const uint32_t dims[] = {1, 4, 8, 15, 16, 32, 36, 64, 80, 96, 128, 256};
#define DIMS (sizeof(dims) / sizeof(dims[0]))

static kv_store_fn *store_slot(const struct kernels *k, const struct op *op)
{
    kv_store_fn *fn;
    memcpy(&fn, (const char *)k + op->slot, sizeof(fn));
    return fn;
}

static void check_store(const struct pair *pair)
{
    const enum kv_type type = (enum kv_type)pair->op->variant;
    struct rng r = rng_make(11);
    static const struct {
        uint32_t pos, n;
    } ranges[] = {{0, 1}, {31, 1}, {0, 32}, {5, 17}, {16, 16}, {3, 4}, {30, 2}};

    for (size_t i = 0; i < DIMS; i++)
        for (size_t j = 0; j < sizeof(ranges) / sizeof(ranges[0]); j++)
            for (unsigned f = 0; f < FILL_COUNT; f++) {
                const uint32_t dim = dims[i], n = ranges[j].n, ldx = dim + 5;
                struct guarded x = guarded_new(((n - 1) * ldx + dim) * sizeof(float), 4);
                struct guarded want = guarded_new(kv_tile_bytes(type, dim), 64);
                struct guarded got = guarded_new(kv_tile_bytes(type, dim), 64);
                fill_floats(x.data, x.size / sizeof(float), (enum fill)f, &r);
                if (f == FILL_RANDOM &&
                    type == KV_F16) /* every kind of f16: small, halfway, overflow */
                    for (size_t v = 0; v < x.size / sizeof(float); v++)
                        ((float *)x.data)[v] =
                            bits_to_f32((rng_next(&r) & 0x9fffffff) | 0x20000000u);
                store_slot(&pair->scalar, pair->op)(want.data, ranges[j].pos, n, x.data, ldx, dim);
                store_slot(&pair->kernels, pair->op)(got.data, ranges[j].pos, n, x.data, ldx, dim);
                expect_msg(memcmp(want.data, got.data, want.size) == 0,
                           "%s/%s dim=%u pos=%u n=%u fill=%s", pair->op->name, pair->kernels.tier,
                           dim, ranges[j].pos, n, fill_names[f]);
                expect(guarded_intact(&x) && guarded_intact(&got));
                guarded_free(&x);
                guarded_free(&want);
                guarded_free(&got);
            }
}

#define QUERIES 13u

struct scene {
    struct attention_run run;
    struct guarded k[KV_RUN_TILES], v[KV_RUN_TILES], q[QUERIES], out[QUERIES];
    struct attention_query queries[QUERIES];
    struct query_block blocks[QUERIES][8];
};

static struct scene scene_make(const struct kernels *k, enum kv_type type, uint32_t dim,
                               uint32_t tiles, enum fill f, struct rng *r)
{
    struct scene s = {.run = {.dim = dim, .scale = 1.0f / sqrtf((float)dim), .tiles = tiles}};
    float *x = xcalloc((size_t)KV_TILE_POSITIONS * dim, sizeof(*x));

    for (uint32_t t = 0; t < tiles; t++) {
        s.k[t] = guarded_new(kv_tile_bytes(type, dim), 64);
        s.v[t] = guarded_new(kv_tile_bytes(type, dim), 64);
        fill_floats(x, (size_t)KV_TILE_POSITIONS * dim, f, r);
        k->store_k[type](s.k[t].data, 0, KV_TILE_POSITIONS, x, dim, dim);
        fill_floats(x, (size_t)KV_TILE_POSITIONS * dim, f == FILL_HUGE ? FILL_RANDOM : f, r);
        k->store_v[type](s.v[t].data, 0, KV_TILE_POSITIONS, x, dim, dim);
        s.run.k[t] = s.k[t].data;
        s.run.v[t] = s.v[t].data;
    }
    for (uint32_t i = 0; i < QUERIES; i++) {
        s.q[i] = guarded_new(dim * sizeof(float), 4);
        s.out[i] = guarded_new(dim * sizeof(float), 4);
        fill_floats(s.q[i].data, dim, f == FILL_HUGE ? FILL_RANDOM : f, r);
        s.queries[i] = (struct attention_query){.q = s.q[i].data, .out = s.out[i].data};
    }
    free(x);
    return s;
}

/* For types that want them so. */
static void quantise_queries(struct scene *s, const struct kernels *k)
{
    for (uint32_t i = 0; i < QUERIES; i++) {
        k->quantise_query(s->queries[i].q, s->run.dim, s->blocks[i]);
        s->queries[i].blocks = s->blocks[i];
    }
}

static void scene_free(struct scene *s)
{
    for (uint32_t t = 0; t < s->run.tiles; t++) {
        expect(guarded_intact(&s->k[t]) && guarded_intact(&s->v[t]));
        guarded_free(&s->k[t]);
        guarded_free(&s->v[t]);
    }
    for (uint32_t i = 0; i < QUERIES; i++) {
        expect(guarded_intact(&s->q[i]) && guarded_intact(&s->out[i]));
        guarded_free(&s->q[i]);
        guarded_free(&s->out[i]);
    }
}

/* Where the contract has the parts of a q8_0 tile. */
static size_t q8_scale_at(uint32_t dim, uint32_t block, uint32_t pos)
{
    return (size_t)((dim + 3) / 4 * 4) * 32 + ((size_t)block * 32 + pos) * 2;
}

static size_t q8_k_at(uint32_t d, uint32_t pos)
{
    return (size_t)(d / 4) * 128 + pos * 4 + d % 4;
}

static size_t q8_v_at(uint32_t dim, uint32_t d, uint32_t pos)
{
    return ((size_t)(pos / 4) * ((dim + 3) / 4 * 4) + d) * 4 + pos % 4;
}

/* The same of q4, whose bytes hold two numbers; the second one if d & 4 in K, pos & 4 in V. */
static size_t q4_scale_at(uint32_t dim, uint32_t block, uint32_t pos)
{
    return (size_t)((dim + 7) / 8 * 8) * 16 + ((size_t)block * 32 + pos) * 2;
}

static size_t q4_k_at(uint32_t d, uint32_t pos)
{
    return (size_t)(d / 8) * 128 + pos * 4 + d % 4;
}

static size_t q4_v_at(uint32_t dim, uint32_t d, uint32_t pos)
{
    return ((size_t)(pos / 8) * ((dim + 7) / 8 * 8) + d) * 4 + pos % 4;
}

static size_t quants_scale_at(enum kv_type type, uint32_t dim, uint32_t block, uint32_t pos)
{
    return type == KV_Q4 ? q4_scale_at(dim, block, pos) : q8_scale_at(dim, block, pos);
}

static int quant_at(enum kv_type type, const uint8_t *tile, bool values, uint32_t dim, uint32_t d,
                    uint32_t pos)
{
    if (type == KV_Q8_0)
        return (int8_t)tile[values ? q8_v_at(dim, d, pos) : q8_k_at(d, pos)];
    const uint8_t byte = tile[values ? q4_v_at(dim, d, pos) : q4_k_at(d, pos)];
    return 2 * ((values ? pos : d) & 4 ? byte >> 4 : byte & 15) - 15;
}

static bool is_quantised(enum kv_type type)
{
    return type == KV_Q8_0 || type == KV_Q4;
}

/* A tile's number as a double. */
static double number_at(enum kv_type type, const void *tile, bool values, uint32_t dim, uint32_t d,
                        uint32_t pos)
{
    const size_t at = values ? (size_t)pos * dim + d : (size_t)d * 32 + pos;
    if (type == KV_F32)
        return (double)((const float *)tile)[at];
    if (type == KV_F16)
        return (double)f16_to_f32(((const uint16_t *)tile)[at]);
    const float scale =
        f16_to_f32(load_u16((const uint8_t *)tile + quants_scale_at(type, dim, d / 32, pos)));
    return (double)scale * quant_at(type, tile, values, dim, d, pos);
}

/* Positions that no query may read become NaN, or negative, scales as well. */
static void poison(struct scene *s, enum kv_type type, uint32_t from, bool negative)
{
    const uint16_t bad16 = negative ? 0xbc01 : 0x7e01;
    const float bad32 = negative ? -1 : NAN;
    for (uint32_t p = from; p < s->run.tiles * KV_TILE_POSITIONS; p++)
        for (uint32_t d = 0; d < s->run.dim; d++) {
            const uint32_t t = p / KV_TILE_POSITIONS, i = p % KV_TILE_POSITIONS;
            const size_t at_k = (size_t)d * KV_TILE_POSITIONS + i,
                         at_v = (size_t)i * s->run.dim + d;
            if (type == KV_F32) {
                ((float *)s->k[t].data)[at_k] = bad32;
                ((float *)s->v[t].data)[at_v] = bad32;
            } else if (type == KV_Q8_0) {
                const size_t scale = q8_scale_at(s->run.dim, d / 32, i);
                ((uint8_t *)s->k[t].data)[q8_k_at(d, i)] = 0x80;
                ((uint8_t *)s->v[t].data)[q8_v_at(s->run.dim, d, i)] = 0x80;
                memcpy((uint8_t *)s->k[t].data + scale, &bad16, sizeof(bad16));
                memcpy((uint8_t *)s->v[t].data + scale, &bad16, sizeof(bad16));
            } else if (type == KV_Q4) {
                /* The other half of a byte may be read. */
                const size_t scale = q4_scale_at(s->run.dim, d / 32, i);
                uint8_t *k = (uint8_t *)s->k[t].data + q4_k_at(d, i);
                uint8_t *v = (uint8_t *)s->v[t].data + q4_v_at(s->run.dim, d, i);
                *k = d & 4 ? *k & 15 : *k & 240;
                *v = i & 4 ? *v & 15 : *v & 240;
                memcpy((uint8_t *)s->k[t].data + scale, &bad16, sizeof(bad16));
                memcpy((uint8_t *)s->v[t].data + scale, &bad16, sizeof(bad16));
            } else {
                ((uint16_t *)s->k[t].data)[at_k] = bad16;
                ((uint16_t *)s->v[t].data)[at_v] = bad16;
            }
        }
}

static void compare_queries(const struct pair *pair, struct scene *s, uint32_t n, const char *fill)
{
    const enum kv_type type = (enum kv_type)pair->op->variant;
    struct attention_query want[QUERIES];
    float *out = xcalloc((size_t)n * s->run.dim, sizeof(*out));

    memcpy(want, s->queries, sizeof(want));
    for (uint32_t i = 0; i < n; i++)
        want[i].out = out + (size_t)i * s->run.dim;
    pair->scalar.attention[type](&s->run, want, n);
    pair->kernels.attention[type](&s->run, s->queries, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct attention_query *q = &s->queries[i];
        /* With a score that isn't finite the sum is NaN and the maximum means nothing. */
        expect_msg((isnan(want[i].sum) || same_float(q->max, want[i].max)) &&
                       same_float(q->sum, want[i].sum),
                   "%s/%s fill=%s dim=%u n=%u query %u count=%u: max %a sum %a, want %a %a",
                   pair->op->name, pair->kernels.tier, fill, s->run.dim, n, i, q->count,
                   (double)q->max, (double)q->sum, (double)want[i].max, (double)want[i].sum);
        for (uint32_t d = 0; d < s->run.dim; d++)
            expect_msg(same_float(q->out[d], want[i].out[d]),
                       "%s/%s fill=%s dim=%u n=%u query %u count=%u out[%u]: %a, want %a",
                       pair->op->name, pair->kernels.tier, fill, s->run.dim, n, i, q->count, d,
                       (double)q->out[d], (double)want[i].out[d]);
    }
    free(out);
}

static void check_attention(const struct pair *pair)
{
    const enum kv_type type = (enum kv_type)pair->op->variant;
    struct rng r = rng_make(12);

    for (size_t i = 0; i < DIMS; i++)
        for (unsigned f = 0; f < FILL_COUNT; f++) {
            const uint32_t tiles = 1 + rng_next(&r) % KV_RUN_TILES, all = tiles * KV_TILE_POSITIONS;
            struct scene s = scene_make(&pair->scalar, type, dims[i], tiles, (enum fill)f, &r);
            uint32_t largest = 0;
            quantise_queries(&s, &pair->kernels);
            for (uint32_t n = 1; n <= QUERIES; n += n < 4 ? 1 : 3) {
                for (uint32_t j = 0; j < n; j++) /* a causal chunk, then whatever */
                    s.queries[j].count = n & 1 ? (all > j ? all - j : 0) : rng_next(&r) % (all + 1);
                compare_queries(pair, &s, n, fill_names[f]);
            }
            for (uint32_t j = 0; j < QUERIES; j++) {
                s.queries[j].count = rng_next(&r) % all;
                largest = s.queries[j].count > largest ? s.queries[j].count : largest;
            }
            s.queries[3].count = 0;
            poison(&s, type, largest, true);
            compare_queries(pair, &s, QUERIES, "unread positions negative");
            poison(&s, type, largest, false);
            compare_queries(pair, &s, QUERIES, "unread positions NaN");
            struct attention_piece ahead[2 * KV_RUN_TILES];
            for (uint32_t t = 0; t < tiles; t++) {
                ahead[2 * t] = (struct attention_piece){s.run.k[t], s.k[t].size};
                ahead[2 * t + 1] =
                    (struct attention_piece){s.run.v[t], t % 2 == 0 ? s.v[t].size : 0};
            }
            s.run.ahead = ahead;
            s.run.n_ahead = 2 * tiles;
            compare_queries(pair, &s, QUERIES, "memory to bring near");
            s.run.n_ahead = 0;
            for (uint32_t j = 0; j < QUERIES; j++)
                expect(s.queries[j].count == 0 || f == FILL_HUGE || isfinite(s.queries[j].sum));
            expect(s.queries[3].sum == 0.0f && s.queries[3].max == -INFINITY);
            poison(&s, type, largest / 2, false);
            compare_queries(pair, &s, QUERIES, "read positions NaN");
            scene_free(&s);
        }
}

/* What a score takes for the query. */
static void round_query(enum kv_type type, const float *x, uint32_t dim, double *q)
{
    for (uint32_t b = 0; b < dim; b += 32) {
        double amax = 0;
        const uint32_t end = b + 32 < dim ? b + 32 : dim;
        for (uint32_t d = b; d < end; d++)
            amax = fmax(amax, fabs((double)x[d]));
        for (uint32_t d = b; d < end; d++)
            q[d] = is_quantised(type) ? nearbyint((double)x[d] * 127 / amax) * amax / 127
                                      : (double)x[d];
    }
}

/* The number of q4 that is nearest to x: d times one of −15, −13 … 15. */
static double q4_nearest(double x, double d)
{
    return d * fmin(fmax(2 * floor(x / d / 2) + 1, -15), 15);
}

/* A block is as near to what was stored as the best of the scales amax / 15, / 16
 * and / 17 allows, each number as near as its scale allows. */
static void oracle_q4_block(const struct op *op, const void *tile, bool values, uint32_t dim,
                            uint32_t b, uint32_t p, const float *x)
{
    const uint32_t n = dim - 32 * b < 32 ? dim - 32 * b : 32;
    const double d = (double)f16_to_f32(load_u16((const uint8_t *)tile + q4_scale_at(dim, b, p)));
    double best = INFINITY, error = 0;
    float amax = 0;
    for (uint32_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    for (uint32_t most = 15; most <= 17; most++) {
        const double candidate = (double)f16_to_f32(f32_to_f16(amax / (float)most));
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += pow((double)x[i] - q4_nearest((double)x[i], candidate), 2);
        best = fmin(best, sum);
    }
    for (uint32_t i = 0; i < n; i++) {
        const double off = fabs((double)x[i] - number_at(KV_Q4, tile, values, dim, 32 * b + i, p));
        expect_msg(off <= fabs((double)x[i] - q4_nearest((double)x[i], d)) + 1e-5 * (double)amax,
                   "%s dim=%u position %u dimension %u", op->name, dim, p, 32 * b + i);
        error += off * off;
    }
    expect_msg(error <= best * 1.00001, "%s dim=%u position %u block %u: %g, want %g", op->name,
               dim, p, b, error, best);
}

/* Every number of a q8_0 or q4 tile, written one position at a time in a wild order, is what its store says, and so are its
 * neighbours after it; the bytes are those of one store of all. */
static void oracle_store_quants(const struct op *op, const struct kernels *k)
{
    const enum kv_type type = (enum kv_type)op->variant;
    const bool values =
        op->slot == offsetof(struct kernels, store_v) + type * sizeof(kv_store_fn *);
    struct rng r = rng_make(15);
    for (size_t i = 0; i < DIMS; i++) {
        const uint32_t dim = dims[i];
        const size_t bytes = kv_tile_bytes(type, dim);
        float *x = xcalloc((size_t)KV_TILE_POSITIONS * dim, sizeof(*x));
        struct guarded all = guarded_new(bytes, 64), one = guarded_new(bytes, 64);
        expect(bytes ==
               (type == KV_Q4 ? (dim + 7) / 8 : (dim + 3) / 4) * 128 + (dim + 31) / 32 * 64);
        fill_floats(x, (size_t)KV_TILE_POSITIONS * dim, FILL_RANDOM, &r);
        store_slot(k, op)(all.data, 0, KV_TILE_POSITIONS, x, dim, dim);
        for (uint32_t n = 0, p = 7; n < KV_TILE_POSITIONS; n++, p = (p + 11) % KV_TILE_POSITIONS)
            store_slot(k, op)(one.data, p, 1, x + (size_t)p * dim, dim, dim);
        expect(memcmp(all.data, one.data, bytes) == 0 && guarded_intact(&one));
        for (uint32_t p = 0; p < KV_TILE_POSITIONS && type == KV_Q4; p++)
            for (uint32_t b = 0; b < (dim + 31) / 32; b++)
                oracle_q4_block(op, all.data, values, dim, b, p, x + (size_t)p * dim + 32 * b);
        for (uint32_t p = 0; p < KV_TILE_POSITIONS && type == KV_Q8_0; p++)
            for (uint32_t d = 0; d < dim; d++) {
                float amax = 0;
                for (uint32_t j = d / 32 * 32; j < d / 32 * 32 + 32 && j < dim; j++)
                    amax = fmaxf(amax, fabsf(x[(size_t)p * dim + j]));
                /* Rounding the scale to f16 takes the largest number 2⁻¹¹ · 127 of a step off. */
                expect_msg(fabs(number_at(type, all.data, values, dim, d, p) -
                                (double)x[(size_t)p * dim + d]) <=
                               (double)amax / 127 * (0.5012 + 127.0 / 2047),
                           "%s dim=%u position %u dimension %u", op->name, dim, p, d);
            }
        guarded_free(&all);
        guarded_free(&one);
        free(x);
    }
}

/* By how much the grid of quantised types' weights may turn position p's share of dimension d: half a step of its tile. */
static double weight_error(enum kv_type type, const void *tile, const double *e, uint32_t count,
                           uint32_t dim, uint32_t d, uint32_t p)
{
    double largest = 0;
    for (uint32_t i = p / 32 * 32; i < p / 32 * 32 + 32 && i < count; i++) {
        const double scale = (double)f16_to_f32(
            load_u16((const uint8_t *)tile + quants_scale_at(type, dim, d / 32, i % 32)));
        largest = fmax(largest, e[i] * scale);
    }
    return largest / 255 * 0.501 * abs(quant_at(type, tile, true, dim, d, p % 32));
}

static void oracle_attention(const struct op *op, const struct kernels *k)
{
    const enum kv_type type = (enum kv_type)op->variant;
    struct rng r = rng_make(13);
    const uint32_t dim = is_quantised(type) ? 41 : 24;
    struct scene s = scene_make(k, type, dim, 3, FILL_RANDOM, &r);
    double q[64];
    round_query(type, s.queries[0].q, dim, q);
    quantise_queries(&s, k);

    s.queries[0].count = 71;
    k->attention[type](&s.run, s.queries, 1);
    double e[96], sum = 0, max = -INFINITY;
    for (uint32_t p = 0; p < 71; p++) {
        e[p] = 0;
        for (uint32_t d = 0; d < dim; d++)
            e[p] += q[d] * number_at(type, s.k[p / 32].data, false, dim, d, p % 32);
        e[p] /= sqrt(dim);
        max = e[p] > max ? e[p] : max;
    }
    for (uint32_t p = 0; p < 71; p++)
        sum += e[p] = exp(e[p] - max);
    ck_assert_double_le(fabs((double)s.queries[0].max - max), 1e-5);
    ck_assert_double_le(fabs((double)s.queries[0].sum - sum), 1e-4 * sum);
    for (uint32_t d = 0; d < dim; d++) {
        double out = 0, allowed = 0;
        for (uint32_t p = 0; p < 71; p++) {
            const double v = number_at(type, s.v[p / 32].data, true, dim, d, p % 32);
            out += e[p] * v;
            allowed +=
                is_quantised(type) ? weight_error(type, s.v[p / 32].data, e, 71, dim, d, p) : 0;
        }
        ck_assert_double_le(fabs((double)s.queries[0].out[d] - out),
                            1e-4 * (fabs(out) + sum) + allowed);
    }
    scene_free(&s);
}

/* Guarded on both sides, whatever is in the numbers; where one is not finite, only the step counts. */
static void check_quantise_query(const struct pair *pair)
{
    struct rng r = rng_make(18);
    for (size_t i = 0; i < DIMS; i++)
        for (unsigned f = 0; f < FILL_COUNT; f++) {
            const uint32_t dim = dims[i], n = (dim + 31) / 32;
            struct guarded x = guarded_new(dim * sizeof(float), 4);
            struct guarded got = guarded_new(n * sizeof(struct query_block), 4);
            struct query_block want[8], *blocks = got.data;
            fill_floats(x.data, dim, (enum fill)f, &r);
            if (f == FILL_RANDOM)
                ((float *)x.data)[rng_next(&r) % dim] = rng_next(&r) % 2 ? NAN : INFINITY;
            pair->scalar.quantise_query(x.data, dim, want);
            pair->kernels.quantise_query(x.data, dim, got.data);
            for (uint32_t b = 0; b < n; b++)
                expect_msg(same_float(blocks[b].d, want[b].d) &&
                               (isnan(want[b].d) || (blocks[b].sum == want[b].sum &&
                                                     memcmp(blocks[b].q, want[b].q, 32) == 0)),
                           "%s/%s dim=%u fill=%s block %u", pair->op->name, pair->kernels.tier, dim,
                           fill_names[f], b);
            expect(guarded_intact(&x) && guarded_intact(&got));
            guarded_free(&x);
            guarded_free(&got);
        }
}

/* Folding runs one after the other gives what one softmax over all would. */
static void check_merge(const struct pair *pair)
{
    struct rng r = rng_make(14);
    for (size_t i = 0; i < DIMS; i++)
        for (uint32_t round = 0; round < 20; round++) {
            const uint32_t dim = dims[i];
            struct guarded run = guarded_new(dim * sizeof(float), 4);
            struct guarded a = guarded_new(dim * sizeof(float), 4),
                           b = guarded_new(dim * sizeof(float), 4);
            float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
            memset(a.data, 0, a.size);
            memset(b.data, 0, b.size);
            for (uint32_t step = 0; step < 5; step++) {
                float run_max = rng_next(&r) % 4 ? rng_float(&r) * 50 : -INFINITY;
                float run_sum = run_max == -INFINITY ? 0 : 1 + 100 * fabsf(rng_float(&r));
                fill_floats(run.data, dim, run_max == -INFINITY ? FILL_ZERO : FILL_RANDOM, &r);
                pair->scalar.attention_merge(&max[0], &sum[0], a.data, run_max, run_sum, run.data,
                                             dim);
                pair->kernels.attention_merge(&max[1], &sum[1], b.data, run_max, run_sum, run.data,
                                              dim);
                expect(same_float(max[0], max[1]) && same_float(sum[0], sum[1]));
                expect_msg(memcmp(a.data, b.data, a.size) == 0, "merge/%s dim=%u",
                           pair->kernels.tier, dim);
            }
            if (sum[0] > 0) {
                pair->scalar.attention_finish(a.data, sum[0], dim);
                pair->kernels.attention_finish(b.data, sum[1], dim);
                expect_msg(memcmp(a.data, b.data, a.size) == 0, "finish/%s dim=%u",
                           pair->kernels.tier, dim);
            }
            expect(guarded_intact(&run) && guarded_intact(&b));
            guarded_free(&run);
            guarded_free(&a);
            guarded_free(&b);
        }
}

static void oracle_merge(const struct op *op, const struct kernels *k)
{
    float max = -INFINITY, sum = 0, out[2] = {0, 0};
    const float first[2] = {1, 2}, second[2] = {3, -1};
    k->attention_merge(&max, &sum, out, 1.0f, 2.0f, first, 2);
    k->attention_merge(&max, &sum, out, 2.0f, 4.0f, second, 2);
    k->attention_merge(&max, &sum, out, -INFINITY, 0.0f, second, 2);
    expect_msg(max == 2.0f, "%s: max %g", op->name, (double)max);
    ck_assert_double_le(fabs((double)sum - (2 * exp(-1) + 4)), 1e-6);
    ck_assert_double_le(fabs((double)out[0] - (exp(-1) + 3)), 1e-6);
    ck_assert_double_le(fabs((double)out[1] - (2 * exp(-1) - 1)), 1e-6);
    k->attention_finish(out, 4.0f, 2);
    ck_assert_double_le(fabs((double)out[0] - (exp(-1) + 3) / 4), 1e-6);
}

/* Twice is nothing, once keeps lengths, and a single number is spread over its block. */
static void oracle_hadamard(const struct op *op, const struct kernels *k)
{
    struct rng r = rng_make(16);
    for (size_t i = 0; i < DIMS; i++) {
        const uint32_t dim = dims[i], size = dim & -dim;
        struct guarded x = guarded_new(dim * sizeof(float), 4);
        float *y = x.data, *was = xcalloc(dim, sizeof(*was));
        double before = 0, after = 0;
        fill_floats(y, dim, FILL_RANDOM, &r);
        memcpy(was, y, dim * sizeof(*was));
        k->hadamard(y, dim);
        for (uint32_t d = 0; d < dim; d++) {
            before += (double)was[d] * (double)was[d];
            after += (double)y[d] * (double)y[d];
        }
        expect_msg(fabs(after - before) <= 1e-5 * before, "%s dim=%u", op->name, dim);
        k->hadamard(y, dim);
        for (uint32_t d = 0; d < dim; d++)
            ck_assert_double_le(fabs((double)(y[d] - was[d])), 1e-5 * sqrt(before));
        memset(y, 0, dim * sizeof(*y));
        y[dim - 1] = 1;
        k->hadamard(y, dim);
        for (uint32_t d = 0; d < dim; d++) {
            /* The sign says whether the two places in the block share an odd number of bits. */
            const bool minus = __builtin_parity(d % size & (size - 1));
            const double want = d < dim - size ? 0 : (minus ? -1 : 1) / sqrt(size);
            ck_assert_double_le(fabs((double)y[d] - want), 1e-6);
        }
        expect(guarded_intact(&x));
        guarded_free(&x);
        free(was);
    }
}

static void check_hadamard(const struct pair *pair)
{
    struct rng r = rng_make(17);
    for (size_t i = 0; i < DIMS; i++) {
        const uint32_t dim = dims[i];
        float want[256], got[256];
        fill_floats(want, dim, FILL_RANDOM, &r);
        memcpy(got, want, sizeof(got));
        pair->scalar.hadamard(want, dim);
        pair->kernels.hadamard(got, dim);
        expect_msg(memcmp(want, got, dim * sizeof(*got)) == 0, "%s/%s dim=%u", pair->op->name,
                   pair->kernels.tier, dim);
    }
}

const struct op attention_ops[] = {
    {"store_k_f32", offsetof(struct kernels, store_k[KV_F32]), KV_F32, check_store, NULL, NULL},
    {"store_k_f16", offsetof(struct kernels, store_k[KV_F16]), KV_F16, check_store, NULL, NULL},
    {"store_v_f32", offsetof(struct kernels, store_v[KV_F32]), KV_F32, check_store, NULL, NULL},
    {"store_v_f16", offsetof(struct kernels, store_v[KV_F16]), KV_F16, check_store, NULL, NULL},
    {"store_k_q8_0", offsetof(struct kernels, store_k[KV_Q8_0]), KV_Q8_0, check_store,
     oracle_store_quants, NULL},
    {"store_v_q8_0", offsetof(struct kernels, store_v[KV_Q8_0]), KV_Q8_0, check_store,
     oracle_store_quants, NULL},
    {"store_k_q4", offsetof(struct kernels, store_k[KV_Q4]), KV_Q4, check_store,
     oracle_store_quants, NULL},
    {"store_v_q4", offsetof(struct kernels, store_v[KV_Q4]), KV_Q4, check_store,
     oracle_store_quants, NULL},
    {"hadamard", offsetof(struct kernels, hadamard), 0, check_hadamard, oracle_hadamard, NULL},
    {"quantise_query", offsetof(struct kernels, quantise_query), 0, check_quantise_query, NULL,
     NULL},
    {"attention_f32", offsetof(struct kernels, attention[KV_F32]), KV_F32, check_attention,
     oracle_attention, bench_attention},
    {"attention_f16", offsetof(struct kernels, attention[KV_F16]), KV_F16, check_attention,
     oracle_attention, bench_attention},
    {"attention_q8_0", offsetof(struct kernels, attention[KV_Q8_0]), KV_Q8_0, check_attention,
     oracle_attention, bench_attention},
    {"attention_q4", offsetof(struct kernels, attention[KV_Q4]), KV_Q4, check_attention,
     oracle_attention, bench_attention},
    {"attention_merge", offsetof(struct kernels, attention_merge), 0, check_merge, oracle_merge,
     NULL},
    {"attention_finish", offsetof(struct kernels, attention_finish), 0, check_merge, NULL, NULL},
    {0},
};
