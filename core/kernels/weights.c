/* weights.c: sizes of weight types, and repacking of GGUF rows into panels (layouts: weights.h), row by
 * row: the definition, which the panels at a matrix's end need. repack.c does the others. */
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/half.h"
#include "core/kernels/weights_priv.h"

static const struct weight_info infos[WEIGHT_TYPES] = {
    [WEIGHT_F32] = {"F32", 0, 1, 4, 16, 1024, ACTS_F32},
    [WEIGHT_F16] = {"F16", 1, 1, 2, 16, 512, ACTS_F32},
    [WEIGHT_BF16] = {"BF16", 30, 1, 2, 16, 512, ACTS_F32},
    [WEIGHT_Q8_0] = {"Q8_0", 8, 32, 34, 64, 1088, ACTS_Q8},
    [WEIGHT_Q4_0] = {"Q4_0", 2, 32, 18, 64, 576, ACTS_Q8},
    [WEIGHT_Q4_1] = {"Q4_1", 3, 32, 20, 64, 640, ACTS_Q8},
    [WEIGHT_Q5_0] = {"Q5_0", 6, 32, 22, 64, 704, ACTS_Q8},
    [WEIGHT_Q5_1] = {"Q5_1", 7, 32, 24, 64, 768, ACTS_Q8},
    [WEIGHT_Q4_K] = {"Q4_K", 12, 256, 144, 256, 2368, ACTS_Q8_256},
    [WEIGHT_Q5_K] = {"Q5_K", 13, 256, 176, 256, 2880, ACTS_Q8_256},
    [WEIGHT_Q6_K] = {"Q6_K", 14, 256, 210, 256, 3392, ACTS_Q8_256},
    [WEIGHT_IQ4_NL] = {"IQ4_NL", 20, 32, 18, 64, 576, ACTS_Q8},
    [WEIGHT_IQ4_XS] = {"IQ4_XS", 23, 256, 136, 256, 2240, ACTS_Q8},
    [WEIGHT_MXFP4] = {"MXFP4", 39, 32, 17, 64, 576, ACTS_Q8},
    [WEIGHT_Q2_K] = {"Q2_K", 10, 256, 84, 256, 1344, ACTS_Q8},
    [WEIGHT_Q3_K] = {"Q3_K", 11, 256, 110, 256, 1856, ACTS_Q8},
};

const struct weight_info *weight_info(enum weight_type type)
{
    check((unsigned)type < WEIGHT_TYPES);
    return &infos[type];
}

bool weight_type_from_gguf(uint32_t gguf_id, enum weight_type *type)
{
    for (unsigned t = 0; t < WEIGHT_TYPES; t++)
        if (infos[t].gguf_id == gguf_id) {
            *type = (enum weight_type)t;
            return true;
        }
    return false;
}

size_t weight_row_bytes(enum weight_type type, uint32_t cols)
{
    const struct weight_info *info = weight_info(type);
    return (size_t)(cols / info->block_cols) * info->block_bytes;
}

static uint32_t round_up_div(uint32_t n, uint32_t d)
{
    return n / d + (n % d != 0);
}

size_t matrix_bytes(enum weight_type type, uint32_t rows, uint32_t cols)
{
    const struct weight_info *info = weight_info(type);
    return (size_t)round_up_div(rows, PANEL_ROWS) * round_up_div(cols, info->unit_cols) *
           info->unit_bytes;
}

enum status matrix_init(struct matrix *m, enum weight_type type, uint32_t rows, uint32_t cols,
                        void *data, struct error *err)
{
    const struct weight_info *info = weight_info(type);
    if (rows == 0 || cols == 0)
        return error_set(err, STATUS_UNSUPPORTED, "a %s matrix of %u rows and %u columns is empty",
                         info->name, rows, cols);
    if (cols % info->block_cols != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "a %s matrix cannot have rows of %u numbers (no multiple of %u)",
                         info->name, cols, info->block_cols);
    *m = (struct matrix){
        .type = type,
        .rows = rows,
        .cols = cols,
        .panels = round_up_div(rows, PANEL_ROWS),
        .units = round_up_div(cols, info->unit_cols),
        .panel_bytes = (size_t)round_up_div(cols, info->unit_cols) * info->unit_bytes,
        .data = data,
    };
    return STATUS_OK;
}

static bool f16_finite(uint16_t h)
{
    return (h & 0x7c00) != 0x7c00;
}

/* Copies a 16-byte run of nibbles of row r into the four zmm of a block. */
static void put_nibbles(uint8_t *dst, uint32_t r, const uint8_t *qs)
{
    for (uint32_t j = 0; j < 4; j++)
        memcpy(dst + 64 * j + 4 * r, qs + 4 * j, 4);
}

/* Bit 4g + i of `bits` (the column's) goes to bit 8i + g. */
static void put_bits(uint8_t *dst, uint32_t r, uint32_t bits)
{
    const uint32_t out = spread_bits(bits);
    memcpy(dst + 4 * r, &out, 4);
}

/* One GGUF block of 32 of row r → block `half` of the unit. False: a scale or minimum is not
 * finite. */
static bool repack_block32(enum weight_type type, uint8_t *unit, uint32_t half, uint32_t r,
                           const uint8_t *src)
{
    const bool has_min = type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1;
    const bool has_bits = type == WEIGHT_Q5_0 || type == WEIGHT_Q5_1;
    if (!f16_finite(load_u16(src)) || (has_min && !f16_finite(load_u16(src + 2))))
        return false;
    memcpy(unit + UNIT_D + 32 * half + 2 * r, src, 2);
    if (has_min)
        memcpy(unit + UNIT_M + 32 * half + 2 * r, src + 2, 2);
    src += has_min ? 4 : 2;
    uint8_t *dst = unit + (has_min ? 128 : 64);
    if (type == WEIGHT_Q8_0) {
        for (uint32_t g = 0; g < 8; g++)
            memcpy(dst + 512 * half + 64 * g + 4 * r, src + 4 * g, 4);
        return true;
    }
    dst += half * (NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0));
    if (has_bits) {
        put_bits(dst + NIBBLES_BYTES, r, load_u32(src));
        src += 4;
    }
    put_nibbles(dst, r, src);
    return true;
}

static bool repack_q45_k(enum weight_type type, uint8_t *unit, uint32_t r, const uint8_t *src)
{
    const bool has_bits = type == WEIGHT_Q5_K;
    const size_t block_bytes = NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0);
    if (!f16_finite(load_u16(src)) || !f16_finite(load_u16(src + 2)))
        return false;
    memcpy(unit + K_D + 2 * r, src, 2);
    memcpy(unit + K_DMIN + 2 * r, src + 2, 2);
    const uint8_t *high = src + 16;
    for (uint32_t s = 0; s < 8; s++) {
        k_scale_min(src + 4, s, &unit[K_SC + 16 * s + r],
                    &unit[K_M + 32 * (s / 2) + 2 * r + (s & 1)]);
        const uint8_t *q = src + (has_bits ? 48 : 16) + 32 * (s / 2);
        uint8_t nibbles[16];
        uint32_t bits = 0;
        for (uint32_t i = 0; i < 16; i++)
            nibbles[i] = s & 1 ? (uint8_t)(q[i] >> 4 | (q[i + 16] & 0xf0))
                               : (uint8_t)((q[i] & 15) | q[i + 16] << 4);
        uint8_t *dst = unit + K_QUANTS + s * block_bytes;
        put_nibbles(dst, r, nibbles);
        if (has_bits) {
            for (uint32_t i = 0; i < 32; i++)
                bits |= (uint32_t)(high[i] >> s & 1) << i;
            put_bits(dst + NIBBLES_BYTES, r, bits);
        }
    }
    return true;
}

static bool repack_q6_k(uint8_t *unit, uint32_t r, const uint8_t *src)
{
    if (!f16_finite(load_u16(src + 208)))
        return false;
    memcpy(unit + K_D + 2 * r, src + 208, 2);
    for (uint32_t i = 0; i < 16; i++)
        unit[Q6_SC + 16 * i + r] = src[192 + i];
    for (uint32_t s = 0; s < 8; s++) {
        uint8_t *low = unit + Q6_QUANTS + s * Q6_BLOCK_BYTES, *high = low + Q6_LOW_BYTES;
        for (uint32_t i = 0; i < 32; i++) {
            uint8_t q = (uint8_t)(q6_k_value(src, 32 * s + i) + 32);
            /* i = 16h + 4·group + byte; group 0: bits 4-5, 1: 6-7, 2: 0-1, 3: 2-3 of the high pairs
             */
            uint32_t h = i / 16, group = i / 4 % 4, byte = i % 4;
            low[64 * (2 * h + group / 2) + 4 * r + byte] |=
                (uint8_t)((q & 15) << (group & 1 ? 4 : 0));
            high[64 * h + 4 * r + byte] |= (uint8_t)(q >> 4 << ((4 + 2 * group) & 7));
        }
    }
    return true;
}

static bool repack_mxfp4(uint8_t *unit, uint32_t half, uint32_t r, const uint8_t *src)
{
    if (src[0] == 255)
        return false;
    unit[16 * half + r] = src[0] > 0 ? (uint8_t)(src[0] - 1) : 0;
    put_nibbles(unit + 64 + NIBBLES_BYTES * half, r, src + 1);
    return true;
}

static bool repack_iq4_xs(uint8_t *unit, uint32_t r, const uint8_t *src)
{
    if (!f16_finite(load_u16(src)))
        return false;
    memcpy(unit + K_D + 2 * r, src, 2);
    for (uint32_t s = 0; s < 8; s++) {
        unit[XS_SC + 16 * s + r] = (uint8_t)iq4_xs_scale(src, s);
        put_nibbles(unit + XS_QUANTS + NIBBLES_BYTES * s, r, src + 8 + 16 * s);
    }
    return true;
}

/* Q2_K and Q3_K: scales of 16 columns, two bits a quant, Q3_K a third one apart. */
static bool repack_q23_k(enum weight_type type, uint8_t *unit, uint32_t r, const uint8_t *src)
{
    const bool has_bits = type == WEIGHT_Q3_K;
    const uint8_t *d = src + (has_bits ? 108 : 80);
    if (!f16_finite(load_u16(d)) || (!has_bits && !f16_finite(load_u16(d + 2))))
        return false;
    memcpy(unit + K_D + 2 * r, d, 2);
    if (!has_bits)
        memcpy(unit + K_DMIN + 2 * r, d + 2, 2);
    for (uint32_t s = 0; s < 8; s++) {
        uint8_t *pairs = unit + HALVES_QUANTS + (PAIRS_BYTES + (has_bits ? BITS_BYTES : 0)) * s;
        uint32_t bits = 0;
        for (uint32_t h = 0; h < 2; h++)
            unit[HALVES_SC + 32 * s + 2 * r + h] =
                has_bits ? (uint8_t)q3_k_scale(src, 2 * s + h) : src[2 * s + h];
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t q = (uint32_t)(has_bits ? q3_k_value(src, 32 * s + i) + 4
                                             : q2_k_value(src, 32 * s + i));
            pairs[64 * (i / 16) + 4 * r + i % 4] |= (uint8_t)((q & 3) << 2 * (i / 4 % 4));
            bits |= q >> 2 << i;
        }
        if (has_bits)
            put_bits(pairs + PAIRS_BYTES, r, bits);
    }
    return true;
}

/* Block b of row r's GGUF blocks. */
static bool repack_block(const struct matrix *m, uint8_t *panel, uint32_t b, uint32_t r,
                         const uint8_t *src)
{
    const struct weight_info *info = weight_info(m->type);
    uint8_t *unit = panel + (size_t)(b / (info->unit_cols / info->block_cols)) * info->unit_bytes;
    switch (m->type) {
    case WEIGHT_MXFP4:
        return repack_mxfp4(unit, b & 1, r, src);
    case WEIGHT_IQ4_XS:
        return repack_iq4_xs(unit, r, src);
    case WEIGHT_Q2_K:
    case WEIGHT_Q3_K:
        return repack_q23_k(m->type, unit, r, src);
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        return repack_q45_k(m->type, unit, r, src);
    case WEIGHT_Q6_K:
        return repack_q6_k(unit, r, src);
    default:
        return repack_block32(m->type, unit, b & 1, r, src);
    }
}

/* A row of floats, padded with zeros; every value must be finite. */
static bool repack_float(const struct matrix *m, uint8_t *dst, const uint8_t *src)
{
    const size_t bytes = weight_row_bytes(m->type, m->cols);
    for (uint32_t i = 0; i < m->cols; i++) {
        bool finite;
        if (m->type == WEIGHT_F32)
            finite = (load_u32(src + 4 * (size_t)i) & 0x7f800000) != 0x7f800000;
        else if (m->type == WEIGHT_F16)
            finite = f16_finite(load_u16(src + 2 * (size_t)i));
        else
            finite = (load_u16(src + 2 * (size_t)i) & 0x7f80) != 0x7f80;
        if (!finite)
            return false;
    }
    memcpy(dst, src, bytes);
    return true;
}

static bool repack_row(const struct matrix *m, uint8_t *panel, uint32_t r, const uint8_t *src)
{
    const struct weight_info *info = weight_info(m->type);
    if (info->acts == ACTS_F32)
        return repack_float(m, panel + r * (m->panel_bytes / PANEL_ROWS), src);
    const uint32_t blocks = m->cols / info->block_cols;
    for (uint32_t b = 0; b < blocks; b++, src += info->block_bytes)
        if (!repack_block(m, panel, b, r, src))
            return false;
    return true;
}

enum status matrix_repack(const struct matrix *m, const void *src, uint32_t p0, uint32_t p1,
                          struct error *err)
{
    const size_t row_bytes = weight_row_bytes(m->type, m->cols);
    check(p0 <= p1 && p1 <= m->panels);
    for (uint32_t p = p0; p < p1; p++) {
        uint8_t *panel = m->data + p * m->panel_bytes;
        /* What this refuses, the rows one by one will name. */
        if ((p + 1) * PANEL_ROWS <= m->rows &&
            repack_panel(m, panel, (const uint8_t *)src + (p - p0) * PANEL_ROWS * row_bytes))
            continue;
        memset(panel, 0, m->panel_bytes);
        for (uint32_t r = 0; r < PANEL_ROWS && p * PANEL_ROWS + r < m->rows; r++) {
            uint32_t row = p * PANEL_ROWS + r;
            if (!repack_row(m, panel, r,
                            (const uint8_t *)src + (row - p0 * PANEL_ROWS) * row_bytes))
                return error_set(err, STATUS_CORRUPT, "row %u has a %s that is not finite", row,
                                 weight_info(m->type)->acts == ACTS_F32 ? "weight" : "scale");
        }
    }
    return STATUS_OK;
}

/* Every part of a unit holds a number of bytes for row 0, for row 1 … row 15, and so on: 1, 2 or 4. Where in the
 * unit which number begins; quants have 4. */
struct strips {
    uint32_t at;
    uint32_t bytes;
};

static const struct strips *strips_of(enum weight_type type)
{
    static const struct strips scales[] = {{UNIT_D, 2}, {UNIT_M, 4}},
                               minimums[] = {{UNIT_D, 2}, {2 * UNIT_M, 4}},
                               exponents[] = {{0, 1}, {64, 4}},
                               q45_k[] = {{K_D, 2}, {K_SC, 1}, {K_M, 2}, {K_QUANTS, 4}},
                               q6_k[] = {{K_D, 2}, {Q6_SC, 1}, {Q6_QUANTS, 4}},
                               q23_k[] = {{K_D, 2}, {HALVES_QUANTS, 4}},
                               iq4_xs[] = {{K_D, 2}, {XS_SC, 1}, {XS_QUANTS, 4}};
    switch (type) {
    case WEIGHT_Q4_1:
    case WEIGHT_Q5_1:
        return minimums;
    case WEIGHT_MXFP4:
        return exponents;
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        return q45_k;
    case WEIGHT_Q6_K:
        return q6_k;
    case WEIGHT_Q2_K:
    case WEIGHT_Q3_K:
        return q23_k;
    case WEIGHT_IQ4_XS:
        return iq4_xs;
    default:
        return scales;
    }
}

void matrix_copy_row(const struct matrix *to, uint32_t to_row, const struct matrix *from,
                     uint32_t from_row)
{
    const struct weight_info *info = weight_info(to->type);
    check(to->type == from->type && to->cols == from->cols && to_row < to->rows &&
          from_row < from->rows);
    uint8_t *dst = to->data + to_row / PANEL_ROWS * to->panel_bytes;
    const uint8_t *src = from->data + from_row / PANEL_ROWS * from->panel_bytes;
    to_row %= PANEL_ROWS, from_row %= PANEL_ROWS;
    if (info->acts == ACTS_F32) {
        size_t bytes = to->panel_bytes / PANEL_ROWS;
        memcpy(dst + to_row * bytes, src + from_row * bytes, bytes);
        return;
    }
    const struct strips *parts = strips_of(to->type);
    for (uint32_t u = 0; u < to->units; u++, dst += info->unit_bytes, src += info->unit_bytes) {
        const struct strips *s = parts;
        for (uint32_t at = 0; at < info->unit_bytes; at += PANEL_ROWS * s->bytes) {
            while (s->bytes < 4 && at >= s[1].at)
                s++;
            memcpy(dst + at + to_row * s->bytes, src + at + from_row * s->bytes, s->bytes);
        }
    }
}
