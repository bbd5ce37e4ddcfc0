/* float_products.h: products of F32, F16 and BF16 weights, written once for the vector tiers.
 *
 * Rows stay row-major and every output has 16 lanes of partial sums: one register with AVX-512, two with AVX2. A tile of
 * ROWS rows by COLUMNS columns keeps ROWS · COLUMNS of them, which the tree folds at the end.
 *
 * The including file brings its vec header's `lanes16`, load_lanes, fma_lanes, zero_lanes and fold_lanes, and defines before:
 *
 *     ROWS, COLUMNS     of a tile; PANEL_ROWS is a multiple of ROWS; 2 ≤ COLUMNS ≤ 4
 *     FETCH_BYTES       how far ahead of a row tiles of fewer columns prefetch; 0: not at all
 *     load_weights      (type, row, i): 16 weights of a row from i on */
#include <stdbool.h>

#include "core/base/check.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define COLUMN_BLOCK 16u

/* ROWS rows (of row_bytes) times nc columns; stores the first `rows`. */
INLINE void tile(enum weight_type type, int nc, const uint8_t *w, size_t row_bytes, uint32_t rows,
                 uint32_t cols, const uint8_t *x, size_t stride, float *y, size_t ldy, bool add)
{
    lanes16 s[ROWS][COLUMNS];

    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
    for (int c = 0; c < nc; c++)
        s[r][c] = zero_lanes();
    for (uint32_t i = 0; i < cols; i += 16) {
        lanes16 v[COLUMNS];
        UNROLL
        for (int c = 0; c < nc; c++)
            v[c] = load_lanes((const float *)(const void *)(x + (size_t)c * stride) + i);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            const uint8_t *row = w + (size_t)r * row_bytes;
            const lanes16 weights = load_weights(type, row, i);
            if (FETCH_BYTES > 0 && nc < COLUMNS)
                _mm_prefetch((const char *)row + (type == WEIGHT_F32 ? 4 : 2) * (size_t)i +
                                 FETCH_BYTES,
                             _MM_HINT_T0);
            UNROLL
            for (int c = 0; c < nc; c++)
                s[r][c] = fma_lanes(weights, v[c], s[r][c]);
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++)
        if ((uint32_t)r < rows)
            UNROLL
    for (int c = 0; c < nc; c++) {
        const float f = fold_lanes(s[r][c]);
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
            if (stop - c >= COLUMNS)
                tile(type, COLUMNS, row, row_bytes, rows, cols, column, x->stride, out, ldy, add);
            else if (stop - c == 1)
                tile(type, 1, row, row_bytes, rows, cols, column, x->stride, out, ldy, add);
            else if (COLUMNS > 2 && stop - c == 2)
                tile(type, 2, row, row_bytes, rows, cols, column, x->stride, out, ldy, add);
            else if (COLUMNS > 3)
                tile(type, 3, row, row_bytes, rows, cols, column, x->stride, out, ldy, add);
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

static inline void fill_float_products(struct kernels *k)
{
    k->product[WEIGHT_F32] = product_f32;
    k->product[WEIGHT_F16] = product_f16;
    k->product[WEIGHT_BF16] = product_bf16;
}
