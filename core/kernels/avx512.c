/* avx512.c: fills the AVX-512 tier's slots from its files. */
#include "core/kernels/vec512.h"

void kernels_fill_avx512(struct kernels *k)
{
    avx512_fill_vector(k);
    avx512_fill_products(k);
    avx512_fill_float_products(k);
    avx512_fill_attention(k);
    avx512_fill_attention_q8(k);
    avx512_fill_store_q8(k);
}
