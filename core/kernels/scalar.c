/* scalar.c: the reference of every slot except products and attention (scalar_products.c,
 * scalar_attention.c): plain C, the sequence of roundings that the header promises. */
#include <math.h>
#include <string.h>

#include "core/kernels/half.h"
#include "core/kernels/scalar_priv.h"

float scalar_tree16(float s[16])
{
    for (uint32_t step = 8; step > 0; step /= 2)
        for (uint32_t i = 0; i < step; i++)
            s[i] += s[i + step];
    return s[0];
}

float scalar_exp(float x)
{
    float clamped = x < EXP_LOW ? EXP_LOW : x;
    clamped = clamped > EXP_HIGH ? EXP_HIGH : clamped;
    float t = fmaf(clamped, EXP_LOG2E, EXP_MAGIC), n = t - EXP_MAGIC;
    float r = fmaf(n, -EXP_LN2_HIGH, clamped);
    r = fmaf(n, -EXP_LN2_LOW, r);
    float p = EXP_P0;
    p = fmaf(p, r, EXP_P1);
    p = fmaf(p, r, EXP_P2);
    p = fmaf(p, r, EXP_P3);
    p = fmaf(p, r, EXP_P4);
    p = fmaf(p, r, EXP_P5);
    float y = fmaf(p, r * r, r) + 1.0f;
    y *= bits_to_f32((f32_to_bits(t) - EXP_MAGIC_BITS + 127) << 23);
    return x < EXP_LOW ? 0.0f : y;
}

/* The bits of the largest magnitude; 0x7f800000 and more: a number is not finite. */
static uint32_t largest_of(const float *x, uint32_t n)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t magnitude = f32_to_bits(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

static bool finite_all(const float *x, uint32_t n)
{
    return largest_of(x, n) < 0x7f800000;
}

/* Quantises up to 32 numbers and adds them up by halves. */
static void quantise(const float *x, uint32_t n, float inverse, int8_t *q, int32_t sum16[2])
{
    for (uint32_t i = 0; i < n; i++) {
        float v = (x[i] * inverse + EXP_MAGIC) - EXP_MAGIC; /* round half even */
        v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
        q[i] = (int8_t)v;
        sum16[i / 16] += q[i];
    }
}

/* Packs up to 32 numbers (the rest counts as zero); false if one is not finite. */
static bool pack_block(const float *x, uint32_t n, struct act_block *b)
{
    const uint32_t largest = largest_of(x, n);
    int32_t sum16[2] = {0, 0};

    memset(b, 0, sizeof(*b));
    if (largest >= 0x7f800000)
        return false;
    float amax = bits_to_f32(largest);
    if (amax < PACK_TINY)
        return true;
    quantise(x, n, 127.0f / amax, b->q, sum16);
    b->d = amax / 127.0f;
    b->dsum = b->d * (float)(sum16[0] + sum16[1]);
    b->seed = -8 * (sum16[0] + sum16[1]);
    b->seed16 = -8 * sum16[0];
    return true;
}

static bool pack_q8(const float *x, uint32_t cols, void *dst)
{
    const size_t stride = acts_stride(ACTS_Q8, cols);
    struct act_block *b = dst;
    memset(dst, 0, stride);
    for (uint32_t i = 0; i < cols; i += 32)
        if (!pack_block(x + i, cols - i < 32 ? cols - i : 32, b++)) {
            memset(dst, 0, stride);
            return false;
        }
    return true;
}

/* Packs up to 256 numbers into eight blocks; false if one is not finite. */
static bool pack_group(const float *x, uint32_t n, struct act_block256 *b)
{
    const uint32_t largest = largest_of(x, n);

    memset(b, 0, 8 * sizeof(*b));
    if (largest >= 0x7f800000)
        return false;
    const float amax = bits_to_f32(largest);
    if (amax < PACK_TINY)
        return true;
    b->d = amax / 127.0f * 0.125f;
    for (uint32_t i = 0; 32 * i < n; i++) {
        const uint32_t at = 32 * i, count = n - at < 32 ? n - at : 32;
        const float own = bits_to_f32(largest_of(x + at, count));
        int32_t sum16[2] = {0, 0}, shift = 0;
        while (own > amax * (float)(1 << shift) * 0.125f)
            shift++;
        quantise(x + at, count, 127.0f / amax * (float)(8 >> shift), b[i].q, sum16);
        b[i].shift = shift;
        b[i].seeds[0] = -32 * sum16[0];
        b[i].seeds[1] = -32 * sum16[1];
        b[i | 1].sums[i & 1] = (int16_t)((sum16[0] + sum16[1]) * (1 << shift));
    }
    return true;
}

static bool pack_q8_256(const float *x, uint32_t cols, void *dst)
{
    struct act_block256 *b = dst;
    for (uint32_t i = 0; i < cols; i += 256, b += 8)
        if (!pack_group(x + i, cols - i < 256 ? cols - i : 256, b)) {
            memset(dst, 0, acts_stride(ACTS_Q8_256, cols));
            return false;
        }
    return true;
}

static bool pack_f32(const float *x, uint32_t cols, void *dst)
{
    memset(dst, 0, acts_stride(ACTS_F32, cols));
    if (!finite_all(x, cols))
        return false;
    memcpy(dst, x, (size_t)cols * 4);
    return true;
}

/* 1 / sqrt(mean square + eps); not finite if an x isn't or the sum overflows. */
static float norm_factor(const float *x, float eps, uint32_t n)
{
    float s[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        s[i % 16] = fmaf(x[i], x[i], s[i % 16]);
    float sum = scalar_tree16(s);
    if (!finite_all(&sum, 1))
        return NAN;
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static void rmsnorm(float *y, const float *x, const float *w, float eps, uint32_t n)
{
    float r = norm_factor(x, eps, n);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (x[i] * r) * w[i];
}

static bool norm_pack_q8(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    const size_t stride = acts_stride(ACTS_Q8, cols);
    struct act_block *b = dst;
    float r = norm_factor(x, eps, cols), y[32];

    memset(dst, 0, stride);
    for (uint32_t i = 0; i < cols; i += 32) {
        uint32_t n = cols - i < 32 ? cols - i : 32;
        for (uint32_t j = 0; j < n; j++)
            y[j] = (x[i + j] * r) * w[i + j];
        if (!pack_block(y, n, b++)) {
            memset(dst, 0, stride);
            return false;
        }
    }
    return true;
}

static bool norm_pack_q8_256(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    struct act_block256 *b = dst;
    float r = norm_factor(x, eps, cols), y[256];

    for (uint32_t i = 0; i < cols; i += 256, b += 8) {
        uint32_t n = cols - i < 256 ? cols - i : 256;
        for (uint32_t j = 0; j < n; j++)
            y[j] = (x[i + j] * r) * w[i + j];
        if (!pack_group(y, n, b)) {
            memset(dst, 0, acts_stride(ACTS_Q8_256, cols));
            return false;
        }
    }
    return true;
}

static bool norm_pack_f32(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    float *y = dst;
    memset(dst, 0, acts_stride(ACTS_F32, cols));
    rmsnorm(y, x, w, eps, cols);
    if (finite_all(y, cols))
        return true;
    memset(dst, 0, (size_t)cols * 4);
    return false;
}

static void silu_mul(float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = (gate[i] / (1.0f + scalar_exp(-gate[i]))) * up[i];
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void rotate(float *a, float *b, float c, float s)
{
    float x = *a, y = *b;
    *a = x * c - y * s;
    *b = x * s + y * c;
}

static void rope_norm(float *x, uint32_t heads, uint32_t dim, const float *cosines,
                      const float *sines, uint32_t pairs)
{
    for (uint32_t h = 0; h < heads; h++, x += dim)
        for (uint32_t i = 0; i < pairs; i++)
            rotate(&x[2 * i], &x[2 * i + 1], cosines[i], sines[i]);
}

static void rope_neox(float *x, uint32_t heads, uint32_t dim, const float *cosines,
                      const float *sines, uint32_t pairs)
{
    for (uint32_t h = 0; h < heads; h++, x += dim)
        for (uint32_t i = 0; i < pairs; i++)
            rotate(&x[i], &x[i + pairs], cosines[i], sines[i]);
}

static void exp_all(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = scalar_exp(x[i]);
}

static float max_all(const float *x, uint32_t n)
{
    float m = x[0];
    for (uint32_t i = 1; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m + 0.0f; /* -0 becomes +0 */
}

static float exp_sum(float *y, const float *x, uint32_t n, float max)
{
    float s[16] = {0};
    for (uint32_t i = 0; i < n; i++) {
        y[i] = scalar_exp(x[i] - max);
        s[i % 16] += y[i];
    }
    return scalar_tree16(s);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

void kernels_fill_scalar(struct kernels *k)
{
    memset(k, 0, sizeof(*k));
    k->tier = "scalar";
    k->pack[ACTS_F32] = pack_f32;
    k->pack[ACTS_Q8] = pack_q8;
    k->pack[ACTS_Q8_256] = pack_q8_256;
    k->norm_pack[ACTS_F32] = norm_pack_f32;
    k->norm_pack[ACTS_Q8] = norm_pack_q8;
    k->norm_pack[ACTS_Q8_256] = norm_pack_q8_256;
    k->rmsnorm = rmsnorm;
    k->silu_mul = silu_mul;
    k->add = add;
    k->rope_norm = rope_norm;
    k->rope_neox = rope_neox;
    k->exp = exp_all;
    k->max = max_all;
    k->exp_sum = exp_sum;
    k->argmax = argmax;
    k->finite = finite_all;
    scalar_fill_products(k);
    scalar_fill_attention(k);
}
