#include <immintrin.h>

#include "bench.h"

double peak_avx512(void)
{
    __m512i acc[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int i = 0; i < 12; i++)
        acc[i] = _mm512_setzero_si512();
    for (int round = 0; round < 4096; round++)
        for (int i = 0; i < 12; i++)
            __asm__("vpdpbusd %2, %1, %0" : "+v"(acc[i]) : "v"(a), "v"(b));
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" : : "v"(acc[i]));
    return 4096.0 * 12 * 128;
}
