/* kv_q8.h: tiles of KV type q8_0, and their quantiser; shared by all tiers.
 *
 * A position's numbers are cut into blocks of 32 dimensions, the last one may be shorter; the head is padded with
 * zeros to a multiple of 4 (`padded`). Quants are interleaved by four, so that an integer product finds four factors
 * of one sum in each dword, and the scales (f16) stand behind them:
 *
 *     K  [padded/4][32 positions][4 dims]      V  [8][padded dims][4 positions]
 *        scales [block][32 positions]             scales [block][32 positions]
 *
 * Both have the same size, a multiple of 64. From any dimension that is a multiple of 4, 64 bytes of V can be read: what
 * lies behind the last dimension is the next positions or the scales. */
#ifndef KERNELS_KV_Q8_H
#define KERNELS_KV_Q8_H

#include <math.h>
#include <string.h>

#include "core/kernels/half.h"
#include "core/kernels/kernels_priv.h"

#define KV_Q8_BLOCK 32u

static inline uint32_t kv_q8_padded(uint32_t dim)
{
    return (dim + 3) & ~3u;
}

static inline uint32_t kv_q8_blocks(uint32_t dim)
{
    return (dim + KV_Q8_BLOCK - 1) / KV_Q8_BLOCK;
}

/* Dimensions of block b. */
static inline uint32_t kv_q8_in_block(uint32_t dim, uint32_t b)
{
    const uint32_t left = dim - b * KV_Q8_BLOCK;
    return left < KV_Q8_BLOCK ? left : KV_Q8_BLOCK;
}

/* Where the scale of block b of a position lies; those of a block's 32 positions follow each other. */
static inline size_t kv_q8_scale_at(uint32_t dim, uint32_t b, uint32_t pos)
{
    return (kv_q8_padded(dim) + 2 * (size_t)b) * KV_TILE_POSITIONS + 2 * pos;
}

/* Where the four quants of dimensions 4w … 4w+3 of a position lie in K. */
static inline size_t kv_q8_k_at(uint32_t w, uint32_t pos)
{
    return ((size_t)w * KV_TILE_POSITIONS + pos) * 4;
}

/* Where a position's quant of dimension d lies in V. */
static inline size_t kv_q8_v_at(uint32_t dim, uint32_t d, uint32_t pos)
{
    return ((size_t)(pos / 4) * kv_q8_padded(dim) + d) * 4 + pos % 4;
}

/* Copies n ≤ 32 numbers, zeros behind them; returns the bits of their largest magnitude. */
static inline uint32_t kv_q8_gather(const float *x, uint32_t n, float y[32])
{
    uint32_t largest = 0;
    if (n < KV_Q8_BLOCK)
        memset(y, 0, KV_Q8_BLOCK * sizeof(*y));
    memcpy(y, x, n * sizeof(*y));
    for (uint32_t i = 0; i < KV_Q8_BLOCK; i++) {
        const uint32_t magnitude = f32_to_bits(y[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* q = round-half-even(x · inverse), within ±127. */
static inline void kv_q8_round(const float x[32], float inverse, int8_t q[32])
{
    for (uint32_t i = 0; i < KV_Q8_BLOCK; i++) {
        /* Adding the magic number rounds half to even and leaves the integer in the low bits. */
        int32_t v = (int32_t)(f32_to_bits(x[i] * inverse + EXP_MAGIC) - EXP_MAGIC_BITS);
        v = v > 127 ? 127 : v < -127 ? -127 : v;
        q[i] = (int8_t)v;
    }
}

/* Quantises n ≤ 32 numbers of K or V: d = amax / 127 rounded to f16, q = x · (1 / d). Returns d: NaN if a number is
 * not finite, infinite if amax is too large for it (q = 0 then). */
static inline uint16_t kv_q8_quantise(const float *x, uint32_t n, int8_t q[32])
{
    float y[32];
    const uint32_t largest = kv_q8_gather(x, n, y);
    const float amax = bits_to_f32(largest);
    const bool finite = largest < 0x7f800000;
    const uint16_t d = !finite ? 0x7e00 : amax < PACK_TINY ? 0 : f32_to_f16(amax / 127.0f);
    if (!finite || d == 0)
        memset(q, 0, KV_Q8_BLOCK);
    else
        kv_q8_round(y, 1.0f / f16_to_f32(d), q);
    return d;
}

/* Quantises n ≤ 32 numbers of a query, as activations are packed (kernels.h); d is NaN if one is not finite. */
static inline void kv_q8_query(const float *x, uint32_t n, int8_t q[32], float *d)
{
    float y[32];
    const uint32_t largest = kv_q8_gather(x, n, y);
    const float amax = bits_to_f32(largest);
    if (largest >= 0x7f800000 || amax < PACK_TINY) {
        memset(q, 0, KV_Q8_BLOCK);
        *d = largest >= 0x7f800000 ? NAN : 0.0f;
    } else {
        kv_q8_round(y, 127.0f / amax, q);
        *d = amax / 127.0f;
    }
}

static inline void kv_q8_quantise_query(const float *x, uint32_t dim, struct query_block *blocks)
{
    for (uint32_t b = 0; b < kv_q8_blocks(dim); b++) {
        kv_q8_query(x + b * KV_Q8_BLOCK, kv_q8_in_block(dim, b), blocks[b].q, &blocks[b].d);
        blocks[b].sum = 0;
        for (uint32_t i = 0; i < KV_Q8_BLOCK; i++)
            blocks[b].sum += blocks[b].q[i];
    }
}

/* Largest number of the grid of weights (kernels.h). */
#define KV_Q8_GRID 255.0f

/* The stores: other positions' bytes stay as they are. */
static inline void kv_q8_store(bool values, void *tile, uint32_t pos, uint32_t n, const float *x,
                               size_t ldx, uint32_t dim)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t b = 0; b < kv_q8_blocks(dim); b++) {
            const uint32_t first = b * KV_Q8_BLOCK, count = kv_q8_in_block(dim, b), p = pos + i;
            uint8_t *out = tile;
            int8_t q[KV_Q8_BLOCK];
            const uint16_t d = kv_q8_quantise(x + i * ldx + first, count, q);
            memcpy(out + kv_q8_scale_at(dim, b, p), &d, sizeof(d));
            if (values)
                for (uint32_t j = 0; j < kv_q8_padded(count); j++)
                    out[kv_q8_v_at(dim, first + j, p)] = (uint8_t)q[j];
            else
                for (uint32_t j = 0; j < kv_q8_padded(count); j += 4)
                    memcpy(out + kv_q8_k_at((first + j) / 4, p), q + j, 4);
        }
}

static inline void kv_q8_store_k(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                                 uint32_t dim)
{
    kv_q8_store(false, tile, pos, n, x, ldx, dim);
}

static inline void kv_q8_store_v(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                                 uint32_t dim)
{
    kv_q8_store(true, tile, pos, n, x, ldx, dim);
}

#endif
