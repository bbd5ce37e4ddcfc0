/* dequantise.c: one row of a GGUF tensor as floats; the definition of each block format. */
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/half.h"
#include "core/kernels/weights_priv.h"

const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};
const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void k_scale_min(const uint8_t *scales, uint32_t j, uint8_t *sc, uint8_t *m)
{
    if (j < 4) {
        *sc = scales[j] & 63;
        *m = scales[j + 4] & 63;
    } else {
        *sc = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4);
        *m = (uint8_t)(scales[j + 4] >> 4 | (scales[j] >> 6) << 4);
    }
}

static void block_q8_0(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b));
    for (uint32_t i = 0; i < 32; i++)
        y[i] = d * (float)(int8_t)b[2 + i];
}

static void block_q4_0(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b));
    for (uint32_t i = 0; i < 16; i++) {
        y[i] = d * (float)((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static void block_q4_1(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b)), m = f16_to_f32(load_u16(b + 2));
    for (uint32_t i = 0; i < 16; i++) {
        y[i] = d * (float)(b[4 + i] & 15) + m;
        y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

static void block_q5_0(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b));
    uint32_t high = load_u32(b + 2);
    for (uint32_t i = 0; i < 16; i++) {
        y[i] = d * (float)((int)((b[6 + i] & 15) | (high >> i & 1) << 4) - 16);
        y[i + 16] = d * (float)((int)(b[6 + i] >> 4 | (high >> (i + 16) & 1) << 4) - 16);
    }
}

static void block_q5_1(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b)), m = f16_to_f32(load_u16(b + 2));
    uint32_t high = load_u32(b + 4);
    for (uint32_t i = 0; i < 16; i++) {
        y[i] = d * (float)((b[8 + i] & 15) | (high >> i & 1) << 4) + m;
        y[i + 16] = d * (float)(b[8 + i] >> 4 | (high >> (i + 16) & 1) << 4) + m;
    }
}

static void block_q4_k(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b)), dmin = f16_to_f32(load_u16(b + 2));
    for (uint32_t s = 0; s < 8; s++) {
        const uint8_t *q = b + 16 + 32 * (s / 2);
        uint8_t sc, m;
        k_scale_min(b + 4, s, &sc, &m);
        float scale = d * (float)sc, min = dmin * (float)m;
        for (uint32_t i = 0; i < 32; i++)
            y[32 * s + i] = scale * (float)(s & 1 ? q[i] >> 4 : q[i] & 15) - min;
    }
}

static void block_q5_k(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b)), dmin = f16_to_f32(load_u16(b + 2));
    const uint8_t *high = b + 16;
    for (uint32_t s = 0; s < 8; s++) {
        const uint8_t *q = b + 48 + 32 * (s / 2);
        uint8_t sc, m;
        k_scale_min(b + 4, s, &sc, &m);
        float scale = d * (float)sc, min = dmin * (float)m;
        for (uint32_t i = 0; i < 32; i++) {
            int v = (s & 1 ? q[i] >> 4 : q[i] & 15) + ((high[i] >> s & 1) << 4);
            y[32 * s + i] = scale * (float)v - min;
        }
    }
}

static void block_q6_k(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b + 208));
    const int8_t *scales = (const int8_t *)b + 192;
    for (uint32_t i = 0; i < 256; i++)
        y[i] = d * (float)scales[i / 16] * (float)q6_k_value(b, i);
}

int q6_k_value(const uint8_t *b, uint32_t i)
{
    uint32_t half = i / 128, quarter = i / 32 % 4, l = i % 32;
    uint8_t low = b[64 * half + 32 * (quarter & 1) + l];
    uint8_t high = b[128 + 32 * half + l];
    return (int)((quarter & 2 ? low >> 4 : low & 15) | (high >> (2 * quarter) & 3) << 4) - 32;
}

static void table_values(const int8_t *table, const uint8_t *q, float d, float *y)
{
    for (uint32_t i = 0; i < 16; i++) {
        y[i] = d * (float)table[q[i] & 15];
        y[i + 16] = d * (float)table[q[i] >> 4];
    }
}

static void block_iq4_nl(const uint8_t *b, float *y)
{
    table_values(iq4_values, b + 2, f16_to_f32(load_u16(b)), y);
}

static void block_iq4_xs(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b));
    for (uint32_t s = 0; s < 8; s++)
        table_values(iq4_values, b + 8 + 16 * s, d * (float)iq4_xs_scale(b, s), y + 32 * s);
}

static void block_mxfp4(const uint8_t *b, float *y)
{
    /* 2^(e − 128); the first two are denormals */
    float d = bits_to_f32(b[0] < 2 ? 0x200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
    table_values(mxfp4_values, b + 1, d, y);
}

static void block_q2_k(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b + 80)), dmin = f16_to_f32(load_u16(b + 82));
    for (uint32_t i = 0; i < 256; i++)
        y[i] =
            d * (float)(b[i / 16] & 15) * (float)q2_k_value(b, i) - dmin * (float)(b[i / 16] >> 4);
}

static void block_q3_k(const uint8_t *b, float *y)
{
    float d = f16_to_f32(load_u16(b + 108));
    for (uint32_t i = 0; i < 256; i++)
        y[i] = d * (float)q3_k_scale(b, i / 16) * (float)q3_k_value(b, i);
}

int q2_k_value(const uint8_t *b, uint32_t i)
{
    return b[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
}

int q3_k_value(const uint8_t *b, uint32_t i)
{
    int low = b[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
    return low - (b[i % 32] >> (i / 32) & 1 ? 0 : 4);
}

int q3_k_scale(const uint8_t *b, uint32_t j)
{
    const uint8_t *scales = b + 96;
    int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
    return (low | (scales[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
}

int iq4_xs_scale(const uint8_t *b, uint32_t j)
{
    int low = b[4 + j / 2] >> (j & 1 ? 4 : 0) & 15;
    return (low | (load_u16(b + 2) >> (2 * j) & 3) << 4) - 32;
}

void dequantise_row(enum weight_type type, const void *src, uint32_t cols, float *dst)
{
    static void (*const blocks[WEIGHT_TYPES])(const uint8_t *, float *) = {
        [WEIGHT_Q8_0] = block_q8_0,     [WEIGHT_Q4_0] = block_q4_0,
        [WEIGHT_Q4_1] = block_q4_1,     [WEIGHT_Q5_0] = block_q5_0,
        [WEIGHT_Q5_1] = block_q5_1,     [WEIGHT_Q4_K] = block_q4_k,
        [WEIGHT_Q5_K] = block_q5_k,     [WEIGHT_Q6_K] = block_q6_k,
        [WEIGHT_IQ4_NL] = block_iq4_nl, [WEIGHT_IQ4_XS] = block_iq4_xs,
        [WEIGHT_MXFP4] = block_mxfp4,   [WEIGHT_Q2_K] = block_q2_k,
        [WEIGHT_Q3_K] = block_q3_k,
    };
    const struct weight_info *info = weight_info(type);
    const uint8_t *b = src;

    check(cols % info->block_cols == 0);
    switch (type) {
    case WEIGHT_F32:
        memcpy(dst, src, (size_t)cols * 4);
        return;
    case WEIGHT_F16:
        for (uint32_t i = 0; i < cols; i++)
            dst[i] = f16_to_f32(load_u16(b + 2 * (size_t)i));
        return;
    case WEIGHT_BF16:
        for (uint32_t i = 0; i < cols; i++)
            dst[i] = bf16_to_f32(load_u16(b + 2 * (size_t)i));
        return;
    default:
        for (uint32_t i = 0; i < cols; i += info->block_cols, b += info->block_bytes)
            blocks[type](b, dst + i);
    }
}
