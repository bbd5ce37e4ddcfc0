/* kv_q4.h: tiles of KV type q4, their quantiser, and the transform of heads that goes with them; shared by all tiers.
 *
 * The layout of q8_0 (kv_q8.h) with two dwords of it in one: the head is padded with zeros to a multiple of 8
 * (`padded`), a byte holds the number of one dword in its low half and that of the next one in its high half, and the
 * scales (f16) stand behind them:
 *
 *     K  [padded/8][32 positions][4]: dims 8w+i | 8w+4+i     V  [4][padded dims][4]: positions 8g+i | 8g+4+i
 *        scales [block][32 positions]                            scales [block][32 positions]
 *
 * A half n stands for the odd number 2n − 15, so that all 16 serve and −15 is as far from 0 as 15. None of them is 0:
 * padding counts for nothing because queries are padded with zeros and nobody reads outputs past the head, a block of
 * zeros because its scale is 0.
 *
 * Both have the same size, a multiple of 64. From any dimension that is a multiple of 4, 64 bytes of V can be read. */
#ifndef KERNELS_KV_Q4_H
#define KERNELS_KV_Q4_H

#include "core/kernels/kv_q8.h"

#define KV_Q4_MOST 15

static inline uint32_t kv_q4_padded(uint32_t dim)
{
    return (dim + 7) & ~7u;
}

static inline size_t kv_q4_scale_at(uint32_t dim, uint32_t b, uint32_t pos)
{
    return ((size_t)kv_q4_padded(dim) / 2 + 2 * (size_t)b) * KV_TILE_POSITIONS + 2 * pos;
}

/* Where the byte with a position's quant of dimension d lies in K; it is in the high half if d & 4. */
static inline size_t kv_q4_k_at(uint32_t d, uint32_t pos)
{
    return ((size_t)(d / 8) * KV_TILE_POSITIONS + pos) * 4 + d % 4;
}

/* The same in V; in the high half if pos & 4. */
static inline size_t kv_q4_v_at(uint32_t dim, uint32_t d, uint32_t pos)
{
    return ((size_t)(pos / 8) * kv_q4_padded(dim) + d) * 4 + pos % 4;
}

static inline int32_t kv_q4_get(uint8_t byte, bool high)
{
    return 2 * (high ? byte >> 4 : byte & 15) - KV_Q4_MOST;
}

static inline void kv_q4_set(uint8_t *byte, bool high, uint32_t half)
{
    *byte = (uint8_t)(high ? (*byte & 0x0fu) | half << 4 : (*byte & 0xf0u) | half);
}

/* half = round-half-even(x · (0.5 / d) + 7.5), within 0 … 15. Returns Σ (x − d · (2 · half − 15))² over the first n, ascending
 * from +0. */
static inline float kv_q4_round(const float x[32], uint32_t n, float d, uint8_t half[32])
{
    const float inverse = 0.5f / d;
    float errors[KV_Q8_BLOCK], sum = 0;
    for (uint32_t i = 0; i < KV_Q8_BLOCK; i++) {
        /* As in kv_q8_round. */
        int32_t v = (int32_t)(f32_to_bits((x[i] * inverse + 7.5f) + EXP_MAGIC) - EXP_MAGIC_BITS);
        v = v > 15 ? 15 : v < 0 ? 0 : v;
        half[i] = (uint8_t)v;
        errors[i] = x[i] - d * (float)(2 * v - KV_Q4_MOST);
        errors[i] *= errors[i];
    }
    for (uint32_t i = 0; i < n; i++)
        sum += errors[i];
    return sum;
}

/* Quantises n ≤ 32 numbers with the best of the scales amax / 15, / 16 and / 17, rounded to f16: the first one whose
 * sum of squared errors is the smallest. Returns it: 0 for a block of zeros, NaN if a number is not finite, infinite if
 * amax is too large for it; the halves are 8 then. */
static inline uint16_t kv_q4_quantise(const float *x, uint32_t n, uint8_t half[32])
{
    float y[32], least = INFINITY;
    const uint32_t largest = kv_q8_gather(x, n, y);
    const float amax = bits_to_f32(largest);
    const bool finite = largest < 0x7f800000;
    uint16_t best = !finite ? 0x7e00 : amax < PACK_TINY ? 0 : f32_to_f16(amax / (float)KV_Q4_MOST);
    memset(half, 8, KV_Q8_BLOCK);
    if (!finite || best == 0)
        return best;
    for (uint32_t most = KV_Q4_MOST; most < KV_Q4_MOST + 3; most++) {
        uint8_t candidate[KV_Q8_BLOCK];
        const uint16_t d = f32_to_f16(amax / (float)most);
        const float error = d > 0 ? kv_q4_round(y, n, f16_to_f32(d), candidate) : INFINITY;
        if (error < least) {
            least = error;
            best = d;
            memcpy(half, candidate, sizeof(candidate));
        }
    }
    return best;
}

/* The stores: other positions' numbers stay as they are. */
static inline void kv_q4_store(bool values, void *tile, uint32_t pos, uint32_t n, const float *x,
                               size_t ldx, uint32_t dim)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t b = 0; b < kv_q8_blocks(dim); b++) {
            const uint32_t first = b * KV_Q8_BLOCK, count = kv_q8_in_block(dim, b), p = pos + i;
            uint8_t *out = tile;
            uint8_t half[KV_Q8_BLOCK];
            const uint16_t d = kv_q4_quantise(x + i * ldx + first, count, half);
            memcpy(out + kv_q4_scale_at(dim, b, p), &d, sizeof(d));
            for (uint32_t j = 0; j < kv_q4_padded(count); j++)
                if (values)
                    kv_q4_set(out + kv_q4_v_at(dim, first + j, p), p & 4, half[j]);
                else
                    kv_q4_set(out + kv_q4_k_at(first + j, p), (first + j) & 4, half[j]);
        }
}

static inline void kv_q4_store_k(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                                 uint32_t dim)
{
    kv_q4_store(false, tile, pos, n, x, ldx, dim);
}

static inline void kv_q4_store_v(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                                 uint32_t dim)
{
    kv_q4_store(true, tile, pos, n, x, ldx, dim);
}

/* kernels.h: hadamard. */
static inline void kv_q4_hadamard(float *x, uint32_t dim)
{
    const uint32_t size = dim & -dim;
    const float norm = 1.0f / sqrtf((float)size);
    for (uint32_t half = 1; half < size; half *= 2)
        for (uint32_t from = 0; from < dim; from += 2 * half)
            for (uint32_t i = from; i < from + half; i++) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
    for (uint32_t i = 0; i < dim; i++)
        x[i] *= norm;
}

#endif
