/* scalar_products.c: the reference of the products, for every weight type. */
#include <math.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/half.h"
#include "core/kernels/scalar_priv.h"
#include "core/kernels/weights_priv.h"

#define TILE 32u

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

/* A block's bytes, before zero points, tables and sub-scales. A panel has them in eight groups of 64: group g is
 * columns 4g … 4g+3 of each row. Groups are taken out whole and rows put together after that, so that
 * compilers see loops over bytes. */
struct bytes {
    uint8_t group[8][64];
};

static void take_nibbles(const uint8_t *src, struct bytes *v)
{
    for (uint32_t g = 0; g < 4; g++)
        for (uint32_t i = 0; i < 64; i++) {
            v->group[g][i] = src[64 * g + i] & 15;
            v->group[g + 4][i] = src[64 * g + i] >> 4;
        }
}

/* Bit g of each byte is group g's, to stand at bit `to`. */
static void take_bits(const uint8_t *bits, unsigned to, struct bytes *v)
{
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t i = 0; i < 64; i++)
            v->group[g][i] |= (uint8_t)((bits[i] >> g & 1) << to);
}

static void take_pairs(const uint8_t *src, struct bytes *v)
{
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t i = 0; i < 64; i++)
            v->group[g][i] = src[64 * (g / 4) + i] >> 2 * (g % 4) & 3;
}

static void take_q6(const uint8_t *low, const uint8_t *high, struct bytes *v)
{
    for (uint32_t g = 0; g < 8; g++) {
        const uint8_t *nibbles = low + 64 * (g / 2), *pairs = high + 64 * (g / 4);
        const unsigned shift = 4 * (g & 1), at = (4 + 2 * g) & 7;
        for (uint32_t i = 0; i < 64; i++)
            v->group[g][i] = (uint8_t)((nibbles[i] >> shift & 15) | (pairs[i] >> at & 3) << 4);
    }
}

static void put_rows(const struct bytes *v, uint8_t rows[PANEL_ROWS][32])
{
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            memcpy(rows[r] + 4 * g, v->group[g] + 4 * r, 4);
}

/* q = byte − zero. */
static void put_numbers(const struct bytes *v, int zero, struct block *b)
{
    uint8_t rows[PANEL_ROWS][32];
    put_rows(v, rows);
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        for (uint32_t i = 0; i < 32; i++)
            b->q[r][i] = (int16_t)(rows[r][i] - zero);
}

/* q = scale · (byte − zero), a scale for each 16. */
static void put_scaled(const struct bytes *v, int zero, int16_t scales[PANEL_ROWS][2],
                       struct block *b)
{
    put_numbers(v, zero, b);
    for (uint32_t r = 0; r < 2 * PANEL_ROWS; r++) {
        int16_t *half = b->q[r / 2] + 16 * (r % 2);
        const int16_t scale = scales[r / 2][r % 2];
        for (uint32_t i = 0; i < 16; i++)
            half[i] = (int16_t)(half[i] * scale);
    }
}

/* Bytes are indices of a table. */
static void put_table(const struct bytes *v, const int8_t *table, struct block *b)
{
    uint8_t rows[PANEL_ROWS][32];
    put_rows(v, rows);
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        for (uint32_t i = 0; i < 32; i++)
            b->q[r][i] = table[rows[r][i]];
}

static void unpack_block32(const struct matrix *w, const uint8_t *panel, uint32_t index,
                           struct block *b)
{
    const bool has_min = w->type == WEIGHT_Q4_1 || w->type == WEIGHT_Q5_1;
    const bool has_bits = w->type == WEIGHT_Q5_0 || w->type == WEIGHT_Q5_1;
    const uint8_t *unit = panel + (size_t)(index / 2) * weight_info(w->type)->unit_bytes;
    const uint32_t half = index & 1;
    struct bytes v;

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        b->d[r] = f16_to_f32(load_u16(unit + UNIT_D + 32 * half + 2 * r));
        b->m[r] = has_min ? f16_to_f32(load_u16(unit + UNIT_M + 32 * half + 2 * r)) : 0.0f;
    }
    const uint8_t *src = unit + (has_min ? 128 : 64);
    if (w->type == WEIGHT_Q8_0) {
        for (uint32_t g = 0; g < 8; g++) /* −128 … 127 to 0 … 255 */
            for (uint32_t i = 0; i < 64; i++)
                v.group[g][i] = src[512 * half + 64 * g + i] ^ 128;
        put_numbers(&v, 128, b);
        return;
    }
    src += half * (NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0));
    take_nibbles(src, &v);
    if (w->type == WEIGHT_IQ4_NL) {
        put_table(&v, iq4_values, b);
        return;
    }
    if (has_bits)
        take_bits(src + NIBBLES_BYTES, 4, &v);
    put_numbers(&v, has_min ? 0 : has_bits ? 16 : 8, b);
}

static void unpack_q45_k(const struct matrix *w, const uint8_t *panel, uint32_t index,
                         struct block *b)
{
    const bool has_bits = w->type == WEIGHT_Q5_K;
    const uint8_t *unit = panel + (size_t)(index / 8) * weight_info(w->type)->unit_bytes;
    const uint32_t s = index % 8;
    int16_t scales[PANEL_ROWS][2];
    struct bytes v;

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        b->d[r] = f16_to_f32(load_u16(unit + K_D + 2 * r));
        b->m[r] = f16_to_f32(load_u16(unit + K_DMIN + 2 * r));
        b->min[r][0] = unit[K_M + 32 * (s / 2) + 2 * r + (s & 1)];
        scales[r][0] = scales[r][1] = unit[K_SC + 16 * s + r];
    }
    const uint8_t *src = unit + K_QUANTS + s * (NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0));
    take_nibbles(src, &v);
    if (has_bits)
        take_bits(src + NIBBLES_BYTES, 4, &v);
    put_scaled(&v, 0, scales, b);
}

static void unpack_q6_k(const struct matrix *w, const uint8_t *panel, uint32_t index,
                        struct block *b)
{
    const uint8_t *unit = panel + (size_t)(index / 8) * weight_info(w->type)->unit_bytes;
    const uint32_t s = index % 8;
    const uint8_t *low = unit + Q6_QUANTS + s * Q6_BLOCK_BYTES;
    int16_t scales[PANEL_ROWS][2];
    struct bytes v;

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        b->d[r] = f16_to_f32(load_u16(unit + K_D + 2 * r));
        b->m[r] = 0.0f;
        b->min[r][0] = 0;
        for (uint32_t h = 0; h < 2; h++)
            scales[r][h] = (int8_t)unit[Q6_SC + 32 * s + 16 * h + r];
    }
    take_q6(low, low + Q6_LOW_BYTES, &v);
    put_scaled(&v, 32, scales, b);
}

static void unpack_mxfp4(const struct matrix *w, const uint8_t *panel, uint32_t index,
                         struct block *b)
{
    const uint8_t *unit = panel + (size_t)(index / 2) * weight_info(w->type)->unit_bytes;
    const uint32_t half = index & 1;
    struct bytes v;
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        b->d[r] = bits_to_f32((uint32_t)unit[16 * half + r] << 23);
    take_nibbles(unit + 64 + NIBBLES_BYTES * half, &v);
    put_table(&v, mxfp4_values, b);
}

static void unpack_iq4_xs(const struct matrix *w, const uint8_t *panel, uint32_t index,
                          struct block *b)
{
    const uint8_t *unit = panel + (size_t)(index / 8) * weight_info(w->type)->unit_bytes;
    const uint32_t s = index % 8;
    struct bytes v;
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        b->d[r] =
            f16_to_f32(load_u16(unit + K_D + 2 * r)) * (float)(int8_t)unit[XS_SC + 16 * s + r];
    take_nibbles(unit + XS_QUANTS + NIBBLES_BYTES * s, &v);
    put_table(&v, iq4_values, b);
}

static void unpack_q23_k(const struct matrix *w, const uint8_t *panel, uint32_t index,
                         struct block *b)
{
    const bool has_bits = w->type == WEIGHT_Q3_K;
    const uint8_t *unit = panel + (size_t)(index / 8) * weight_info(w->type)->unit_bytes;
    const uint32_t s = index % 8;
    const uint8_t *pairs = unit + HALVES_QUANTS + (PAIRS_BYTES + (has_bits ? BITS_BYTES : 0)) * s;
    int16_t scales[PANEL_ROWS][2];
    struct bytes v;

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *sc = unit + HALVES_SC + 32 * s + 2 * r;
        b->d[r] = f16_to_f32(load_u16(unit + K_D + 2 * r));
        b->m[r] = has_bits ? 0.0f : f16_to_f32(load_u16(unit + K_DMIN + 2 * r));
        for (uint32_t h = 0; h < 2; h++) {
            b->min[r][h] = has_bits ? 0 : sc[h] >> 4;
            scales[r][h] = has_bits ? (int8_t)sc[h] : sc[h] & 15;
        }
    }
    take_pairs(pairs, &v);
    if (has_bits)
        take_bits(pairs + PAIRS_BYTES, 2, &v);
    put_scaled(&v, has_bits ? 4 : 0, scales, b);
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

/* sums[r] = Σ row r · x. Equal types, and sums apart from what becomes of them: compilers see a dot product. */
static void dots(const struct block *b, const int8_t x[32], int32_t sums[PANEL_ROWS])
{
    int16_t wide[32];
    for (uint32_t i = 0; i < 32; i++)
        wide[i] = x[i];
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        int32_t sum = 0;
        for (uint32_t i = 0; i < 32; i++)
            sum += b->q[r][i] * wide[i];
        sums[r] = sum;
    }
}

static void accumulate(const struct block *b, const struct act_block *x, enum minimum minimum,
                       float *f)
{
    int32_t halves[2] = {0, 0}, sums[PANEL_ROWS];
    dots(b, x->q, sums);
    if (minimum == MINIMUM_INTEGER)
        for (uint32_t i = 0; i < 32; i++)
            halves[i / 16] += x->q[i];
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        f[r] = fmaf((float)sums[r], b->d[r] * x->d, f[r]);
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
    int32_t all = 0, sums[PANEL_ROWS];
    dots(b, x->q, sums);
    for (uint32_t i = 0; i < 32; i++)
        all += x->q[i];
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        s->i[r] += sums[r] * (1 << x->shift);
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
    for (unsigned t = 0; t < WEIGHT_TYPES; t++) {
        k->product[t] = products[weight_info((enum weight_type)t)->acts];
        k->streamed[0][t] = k->streamed[1][t] = NULL;
    }
    k->streams = 1;
}
