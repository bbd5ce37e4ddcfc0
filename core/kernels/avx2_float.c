/* avx2_float.c: products of F32, F16 and BF16 weights with AVX2: 2 rows by up to 2 columns a tile, each output in two
 * registers of 8 lanes. */
#include <stdbool.h>

#include "core/base/check.h"
#include "core/kernels/vec256.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define ROWS 2
#define COLUMNS 2
#define COLUMN_BLOCK 16u

INLINE __m256 load_weights(enum weight_type type, const uint8_t *row, uint32_t i)
{
    if (type == WEIGHT_F32)
        return _mm256_loadu_ps((const float *)(const void *)row + i);
    const __m128i half = _mm_loadu_si128((const void *)(row + 2 * (size_t)i));
    if (type == WEIGHT_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* ROWS rows (of row_bytes) times nc columns; stores the first `rows`. */
INLINE void tile(enum weight_type type, int nc, const uint8_t *w, size_t row_bytes, uint32_t rows,
                 uint32_t cols, const uint8_t *x, size_t stride, float *y, size_t ldy, bool add)
{
    struct lanes16 s[ROWS][COLUMNS];

    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
    for (int c = 0; c < nc; c++)
        s[r][c].a = s[r][c].b = _mm256_setzero_ps();
    for (uint32_t i = 0; i < cols; i += 16) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            const uint8_t *row = w + (size_t)r * row_bytes;
            const __m256 a = load_weights(type, row, i), b = load_weights(type, row, i + 8);
            UNROLL
            for (int c = 0; c < nc; c++) {
                const float *v = (const float *)(const void *)(x + (size_t)c * stride) + i;
                s[r][c].a = _mm256_fmadd_ps(a, _mm256_load_ps(v), s[r][c].a);
                s[r][c].b = _mm256_fmadd_ps(b, _mm256_load_ps(v + 8), s[r][c].b);
            }
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++)
        if ((uint32_t)r < rows)
            UNROLL
    for (int c = 0; c < nc; c++) {
        const float f = tree16_256(s[r][c]);
        float *out = y + (size_t)c * ldy + r;
        *out = add ? *out + f : f;
    }
}

/* Columns [first, stop) of a panel. A panel has a multiple of ROWS rows in memory: padding rows are zeros. */
INLINE void block(enum weight_type type, const struct matrix *w, uint32_t p, const struct acts *x,
                  uint32_t c0, uint32_t first, uint32_t stop, float *y, size_t ldy, bool add)
{
    const size_t row_bytes = w->panel_bytes / PANEL_ROWS;
    const uint32_t cols = w->units * 16, left = w->rows - p * PANEL_ROWS;
    const uint32_t end = p * PANEL_ROWS + (left < PANEL_ROWS ? left : PANEL_ROWS);

    for (uint32_t r = p * PANEL_ROWS; r < end; r += ROWS) {
        const uint8_t *row = w->data + r * row_bytes;
        const uint32_t rows = end - r < ROWS ? end - r : ROWS;
        for (uint32_t c = first; c < stop; c += COLUMNS) {
            const uint8_t *column = acts_column(x, c0 + c);
            float *out = y + (size_t)c * ldy + r;
            if (stop - c == 1)
                tile(type, 1, row, row_bytes, rows, cols, column, x->stride, out, ldy, add);
            else
                tile(type, 2, row, row_bytes, rows, cols, column, x->stride, out, ldy, add);
        }
    }
}

/* Panels times blocks of columns: both stay in the L2 cache while they are needed. */
INLINE void product(enum weight_type type, const struct matrix *w, uint32_t p0, uint32_t p1,
                    const struct acts *x, uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    check(x->kind == ACTS_F32 && x->cols == w->cols);
    for (uint32_t p = p0; p < p1; p++)
        for (uint32_t first = 0; first < n; first += COLUMN_BLOCK)
            block(type, w, p, x, c0, first, n - first < COLUMN_BLOCK ? n : first + COLUMN_BLOCK, y,
                  ldy, add);
}

static void product_f32(const struct matrix *w, uint32_t p0, uint32_t p1, const struct acts *x,
                        uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    product(WEIGHT_F32, w, p0, p1, x, c0, n, y, ldy, add);
}

static void product_f16(const struct matrix *w, uint32_t p0, uint32_t p1, const struct acts *x,
                        uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    product(WEIGHT_F16, w, p0, p1, x, c0, n, y, ldy, add);
}

static void product_bf16(const struct matrix *w, uint32_t p0, uint32_t p1, const struct acts *x,
                         uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    product(WEIGHT_BF16, w, p0, p1, x, c0, n, y, ldy, add);
}

void avx2_fill_float_products(struct kernels *k)
{
    k->product[WEIGHT_F32] = product_f32;
    k->product[WEIGHT_F16] = product_f16;
    k->product[WEIGHT_BF16] = product_bf16;
}
