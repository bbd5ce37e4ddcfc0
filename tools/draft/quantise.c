#include "tools/draft/quantise.h"

#include <math.h>
#include <string.h>

#include "core/kernels/half.h"

/* Rounds a block by scale d (an f16's value); returns the squared error. */
static float round_block(const float *x, float d, uint8_t q[Q4_0_BLOCK])
{
    float error = 0, by = d == 0 ? 0 : 1 / d;
    for (uint32_t i = 0; i < Q4_0_BLOCK; i++) {
        float v = rintf(x[i] * by) + 8;
        v = v < 0 ? 0 : v > 15 ? 15 : v;
        q[i] = (uint8_t)v;
        float rest = x[i] - d * (v - 8);
        error += rest * rest;
    }
    return error;
}

static void quantise_block(const float *x, uint8_t *dst)
{
    /* The extreme falls on −8, or between −8 and −7 where the rest gains from finer steps. */
    static const float ends[] = {-8, -7.7f, -7.4f, -7, -8.3f, -8.6f, 7};
    float extreme = 0, least = 0;
    uint8_t best[Q4_0_BLOCK] = {0}, q[Q4_0_BLOCK];
    uint16_t scale = 0;
    for (uint32_t i = 0; i < Q4_0_BLOCK; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        uint16_t half = f32_to_f16(extreme / ends[k]);
        float error = round_block(x, f16_to_f32(half), q);
        if (k == 0 || error < least) {
            least = error;
            scale = half;
            memcpy(best, q, sizeof best);
        }
    }
    memcpy(dst, &scale, 2);
    for (uint32_t i = 0; i < Q4_0_BLOCK / 2; i++)
        dst[2 + i] = (uint8_t)(best[i] | best[i + Q4_0_BLOCK / 2] << 4);
}

void quantise_q4_0(const float *x, size_t n, uint8_t *dst)
{
    for (size_t at = 0; at < n; at += Q4_0_BLOCK, dst += Q4_0_BYTES)
        quantise_block(x + at, dst);
}
