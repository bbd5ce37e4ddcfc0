/* SAMPLE_LOOPS names the table: sample_loops_base, …; set by the build, with the tier's flags. */
#include "core/model/sample_loops.h"

#include "core/model/math64.h"

static void philox(uint64_t seed, uint64_t position, uint32_t token, uint32_t choice, uint32_t *out,
                   uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = token + i;
        uint32_t c3 = choice, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (unsigned round = 0; round < PHILOX_ROUNDS; round++) {
            uint64_t p0 = (uint64_t)PHILOX_MUL0 * c0, p1 = (uint64_t)PHILOX_MUL1 * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += PHILOX_KEY0;
            k1 += PHILOX_KEY1;
        }
        out[i] = c0;
    }
}

#define LANES 8u

static double exp_sum(const float *x, uint32_t n, double temperature, double max)
{
    double lane[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            lane[j] += math64_exp((double)x[i + j] / temperature - max);
    for (uint32_t j = 0; i + j < n; j++)
        lane[j] += math64_exp((double)x[i + j] / temperature - max);
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

/* z + g ≥ best needs 1 − u ≤ exp(z − best) with u = (x + 0.5)·2⁻³², because
 * g ≥ t ⇔ u ≥ exp(−e⁻ᵗ) ≥ 1 − e⁻ᵗ. The bound is widened to a power of two, and by 2 % for the
 * rounding of this float arithmetic. */
static uint64_t may_win(const float *x, const uint32_t *word, uint32_t n, float temperature,
                        float best)
{
    uint32_t pass[64] = {0}, any = 0;
    for (uint32_t i = 0; i < n; i++) {
        float bits = (best - x[i] / temperature) * 1.442695f - 0.03f;
        bits = bits > 0 ? bits : 0;
        bits = bits < 31 ? bits : 31;
        pass[i] = ~word[i] <= 0xffffffffu >> (uint32_t)(int32_t)bits;
        any |= pass[i];
    }
    uint64_t result = 0;
    if (any != 0)
        for (uint32_t i = 0; i < n; i++)
            result |= (uint64_t)pass[i] << i;
    return result;
}

const struct sample_loops SAMPLE_LOOPS = {philox, exp_sum, may_win};
