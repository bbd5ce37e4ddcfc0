/* test_amx.c: the AMX tier without AMX: its source compiled against the software model of tiles,
 * and its real build with every tile instruction trapped and executed by that model.
 *
 * On a CPU that has AMX, test_kernels tests the tier as any other. */
#define _GNU_SOURCE
#include <check.h>
#include <cpuid.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/kernels/half.h"
#include "core/kernels/kernels_priv.h"
#include "guarded.h"
#include "pairs.h"
#include "tile_model.h"
#include "tests/check_main.h"

/* More than the time between two probes. */
#define PROBE_TICKS 10000000u

static const enum weight_type types[] = {WEIGHT_Q8_0, WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_Q5_0,
                                         WEIGHT_Q5_1, WEIGHT_Q4_K, WEIGHT_Q5_K, WEIGHT_Q6_K};
#define TYPES (sizeof(types) / sizeof(types[0]))

static struct kernels scalar, model;

/* A matrix, packed activations and what the scalar tier makes of them; all end at guard pages. */
struct problem {
    struct matrix w;
    struct guarded panels, packed;
    struct acts x;
    uint32_t n;
    float *want; /* [column][row] */
};

static struct problem problem_make(enum weight_type type, uint32_t rows, uint32_t cols, uint32_t n)
{
    struct problem p = {.n = n};
    struct rng r = rng_make(1000 + type);
    const size_t row_bytes = weight_row_bytes(type, cols);
    uint8_t *source = xmalloc(rows * row_bytes);
    float *x = xcalloc(cols, sizeof(*x));

    for (uint32_t i = 0; i < rows; i++)
        fill_row(type, source + i * row_bytes, cols, FILL_RANDOM, &r);
    p.panels = guarded_new(matrix_bytes(type, rows, cols), 64);
    check(matrix_init(&p.w, type, rows, cols, p.panels.data, NULL) == STATUS_OK);
    check(matrix_repack(&p.w, source, 0, p.w.panels, NULL) == STATUS_OK);
    const enum acts_kind kind = weight_info(type)->acts;
    p.packed = guarded_new(n * acts_stride(kind, cols), 64);
    p.x = acts_make(kind, cols, p.packed.data);
    for (uint32_t c = 0; c < n; c++) {
        fill_floats(x, cols, FILL_RANDOM, &r);
        check(scalar.pack[kind](x, cols, acts_column(&p.x, c)));
    }
    p.want = xcalloc((size_t)n * rows, sizeof(float));
    scalar.product[type](&p.w, 0, p.w.panels, &p.x, 0, n, p.want, rows, false);
    free(source);
    free(x);
    return p;
}

static void problem_free(struct problem *p)
{
    ck_assert(guarded_intact(&p->panels) && guarded_intact(&p->packed));
    guarded_free(&p->panels);
    guarded_free(&p->packed);
    free(p->want);
}

/* Columns [c0, c0 + n) of panels [p0, p1) by k, against the scalar tier's bits. */
static void compare(const struct kernels *k, const struct problem *p, uint32_t p0, uint32_t p1,
                    uint32_t c0, uint32_t n, bool add)
{
    const size_t ldy = p->w.rows + 5;
    struct guarded y = guarded_new(((n - 1) * ldy + p->w.rows) * sizeof(float), 4);
    float *out = y.data;
    const float before = add ? 0.37f : -77.5f;

    for (size_t i = 0; i < y.size / sizeof(float); i++)
        out[i] = before;
    k->product[p->w.type](&p->w, p0, p1, &p->x, c0, n, out, ldy, add);
    for (size_t i = 0; i < y.size / sizeof(float); i++) {
        const uint32_t c = (uint32_t)(i / ldy), r = (uint32_t)(i % ldy);
        const bool written = r < p->w.rows && r / PANEL_ROWS >= p0 && r / PANEL_ROWS < p1;
        const float product = written ? p->want[(size_t)(c0 + c) * p->w.rows + r] : 0;
        const float expected = !written ? before : add ? before + product : product;
        ck_assert_msg(
            f32_to_bits(out[i]) == f32_to_bits(expected),
            "%s rows=%u cols=%u panels [%u, %u) c0=%u n=%u add=%d, row %u column %u: %a, want %a",
            weight_info(p->w.type)->name, p->w.rows, p->w.cols, p0, p1, c0, n, add, r, c,
            (double)out[i], (double)expected);
    }
    ck_assert(guarded_intact(&y));
    guarded_free(&y);
}

/* Hostile fills, odd shapes and panel ranges, as every tier has to pass. */
START_TEST(passes_the_checks_of_all_tiers)
{
    for (const struct op *op = product_ops; op->name; op++)
        if (op->variant == types[_i]) {
            const struct pair pair = {op, scalar, model};
            op->verify(&pair);
        }
    ck_assert_uint_gt(tile_model_products(), 0);
}
END_TEST

START_TEST(every_count_of_columns)
{
    const enum weight_type type = types[_i];
    struct problem p = problem_make(type, 37, weight_info(type)->block_cols == 32 ? 224 : 512, 83);
    for (uint32_t n = 16; n <= 80; n++) {
        const uint64_t products = tile_model_products();
        compare(&model, &p, 0, p.w.panels, n % 4, n, n & 1);
        ck_assert((tile_model_products() > products) == (n >= (p.x.kind == ACTS_Q8_256 ? 48 : 16)));
        ck_assert(!tile_model_configured());
    }
    compare(&model, &p, 1, 2, 3, 55, true);
    compare(&model, &p, 2, 3, 0, 64, false);
    problem_free(&p);
}
END_TEST

/* More than one slice of K, group of panels and group of columns, of short slices and long ones. */
START_TEST(slices_and_groups)
{
    struct problem p = problem_make(types[_i], 131, 2304, 270);
    compare(&model, &p, 0, p.w.panels, 0, 270, false);
    compare(&model, &p, 1, 9, 5, 265, true);
    compare(&model, &p, 0, 3, 0, 128, true);
    compare(&model, &p, 0, p.w.panels, 7, 60, true);
    compare(&model, &p, 4, 6, 0, 48, false);
    problem_free(&p);
}
END_TEST

struct half {
    const struct problem *p;
    float *y;
    uint32_t p0, p1;
};

static void *run_half(void *arg)
{
    const struct half *h = arg;
    kernels_enter_thread();
    for (int i = 0; i < 20; i++)
        model.product[h->p->w.type](&h->p->w, h->p0, h->p1, &h->p->x, 0, h->p->n, h->y,
                                    h->p->w.rows, false);
    return NULL;
}

START_TEST(threads_share_nothing)
{
    struct problem p = problem_make(types[_i], 64, 512, 53);
    float *y = xcalloc((size_t)p.n * p.w.rows, sizeof(float));
    struct half halves[2] = {{&p, y, 0, 2}, {&p, y, 2, 4}};
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_half, &halves[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ck_assert_mem_eq(y, p.want, (size_t)p.n * p.w.rows * sizeof(float));
    free(y);
    problem_free(&p);
}
END_TEST

static bool cpu_has_tiles(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 24);
}

/* The real build's own instructions, one trap each. */
START_TEST(trapped_instructions)
{
    struct kernels real;
    if (cpu_has_tiles() || !kernels_tier_present("avx512")) {
        printf("SKIP: trapped tile instructions: %s\n",
               cpu_has_tiles() ? "this CPU executes them" : "the tier's vectors are AVX-512");
        return;
    }
    check(kernels_select("avx512", &real, NULL) == STATUS_OK);
    kernels_fill_amx(&real);
    tile_trap_install();

    const enum weight_type type = types[_i];
    struct problem p = problem_make(type, 37, weight_info(type)->block_cols == 32 ? 608 : 768, 130);
    uint64_t products = tile_model_products();
    compare(&real, &p, 0, p.w.panels, 1, 58, true);
    /* 3 panels, 4 tiles of columns, all blocks: no less than the kernel itself makes. */
    ck_assert_uint_ge(tile_model_products() - products, 3 * 4 * (p.w.cols / 32));
    products = tile_model_products();
    compare(&real, &p, 1, p.w.panels, 0, 130, false);
    ck_assert_uint_ge(tile_model_products() - products, 2 * 8 * (p.w.cols / 32));
    ck_assert(!tile_model_configured());
    problem_free(&p);
}
END_TEST

/* How many of the model's products a call of n columns makes, its probe's not counted. */
static uint64_t products_of(const struct problem *p, uint32_t n)
{
    compare(&model, p, 0, p->w.panels, 0, n, false); /* may probe */
    const uint64_t before = tile_model_products();
    compare(&model, p, 0, p->w.panels, 0, n, false);
    return tile_model_products() - before;
}

START_TEST(throttled_unit_is_left_alone)
{
    struct problem p = problem_make(WEIGHT_Q4_0, 16, 64, 64);
    ck_assert_uint_eq(products_of(&p, 16), 2);
    ck_assert_uint_eq(products_of(&p, 64), 8);

    /* A slower clock is no throttling. */
    tile_model_set_cost(15);
    tile_model_jump(PROBE_TICKS);
    ck_assert_uint_eq(products_of(&p, 16), 2);

    /* Twice as slow: noticed at the next probe, not before. */
    tile_model_set_cost(20);
    ck_assert_uint_eq(products_of(&p, 16), 2);
    tile_model_jump(PROBE_TICKS);
    ck_assert_uint_eq(products_of(&p, 16), 0);
    ck_assert_uint_eq(products_of(&p, 64), 8);

    tile_model_set_cost(80);
    tile_model_jump(PROBE_TICKS);
    ck_assert_uint_eq(products_of(&p, 16), 0);
    ck_assert_uint_eq(products_of(&p, 64), 0);
    ck_assert(!tile_model_configured());

    tile_model_set_cost(11);
    tile_model_jump(PROBE_TICKS);
    ck_assert_uint_eq(products_of(&p, 16), 2);
    problem_free(&p);
}
END_TEST

static const struct tile_config good = {
    .palette = 1, .row_bytes = {64, 32, 64, 16}, .rows = {16, 16, 8, 4}};

START_TEST(model_multiplies)
{
    uint8_t a[16][32], b[8][64];
    int32_t c[16][16], expected[16][16] = {{0}};
    struct rng r = rng_make(5);

    for (size_t i = 0; i < sizeof(a); i++)
        a[i / 32][i % 32] = (uint8_t)rng_next(&r);
    for (size_t i = 0; i < sizeof(b); i++)
        b[i / 64][i % 64] = (uint8_t)rng_next(&r);
    tile_model_configure(&good);
    tile_model_load(1, a, 32);
    tile_model_load(2, b, 64);
    tile_model_zero(0);
    for (int kind = 0; kind < 4; kind++) {
        tile_model_product(0, 1, 2, kind & 1, kind & 2);
        tile_model_store(0, c, 64);
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 16; n++) {
                for (int k = 0; k < 32; k++) {
                    const uint8_t w = b[k / 4][4 * n + k % 4];
                    expected[m][n] +=
                        (kind & 1 ? (int8_t)a[m][k] : a[m][k]) * (kind & 2 ? (int8_t)w : w);
                }
                ck_assert_int_eq(c[m][n], expected[m][n]);
            }
    }
    tile_model_release();
}
END_TEST

START_TEST(model_aborts_on_misuse)
{
    static uint8_t memory[1024];
    struct tile_config bad = good;
    if (_i >= 7)
        tile_model_configure(&good);
    switch (_i) {
    case 0:
        bad.palette = 2;
        break;
    case 1:
        bad.rows[0] = 17;
        break;
    case 2:
        bad.row_bytes[0] = 68;
        break;
    case 3:
        bad.row_bytes[0] = 62;
        break;
    case 4:
        bad.reserved_rows[0] = 1;
        break;
    case 5:
        tile_model_load(0, memory, 64); /* no configuration */
        break;
    case 6:
        tile_model_configure(&good);
        tile_model_release();
        tile_model_zero(0);
        break;
    case 7:
        tile_model_load(4, memory, 64); /* no rows */
        break;
    case 8:
        tile_model_dpbssd(0, 3, 2); /* shapes */
        break;
    case 9:
        tile_model_dpbssd(0, 1, 1);
        break;
    default: /* not released */
        bad = good;
    }
    tile_model_configure(&bad);
}
END_TEST

START_TEST(chosen_by_name_only_where_present)
{
    struct kernels k;
    struct error err = {0};
    const enum status status = kernels_select("amx", &k, &err);
    if (kernels_tier_present("amx")) {
        ck_assert_int_eq(status, STATUS_OK);
        ck_assert_str_eq(k.tier, "amx");
    } else {
        ck_assert_int_eq(status, STATUS_UNSUPPORTED);
        ck_assert_msg(strstr(err.text, "'amx'") != NULL, "%s", err.text);
        ck_assert_int_eq(kernels_select(NULL, &k, &err), STATUS_OK);
        ck_assert_str_ne(k.tier, "amx");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("amx");
    TCase *kernel = tcase_create("kernel"), *unit = tcase_create("model");

    kernels_enter_thread();
    check(kernels_select("scalar", &scalar, NULL) == STATUS_OK);
    model = scalar;
    kernels_fill_amx_model(&model);
    model.tier = "amx-model";

    tcase_set_timeout(kernel, 60);
    tcase_add_loop_test(kernel, passes_the_checks_of_all_tiers, 0, TYPES);
    tcase_add_loop_test(kernel, every_count_of_columns, 0, TYPES);
    tcase_add_loop_test(kernel, slices_and_groups, 0, TYPES);
    tcase_add_loop_test(kernel, threads_share_nothing, 0, TYPES);
    tcase_add_loop_test(kernel, trapped_instructions, 0, TYPES);
    tcase_add_test(kernel, throttled_unit_is_left_alone);
    tcase_add_test(kernel, chosen_by_name_only_where_present);
    suite_add_tcase(suite, kernel);
    tcase_add_test(unit, model_multiplies);
    tcase_add_loop_test_raise_signal(unit, model_aborts_on_misuse, SIGABRT, 0, 11);
    suite_add_tcase(suite, unit);

    return check_run(suite);
}
