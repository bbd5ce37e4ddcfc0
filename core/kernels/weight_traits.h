/* weight_traits.h: what the vector tiers' products ask about a weight type where it is a constant. */
#ifndef KERNELS_WEIGHT_TRAITS_H
#define KERNELS_WEIGHT_TRAITS_H

#include <stdbool.h>

#include "core/kernels/forced_inline.h"
#include "core/kernels/weights_priv.h"

INLINE bool has_min(enum weight_type type)
{
    return type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1;
}

/* Integers over 256 columns, activations with one scale for them. */
INLINE bool is_256(enum weight_type type)
{
    return type == WEIGHT_Q4_K || type == WEIGHT_Q5_K || type == WEIGHT_Q6_K;
}

INLINE uint32_t unit_blocks(enum weight_type type)
{
    switch (type) {
    case WEIGHT_Q2_K:
    case WEIGHT_Q3_K:
    case WEIGHT_IQ4_XS:
        return 8;
    default:
        return 2;
    }
}

#endif
