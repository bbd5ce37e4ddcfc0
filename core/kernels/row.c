/* row.c: one row of a repacked matrix as floats. Each value comes by the same operations as in
 * dequantise.c, hence with the same bits. */
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/half.h"
#include "core/kernels/weights_priv.h"

/* 32 columns of a row: value = d·q, or d·q + m. */
struct part {
    int8_t q[32];
    float d[2], m[2]; /* of its halves */
    bool has_min;
};

static float f16_at(const uint8_t *p)
{
    return f16_to_f32(load_u16(p));
}

static void both(struct part *b, float d, float m)
{
    b->d[0] = b->d[1] = d;
    b->m[0] = b->m[1] = m;
}

/* src and bits: where the block's begin, moved on to the row (4 bytes each). */
static void take_nibbles(const uint8_t *src, const uint8_t *bits, int zero, struct part *b)
{
    uint32_t high = bits != NULL ? load_u32(bits) : 0;
    for (uint32_t i = 0; i < 16; i++) {
        uint8_t byte = src[64 * (i / 4) + i % 4];
        uint32_t at = 8 * (i % 4) + i / 4;
        b->q[i] = (int8_t)((int)((byte & 15) | (high >> at & 1) << 4) - zero);
        b->q[i + 16] = (int8_t)((int)(byte >> 4 | (high >> (at + 4) & 1) << 4) - zero);
    }
}

static void take_table(const int8_t *table, const uint8_t *src, struct part *b)
{
    take_nibbles(src, NULL, 0, b);
    for (uint32_t i = 0; i < 32; i++)
        b->q[i] = table[b->q[i]];
}

static void take_block32(enum weight_type type, const uint8_t *unit, uint32_t half, uint32_t r,
                         struct part *b)
{
    const bool has_bits = type == WEIGHT_Q5_0 || type == WEIGHT_Q5_1;
    b->has_min = type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1;
    both(b, f16_at(unit + UNIT_D + 32 * half + 2 * r),
         b->has_min ? f16_at(unit + UNIT_M + 32 * half + 2 * r) : 0);
    const uint8_t *src = unit + (b->has_min ? 128 : 64) + 4 * r;
    if (type == WEIGHT_Q8_0) {
        for (uint32_t g = 0; g < 8; g++)
            memcpy(b->q + 4 * g, src + 512 * half + 64 * g, 4);
        return;
    }
    src += half * (NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0));
    if (type == WEIGHT_IQ4_NL)
        take_table(iq4_values, src, b);
    else
        take_nibbles(src, has_bits ? src + NIBBLES_BYTES : NULL,
                     b->has_min ? 0
                     : has_bits ? 16
                                : 8,
                     b);
}

static void take_q45_k(enum weight_type type, const uint8_t *unit, uint32_t s, uint32_t r,
                       struct part *b)
{
    const bool has_bits = type == WEIGHT_Q5_K;
    const uint8_t *src =
        unit + K_QUANTS + s * (NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0)) + 4 * r;
    b->has_min = true;
    both(b, f16_at(unit + K_D + 2 * r) * (float)unit[K_SC + 16 * s + r],
         -(f16_at(unit + K_DMIN + 2 * r) * (float)unit[K_M + 32 * (s / 2) + 2 * r + (s & 1)]));
    take_nibbles(src, has_bits ? src + NIBBLES_BYTES : NULL, 0, b);
}

static void take_q6_k(const uint8_t *unit, uint32_t s, uint32_t r, struct part *b)
{
    const uint8_t *low = unit + Q6_QUANTS + s * Q6_BLOCK_BYTES + 4 * r, *high = low + Q6_LOW_BYTES;
    for (uint32_t h = 0; h < 2; h++)
        b->d[h] = f16_at(unit + K_D + 2 * r) * (float)(int8_t)unit[Q6_SC + 32 * s + 16 * h + r];
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t h = i / 16, group = i / 4 % 4, byte = i % 4;
        uint32_t lo = low[64 * (2 * h + group / 2) + byte] >> (group & 1 ? 4 : 0) & 15;
        uint32_t hi = high[64 * h + byte] >> ((4 + 2 * group) & 7) & 3;
        b->q[i] = (int8_t)((int)(lo | hi << 4) - 32);
    }
}

static void take_q23_k(enum weight_type type, const uint8_t *unit, uint32_t s, uint32_t r,
                       struct part *b)
{
    const bool has_bits = type == WEIGHT_Q3_K;
    const uint8_t *pairs =
        unit + HALVES_QUANTS + (PAIRS_BYTES + (has_bits ? BITS_BYTES : 0)) * s + 4 * r;
    const uint8_t *sc = unit + HALVES_SC + 32 * s + 2 * r;
    const uint32_t bits = has_bits ? load_u32(pairs + PAIRS_BYTES) : 0;
    const float d = f16_at(unit + K_D + 2 * r);
    b->has_min = !has_bits;
    for (uint32_t h = 0; h < 2; h++) {
        b->d[h] = d * (float)(has_bits ? (int8_t)sc[h] : sc[h] & 15);
        b->m[h] = has_bits ? 0 : -(f16_at(unit + K_DMIN + 2 * r) * (float)(sc[h] >> 4));
    }
    for (uint32_t i = 0; i < 32; i++) {
        int q = pairs[64 * (i / 16) + i % 4] >> (2 * (i / 4 % 4)) & 3;
        q |= (int)(bits >> (8 * (i % 4) + i / 4) & 1) << 2;
        b->q[i] = (int8_t)(has_bits ? q - 4 : q);
    }
}

/* Columns 32·index … of row r of a panel. */
static void take(enum weight_type type, const uint8_t *panel, uint32_t index, uint32_t r,
                 struct part *b)
{
    const struct weight_info *info = weight_info(type);
    const uint32_t per_unit = info->unit_cols / 32, s = index % per_unit;
    const uint8_t *unit = panel + (size_t)(index / per_unit) * info->unit_bytes;
    b->has_min = false;
    switch (type) {
    case WEIGHT_MXFP4:
        both(b, bits_to_f32((uint32_t)unit[16 * s + r] << 23), 0);
        take_table(mxfp4_values, unit + 64 + NIBBLES_BYTES * s + 4 * r, b);
        break;
    case WEIGHT_IQ4_XS:
        both(b, f16_at(unit + K_D + 2 * r) * (float)(int8_t)unit[XS_SC + 16 * s + r], 0);
        take_table(iq4_values, unit + XS_QUANTS + NIBBLES_BYTES * s + 4 * r, b);
        break;
    case WEIGHT_Q2_K:
    case WEIGHT_Q3_K:
        take_q23_k(type, unit, s, r, b);
        break;
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        take_q45_k(type, unit, s, r, b);
        break;
    case WEIGHT_Q6_K:
        take_q6_k(unit, s, r, b);
        break;
    default:
        take_block32(type, unit, s, r, b);
    }
}

void matrix_row(const struct matrix *m, uint32_t row, float *dst)
{
    check(row < m->rows);
    const uint8_t *panel = m->data + (size_t)(row / PANEL_ROWS) * m->panel_bytes;
    const uint32_t r = row % PANEL_ROWS;
    if (weight_info(m->type)->acts == ACTS_F32) {
        dequantise_row(m->type, panel + r * (m->panel_bytes / PANEL_ROWS), m->cols, dst);
        return;
    }
    for (uint32_t i = 0; i < m->cols / 32; i++) {
        struct part b;
        take(m->type, panel, i, r, &b);
        for (uint32_t k = 0; k < 32; k++) {
            float v = b.d[k / 16] * (float)b.q[k];
            dst[32 * i + k] = b.has_min ? v + b.m[k / 16] : v;
        }
    }
}
