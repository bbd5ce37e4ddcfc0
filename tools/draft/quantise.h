/* quantise.h: floats to Q4_0 and Q5_0 blocks: 32 numbers as an f16 scale d and q of 4 or 5 bits, worth
 * d · (q − 8) or d · (q − 16).
 *
 *     Q4_0   d (2) | low bits (16)               byte i holds those of numbers i (low half) and i + 16
 *     Q5_0   d (2) | fifth bits (4) | low bits (16)      bit i of the dword: number i's
 *
 * d is the one of a few near the block's extreme / −8 (−16) whose rounded block has the least squared
 * error. */
#ifndef TOOLS_DRAFT_QUANTISE_H
#define TOOLS_DRAFT_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

#define QUANTISE_BLOCK 32u
#define Q4_0_BYTES 18u
#define Q5_0_BYTES 22u

/* bits: 4 or 5. n: a multiple of QUANTISE_BLOCK. dst: n / 32 · 18 or 22 bytes. */
void quantise(uint32_t bits, const float *x, size_t n, uint8_t *dst);

#endif
