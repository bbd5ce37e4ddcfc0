/* scalar_products.c: the reference of the products, for every weight type. */
#include <math.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/half.h"
#include "core/kernels/scalar_priv.h"
#include "core/kernels/weights_priv.h"

#define TILE 8u

enum minimum { MINIMUM_NONE, MINIMUM_FLOAT, MINIMUM_INTEGER };

static enum minimum minimum_of(enum weight_type type)
{
    switch (type) {
    case WEIGHT_Q4_1:
    case WEIGHT_Q5_1:
        return MINIMUM_FLOAT;
    case WEIGHT_Q2_K:
        return MINIMUM_INTEGER;
    default:
        return MINIMUM_NONE;
    }
}

/* 16 rows x 32 columns of weights as integers and their scales; sub-scales of Q2_K to Q6_K are in the
 * integers. */
struct block {
    int16_t q[PANEL_ROWS][32];
    float d[PANEL_ROWS];
    float m[PANEL_ROWS]; /* what multiplies dsum; 0 where the type has no minimum; K-quants: dmin */
    uint8_t min[PANEL_ROWS][2]; /* Q2_K: of the halves; Q4_K, Q5_K: [0] */
};

static void unpack_nibbles(const uint8_t *src, const uint8_t *bits, int zero, struct block *b)
{
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        uint32_t high = bits ? load_u32(bits + 4 * r) : 0;
        for (uint32_t i = 0; i < 16; i++) {
            uint8_t byte = src[64 * (i / 4) + 4 * r + i % 4];
            /* column 16h + i is group g = 4h + i/4, byte i%4: its fifth bit is bit 8(i%4) + g */
            int low = (byte & 15) | (int)(high >> (8 * (i % 4) + i / 4) & 1) << 4;
            int top = byte >> 4 | (int)(high >> (8 * (i % 4) + 4 + i / 4) & 1) << 4;
            b->q[r][i] = (int16_t)(low - zero);
            b->q[r][i + 16] = (int16_t)(top - zero);
        }
    }
}

/* Nibbles that are indices of a table. */
static void unpack_table(const int8_t *table, const uint8_t *src, struct block *b)
{
    unpack_nibbles(src, NULL, 0, b);
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        for (uint32_t i = 0; i < 32; i++)
            b->q[r][i] = table[b->q[r][i]];
}

static void unpack_block32(const struct matrix *w, const uint8_t *panel, uint32_t index,
                           struct block *b)
{
    const bool has_min = w->type == WEIGHT_Q4_1 || w->type == WEIGHT_Q5_1;
    const bool has_bits = w->type == WEIGHT_Q5_0 || w->type == WEIGHT_Q5_1;
    const uint8_t *unit = panel + (size_t)(index / 2) * weight_info(w->type)->unit_bytes;
    const uint32_t half = index & 1;

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        b->d[r] = f16_to_f32(load_u16(unit + UNIT_D + 32 * half + 2 * r));
        b->m[r] = has_min ? f16_to_f32(load_u16(unit + UNIT_M + 32 * half + 2 * r)) : 0.0f;
    }
    const uint8_t *src = unit + (has_min ? 128 : 64);
    if (w->type == WEIGHT_Q8_0) {
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            for (uint32_t i = 0; i < 32; i++)
                b->q[r][i] = (int8_t)src[512 * half + 64 * (i / 4) + 4 * r + i % 4];
        return;
    }
    src += half * (NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0));
    if (w->type == WEIGHT_IQ4_NL) {
        unpack_table(iq4_values, src, b);
        return;
    }
    unpack_nibbles(src, has_bits ? src + NIBBLES_BYTES : NULL, has_min ? 0 : has_bits ? 16 : 8, b);
}

static void unpack_q45_k(const struct matrix *w, const uint8_t *panel, uint32_t index,
                         struct block *b)
{
    const bool has_bits = w->type == WEIGHT_Q5_K;
    const uint8_t *unit = panel + (size_t)(index / 8) * weight_info(w->type)->unit_bytes;
    const uint32_t s = index % 8;

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        b->d[r] = f16_to_f32(load_u16(unit + K_D + 2 * r));
        b->m[r] = f16_to_f32(load_u16(unit + K_DMIN + 2 * r));
        b->min[r][0] = unit[K_M + 32 * (s / 2) + 2 * r + (s & 1)];
    }
    const uint8_t *src = unit + K_QUANTS + s * (NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0));
    unpack_nibbles(src, has_bits ? src + NIBBLES_BYTES : NULL, 0, b);
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        for (uint32_t i = 0; i < 32; i++)
            b->q[r][i] = (int16_t)(b->q[r][i] * unit[K_SC + 16 * s + r]);
}

static void unpack_q6_k(const struct matrix *w, const uint8_t *panel, uint32_t index,
                        struct block *b)
{
    const uint8_t *unit = panel + (size_t)(index / 8) * weight_info(w->type)->unit_bytes;
    const uint32_t s = index % 8;
    const uint8_t *low = unit + Q6_QUANTS + s * Q6_BLOCK_BYTES, *high = low + Q6_LOW_BYTES;

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        b->d[r] = f16_to_f32(load_u16(unit + K_D + 2 * r));
        b->m[r] = 0.0f;
        b->min[r][0] = 0;
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t h = i / 16, group = i / 4 % 4, byte = i % 4;
            uint32_t lo = low[64 * (2 * h + group / 2) + 4 * r + byte] >> (group & 1 ? 4 : 0) & 15;
            uint32_t hi = high[64 * h + 4 * r + byte] >> ((4 + 2 * group) & 7) & 3;
            int scale = (int8_t)unit[Q6_SC + 32 * s + 16 * h + r];
            b->q[r][i] = (int16_t)(scale * ((int)(lo | hi << 4) - 32));
        }
    }
}

static void unpack_mxfp4(const struct matrix *w, const uint8_t *panel, uint32_t index,
                         struct block *b)
{
    const uint8_t *unit = panel + (size_t)(index / 2) * weight_info(w->type)->unit_bytes;
    const uint32_t half = index & 1;
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        b->d[r] = bits_to_f32((uint32_t)unit[16 * half + r] << 23);
    unpack_table(mxfp4_values, unit + 64 + NIBBLES_BYTES * half, b);
}

static void unpack_iq4_xs(const struct matrix *w, const uint8_t *panel, uint32_t index,
                          struct block *b)
{
    const uint8_t *unit = panel + (size_t)(index / 8) * weight_info(w->type)->unit_bytes;
    const uint32_t s = index % 8;
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        b->d[r] =
            f16_to_f32(load_u16(unit + K_D + 2 * r)) * (float)(int8_t)unit[XS_SC + 16 * s + r];
    unpack_table(iq4_values, unit + XS_QUANTS + NIBBLES_BYTES * s, b);
}

static void unpack_q23_k(const struct matrix *w, const uint8_t *panel, uint32_t index,
                         struct block *b)
{
    const bool has_bits = w->type == WEIGHT_Q3_K;
    const uint8_t *unit = panel + (size_t)(index / 8) * weight_info(w->type)->unit_bytes;
    const uint32_t s = index % 8;
    const uint8_t *pairs = unit + HALVES_QUANTS + (PAIRS_BYTES + (has_bits ? BITS_BYTES : 0)) * s;

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *sc = unit + HALVES_SC + 32 * s + 2 * r;
        const uint32_t bits = has_bits ? load_u32(pairs + PAIRS_BYTES + 4 * r) : 0;
        b->d[r] = f16_to_f32(load_u16(unit + K_D + 2 * r));
        b->m[r] = has_bits ? 0.0f : f16_to_f32(load_u16(unit + K_DMIN + 2 * r));
        for (uint32_t h = 0; h < 2; h++)
            b->min[r][h] = has_bits ? 0 : sc[h] >> 4;
        for (uint32_t i = 0; i < 32; i++) {
            int q = pairs[64 * (i / 16) + 4 * r + i % 4] >> (2 * (i / 4 % 4)) & 3;
            q |= (int)(bits >> (8 * (i % 4) + i / 4) & 1) << 2;
            b->q[r][i] = (int16_t)(has_bits ? (int8_t)sc[i / 16] * (q - 4) : (sc[i / 16] & 15) * q);
        }
    }
}

static void unpack(const struct matrix *w, const uint8_t *panel, uint32_t index, struct block *b)
{
    switch (w->type) {
    case WEIGHT_MXFP4:
        unpack_mxfp4(w, panel, index, b);
        break;
    case WEIGHT_IQ4_XS:
        unpack_iq4_xs(w, panel, index, b);
        break;
    case WEIGHT_Q2_K:
    case WEIGHT_Q3_K:
        unpack_q23_k(w, panel, index, b);
        break;
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        unpack_q45_k(w, panel, index, b);
        break;
    case WEIGHT_Q6_K:
        unpack_q6_k(w, panel, index, b);
        break;
    default:
        unpack_block32(w, panel, index, b);
    }
}

static void accumulate(const struct block *b, const struct act_block *x, enum minimum minimum,
                       float *f)
{
    int32_t halves[2] = {0, 0};
    for (uint32_t i = 0; i < 32; i++)
        halves[i / 16] += x->q[i];
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        int32_t sum = 0;
        for (uint32_t i = 0; i < 32; i++)
            sum += b->q[r][i] * x->q[i];
        f[r] = fmaf((float)sum, b->d[r] * x->d, f[r]);
        if (minimum == MINIMUM_FLOAT)
            f[r] = fmaf(b->m[r], x->dsum, f[r]);
        if (minimum == MINIMUM_INTEGER) {
            int32_t imin = b->min[r][0] * halves[0] + b->min[r][1] * halves[1];
            f[r] = fmaf(-(float)imin, b->m[r] * x->d, f[r]);
        }
    }
}

static void store(float *y, const float *f, uint32_t rows, bool add)
{
    for (uint32_t r = 0; r < rows; r++)
        y[r] = add ? y[r] + f[r] : f[r];
}

static uint32_t panel_rows(const struct matrix *w, uint32_t p)
{
    uint32_t left = w->rows - p * PANEL_ROWS;
    return left < PANEL_ROWS ? left : PANEL_ROWS;
}

static void product_q8(const struct matrix *w, uint32_t p0, uint32_t p1, const struct acts *x,
                       uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    const enum minimum minimum = minimum_of(w->type);
    const uint32_t blocks = w->units * (weight_info(w->type)->unit_cols / 32);

    for (uint32_t p = p0; p < p1; p++) {
        const uint8_t *panel = w->data + p * w->panel_bytes;
        for (uint32_t c = 0; c < n; c += TILE) {
            const uint32_t columns = n - c < TILE ? n - c : TILE;
            float f[TILE][PANEL_ROWS] = {{0}};
            for (uint32_t i = 0; i < blocks; i++) {
                struct block b;
                unpack(w, panel, i, &b);
                for (uint32_t j = 0; j < columns; j++)
                    accumulate(&b, (const struct act_block *)acts_column(x, c0 + c + j) + i,
                               minimum, f[j]);
            }
            for (uint32_t j = 0; j < columns; j++)
                store(y + (c + j) * ldy + (size_t)p * PANEL_ROWS, f[j], panel_rows(w, p), add);
        }
    }
}

/* 16 rows of one column while 256 columns of K are gone through. */
struct sums256 {
    int32_t i[PANEL_ROWS], b[PANEL_ROWS];
    float f[PANEL_ROWS];
};

static void accumulate256(const struct block *b, const struct act_block256 *x, struct sums256 *s)
{
    int32_t all = 0;
    for (uint32_t i = 0; i < 32; i++)
        all += x->q[i];
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        int32_t sum = 0;
        for (uint32_t i = 0; i < 32; i++)
            sum += b->q[r][i] * x->q[i];
        s->i[r] += sum * (1 << x->shift);
        s->b[r] += b->min[r][0] * all * (1 << x->shift);
    }
}

static void fold256(enum weight_type type, const struct block *b, float dy, struct sums256 *s)
{
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        if (type == WEIGHT_Q6_K)
            s->f[r] = fmaf((float)s->i[r], b->d[r] * dy, s->f[r]);
        else
            s->f[r] = fmaf(fmaf(-(float)s->b[r], b->m[r], (float)s->i[r] * b->d[r]), dy, s->f[r]);
        s->i[r] = s->b[r] = 0;
    }
}

static void product_q8_256(const struct matrix *w, uint32_t p0, uint32_t p1, const struct acts *x,
                           uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    for (uint32_t p = p0; p < p1; p++) {
        const uint8_t *panel = w->data + p * w->panel_bytes;
        for (uint32_t c = 0; c < n; c += TILE) {
            const uint32_t columns = n - c < TILE ? n - c : TILE;
            struct sums256 sums[TILE] = {{{0}, {0}, {0}}};
            for (uint32_t i = 0; i < 8 * w->units; i++) {
                struct block b;
                unpack(w, panel, i, &b);
                for (uint32_t j = 0; j < columns; j++) {
                    const struct act_block256 *block = acts_column(x, c0 + c + j);
                    accumulate256(&b, block + i, &sums[j]);
                    if (i % 8 == 7)
                        fold256(w->type, &b, block[i - 7].d, &sums[j]);
                }
            }
            for (uint32_t j = 0; j < columns; j++)
                store(y + (c + j) * ldy + (size_t)p * PANEL_ROWS, sums[j].f, panel_rows(w, p), add);
        }
    }
}

/* Weights 16u … 16u + 15 of a row. */
static void weights_at(enum weight_type type, const uint8_t *row, uint32_t u, float v[16])
{
    row += (type == WEIGHT_F32 ? 64 : 32) * (size_t)u;
    switch (type) {
    case WEIGHT_F32:
        memcpy(v, row, 64);
        break;
    case WEIGHT_F16:
        for (uint32_t i = 0; i < 16; i++)
            v[i] = f16_to_f32(load_u16(row + 2 * i));
        break;
    default:
        for (uint32_t i = 0; i < 16; i++)
            v[i] = bf16_to_f32(load_u16(row + 2 * i));
    }
}

static void product_f32(const struct matrix *w, uint32_t p0, uint32_t p1, const struct acts *x,
                        uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    const size_t row_bytes = w->panel_bytes / PANEL_ROWS;
    for (uint32_t p = p0; p < p1; p++)
        for (uint32_t r = 0; r < panel_rows(w, p); r++) {
            const uint8_t *row = w->data + p * w->panel_bytes + r * row_bytes;
            for (uint32_t c = 0; c < n; c++) {
                const float *column = acts_column(x, c0 + c);
                float s[16] = {0}, v[16];
                for (uint32_t u = 0; u < w->units; u++) {
                    weights_at(w->type, row, u, v);
                    for (uint32_t i = 0; i < 16; i++)
                        s[i] = fmaf(v[i], column[16 * u + i], s[i]);
                }
                float f = scalar_tree16(s);
                store(y + c * ldy + (size_t)p * PANEL_ROWS + r, &f, 1, add);
            }
        }
}

void scalar_fill_products(struct kernels *k)
{
    static product_fn *const products[ACTS_KINDS] = {
        [ACTS_F32] = product_f32, [ACTS_Q8] = product_q8, [ACTS_Q8_256] = product_q8_256};
    for (unsigned t = 0; t < WEIGHT_TYPES; t++)
        k->product[t] = products[weight_info((enum weight_type)t)->acts];
}
