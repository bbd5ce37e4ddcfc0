/* scalar_priv.h: pieces of the reference that its files share. */
#ifndef KERNELS_SCALAR_PRIV_H
#define KERNELS_SCALAR_PRIV_H

#include "core/kernels/kernels_priv.h"

/* Adds 16 lanes by the tree of kernels.h; s is used up. */
float scalar_tree16(float s[16]);
float scalar_exp(float x);
void scalar_fill_products(struct kernels *k);
void scalar_fill_attention(struct kernels *k);

#endif
