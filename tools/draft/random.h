/* random.h: SplitMix64 (Steele, Lea, Flood 2014): reproducible choices for prompts, order and seeds. */
#ifndef TOOLS_DRAFT_RANDOM_H
#define TOOLS_DRAFT_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_next(struct random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* 0 … n − 1 (n small against 2⁶⁴). */
static inline uint32_t random_below(struct random *r, uint32_t n)
{
    return (uint32_t)((random_next(r) >> 32) * n >> 32);
}

#endif
