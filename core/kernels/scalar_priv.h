/* scalar_priv.h: pieces of the reference that its files share. */
#ifndef KERNELS_SCALAR_PRIV_H
#define KERNELS_SCALAR_PRIV_H

/* The reference is built twice from the same source: for every x86-64, where each fma is a call, and
 * (SCALAR_FMA) for CPUs that have the instruction, several times as fast and, an fma being exact, the same
 * bits. select.c takes the one that runs; tests/kernels compares the two. */
#ifdef SCALAR_FMA
#define scalar_tree16 scalar_fma_tree16
#define scalar_exp scalar_fma_exp
#define scalar_fill_products scalar_fma_fill_products
#define scalar_fill_attention scalar_fma_fill_attention
#define kernels_fill_scalar kernels_fill_scalar_fma
#endif

#include "core/kernels/kernels_priv.h"

/* Adds 16 lanes by the tree of kernels.h; s is used up. */
float scalar_tree16(float s[16]);
float scalar_exp(float x);
void scalar_fill_products(struct kernels *k);
void scalar_fill_attention(struct kernels *k);

#endif
