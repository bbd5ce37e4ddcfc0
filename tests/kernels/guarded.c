#define _GNU_SOURCE
#include "guarded.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/kernels/half.h"

#define CANARY 0xa5

const char *const fill_names[FILL_COUNT] = {
    [FILL_RANDOM] = "random", [FILL_ZERO] = "zero",           [FILL_MAX] = "max",
    [FILL_MIN] = "min",       [FILL_ALTERNATE] = "alternate", [FILL_ONE_HOT] = "one-hot",
    [FILL_TINY] = "tiny",     [FILL_HUGE] = "huge",
};

/* Mappings that were freed, for the next of their size: the system calls cost more than most checks. */
#define KEPT 32
static struct {
    uint8_t *map;
    size_t size;
} kept[KEPT];

static uint8_t *map_take(size_t size)
{
    for (size_t i = 0; i < KEPT; i++)
        if (kept[i].map && kept[i].size == size) {
            uint8_t *map = kept[i].map;
            kept[i].map = NULL;
            return map;
        }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map =
        mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(map != MAP_FAILED);
    check(mprotect(map + size, page, PROT_NONE) == 0);
    return map;
}

struct guarded guarded_new(size_t size, size_t align)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct guarded g = {.size = size};

    /* Powers of two, so that kept mappings fit again. */
    for (g.map_size = page; g.map_size < size + align; g.map_size *= 2)
        ;
    g.map = map_take(g.map_size);
    memset(g.map, CANARY, g.map_size);
    g.data = g.map + ((g.map_size - size) & ~(align - 1));
    return g;
}

bool guarded_intact(const struct guarded *g)
{
    const size_t offset = (size_t)((uint8_t *)g->data - g->map);
    for (size_t i = 0; i < offset; i++)
        if (g->map[i] != CANARY)
            return false;
    for (size_t i = offset + g->size; i < g->map_size; i++)
        if (g->map[i] != CANARY)
            return false;
    return true;
}

void guarded_free(struct guarded *g)
{
    g->data = NULL;
    for (size_t i = 0; i < KEPT; i++)
        if (!kept[i].map) {
            kept[i].map = g->map;
            kept[i].size = g->map_size;
            return;
        }
    static size_t victim;
    victim = (victim + 1) % KEPT;
    munmap(kept[victim].map, kept[victim].size + (size_t)sysconf(_SC_PAGESIZE));
    kept[victim].map = g->map;
    kept[victim].size = g->map_size;
}

uint64_t kernel_seed(void)
{
    const char *text = getenv("KERNEL_SEED");
    return text ? strtoull(text, NULL, 0) : 20261129;
}

struct rng rng_make(uint64_t salt)
{
    return (struct rng){(kernel_seed() * 0x9e3779b97f4a7c15u ^ salt * 0xd1342543de82ef95u) | 1};
}

uint32_t rng_next(struct rng *r)
{
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return (uint32_t)(r->state * 0x2545f4914f6cdd1du >> 32);
}

float rng_float(struct rng *r)
{
    return (float)((int32_t)rng_next(r) >> 8) * 0x1p-23f;
}

void fill_floats(float *x, size_t n, enum fill f, struct rng *r)
{
    for (size_t i = 0; i < n; i++)
        switch (f) {
        case FILL_RANDOM:
            x[i] = rng_float(r) * (rng_next(r) % 200 ? 1.0f : 20.0f);
            break;
        case FILL_MAX:
            x[i] = 100.0f;
            break;
        case FILL_MIN:
            x[i] = -100.0f;
            break;
        case FILL_ALTERNATE:
            x[i] = i & 1 ? -100.0f : 100.0f;
            break;
        case FILL_TINY:
            x[i] = rng_float(r) * (i / 32 % 2 ? 4e-30f : 1e-38f);
            break;
        case FILL_HUGE:
            x[i] = rng_float(r) * 1e30f;
            break;
        default:
            x[i] = 0.0f;
        }
    if (f == FILL_ONE_HOT && n > 0)
        x[rng_next(r) % n] = -3.75f;
}

static uint16_t scale_for(enum fill f, struct rng *r)
{
    switch (f) {
    case FILL_ZERO:
        return rng_next(r) & 1 ? 0x8000 : 0;
    case FILL_MAX:
        return 0x7bff;
    case FILL_MIN:
        return 0xfbff;
    case FILL_TINY:
        return (uint16_t)(rng_next(r) & 0x83ff);
    case FILL_HUGE:
        return (uint16_t)(0x7000 | (rng_next(r) & 0x8bff));
    default:
        return f32_to_f16(rng_float(r) * 0.03f);
    }
}

/* MXFP4's exponent of 2: all but the NaN. */
static uint8_t exponent_for(enum fill f, struct rng *r)
{
    switch (f) {
    case FILL_ZERO:
        return 0;
    case FILL_MAX:
    case FILL_MIN:
        return 254;
    case FILL_TINY:
        return (uint8_t)(rng_next(r) & 3);
    case FILL_HUGE:
        return (uint8_t)(rng_next(r) % 255);
    default:
        return (uint8_t)(120 + (rng_next(r) & 7));
    }
}

static void put_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof(v));
}

void fill_row(enum weight_type type, uint8_t *row, uint32_t cols, enum fill f, struct rng *r)
{
    const struct weight_info *info = weight_info(type);
    if (info->acts == ACTS_F32) {
        for (uint32_t i = 0; i < cols; i++) {
            float v;
            fill_floats(&v, 1, f == FILL_ONE_HOT ? FILL_ZERO : f, r);
            if (f == FILL_ALTERNATE && (i & 1))
                v = -v;
            if (f == FILL_ONE_HOT && i == cols / 2)
                v = 1.5f;
            if (type == WEIGHT_F32)
                memcpy(row + 4 * (size_t)i, &v, 4);
            else if (type == WEIGHT_BF16)
                put_u16(row + 2 * (size_t)i, (uint16_t)(f32_to_bits(v) >> 16));
            else
                put_u16(row + 2 * (size_t)i, f == FILL_HUGE ? scale_for(f, r) : f32_to_f16(v));
        }
        return;
    }
    for (uint32_t i = 0; i < cols; i += info->block_cols, row += info->block_bytes) {
        for (uint32_t b = 0; b < info->block_bytes; b++) {
            uint8_t random = (uint8_t)rng_next(r);
            row[b] = f == FILL_MAX                                          ? 0xff
                     : f == FILL_MIN || f == FILL_ZERO || f == FILL_ONE_HOT ? 0
                     : f == FILL_ALTERNATE                                  ? (b & 1 ? 0xff : 0)
                                                                            : random;
            if (type == WEIGHT_Q8_0 && (f == FILL_MAX || f == FILL_MIN))
                row[b] = f == FILL_MAX ? 0x7f : 0x80;
        }
        if (f == FILL_ONE_HOT)
            row[rng_next(r) % info->block_bytes] = 0x5a;
        switch (type) {
        case WEIGHT_Q6_K:
            put_u16(row + 208, scale_for(f, r));
            break;
        case WEIGHT_MXFP4:
            row[0] = exponent_for(f, r);
            break;
        case WEIGHT_Q2_K:
            put_u16(row + 82, scale_for(f, r));
            put_u16(row + 80, scale_for(f, r));
            break;
        case WEIGHT_Q3_K:
            put_u16(row + 108, scale_for(f, r));
            break;
        case WEIGHT_Q4_1:
        case WEIGHT_Q5_1:
        case WEIGHT_Q4_K:
        case WEIGHT_Q5_K:
            put_u16(row + 2, scale_for(f, r));
            put_u16(row, scale_for(f, r));
            break;
        default:
            put_u16(row, scale_for(f, r));
        }
    }
}
