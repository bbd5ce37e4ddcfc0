/* avx512_float.c: products of F32, F16 and BF16 weights with AVX-512. */
#include "core/kernels/vec512.h"

#define ROWS 4
#define COLUMNS 4
#define FETCH_BYTES 1024

static inline lanes16 load_weights(enum weight_type type, const uint8_t *row, uint32_t i)
{
    if (type == WEIGHT_F32)
        return _mm512_loadu_ps((const float *)(const void *)row + i);
    const __m256i half = _mm256_loadu_si256((const void *)(row + 2 * (size_t)i));
    if (type == WEIGHT_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#include "core/kernels/float_products.inc"

void avx512_fill_float_products(struct kernels *k)
{
    fill_float_products(k);
}
