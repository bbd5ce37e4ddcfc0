/* avx512.c: fills the AVX-512 tier's slots. */
#include "core/kernels/kernels_priv.h"

void kernels_fill_avx512(struct kernels *k)
{
    (void)k;
}
