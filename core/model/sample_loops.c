/* SAMPLE_LOOPS names the table: sample_loops_base, …; set by the build, with the tier's flags. */
#include "core/model/sample_loops.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <string.h>

#include "core/model/math64.h"

/* Philox in lanes of 64 bits, of which the low 32 count: a lane's product with a constant is one
 * instruction and brings both halves that the next round wants. */
#if defined(__AVX512F__)
#define WORDS 8u
typedef __m512i lanes;
#define SET1 _mm512_set1_epi64
#define MUL _mm512_mul_epu32
#define HIGH(a) _mm512_srli_epi64(a, 32)
#define XOR3(a, b, c) _mm512_ternarylogic_epi64(a, b, c, 0x96)
#define COUNT(first)                                                                               \
    _mm512_cvtepu32_epi64(_mm256_add_epi32(_mm256_set1_epi32((int)(first)),                        \
                                           _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0)))
#define STORE(to, a) _mm256_storeu_si256((__m256i *)(to), _mm512_cvtepi64_epi32(a))
#elif defined(__AVX2__)
#define WORDS 4u
typedef __m256i lanes;
#define SET1 _mm256_set1_epi64x
#define MUL _mm256_mul_epu32
#define HIGH(a) _mm256_srli_epi64(a, 32)
#define XOR3(a, b, c) _mm256_xor_si256(_mm256_xor_si256(a, b), c)
#define COUNT(first)                                                                               \
    _mm256_cvtepu32_epi64(_mm_add_epi32(_mm_set1_epi32((int)(first)), _mm_set_epi32(3, 2, 1, 0)))
#define STORE(to, a)                                                                               \
    _mm_storeu_si128((__m128i *)(to), _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(          \
                                          a, _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0))))
#else
#define WORDS 1u
typedef uint64_t lanes;
#define SET1(a) ((uint64_t)(a))
#define MUL(a, b) ((uint64_t)(uint32_t)(a) * (uint32_t)(b))
#define HIGH(a) ((a) >> 32)
#define XOR3(a, b, c) ((a) ^ (b) ^ (c))
#define COUNT(first) ((uint64_t)(first))
#define STORE(to, a) (*(to) = (uint32_t)(a))
#endif

static uint32_t philox(uint64_t seed, uint64_t position, uint32_t token, uint32_t choice,
                       uint32_t *out, uint32_t n)
{
    uint32_t last[WORDS], largest = 0;
    for (uint32_t i = 0; i < n; i += WORDS) {
        lanes c0 = SET1((long long)(uint32_t)position), c1 = SET1((long long)(position >> 32));
        lanes c2 = COUNT(token + i), c3 = SET1((long long)choice);
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (unsigned round = 0; round < PHILOX_ROUNDS; round++) {
            lanes p0 = MUL(c0, SET1(PHILOX_MUL0)), p1 = MUL(c2, SET1(PHILOX_MUL1));
            c0 = XOR3(HIGH(p1), c1, SET1((long long)k0));
            c2 = XOR3(HIGH(p0), c3, SET1((long long)k1));
            c1 = p1;
            c3 = p0;
            k0 += PHILOX_KEY0;
            k1 += PHILOX_KEY1;
        }
        if (i + WORDS <= n) {
            STORE(out + i, c0);
            continue;
        }
        STORE(last, c0);
        for (uint32_t j = 0; i + j < n; j++)
            out[i + j] = last[j];
    }
    for (uint32_t i = 0; i < n; i++)
        largest = out[i] > largest ? out[i] : largest;
    return largest;
}

#define LANES 8u
typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));
typedef uint64_t bits __attribute__((vector_size(LANES * sizeof(uint64_t))));

/* math64_exp in each lane, step by step the same. */
static inline void exp_lanes(doubles *x)
{
    const doubles zero = {0}, low = zero + MATH64_EXP_LEAST;
    bits above = (bits)(*x > low);
    doubles clipped = (doubles)(((bits)*x & above) | ((bits)low & ~above));
    doubles shifted = clipped * MATH64_LOG2E + MATH64_MAGIC, k = shifted - MATH64_MAGIC;
    doubles r = (clipped - k * MATH64_LN2_HIGH) - k * MATH64_LN2_LOW;
    doubles p = zero + math64_exp_terms[0];
    for (unsigned i = 1; i < MATH64_EXP_TERMS; i++)
        p = p * r + math64_exp_terms[i];
    *x = p * (doubles)(((bits)shifted + 1023) << 52);
}

static double exp_sum(const float *x, uint32_t n, double scale, double max)
{
    doubles sum = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        floats f;
        memcpy(&f, x + i, sizeof f);
        doubles z = __builtin_convertvector(f, doubles) * scale - max;
        exp_lanes(&z);
        sum += z;
    }
    for (uint32_t j = 0; i + j < n; j++)
        sum[j] += math64_exp((double)x[i + j] * scale - max);
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

const struct sample_loops SAMPLE_LOOPS = {philox, exp_sum};
