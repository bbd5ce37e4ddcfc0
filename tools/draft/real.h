/* real.h: the number type of the training code, and its matrix product.
 *
 * Training runs in float. Tests build the same sources with DRAFT_DOUBLE, where finite differences
 * are exact enough to check every gradient. */
#ifndef TOOLS_DRAFT_REAL_H
#define TOOLS_DRAFT_REAL_H

#include <cblas.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef DRAFT_DOUBLE
typedef double real;
#define REAL_GEMM cblas_dgemm
#else
typedef float real;
#define REAL_GEMM cblas_sgemm
#endif

/* A matrix, row by row: number (r, c) is at[r * ld + c]; turned, it stands for its transpose. */
struct view {
    const real *at;
    size_t ld;
    bool turned;
};

static inline struct view plain(const real *at, size_t ld)
{
    return (struct view){at, ld, false};
}

static inline struct view turned(const real *at, size_t ld)
{
    return (struct view){at, ld, true};
}

/* c[m][n] = scale · a[m][k] · b[k][n] + keep · c. */
static inline void multiply(size_t m, size_t n, size_t k, real scale, struct view a, struct view b,
                            real keep, real *c, size_t ldc)
{
    REAL_GEMM(CblasRowMajor, a.turned ? CblasTrans : CblasNoTrans,
              b.turned ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, scale, a.at,
              (blasint)a.ld, b.at, (blasint)b.ld, keep, c, (blasint)ldc);
}

#endif
