#include <immintrin.h>

#include "bench.h"

double peak_avx2(void)
{
    __m256i acc[8], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    for (int i = 0; i < 8; i++)
        acc[i] = _mm256_setzero_si256();
    for (int round = 0; round < 4096; round++)
        for (int i = 0; i < 8; i++) {
            __asm__("" : "+x"(a));
            acc[i] = _mm256_add_epi16(acc[i], _mm256_maddubs_epi16(a, b));
        }
    for (int i = 0; i < 8; i++)
        __asm__ volatile("" : : "x"(acc[i]));
    return 4096.0 * 8 * 64;
}
