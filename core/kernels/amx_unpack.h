/* amx_unpack.h: a slice of a panel, unpacked for tiles: signed bytes as B tiles, scales as f32.
 *
 * Done once per panel and slice, then used for every 16 columns of activations. */
#ifndef KERNELS_AMX_UNPACK_H
#define KERNELS_AMX_UNPACK_H

#include "core/kernels/amx_vec.h"
#include "core/kernels/weights_priv.h"

#define B_BYTES 512u /* a B tile: 32 columns of 16 rows */
#define SLICE_BLOCKS 64u

/* The unpacked slice. K-quants have two B tiles per block, slices of half the length and scales for 8 blocks. */
struct slice {
    _Alignas(64) uint8_t b[SLICE_BLOCKS * B_BYTES];
    _Alignas(64) float d[SLICE_BLOCKS][PANEL_ROWS]; /* what multiplies the activation's d */
    _Alignas(64) float m[SLICE_BLOCKS][PANEL_ROWS]; /* what multiplies dsum; K-quants: dmin */
    _Alignas(64) int16_t mins[SLICE_BLOCKS / 8][4][PANEL_ROWS][2]; /* Q4_K, Q5_K: of block pairs */
};

/* Unpacks `blocks` blocks from the unit at src on. */
typedef void unpack_fn(const uint8_t *src, uint32_t blocks, struct slice *s);

VEC_INLINE v16u load_u(const uint8_t *p)
{
    return *(const v16u *)(const void *)p;
}

/* Block of nibbles (and fifth bits, if any). */
VEC_INLINE void unpack_groups(const uint8_t *src, const uint8_t *bits, v16u q[8])
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        v16u v = load_u(src + 64 * j);
        q[j] = v & 0x0f0f0f0fu;
        q[j + 4] = v >> 4 & 0x0f0f0f0fu;
    }
    if (bits) {
        const v16u fifth = load_u(bits);
        UNROLL
        for (int g = 0; g < 8; g++)
            q[g] |= (g < 4 ? fifth << (4 - g) : fifth >> (g - 4)) & 0x10101010u;
    }
}

/* The same minus the zero point → B tile. */
VEC_INLINE void unpack_nibbles(const uint8_t *src, const uint8_t *bits, int8_t zero, uint8_t *dst)
{
    v64b *out = (v64b *)(void *)dst;
    v16u q[8];
    unpack_groups(src, bits, q);
    UNROLL
    for (int g = 0; g < 8; g++)
        out[g] = (v64b)q[g] - zero;
}

VEC_INLINE void unpack_block32(const uint8_t *src, uint32_t blocks, struct slice *s, bool minimum,
                               bool bits, int8_t zero)
{
    const uint32_t block_bytes = NIBBLES_BYTES + (bits ? BITS_BYTES : 0);
    const uint32_t head = minimum ? 128 : 64;
    for (uint32_t i = 0; i < blocks; i++) {
        const uint8_t *unit = src + (size_t)(i / 2) * (head + 2 * block_bytes);
        const uint8_t *quants = unit + head + (i & 1) * block_bytes;
        *(v16f *)s->d[i] = vec_load_half(unit + UNIT_D + 32 * (i & 1));
        if (minimum)
            *(v16f *)s->m[i] = vec_load_half(unit + UNIT_M + 32 * (i & 1));
        unpack_nibbles(quants, bits ? quants + NIBBLES_BYTES : NULL, zero, s->b + i * B_BYTES);
    }
}

static void unpack_q4_0(const uint8_t *src, uint32_t blocks, struct slice *s)
{
    unpack_block32(src, blocks, s, false, false, 8);
}

static void unpack_q4_1(const uint8_t *src, uint32_t blocks, struct slice *s)
{
    unpack_block32(src, blocks, s, true, false, 0);
}

static void unpack_q5_0(const uint8_t *src, uint32_t blocks, struct slice *s)
{
    unpack_block32(src, blocks, s, false, true, 16);
}

static void unpack_q5_1(const uint8_t *src, uint32_t blocks, struct slice *s)
{
    unpack_block32(src, blocks, s, true, true, 0);
}

/* The panel's bytes are B tiles already: only scales. */
static void unpack_q8_0(const uint8_t *src, uint32_t blocks, struct slice *s)
{
    for (uint32_t i = 0; i < blocks; i++)
        *(v16f *)s->d[i] = vec_load_half(src + (size_t)(i / 2) * 1088 + 32 * (i & 1));
}

/* Four columns of 16 rows, a signed byte q each, times the rows' sub-scales as two planes of signed bytes:
 * q · sc = 64 · high + low, −62 ≤ high ≤ 64 (Q6_K; the others: 0 ≤ high ≤ 31), −32 ≤ low ≤ 31. */
VEC_INLINE void split(v64b q, v32h sc, uint8_t *high, uint8_t *low)
{
    const v32h even = (v32h)q << 8 >> 8, odd = (v32h)q >> 8;
    const v32h a = even * sc, b = odd * sc;
    const v32h ha = (a + 32) >> 6, hb = (b + 32) >> 6;
    const v32h la = a - (ha << 6), lb = b - (hb << 6);
    *(v32h *)(void *)high = (ha & 0xff) | hb << 8;
    *(v32h *)(void *)low = (la & 0xff) | lb << 8;
}

/* 16 sub-scales as pairs of equal words. */
VEC_INLINE v32h both_words(v16i sc)
{
    return (v32h)(((v16u)sc & 0xffffu) | (v16u)sc << 16);
}

VEC_INLINE void unpack_q45_k(const uint8_t *src, uint32_t blocks, struct slice *s, bool bits)
{
    const uint32_t block_bytes = NIBBLES_BYTES + (bits ? BITS_BYTES : 0);
    for (uint32_t i = 0; i < blocks; i++) {
        const uint8_t *unit = src + (size_t)(i / 8) * (K_QUANTS + 8 * block_bytes);
        const uint8_t *quants = unit + K_QUANTS + (i % 8) * block_bytes;
        const v32h sc = both_words(vec_load_u8(unit + K_SC + 16 * (i % 8)));
        uint8_t *out = s->b + i * 2 * B_BYTES;
        v16u q[8];
        if (i % 8 == 0) {
            *(v16f *)s->d[i / 8] = vec_load_half(unit + K_D);
            *(v16f *)s->m[i / 8] = vec_load_half(unit + K_DMIN);
            for (uint32_t k = 0; k < 4; k++) {
                const v16u pairs = (v16u)vec_load_u16(unit + K_M + 32 * k);
                *(v16u *)s->mins[i / 8][k] = (pairs & 255) | (pairs & 0xff00u) << 8;
            }
        }
        unpack_groups(quants, bits ? quants + NIBBLES_BYTES : NULL, q);
        UNROLL
        for (int g = 0; g < 8; g++)
            split((v64b)q[g], sc, out + 64 * g, out + B_BYTES + 64 * g);
    }
}

static void unpack_q4_k(const uint8_t *src, uint32_t blocks, struct slice *s)
{
    unpack_q45_k(src, blocks, s, false);
}

static void unpack_q5_k(const uint8_t *src, uint32_t blocks, struct slice *s)
{
    unpack_q45_k(src, blocks, s, true);
}

static void unpack_q6_k(const uint8_t *src, uint32_t blocks, struct slice *s)
{
    const uint32_t low_bits = 0x0f0f0f0f, pair = 0x30303030;
    for (uint32_t i = 0; i < blocks; i++) {
        const uint8_t *unit = src + (size_t)(i / 8) * (Q6_QUANTS + 8 * Q6_BLOCK_BYTES);
        const uint8_t *quants = unit + Q6_QUANTS + (i % 8) * Q6_BLOCK_BYTES;
        uint8_t *out = s->b + i * 2 * B_BYTES;
        if (i % 8 == 0)
            *(v16f *)s->d[i / 8] = vec_load_half(unit + K_D);
        UNROLL
        for (int h = 0; h < 2; h++) {
            const v16u high = load_u(quants + Q6_LOW_BYTES + 64 * h);
            const v16u a = load_u(quants + 128 * h), b = load_u(quants + 128 * h + 64);
            const v32h sc = both_words(vec_load_s8(unit + Q6_SC + 32 * (i % 8) + 16 * h));
            const v16u q[4] = {
                (a & low_bits) | (high & pair), (a >> 4 & low_bits) | (high >> 2 & pair),
                (b & low_bits) | (high << 4 & pair), (b >> 4 & low_bits) | (high << 2 & pair)};
            uint8_t *o = out + 256 * h;
            UNROLL
            for (int g = 0; g < 4; g++)
                split((v64b)q[g] - 32, sc, o + 64 * g, o + 64 * g + B_BYTES);
        }
    }
}

#endif
