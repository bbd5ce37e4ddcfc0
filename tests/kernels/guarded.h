/* guarded.h: test buffers that notice a touch outside, and hostile contents for them.
 *
 *     | canary … | data (aligned) | PROT_NONE page |      data ends where the page begins
 *
 * If the size is no multiple of the alignment, a few canary bytes stand between data and page. */
#ifndef TESTS_KERNELS_GUARDED_H
#define TESTS_KERNELS_GUARDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/kernels/weights.h"

struct guarded {
    void *data;
    size_t size;
    uint8_t *map;
    size_t map_size; /* without the guard page */
};

/* size ≥ 0, align a power of two up to a page. Data starts as the canary byte. */
struct guarded guarded_new(size_t size, size_t align);
/* True if no byte outside data was written. */
bool guarded_intact(const struct guarded *g);
void guarded_free(struct guarded *g);

enum fill {
    FILL_RANDOM,
    FILL_ZERO,
    FILL_MAX,       /* all the same large value, all quants at their top */
    FILL_MIN,       /* the negative of it, all quants at their bottom */
    FILL_ALTERNATE, /* max, min, max, … */
    FILL_ONE_HOT,   /* zeros and one value */
    FILL_TINY,      /* denormals and values near the quantiser's zero limit */
    FILL_HUGE,      /* up to 1e30: scales overflow */
    FILL_COUNT
};

extern const char *const fill_names[FILL_COUNT];

/* xorshift64*, seeded by KERNEL_SEED (default fixed) plus what the caller adds. */
struct rng {
    uint64_t state;
};

uint64_t kernel_seed(void);
struct rng rng_make(uint64_t salt);
uint32_t rng_next(struct rng *r);
/* Uniform in [-1, 1). */
float rng_float(struct rng *r);

void fill_floats(float *x, size_t n, enum fill f, struct rng *r);
/* A GGUF row of cols numbers with finite scales. */
void fill_row(enum weight_type type, uint8_t *row, uint32_t cols, enum fill f, struct rng *r);

#endif
