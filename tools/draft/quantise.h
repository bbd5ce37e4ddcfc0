/* quantise.h: floats to Q4_0 blocks: 32 numbers as an f16 scale d and 4-bit q, worth d · (q − 8).
 *
 * d is the one of a few near the block's extreme / −8 whose rounded block has the least squared
 * error; byte i holds numbers i (low half) and i + 16. */
#ifndef TOOLS_DRAFT_QUANTISE_H
#define TOOLS_DRAFT_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

#define Q4_0_BLOCK 32u
#define Q4_0_BYTES 18u

/* n: a multiple of Q4_0_BLOCK. dst: n / 32 · 18 bytes. */
void quantise_q4_0(const float *x, size_t n, uint8_t *dst);

#endif
