#include <immintrin.h>

#include "bench.h"

/* One asm with fixed registers, since a compiler may keep an array of accumulators in memory. */
double peak_avx512(void)
{
    for (int round = 0; round < 4096; round++)
        __asm__ volatile(
            "vpdpbusd %%zmm12, %%zmm13, %%zmm0\n\tvpdpbusd %%zmm12, %%zmm13, %%zmm1\n\t"
            "vpdpbusd %%zmm12, %%zmm13, %%zmm2\n\tvpdpbusd %%zmm12, %%zmm13, %%zmm3\n\t"
            "vpdpbusd %%zmm12, %%zmm13, %%zmm4\n\tvpdpbusd %%zmm12, %%zmm13, %%zmm5\n\t"
            "vpdpbusd %%zmm12, %%zmm13, %%zmm6\n\tvpdpbusd %%zmm12, %%zmm13, %%zmm7\n\t"
            "vpdpbusd %%zmm12, %%zmm13, %%zmm8\n\tvpdpbusd %%zmm12, %%zmm13, %%zmm9\n\t"
            "vpdpbusd %%zmm12, %%zmm13, %%zmm10\n\tvpdpbusd %%zmm12, %%zmm13, %%zmm11"
            :
            :
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
              "xmm10", "xmm11");
    return 4096.0 * 12 * 128;
}
