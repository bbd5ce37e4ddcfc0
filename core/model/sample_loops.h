/* sample_loops.h: the sampler's two loops over a whole row, compiled once a tier.
 *
 * Every operation is exact or in a fixed order, so all tiers give the same bits. */
#ifndef MODEL_SAMPLE_LOOPS_H
#define MODEL_SAMPLE_LOOPS_H

#include <stddef.h>
#include <stdint.h>

#define PHILOX_ROUNDS 10u
#define PHILOX_MUL0 0xd2511f53u
#define PHILOX_MUL1 0xcd9e8d57u
#define PHILOX_KEY0 0x9e3779b9u
#define PHILOX_KEY1 0xbb67ae85u

struct sample_loops {
    /* out[i] = first word of Philox4x32-10 (Salmon et al., SC 2011) with the key `seed` and the
     * counter (position low, position high, token + i, choice). Returns the largest of n ≥ 1. */
    uint32_t (*philox)(uint64_t seed, uint64_t position, uint32_t token, uint32_t choice,
                       uint32_t *out, uint32_t n);
    /* Σ exp(x[i] · scale − max) in double: 8 lanes over i ascending, lanes added as a tree. */
    double (*exp_sum)(const float *x, uint32_t n, double scale, double max);
};

extern const struct sample_loops sample_loops_base, sample_loops_avx2, sample_loops_avx512;

#endif
