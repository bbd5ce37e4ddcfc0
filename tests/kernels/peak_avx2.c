#include <immintrin.h>

#include "bench.h"

/* As the AVX2 products do it: a multiply of bytes and an add of words. */
double peak_avx2(void)
{
    for (int round = 0; round < 4096; round++)
        __asm__ volatile(
            "vpmaddubsw %%ymm12, %%ymm13, %%ymm0\n\tvpaddw %%ymm0, %%ymm6, %%ymm6\n\t"
            "vpmaddubsw %%ymm12, %%ymm13, %%ymm1\n\tvpaddw %%ymm1, %%ymm7, %%ymm7\n\t"
            "vpmaddubsw %%ymm12, %%ymm13, %%ymm2\n\tvpaddw %%ymm2, %%ymm8, %%ymm8\n\t"
            "vpmaddubsw %%ymm12, %%ymm13, %%ymm3\n\tvpaddw %%ymm3, %%ymm9, %%ymm9\n\t"
            "vpmaddubsw %%ymm12, %%ymm13, %%ymm4\n\tvpaddw %%ymm4, %%ymm10, %%ymm10\n\t"
            "vpmaddubsw %%ymm12, %%ymm13, %%ymm5\n\tvpaddw %%ymm5, %%ymm11, %%ymm11"
            :
            :
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
              "xmm10", "xmm11");
    return 4096.0 * 6 * 64;
}
