/* ops_product.c: products of every weight type. */
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

/* A matrix and packed activations, each ending on a guard page. */
struct problem {
    struct matrix w;
    struct guarded source, panels, packed;
    struct acts x;
    float *plain; /* n x cols, before packing */
    uint32_t n;
};

static struct problem problem_make(const struct kernels *k, enum weight_type type, uint32_t rows,
                                   uint32_t cols, uint32_t n, enum fill wf, enum fill xf,
                                   struct rng *r)
{
    struct problem p = {.n = n};
    const size_t row_bytes = weight_row_bytes(type, cols);
    const enum acts_kind kind = weight_info(type)->acts;

    p.source = guarded_new(rows * row_bytes, 1);
    for (uint32_t i = 0; i < rows; i++)
        fill_row(type, (uint8_t *)p.source.data + i * row_bytes, cols, wf, r);
    p.panels = guarded_new(matrix_bytes(type, rows, cols), 64);
    struct error err = {0};
    expect_msg(matrix_init(&p.w, type, rows, cols, p.panels.data, &err) == STATUS_OK, "%s",
               err.text);
    expect_msg(matrix_repack(&p.w, p.source.data, 0, p.w.panels, &err) == STATUS_OK, "%s",
               err.text);
    p.packed = guarded_new(n * acts_stride(kind, cols), 64);
    p.x = acts_make(kind, cols, p.packed.data);
    p.plain = xcalloc((size_t)n * cols, sizeof(float));
    fill_floats(p.plain, (size_t)n * cols, xf, r);
    for (uint32_t c = 0; c < n; c++)
        expect(k->pack[kind](p.plain + (size_t)c * cols, cols, acts_column(&p.x, c)));
    return p;
}

static void problem_free(struct problem *p)
{
    expect(guarded_intact(&p->source) && guarded_intact(&p->panels) && guarded_intact(&p->packed));
    guarded_free(&p->source);
    guarded_free(&p->panels);
    guarded_free(&p->packed);
    free(p->plain);
}

static bool same_float(float a, float b)
{
    return f32_to_bits(a) == f32_to_bits(b) || (isnan(a) && isnan(b));
}

/* Runs the product over panels [p0, p1) and columns [c0, c0 + n) and compares with
 * want[column][row]. */
static void compare(const struct pair *pair, const struct problem *p, const float *want,
                    uint32_t p0, uint32_t p1, uint32_t c0, uint32_t n, bool add, const char *what)
{
    const size_t ldy = p->w.rows + 3;
    struct guarded y = guarded_new(((n - 1) * ldy + p->w.rows) * sizeof(float), 4);
    float *out = y.data;
    const float before = add ? 0.37f : -77.5f;

    for (size_t i = 0; i < y.size / sizeof(float); i++)
        out[i] = before;
    pair->kernels.product[p->w.type](&p->w, p0, p1, &p->x, c0, n, out, ldy, add);
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t r = 0; r < p->w.rows; r++) {
            const bool written = r / PANEL_ROWS >= p0 && r / PANEL_ROWS < p1;
            const float product = want[(size_t)(c0 + c) * p->w.rows + r];
            const float expected = !written ? before : add ? before + product : product;
            expect_msg(same_float(out[c * ldy + r], expected),
                       "%s/%s %s rows=%u cols=%u panels=[%u,%u) c0=%u n=%u add=%d, row %u "
                       "column %u: %a, want %a (seed %llu)",
                       pair->op->name, pair->kernels.tier, what, p->w.rows, p->w.cols, p0, p1, c0,
                       n, add, r, c, (double)out[c * ldy + r], (double)expected,
                       (unsigned long long)kernel_seed());
        }
    for (uint32_t c = 0; c + 1 < n; c++)
        for (uint32_t r = p->w.rows; r < ldy; r++)
            expect_msg(out[c * ldy + r] == before, "%s/%s writes behind a column's rows",
                       pair->op->name, pair->kernels.tier);
    expect(guarded_intact(&y));
    guarded_free(&y);
}

static float *reference(const struct pair *pair, const struct problem *p)
{
    float *want = xcalloc((size_t)p->n * p->w.rows, sizeof(float));
    pair->scalar.product[p->w.type](&p->w, 0, p->w.panels, &p->x, 0, p->n, want, p->w.rows, false);
    return want;
}

static void check_product(const struct pair *pair)
{
    const enum weight_type type = (enum weight_type)pair->op->variant;
    const uint32_t block = weight_info(type)->block_cols;
    const bool is_short = getenv("TOKENRING_SHORT") != NULL;
    struct rng r = rng_make(type + 1);
    char what[64];

    /* Every fill of weights against every fill of activations, at an odd shape. */
    for (unsigned wf = 0; wf < FILL_COUNT; wf++)
        for (unsigned xf = 0; xf < FILL_COUNT; xf++) {
            struct problem p = problem_make(&pair->scalar, type, 21, block == 1 ? 37 : 3 * block, 5,
                                            (enum fill)wf, (enum fill)xf, &r);
            float *want = reference(pair, &p);
            snprintf(what, sizeof(what), "w %s x %s", fill_names[wf], fill_names[xf]);
            compare(pair, &p, want, 0, p.w.panels, 0, p.n, false, what);
            free(want);
            problem_free(&p);
        }

    /* Every n up to 33 and a few beyond: one column's bits don't depend on its company. */
    struct problem p = problem_make(&pair->scalar, type, 83,
                                    block == 1    ? 100
                                    : block == 32 ? 160
                                                  : 512,
                                    67, FILL_RANDOM, FILL_RANDOM, &r);
    float *want = reference(pair, &p);
    for (uint32_t n = 1; n <= 33; n++)
        compare(pair, &p, want, 0, p.w.panels, n % 4, n, n & 1, "every n");
    for (uint32_t n = 47; n <= 67; n++)
        compare(pair, &p, want, n % 3, p.w.panels, 67 - n, n, n & 1, "every n");
    /* Every range of panels. */
    for (uint32_t p0 = 0; p0 < p.w.panels; p0++)
        for (uint32_t p1 = p0 + 1; p1 <= p.w.panels; p1++) {
            compare(pair, &p, want, p0, p1, 1, 1, true, "panels");
            compare(pair, &p, want, p0, p1, 2, 9, false, "panels");
        }
    compare(pair, &p, want, 2, 2, 0, 3, false, "no panels");
    compare(pair, &p, want, 0, p.w.panels, 0, 67, false, "the same again");
    free(want);
    problem_free(&p);

    /* So wide that not all columns stay in a cache. The numbers of columns around a whole group of them; for sanitizers
     * (TOKENRING_SHORT) two of them. */
    p = problem_make(&pair->scalar, type, 17, 5120, 150, FILL_RANDOM, FILL_RANDOM, &r);
    want = reference(pair, &p);
    for (uint32_t n = is_short ? 130 : 126; n <= 149; n += n < 130 ? 1 : 19)
        compare(pair, &p, want, 0, p.w.panels, 149 - n, n, n & 1, "wide");
    free(want);
    problem_free(&p);

    /* Shapes: one row, whole panels, many panels, one block and more. */
    static const uint32_t rows[] = {1, 15, 16, 17, 32, 64, 144, 211};
    static const uint32_t blocks[] = {1, 2, 3, 4, 9};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (size_t j = 0; j < sizeof(blocks) / sizeof(blocks[0]); j++) {
            uint32_t cols = block == 1 ? blocks[j] * 7 + 8 : blocks[j] * block;
            p = problem_make(&pair->scalar, type, rows[i], cols, 9, FILL_RANDOM, FILL_RANDOM, &r);
            want = reference(pair, &p);
            compare(pair, &p, want, 0, p.w.panels, 0, 1, false, "shape");
            compare(pair, &p, want, 0, p.w.panels, 0, 9, false, "shape");
            free(want);
            problem_free(&p);
        }
}

/* Scalar against doubles over the dequantised row: bounds a wrong layout, order or scale. */
static void oracle_product(const struct op *op, const struct kernels *k)
{
    const enum weight_type type = (enum weight_type)op->variant;
    const uint32_t block = weight_info(type)->block_cols, cols = block == 1 ? 45 : 3 * block;
    const uint32_t rows = 35, n = 3;
    struct rng rng = rng_make(100 + type);
    struct problem p = problem_make(k, type, rows, cols, n, FILL_RANDOM, FILL_RANDOM, &rng);
    float *row = xcalloc(cols, sizeof(float)), *y = xcalloc((size_t)n * rows, sizeof(float));

    k->product[type](&p.w, 0, p.w.panels, &p.x, 0, n, y, rows, false);
    for (uint32_t r = 0; r < rows; r++) {
        dequantise_row(type, (uint8_t *)p.source.data + r * weight_row_bytes(type, cols), cols,
                       row);
        for (uint32_t c = 0; c < n; c++) {
            double sum = 0, size = 0;
            for (uint32_t i = 0; i < cols; i++) {
                double x;
                if (p.x.kind == ACTS_F32)
                    x = p.plain[(size_t)c * cols + i];
                else if (p.x.kind == ACTS_Q8_256) {
                    const struct act_block256 *group =
                        (const struct act_block256 *)acts_column(&p.x, c) + i / 256 * 8;
                    const struct act_block256 *b = group + i / 32 % 8;
                    x = (double)b->q[i % 32] * (1 << b->shift) * (double)group->d;
                } else {
                    const struct act_block *b =
                        (const struct act_block *)acts_column(&p.x, c) + i / 32;
                    x = (double)b->q[i % 32] * (double)b->d;
                }
                sum += (double)row[i] * x;
                size += fabs((double)row[i] * x);
            }
            /* Two roundings a block and half, minimums counted at their full size. */
            double bound = 0x1p-23 * (2.0 * cols / 16 + 8) * (size + 1e-3) * 4;
            expect_msg(fabs(sum - (double)y[(size_t)c * rows + r]) <= bound,
                       "%s/scalar row %u column %u: %.9g, want %.9g (bound %.3g)", op->name, r, c,
                       (double)y[(size_t)c * rows + r], sum, bound);
        }
    }
    free(row);
    free(y);
    problem_free(&p);
}

#define PRODUCT(name, type)                                                                        \
    {                                                                                              \
        "product_" name, offsetof(struct kernels, product[type]), type, check_product,             \
            oracle_product, bench_product                                                          \
    }

const struct op product_ops[] = {
    PRODUCT("f32", WEIGHT_F32),
    PRODUCT("f16", WEIGHT_F16),
    PRODUCT("bf16", WEIGHT_BF16),
    PRODUCT("q8_0", WEIGHT_Q8_0),
    PRODUCT("q4_0", WEIGHT_Q4_0),
    PRODUCT("q4_1", WEIGHT_Q4_1),
    PRODUCT("q5_0", WEIGHT_Q5_0),
    PRODUCT("q5_1", WEIGHT_Q5_1),
    PRODUCT("q4_k", WEIGHT_Q4_K),
    PRODUCT("q5_k", WEIGHT_Q5_K),
    PRODUCT("q6_k", WEIGHT_Q6_K),
    PRODUCT("iq4_nl", WEIGHT_IQ4_NL),
    PRODUCT("iq4_xs", WEIGHT_IQ4_XS),
    PRODUCT("mxfp4", WEIGHT_MXFP4),
    PRODUCT("q2_k", WEIGHT_Q2_K),
    PRODUCT("q3_k", WEIGHT_Q3_K),
    {0},
};
