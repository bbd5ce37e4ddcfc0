#include "tools/draft/quantise.h"

#include <math.h>
#include <string.h>

#include "core/kernels/half.h"

/* Rounds a block by scale d (an f16's value), zero: 8 or 16; returns the squared error. */
static float round_block(const float *x, float zero, float d, uint8_t q[QUANTISE_BLOCK])
{
    float error = 0, by = d == 0 ? 0 : 1 / d;
    for (uint32_t i = 0; i < QUANTISE_BLOCK; i++) {
        float v = rintf(x[i] * by) + zero;
        v = v < 0 ? 0 : v > 2 * zero - 1 ? 2 * zero - 1 : v;
        q[i] = (uint8_t)v;
        float rest = x[i] - d * (v - zero);
        error += rest * rest;
    }
    return error;
}

/* The scale of the best rounding, and that. */
static uint16_t best_block(const float *x, float zero, uint8_t best[QUANTISE_BLOCK])
{
    /* The extreme falls on −zero, or near it where the rest gains from other steps, or on the other end. */
    const float ends[] = {-zero,        -zero + 0.3f, -zero + 0.6f, -zero + 1,
                          -zero - 0.3f, -zero - 0.6f, zero - 1};
    float extreme = 0, least = 0;
    uint8_t q[QUANTISE_BLOCK];
    uint16_t scale = 0;
    for (uint32_t i = 0; i < QUANTISE_BLOCK; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        uint16_t half = f32_to_f16(extreme / ends[k]);
        float error = round_block(x, zero, f16_to_f32(half), q);
        if (k == 0 || error < least) {
            least = error;
            scale = half;
            memcpy(best, q, sizeof q);
        }
    }
    return scale;
}

void quantise(uint32_t bits, const float *x, size_t n, uint8_t *dst)
{
    for (size_t at = 0; at < n; at += QUANTISE_BLOCK) {
        uint8_t q[QUANTISE_BLOCK] = {0};
        uint16_t scale = best_block(x + at, bits == 5 ? 16 : 8, q);
        uint32_t fifth = 0;
        for (uint32_t i = 0; i < QUANTISE_BLOCK; i++)
            fifth |= (uint32_t)(q[i] >> 4) << i;
        memcpy(dst, &scale, sizeof scale);
        dst += sizeof scale;
        if (bits == 5) {
            memcpy(dst, &fifth, sizeof fifth);
            dst += sizeof fifth;
        }
        for (uint32_t i = 0; i < QUANTISE_BLOCK / 2; i++)
            *dst++ = (uint8_t)((q[i] & 15) | (q[i + QUANTISE_BLOCK / 2] & 15) << 4);
    }
}
