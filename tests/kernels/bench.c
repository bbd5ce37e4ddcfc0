/* bench.c: timing, machine figures, and the benchmarks of products and attention. */
#define _GNU_SOURCE
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "guarded.h"

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* This thread's own time, so that a busy machine disturbs less. */
static uint64_t thread_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

double bench_seconds(void (*fn)(void *), void *arg, double budget)
{
    enum { READINGS = 15 };
    double readings[READINGS];
    uint64_t calls = 1, start, spent;

    fn(arg);
    for (;;) {
        start = thread_ns();
        for (uint64_t i = 0; i < calls; i++)
            fn(arg);
        spent = thread_ns() - start;
        if (spent > 200000)
            break;
        calls *= 2;
    }
    size_t n = 0;
    const uint64_t end = clock_ns() + (uint64_t)(budget * 1e9);
    while (n < 3 || (n < READINGS && clock_ns() < end)) {
        start = thread_ns();
        for (uint64_t i = 0; i < calls; i++)
            fn(arg);
        readings[n++] = (double)(thread_ns() - start) * 1e-9 / (double)calls;
    }
    qsort(readings, n, sizeof(readings[0]), compare_double);
    return readings[n / 2];
}

/* Memory of a size with huge pages where the system gives them. */
static void *big_alloc(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(p != MAP_FAILED);
    madvise(p, size, MADV_HUGEPAGE);
    return p;
}

#define READ_BYTES ((size_t)192 << 20)

static void read_four_streams(void *arg)
{
    const size_t quarter = READ_BYTES / 4;
    const char *p = arg;
    uint64_t sum = 0;
    for (size_t i = 0; i < quarter; i += 64)
        for (size_t s = 0; s < 4; s++) {
            uint64_t v;
            memcpy(&v, p + s * quarter + i, sizeof(v));
            sum += v;
            __builtin_prefetch(p + s * quarter + i + 2304, 0, 3);
        }
    *(volatile uint64_t *)arg = sum;
}

static void run_peak(void *arg)
{
    double (*peak)(void);
    memcpy(&peak, arg, sizeof(peak));
    peak();
}

struct machine machine_measure(const char *tier)
{
    struct machine m = {0};
    void *memory = big_alloc(READ_BYTES);
    memset(memory, 1, READ_BYTES);
    m.read_gbs = (double)READ_BYTES / bench_seconds(read_four_streams, memory, 0.3) * 1e-9;
    munmap(memory, READ_BYTES);
    /* AMX is set against vpdpbusd too: how much the tile unit wins is then in the percentage. */
    double (*peak)(void) = strcmp(tier, "avx512") == 0 || strcmp(tier, "amx") == 0 ? peak_avx512
                           : strcmp(tier, "scalar") == 0                           ? NULL
                                                                                   : peak_avx2;
    if (peak)
        m.peak_gops = peak() / bench_seconds(run_peak, &peak, 0.1) * 1e-9;
    return m;
}

struct product_case {
    const struct kernels *k;
    struct matrix *matrices;
    uint32_t count, at, n;
    struct acts x;
    float *y;
};

static void run_product(void *arg)
{
    struct product_case *c = arg;
    const struct matrix *w = &c->matrices[c->at++ % c->count];
    c->k->product[w->type](w, 0, w->panels, &c->x, 0, c->n, c->y, w->rows, false);
}

static void bench_product_set(const struct pair *pair, const struct machine *m, uint32_t rows,
                              uint32_t cols, size_t set_bytes, const char *set)
{
    static const uint32_t counts[] = {1, 2, 4, 6, 8, 12, 16, 32, 128};
    const enum weight_type type = (enum weight_type)pair->op->variant;
    const size_t bytes = matrix_bytes(type, rows, cols), row_bytes = weight_row_bytes(type, cols);
    const uint32_t count = (uint32_t)(set_bytes / bytes) + 1;
    const enum acts_kind kind = weight_info(type)->acts;
    struct rng r = rng_make(7);
    struct product_case c = {.k = &pair->kernels, .count = count};

    uint8_t *arena = big_alloc(count * bytes), *source = xmalloc(rows * row_bytes);
    for (uint32_t i = 0; i < rows; i++)
        fill_row(type, source + i * row_bytes, cols, FILL_RANDOM, &r);
    c.matrices = xcalloc(count, sizeof(*c.matrices));
    for (uint32_t i = 0; i < count; i++) {
        check(matrix_init(&c.matrices[i], type, rows, cols, arena + i * bytes, NULL) == STATUS_OK);
        if (i == 0)
            check(matrix_repack(&c.matrices[0], source, 0, c.matrices[0].panels, NULL) ==
                  STATUS_OK);
        else
            memcpy(c.matrices[i].data, arena, bytes);
    }
    c.x = acts_make(kind, cols, xaligned(128 * acts_stride(kind, cols)));
    float *x = xcalloc(cols, sizeof(*x));
    for (uint32_t i = 0; i < 128; i++) {
        fill_floats(x, cols, FILL_RANDOM, &r);
        pair->kernels.pack[kind](x, cols, acts_column(&c.x, i));
    }
    c.y = xcalloc((size_t)128 * rows, sizeof(float));
    printf("%-14s %-7s %5ux%-5u %-6s", pair->op->name, pair->kernels.tier, rows, cols, set);
    double one = 0;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        c.n = counts[i];
        double t = bench_seconds(run_product, &c, 0.12);
        double gops = 2.0 * rows * cols * c.n / t * 1e-9, gbs = (double)bytes / t * 1e-9;
        one = i == 0 ? t : one;
        printf(" | n=%u %.1f GB/s (%.0f%%) %.0f Gop/s", c.n, gbs, 100 * gbs / m->read_gbs, gops);
        if (m->peak_gops > 0)
            printf(" (%.0f%%)", 100 * gops / m->peak_gops);
        printf(" x%.2f", c.n * one / t);
    }
    printf("\n");
    fflush(stdout);
    free(x);
    free(source);
    free(c.x.data);
    free(c.y);
    free(c.matrices);
    munmap(arena, count * bytes);
}

void bench_product(const struct pair *pair, const struct machine *m)
{
    bench_product_set(pair, m, 576, 1536, 0, "cache");
    const bool k_quant = weight_info((enum weight_type)pair->op->variant)->block_cols == 256;
    bench_product_set(pair, m, 1536, k_quant ? 512 : 576, (size_t)160 << 20, "memory");
}

struct attention_case {
    const struct kernels *k;
    enum kv_type type;
    struct attention_run run;
    struct attention_query queries[16];
    uint32_t n;
};

static void run_attention(void *arg)
{
    struct attention_case *c = arg;
    c->k->attention[c->type](&c->run, c->queries, c->n);
}

void bench_attention(const struct pair *pair, const struct machine *m)
{
    static const uint32_t counts[] = {1, 3, 4, 8, 16};
    struct attention_case c = {.k = &pair->kernels, .type = (enum kv_type)pair->op->variant};
    struct rng r = rng_make(9);
    const uint32_t dim = 64;
    float *x = xcalloc(KV_TILE_POSITIONS * dim, sizeof(*x));

    c.run = (struct attention_run){.dim = dim, .scale = 0.125f, .tiles = 8};
    for (uint32_t t = 0; t < 8; t++) {
        void *k = xaligned(kv_tile_bytes(c.type, dim)), *v = xaligned(kv_tile_bytes(c.type, dim));
        fill_floats(x, KV_TILE_POSITIONS * dim, FILL_RANDOM, &r);
        c.k->store_k[c.type](k, 0, KV_TILE_POSITIONS, x, dim, dim);
        c.k->store_v[c.type](v, 0, KV_TILE_POSITIONS, x, dim, dim);
        c.run.k[t] = k;
        c.run.v[t] = v;
    }
    for (uint32_t i = 0; i < 16; i++) {
        float *q = xcalloc(dim, sizeof(*q));
        fill_floats(q, dim, FILL_RANDOM, &r);
        struct query_block *blocks = xcalloc(dim / 32, sizeof(*blocks));
        c.k->quantise_query(q, dim, blocks);
        c.queries[i] = (struct attention_query){
            .q = q, .blocks = blocks, .out = xcalloc(dim, sizeof(float)), .count = 256};
    }
    printf("%-14s %-7s dim=%u 256 positions", pair->op->name, pair->kernels.tier, dim);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        c.n = counts[i];
        double t = bench_seconds(run_attention, &c, 0.1);
        printf(" | %u queries %.2f us, %.2f ns a position and query, %.1f GB/s", c.n, t * 1e6,
               t * 1e9 / 256 / c.n, 16.0 * (double)kv_tile_bytes(c.type, dim) / t * 1e-9);
    }
    printf("\n");
    (void)m;
    for (uint32_t i = 0; i < 16; i++) {
        free((void *)(uintptr_t)c.queries[i].q);
        free((void *)(uintptr_t)c.queries[i].blocks);
        free(c.queries[i].out);
    }
    for (uint32_t t = 0; t < 8; t++) {
        free((void *)(uintptr_t)c.run.k[t]);
        free((void *)(uintptr_t)c.run.v[t]);
    }
    free(x);
}
