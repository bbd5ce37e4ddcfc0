/* weights_priv.h: offsets inside the panels' units, shared by repacking and the tiers' products. */
#ifndef KERNELS_WEIGHTS_PRIV_H
#define KERNELS_WEIGHTS_PRIV_H

#include "core/kernels/weights.h"

/* 64-column units: scales first, minimums behind them where the type has any, then two blocks. */
#define UNIT_D 0u
#define UNIT_M 64u
#define NIBBLES_BYTES 256u
#define BITS_BYTES 64u

/* K-quants, units of 256 columns. */
#define K_D 0u
#define K_DMIN 32u
#define K_SC 64u
#define K_M 192u
#define K_QUANTS 320u
#define Q6_SC 64u
#define Q6_QUANTS 320u
#define Q6_LOW_BYTES 256u
#define Q6_BLOCK_BYTES 384u
#define XS_SC 32u
#define XS_QUANTS 192u
#define PAIRS_BYTES 128u
#define HALVES_SC 64u /* Q2_K, Q3_K */
#define HALVES_QUANTS 320u

/* Bit 4g + i goes to bit 8i + g. */
static inline uint32_t spread_bits(uint32_t bits)
{
    uint32_t out = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t x = bits >> i & 0x11111111;
        x = (x | x >> 3) & 0x03030303;
        x = (x | x >> 6) & 0x000f000f;
        out |= ((x | x >> 12) & 0xff) << 8 * i;
    }
    return out;
}

/* Fills a panel of 16 whole rows, all at once: the bytes that matrix_repack defines. False, with
 * nothing promised about the panel: a number is not finite, or the type is one that is not done so. */
bool repack_panel(const struct matrix *m, uint8_t *panel, const uint8_t *src);

/* What the nibbles of IQ4_NL and IQ4_XS, and of MXFP4 (doubled, as its scale is halved) stand for. */
extern const int8_t iq4_values[16], mxfp4_values[16];

/* Scale and minimum j of a Q4_K or Q5_K block from its 12 packed bytes. */
void k_scale_min(const uint8_t *scales, uint32_t j, uint8_t *sc, uint8_t *m);
/* Value i (−32 … 31) of a GGUF Q6_K block. */
int q6_k_value(const uint8_t *block, uint32_t i);
/* Quant i of a GGUF Q2_K block (0 … 3), of a Q3_K block (−4 … 3). */
int q2_k_value(const uint8_t *block, uint32_t i);
int q3_k_value(const uint8_t *block, uint32_t i);
/* Scale of the 16 columns j of a Q3_K block, of the 32 columns j of an IQ4_XS block: −32 … 31. */
int q3_k_scale(const uint8_t *block, uint32_t j);
int iq4_xs_scale(const uint8_t *block, uint32_t j);

#endif
