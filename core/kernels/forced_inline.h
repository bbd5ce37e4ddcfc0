/* forced_inline.h: for kernels that are written once for all types and sizes: what is a constant to the caller becomes one
 * in these functions and loops. */
#ifndef KERNELS_FORCED_INLINE_H
#define KERNELS_FORCED_INLINE_H

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#endif
