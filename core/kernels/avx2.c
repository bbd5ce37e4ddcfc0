/* avx2.c: fills the AVX2 tier's slots. */
#include "core/kernels/kernels_priv.h"

void kernels_fill_avx2(struct kernels *k)
{
    (void)k;
}
