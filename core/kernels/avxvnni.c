/* avxvnni.c: fills the slots that AVX-VNNI makes faster than AVX2, from its build of that tier's products. */
#include "core/kernels/vec256.h"

void kernels_fill_avxvnni(struct kernels *k)
{
    avxvnni_fill_products(k);
}
