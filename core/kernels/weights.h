/* weights.h: weight matrices as the kernels want them, and the block formats of GGUF they come
 * from.
 *
 * A matrix W[rows][cols] (GGUF: dims[0] = cols, the fastest) is repacked once at load into panels
 * of 16 rows. One layout per type serves every tier. Base 64-byte aligned, every unit a multiple of
 * 64 bytes:
 *
 *     panel 0 (rows 0-15) | panel 1 (rows 16-31) | ...          each panel_bytes long
 *     panel = units of 64 (block-32 types) or 256 (K-quants) columns, ascending; the last may be padded
 *
 *     Q4_0    16 x 64  =  576 B  f16 d[2][16] | 2 x nibbles
 *     Q4_1    16 x 64  =  640 B  f16 d[2][16] | f16 m[2][16] | 2 x nibbles
 *     Q5_0    16 x 64  =  704 B  f16 d[2][16] | 2 x (nibbles | bits)
 *     Q5_1    16 x 64  =  768 B  f16 d[2][16] | f16 m[2][16] | 2 x (nibbles | bits)
 *     Q8_0    16 x 64  = 1088 B  f16 d[2][16] | 2 x bytes, signed
 *     IQ4_NL  16 x 64  =  576 B  f16 d[2][16] | 2 x nibbles
 *     MXFP4   16 x 64  =  576 B  u8 e[2][16] | 32 B zero | 2 x nibbles
 *     IQ4_XS  16 x 256 = 2240 B  f16 d[16] | s8 sc[8][16] | 32 B zero | 8 x nibbles
 *     Q2_K    16 x 256 = 1344 B  f16 d[16] | f16 dmin[16] | u8 sc + 16 m [8][16][2] | 8 x pairs
 *     Q3_K    16 x 256 = 1856 B  f16 d[16] | 32 B zero | s8 sc[8][16][2] | 8 x (pairs | bits)
 *     Q4_K    16 x 256 = 2368 B  f16 d[16] | f16 dmin[16] | u8 sc[8][16] | u8 m[4][16][2]
 *                                | 8 x nibbles
 *     Q5_K    16 x 256 = 2880 B  f16 d[16] | f16 dmin[16] | u8 sc[8][16] | u8 m[4][16][2]
 *                                | 8 x (nibbles | bits)
 *     Q6_K    16 x 256 = 3392 B  f16 d[16] | 32 B zero | s8 sc[8][2][16]
 *                                | 8 x (low nibbles | high pairs)
 *
 *     nibbles     256 B: byte 64j + 4r + i  holds row r, columns 4j+i (low half) and 16+4j+i (high
 *                        half)
 *     bits         64 B: dword r, bit 8i+g  = highest bit of column 4g+i
 *     bytes       512 B: byte 64g + 4r + i  = column 4g+i of row r
 *     pairs       128 B: byte 64h + 4r + i  bits 2k, 2k+1: column 16h+4k+i
 *     low nibbles 256 B: byte 64j + 4r + i  = low 4 bits of columns 8j+i (low half) and 8j+4+i
 *                        (high half)
 *     high pairs  128 B: byte 64h + 4r + i  bits 4-5: column 16h+i, 6-7: 16h+4+i, 0-1: 16h+8+i,
 *                        2-3: 16h+12+i
 *
 * Nibbles of IQ4_NL, IQ4_XS and MXFP4 are indices of a table of 16 values (weights_priv.h). e is
 * the exponent field of the scale as an f32: MXFP4's own exponent less 1, so scales below 2^-126 are
 * 0. sc[16][2] are the scales (and minimums) of a block's two halves side by side.
 *
 * F32, F16 and BF16 stay row-major, each row padded with zeros to 16 columns; a panel is 16 such
 * rows. Rows past `rows` in the last panel are zeros (zero scales). The matrix borrows its memory.
 */
#ifndef KERNELS_WEIGHTS_H
#define KERNELS_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/status.h"

#define PANEL_ROWS 16u

/* Types that a model file may hold. Further types get the next numbers; nothing is stored by
 * number. */
enum weight_type {
    WEIGHT_F32,
    WEIGHT_F16,
    WEIGHT_BF16,
    WEIGHT_Q8_0,
    WEIGHT_Q4_0,
    WEIGHT_Q4_1,
    WEIGHT_Q5_0,
    WEIGHT_Q5_1,
    WEIGHT_Q4_K,
    WEIGHT_Q5_K,
    WEIGHT_Q6_K,
    WEIGHT_IQ4_NL,
    WEIGHT_IQ4_XS,
    WEIGHT_MXFP4,
    WEIGHT_Q2_K,
    WEIGHT_Q3_K,
    WEIGHT_TYPES
};

/* How activations must be packed for a weight type (kernels.h). */
enum acts_kind { ACTS_F32, ACTS_Q8, ACTS_Q8_256, ACTS_KINDS };

/* What is fixed about a type. */
struct weight_info {
    const char *name;     /* "Q4_1" */
    uint32_t gguf_id;     /* ggml's number in a GGUF file */
    uint32_t block_cols;  /* columns of a GGUF block; rows hold whole blocks */
    uint32_t block_bytes; /* bytes of a GGUF block */
    uint32_t unit_cols;   /* columns of a panel's unit; float types: 16 */
    uint32_t unit_bytes;  /* bytes of 16 rows x unit_cols */
    enum acts_kind acts;  /* what a product takes */
};

struct matrix {
    enum weight_type type;
    uint32_t rows, cols;
    uint32_t panels;    /* ⌈rows / 16⌉ */
    uint32_t units;     /* units of a panel: ⌈cols / unit_cols⌉ */
    size_t panel_bytes; /* units * unit_bytes */
    uint8_t *data;      /* panels * panel_bytes, 64-byte aligned; borrowed */
};

const struct weight_info *weight_info(enum weight_type type);
/* The type with this GGUF number; false if it is none that we can compute with. */
bool weight_type_from_gguf(uint32_t gguf_id, enum weight_type *type);

/* Bytes of one row in the file (cols a multiple of block_cols). */
size_t weight_row_bytes(enum weight_type type, uint32_t cols);
/* Bytes of the repacked matrix, a multiple of 64. */
size_t matrix_bytes(enum weight_type type, uint32_t rows, uint32_t cols);
/* Describes a matrix whose panels are (to be) at data. Fails with UNSUPPORTED if cols is 0 or no
 * multiple of the type's block, or rows is 0. */
enum status matrix_init(struct matrix *m, enum weight_type type, uint32_t rows, uint32_t cols,
                        void *data, struct error *err);
/* Fills panels [p0, p1) from the file's rows (src = row 16·p0 of the tensor; any alignment).
 * Panels are independent, so several threads may each do a range. Fails with CORRUPT, naming the
 * row, if a scale, a minimum or a float weight is not finite (MXFP4: if its exponent is 255, NaN). */
enum status matrix_repack(const struct matrix *m, const void *src, uint32_t p0, uint32_t p1,
                          struct error *err);

/* dst[cols] = the values of one row of a repacked matrix: the bits of dequantise_row for the row that
 * it was made of (MXFP4: in a thread with FTZ and DAZ, or with scales of at least 2^-126). */
void matrix_row(const struct matrix *m, uint32_t row, float *dst);
/* Row to_row of `to` becomes row from_row of `from`: matrices of the same type and cols. */
void matrix_copy_row(const struct matrix *to, uint32_t to_row, const struct matrix *from,
                     uint32_t from_row);

/* dst[cols] = the values of one row of the file, exactly as ggml defines them (but that a thread
 * with FTZ and DAZ makes denormals, which MXFP4's smallest scales give, zero). */
void dequantise_row(enum weight_type type, const void *src, uint32_t cols, float *dst);

#endif
