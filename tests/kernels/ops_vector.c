/* ops_vector.c: what stands between the products: packing, norms, activations, RoPE, exp,
 * reductions. */
#define _GNU_SOURCE
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/base/xalloc.h"
#include "core/kernels/half.h"
#include "expect.h"
#include "guarded.h"
#include "pairs.h"

static const uint32_t sizes[] = {1,  2,  15, 16, 17,  31,  32,  33,  48,
                                 63, 64, 65, 96, 100, 576, 577, 1536};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static bool same_float(float a, float b)
{
    return f32_to_bits(a) == f32_to_bits(b) || (isnan(a) && isnan(b));
}

static void same_floats(const struct pair *pair, const float *got, const float *want, size_t n,
                        const char *what)
{
    for (size_t i = 0; i < n; i++)
        expect_msg(same_float(got[i], want[i]), "%s/%s %s n=%zu [%zu]: %a, want %a (seed %llu)",
                   pair->op->name, pair->kernels.tier, what, n, i, (double)got[i], (double)want[i],
                   (unsigned long long)kernel_seed());
}

static void check_pack(const struct pair *pair)
{
    const enum acts_kind kind = (enum acts_kind)pair->op->variant;
    const bool norm = strncmp(pair->op->name, "norm", 4) == 0;
    struct rng r = rng_make(21);

    for (size_t i = 0; i < SIZES; i++)
        for (unsigned f = 0; f < FILL_COUNT + 3; f++) {
            const uint32_t n = sizes[i];
            struct guarded x = guarded_new(n * sizeof(float), 4),
                           w = guarded_new(n * sizeof(float), 4);
            struct guarded a = guarded_new(acts_stride(kind, n), 64),
                           b = guarded_new(acts_stride(kind, n), 64);
            fill_floats(x.data, n, f < FILL_COUNT ? (enum fill)f : FILL_RANDOM, &r);
            fill_floats(w.data, n, FILL_RANDOM, &r);
            if (f >= FILL_COUNT) /* one number that isn't finite */
                ((float *)x.data)[rng_next(&r) % n] = f == FILL_COUNT       ? NAN
                                                      : f == FILL_COUNT + 1 ? INFINITY
                                                                            : -INFINITY;
            bool want, got;
            if (norm) {
                want = pair->scalar.norm_pack[kind](x.data, w.data, 1e-5f, n, a.data);
                got = pair->kernels.norm_pack[kind](x.data, w.data, 1e-5f, n, b.data);
            } else {
                want = pair->scalar.pack[kind](x.data, n, a.data);
                got = pair->kernels.pack[kind](x.data, n, b.data);
            }
            expect_msg(want == got && (f < FILL_COUNT || !got),
                       "%s/%s n=%u fill %u: finite %d, want %d", pair->op->name, pair->kernels.tier,
                       n, f, got, want);
            expect_msg(memcmp(a.data, b.data, a.size) == 0,
                       "%s/%s n=%u fill=%s differs (seed %llu)", pair->op->name, pair->kernels.tier,
                       n, f < FILL_COUNT ? fill_names[f] : "not finite",
                       (unsigned long long)kernel_seed());
            expect(guarded_intact(&x) && guarded_intact(&w) && guarded_intact(&b));
            guarded_free(&x);
            guarded_free(&w);
            guarded_free(&a);
            guarded_free(&b);
        }
}

/* Halfway cases, the ends of the range and the sums of one packed block, by hand. */
static void oracle_pack(const struct op *op, const struct kernels *k)
{
    float x[64] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127.0f, 126.5f};
    static const int8_t want[8] = {127, 0, 2, 2, 0, -2, -127, 126};
    struct act_block blocks[3]; /* a column of 64 is two, padded to cache lines */
    x[20] = 3;
    (void)op;
    expect(k->pack[ACTS_Q8](x, 64, blocks));
    ck_assert_mem_eq(blocks[0].q, want, sizeof(want));
    expect(blocks[0].d == 1.0f && blocks[0].q[20] == 3);
    ck_assert_int_eq(blocks[0].seed16, -8 * (127 + 2 + 2 - 2 - 127 + 126));
    ck_assert_int_eq(blocks[0].seed, blocks[0].seed16 - 24);
    expect(blocks[0].dsum == 131.0f);
    expect(blocks[1].d == 0.0f && blocks[1].seed == 0);
    x[0] = 1e-31f;
    for (int i = 1; i < 32; i++)
        x[i] = 0;
    expect(k->pack[ACTS_Q8](x, 64, blocks));
    expect(blocks[0].d == 0.0f && blocks[0].q[0] == 0);
}

/* Shifts by hand: borders are exact powers of two below the largest; the grid is the block's own. */
static void oracle_pack_256(const struct op *op, const struct kernels *k)
{
    static const float largest[8] = {127.0f, 63.5f, 63.6f, 31.75f, 15.875f, 15.9f, 1.0f, 0.0f};
    static const int32_t shifts[8] = {3, 2, 3, 1, 0, 1, 0, 0};
    static const int8_t quants[8] = {127, 127, 64, 127, 127, 64, 8, 0};
    static struct act_block256 b[16]; /* 257 numbers: two groups */
    float x[257] = {0};

    (void)op;
    for (int i = 0; i < 8; i++) {
        x[32 * i + 3] = -largest[i];
        x[32 * i + 20] = largest[i] / 2;
    }
    x[256] = -127e-3f;
    expect(k->pack[ACTS_Q8_256](x, 257, b));
    expect(b[0].d == 0.125f);
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(b[i].shift, shifts[i]);
        ck_assert_int_eq(b[i].q[3], -quants[i]);
        ck_assert_int_eq(b[i].seeds[0], 32 * quants[i]);
        ck_assert_int_eq(b[i].seeds[1], -32 * b[i].q[20]);
        ck_assert_int_eq(b[i | 1].sums[i & 1], (b[i].q[20] - quants[i]) * (1 << shifts[i]));
    }
    expect(b[2].d == 0.0f && b[4].d == 0.0f);
    expect(b[8].q[0] == -127 && b[8].shift == 3 && b[9].shift == 0 && b[9].sums[0] == -127 * 8);
    x[7] = 1e30f;
    x[40] = NAN;
    expect(!k->pack[ACTS_Q8_256](x, 257, b));
    expect(b[0].d == 0.0f && b[0].q[7] == 0 && b[8].q[0] == 0);
}

static void oracle_norm_pack(const struct op *op, const struct kernels *k)
{
    const enum acts_kind kind = (enum acts_kind)op->variant;
    struct rng r = rng_make(22);
    float x[96], w[96], y[96], packed[96];
    uint8_t *dst = xaligned(2 * acts_stride(kind, 96)), *other = dst + acts_stride(kind, 96);
    double ss = 0;

    fill_floats(x, 96, FILL_RANDOM, &r);
    fill_floats(w, 96, FILL_RANDOM, &r);
    for (int i = 0; i < 96; i++)
        ss += (double)x[i] * (double)x[i];
    k->rmsnorm(y, x, w, 1e-5f, 96);
    for (int i = 0; i < 96; i++) {
        double want = (double)x[i] / sqrt(ss / 96 + 1e-5) * (double)w[i];
        ck_assert_double_le(fabs((double)y[i] - want), 1e-6 * (fabs(want) + 1e-6));
    }
    expect(k->norm_pack[kind](x, w, 1e-5f, 96, dst) && k->pack[kind](y, 96, other));
    ck_assert_mem_eq(dst, other, acts_stride(kind, 96));
    (void)packed;
    free(dst);
}

static void check_elementwise(const struct pair *pair)
{
    struct rng r = rng_make(23);
    const char *name = pair->op->name;

    for (size_t i = 0; i < SIZES; i++)
        for (unsigned f = 0; f < FILL_COUNT; f++) {
            const uint32_t n = sizes[i];
            struct guarded a = guarded_new(n * sizeof(float), 4),
                           b = guarded_new(n * sizeof(float), 4);
            struct guarded got = guarded_new(n * sizeof(float), 4);
            float *want = xcalloc(n, sizeof(float)), *y = got.data;
            fill_floats(a.data, n, (enum fill)f, &r);
            fill_floats(b.data, n, FILL_RANDOM, &r);
            if (strcmp(name, "exp") == 0 && f == FILL_RANDOM)
                for (uint32_t j = 0; j < n; j++)
                    ((float *)a.data)[j] = rng_float(&r) * 100;
            if (strcmp(name, "rmsnorm") == 0) {
                pair->scalar.rmsnorm(want, a.data, b.data, 1e-6f, n);
                pair->kernels.rmsnorm(y, a.data, b.data, 1e-6f, n);
            } else if (strcmp(name, "silu_mul") == 0) {
                pair->scalar.silu_mul(want, a.data, b.data, n);
                pair->kernels.silu_mul(y, a.data, b.data, n);
            } else if (strcmp(name, "add") == 0) {
                memcpy(want, b.data, n * sizeof(float));
                memcpy(y, b.data, n * sizeof(float));
                pair->scalar.add(want, a.data, n);
                pair->kernels.add(y, a.data, n);
            } else if (strcmp(name, "exp") == 0) {
                pair->scalar.exp(want, a.data, n);
                pair->kernels.exp(y, a.data, n);
            } else {
                const float max = pair->scalar.max(a.data, n);
                const float s = pair->scalar.exp_sum(want, a.data, n, max);
                const float t = pair->kernels.exp_sum(y, a.data, n, max);
                expect_msg(same_float(s, t), "%s/%s n=%u fill=%s: sum %a, want %a", name,
                           pair->kernels.tier, n, fill_names[f], (double)t, (double)s);
            }
            same_floats(pair, y, want, n, fill_names[f]);
            /* In place. */
            if (strcmp(name, "exp") == 0) {
                pair->kernels.exp(a.data, a.data, n);
                same_floats(pair, a.data, want, n, "in place");
            } else if (strcmp(name, "silu_mul") == 0) {
                pair->kernels.silu_mul(a.data, a.data, b.data, n);
                same_floats(pair, a.data, want, n, "in place");
            }
            expect(guarded_intact(&a) && guarded_intact(&b) && guarded_intact(&got));
            guarded_free(&a);
            guarded_free(&b);
            guarded_free(&got);
            free(want);
        }
}

static void oracle_exp(const struct op *op, const struct kernels *k)
{
    const float ends[] = {0.0f, -0.0f, -87.31f, -1000.0f, -INFINITY, 88.37f, 1000.0f, INFINITY};
    float y[8], x;
    k->exp(y, ends, 8);
    expect(y[0] == 1.0f && y[1] == 1.0f && y[2] == 0.0f && y[3] == 0.0f && y[4] == 0.0f);
    expect(isfinite(y[5]) && y[6] == y[5] && y[7] == y[5]);
    x = NAN;
    k->exp(&x, &x, 1);
    expect(isnan(x));
    double worst = 0;
    for (double v = -87.2; v < 88.3; v += 0.000731) {
        x = (float)v;
        k->exp(y, &x, 1);
        double want = exp((double)x), error = fabs((double)y[0] - want) / want;
        worst = error > worst ? error : worst;
    }
    expect_msg(worst <= 2e-7, "%s: relative error %.3g", op->name, worst);
}

static void oracle_silu(const struct op *op, const struct kernels *k)
{
    for (double v = -60; v < 60; v += 0.0137) {
        float x = (float)v, up = 1.5f, y;
        k->silu_mul(&y, &x, &up, 1);
        double want = (double)x / (1 + exp(-(double)x)) * 1.5;
        expect_msg(fabs((double)y - want) <= 5e-7 * fabs(want), "%s(%g) = %.9g, want %.9g",
                   op->name, v, (double)y, want);
    }
}

static void check_rope(const struct pair *pair)
{
    static const struct {
        uint32_t dim, pairs;
    } shapes[] = {{2, 1},   {8, 4},   {16, 8},   {32, 16}, {64, 32},
                  {64, 16}, {80, 20}, {128, 64}, {36, 18}, {40, 13}};
    struct rng r = rng_make(24);

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t heads = 1; heads <= 5; heads++) {
            const uint32_t n = heads * shapes[i].dim, pairs = shapes[i].pairs;
            struct guarded x = guarded_new(n * sizeof(float), 4);
            struct guarded c = guarded_new(pairs * sizeof(float), 4),
                           s = guarded_new(pairs * sizeof(float), 4);
            float *want = xcalloc(n, sizeof(float));
            fill_floats(x.data, n, FILL_RANDOM, &r);
            fill_floats(c.data, pairs, FILL_RANDOM, &r);
            fill_floats(s.data, pairs, FILL_RANDOM, &r);
            memcpy(want, x.data, n * sizeof(float));
            if (strcmp(pair->op->name, "rope_norm") == 0) {
                pair->scalar.rope_norm(want, heads, shapes[i].dim, c.data, s.data, pairs);
                pair->kernels.rope_norm(x.data, heads, shapes[i].dim, c.data, s.data, pairs);
            } else {
                pair->scalar.rope_neox(want, heads, shapes[i].dim, c.data, s.data, pairs);
                pair->kernels.rope_neox(x.data, heads, shapes[i].dim, c.data, s.data, pairs);
            }
            same_floats(pair, x.data, want, n, "rope");
            expect(guarded_intact(&x) && guarded_intact(&c) && guarded_intact(&s));
            guarded_free(&x);
            guarded_free(&c);
            guarded_free(&s);
            free(want);
        }
}

static void oracle_rope(const struct op *op, const struct kernels *k)
{
    float x[5] = {1, 2, 3, 4, 5};
    const float c[2] = {0.6f, 0}, s[2] = {0.8f, 1};
    (void)op;
    k->rope_norm(x, 1, 5, c, s, 2); /* (1,2) by (0.6, 0.8), (3,4) by a quarter turn */
    expect(fabsf(x[0] + 1.0f) < 1e-6f && fabsf(x[1] - 2.0f) < 1e-6f && x[2] == -4 && x[3] == 3 &&
           x[4] == 5);
    float y[5] = {1, 3, 2, 4, 5};
    k->rope_neox(y, 1, 5, c, s, 2);
    expect(y[0] == x[0] && y[2] == x[1] && y[1] == x[2] && y[3] == x[3] && y[4] == 5);
}

static void check_reduce(const struct pair *pair)
{
    struct rng r = rng_make(25);
    for (size_t i = 0; i < SIZES; i++)
        for (unsigned f = 0; f < FILL_COUNT; f++)
            for (uint32_t round = 0; round < 4; round++) {
                const uint32_t n = sizes[i];
                struct guarded g = guarded_new(n * sizeof(float), 4);
                float *x = g.data;
                fill_floats(x, n, (enum fill)f, &r);
                if (round == 1)
                    x[rng_next(&r) % n] = x[rng_next(&r) % n]; /* ties */
                if (round == 2)
                    for (uint32_t j = 0; j < n; j++)
                        x[j] = -fabsf(x[j]) - 1;
                expect(same_float(pair->scalar.max(x, n), pair->kernels.max(x, n)));
                expect_msg(pair->scalar.argmax(x, n) == pair->kernels.argmax(x, n),
                           "argmax/%s n=%u fill=%s: %u", pair->kernels.tier, n, fill_names[f],
                           pair->kernels.argmax(x, n));
                expect(pair->kernels.finite(x, n));
                x[rng_next(&r) % n] = round == 0 ? NAN : round == 1 ? INFINITY : -INFINITY;
                expect(!pair->kernels.finite(x, n));
                expect(guarded_intact(&g));
                guarded_free(&g);
            }
}

static void oracle_reduce(const struct op *op, const struct kernels *k)
{
    const float x[5] = {-3, 2, -1, 2, 1};
    (void)op;
    expect(k->max(x, 5) == 2 && k->argmax(x, 5) == 1 && k->finite(x, 5));
    float y[5];
    double want = 0;
    for (int i = 0; i < 5; i++)
        want += exp((double)x[i] - 2);
    ck_assert_double_le(fabs((double)k->exp_sum(y, x, 5, 2) - want), 1e-6);
    expect(y[1] == 1.0f);
}

struct vector_case {
    const struct pair *pair;
    float *x, *y;
    uint8_t *packed;
    uint32_t n;
    uint32_t sink;
};

static void run_vector(void *arg)
{
    struct vector_case *c = arg;
    const struct kernels *k = &c->pair->kernels;
    const char *name = c->pair->op->name;
    const unsigned kind = c->pair->op->variant;
    if (strncmp(name, "pack", 4) == 0)
        k->pack[kind](c->x, c->n, c->packed);
    else if (strncmp(name, "norm_pack", 9) == 0)
        k->norm_pack[kind](c->x, c->x, 1e-5f, c->n, c->packed);
    else if (strcmp(name, "rmsnorm") == 0)
        k->rmsnorm(c->y, c->x, c->x, 1e-5f, c->n);
    else if (strcmp(name, "silu_mul") == 0)
        k->silu_mul(c->y, c->x, c->x, c->n);
    else if (strcmp(name, "add") == 0)
        k->add(c->y, c->x, c->n);
    else if (strcmp(name, "rope_norm") == 0)
        k->rope_norm(c->y, c->n / 64, 64, c->x, c->x, 32);
    else if (strcmp(name, "rope_neox") == 0)
        k->rope_neox(c->y, c->n / 64, 64, c->x, c->x, 32);
    else if (strcmp(name, "exp") == 0)
        k->exp(c->y, c->x, c->n);
    else if (strcmp(name, "exp_sum") == 0)
        k->exp_sum(c->y, c->x, c->n, 1.0f);
    else
        c->sink += k->argmax(c->x, c->n);
}

void bench_vector(const struct pair *pair, const struct machine *m)
{
    static const uint32_t counts[] = {576, 1536, 49152};
    struct rng r = rng_make(8);
    struct vector_case c = {.pair = pair};
    c.x = xaligned(49152 * sizeof(float));
    c.y = xaligned(49152 * sizeof(float));
    c.packed = xaligned(49152 * 4);
    fill_floats(c.x, 49152, FILL_RANDOM, &r);
    printf("%-14s %-7s", pair->op->name, pair->kernels.tier);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        c.n = counts[i];
        double t = bench_seconds(run_vector, &c, 0.05);
        printf(" | n=%u %.2f us", c.n, t * 1e6);
    }
    printf("\n");
    (void)m;
    free(c.x);
    free(c.y);
    free(c.packed);
}

#define SLOT(field) offsetof(struct kernels, field)

const struct op vector_ops[] = {
    {"pack_f32", SLOT(pack[ACTS_F32]), ACTS_F32, check_pack, NULL, bench_vector},
    {"pack_q8", SLOT(pack[ACTS_Q8]), ACTS_Q8, check_pack, oracle_pack, bench_vector},
    {"pack_q8_256", SLOT(pack[ACTS_Q8_256]), ACTS_Q8_256, check_pack, oracle_pack_256,
     bench_vector},
    {"norm_pack_q8_256", SLOT(norm_pack[ACTS_Q8_256]), ACTS_Q8_256, check_pack, oracle_norm_pack,
     bench_vector},
    {"norm_pack_f32", SLOT(norm_pack[ACTS_F32]), ACTS_F32, check_pack, oracle_norm_pack,
     bench_vector},
    {"norm_pack_q8", SLOT(norm_pack[ACTS_Q8]), ACTS_Q8, check_pack, oracle_norm_pack, bench_vector},
    {"rmsnorm", SLOT(rmsnorm), 0, check_elementwise, NULL, bench_vector},
    {"silu_mul", SLOT(silu_mul), 0, check_elementwise, oracle_silu, bench_vector},
    {"add", SLOT(add), 0, check_elementwise, NULL, bench_vector},
    {"rope_norm", SLOT(rope_norm), 0, check_rope, oracle_rope, bench_vector},
    {"rope_neox", SLOT(rope_neox), 0, check_rope, oracle_rope, bench_vector},
    {"exp", SLOT(exp), 0, check_elementwise, oracle_exp, bench_vector},
    {"exp_sum", SLOT(exp_sum), 0, check_elementwise, NULL, bench_vector},
    {"max", SLOT(max), 0, check_reduce, NULL, NULL},
    {"argmax", SLOT(argmax), 0, check_reduce, oracle_reduce, bench_vector},
    {"finite", SLOT(finite), 0, check_reduce, NULL, NULL},
    {0},
};
