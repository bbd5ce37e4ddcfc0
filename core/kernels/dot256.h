/* dot256.h: dot products of bytes in 256-bit registers, by the best instruction that the file's flags allow. The
 * same source is compiled once for each of them:
 *
 *     -mavx2                        vpmaddubsw and vpmaddwd: pairs are added to 16 bits, saturated
 *     -mavxvnni                     vpdpbusd, VEX-encoded: fours are added to 32 bits, exactly
 *     -mavx512vnni -mavx512vl       the same instruction, EVEX-encoded: for tests, on CPUs that have it only so
 */
#ifndef KERNELS_DOT256_H
#define KERNELS_DOT256_H

#include <immintrin.h>
#include <stdbool.h>

/* Whether dot256 is one exact instruction: fours of u8 · s8, whatever their values. */
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define DOT256_EXACT true
#else
#define DOT256_EXACT false
#endif

/* sum + Σ u · s over the four bytes of each dword, u unsigned, s signed. Unless DOT256_EXACT, a pair's sum must fit
 * 16 bits. */
static inline __attribute__((always_inline)) __m256i dot256(__m256i sum, __m256i u, __m256i s)
{
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, u, s);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sum, u, s);
#else
    return _mm256_add_epi32(sum,
                            _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
#endif
}

#endif
