/* avx2.c: fills the AVX2 tier's slots from its files. */
#include "core/kernels/vec256.h"

void kernels_fill_avx2(struct kernels *k)
{
    avx2_fill_vector(k);
    avx2_fill_products(k);
    avx2_fill_float_products(k);
    avx2_fill_attention(k);
    avx2_fill_attention_q8(k);
}
