/* kernels_priv.h: what the tiers share with select.c and each other: their fill functions and the
 * numbers of exp. */
#ifndef KERNELS_KERNELS_PRIV_H
#define KERNELS_KERNELS_PRIV_H

#include "core/kernels/kernels.h"

/* Each fills the slots that its tier does better; scalar fills all, and so does its build for CPUs with
 * AVX and FMA. */
void kernels_fill_scalar(struct kernels *k);
#ifndef SCALAR_FMA
void kernels_fill_scalar_fma(struct kernels *k);
#endif
void kernels_fill_avx2(struct kernels *k);
void kernels_fill_avxvnni(struct kernels *k);
void kernels_fill_avx512(struct kernels *k);
void kernels_fill_amx(struct kernels *k);

/* exp(x), every tier alike:
 *     x = max(EXP_LOW, min(EXP_HIGH, x))               NaN passes
 *     t = fma(x, log2 e, EXP_MAGIC); n = t − EXP_MAGIC  an integer
 *     r = fma(n, −ln2 high, x); r = fma(n, −ln2 low, r)
 *     p = polynomial of degree 5 in r by fma            Cephes' expf
 *     y = fma(p, r·r, r) + 1
 *     y · 2^n, where 2^n has the exponent bits (t's integer + 127); 0 if x was < EXP_LOW. */
#define EXP_LOW -87.3f
#define EXP_HIGH 88.37f
#define EXP_MAGIC 12582912.0f
#define EXP_MAGIC_BITS 0x4b400000
#define EXP_LOG2E 1.44269504088896341f
#define EXP_LN2_HIGH 0.693359375f
#define EXP_LN2_LOW -2.12194440e-4f
#define EXP_P0 1.9875691500e-4f
#define EXP_P1 1.3981999507e-3f
#define EXP_P2 8.3334519073e-3f
#define EXP_P3 4.1665795894e-2f
#define EXP_P4 1.6666665459e-1f
#define EXP_P5 5.0000001201e-1f

/* Below this a block of activations is zero (127 / amax would overflow). */
#define PACK_TINY 1e-30f

#endif
