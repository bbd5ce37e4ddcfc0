/* amx_vec.h: the vectors of 16 lanes beside the tiles, in the compiler's own vector types: AVX-512
 * where the file is compiled for it, whatever there is in the build against the software model.
 * Only what those types cannot express has two forms here; both give the same bits. */
#ifndef KERNELS_AMX_VEC_H
#define KERNELS_AMX_VEC_H

#include <stdint.h>

#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#else
#include <math.h>

#include "core/kernels/half.h"
#endif

typedef float v16f __attribute__((vector_size(64), may_alias));
typedef int32_t v16i __attribute__((vector_size(64), may_alias));
typedef uint32_t v16u __attribute__((vector_size(64), may_alias));
typedef int16_t v32h __attribute__((vector_size(64), may_alias));
typedef int8_t v64b __attribute__((vector_size(64), may_alias));

#define VEC_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

VEC_INLINE v16f vec_all(float f)
{
    return (v16f){f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f};
}

/* a · b + c, one rounding. */
VEC_INLINE v16f vec_fma(v16f a, v16f b, v16f c)
{
#ifdef __AVX512F__
    return (v16f)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    v16f f;
    for (int i = 0; i < 16; i++)
        f[i] = fmaf(a[i], b[i], c[i]);
    return f;
#endif
}

/* sum + the lanes' pairs of words times the pair at p, exact. */
VEC_INLINE v16i vec_dot_pairs(v16i sum, v32h pairs, const int16_t p[2])
{
#ifdef __AVX512F__
    int32_t both;
    memcpy(&both, p, sizeof(both));
    return (v16i)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)pairs, _mm512_set1_epi32(both));
#else
    for (int i = 0; i < 16; i++)
        sum[i] += pairs[2 * i] * p[0] + pairs[2 * i + 1] * p[1];
    return sum;
#endif
}

/* 16 f16 at p, 32-byte aligned. */
VEC_INLINE v16f vec_load_half(const uint8_t *p)
{
#ifdef __AVX512F__
    return (v16f)_mm512_cvtph_ps(_mm256_load_si256((const void *)p));
#else
    v16f f;
    for (int i = 0; i < 16; i++)
        f[i] = f16_to_f32(load_u16(p + 2 * i));
    return f;
#endif
}

/* 16 small integers at p, aligned to their size, widened. */
VEC_INLINE v16i vec_load_u8(const uint8_t *p)
{
    typedef uint8_t v16 __attribute__((vector_size(16), may_alias));
    return __builtin_convertvector(*(const v16 *)(const void *)p, v16i);
}

VEC_INLINE v16i vec_load_s8(const uint8_t *p)
{
    typedef int8_t v16 __attribute__((vector_size(16), may_alias));
    return __builtin_convertvector(*(const v16 *)(const void *)p, v16i);
}

VEC_INLINE v16i vec_load_u16(const uint8_t *p)
{
    typedef uint16_t v16 __attribute__((vector_size(32), may_alias));
    return __builtin_convertvector(*(const v16 *)(const void *)p, v16i);
}

/* The first `rows` (1 … 16) of f to y; with `add`, added to what is there. Nothing else is touched. */
VEC_INLINE void vec_put_rows(float *y, uint32_t rows, v16f f, int add)
{
#ifdef __AVX512F__
    const __mmask16 mask = (__mmask16)(0xffffu >> (16 - rows));
    if (add)
        f = (v16f)_mm512_maskz_loadu_ps(mask, y) + f;
    _mm512_mask_storeu_ps(y, mask, (__m512)f);
#else
    for (uint32_t i = 0; i < rows; i++)
        y[i] = add ? y[i] + f[i] : f[i];
#endif
}

#endif
