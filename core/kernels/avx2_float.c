/* avx2_float.c: products of F32, F16 and BF16 weights with AVX2. */
#include "core/kernels/vec256.h"

#define ROWS 2
#define COLUMNS 2
#define FETCH_BYTES 0

static inline __m256 load_weights8(enum weight_type type, const uint8_t *row, uint32_t i)
{
    if (type == WEIGHT_F32)
        return _mm256_loadu_ps((const float *)(const void *)row + i);
    const __m128i half = _mm_loadu_si128((const void *)(row + 2 * (size_t)i));
    if (type == WEIGHT_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline lanes16 load_weights(enum weight_type type, const uint8_t *row, uint32_t i)
{
    return (lanes16){load_weights8(type, row, i), load_weights8(type, row, i + 8)};
}

#include "core/kernels/float_products.inc"

void avx2_fill_float_products(struct kernels *k)
{
    fill_float_products(k);
}
