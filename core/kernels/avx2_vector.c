/* avx2_vector.c: packing, norms, activations, RoPE, exp and reductions with AVX2. */
#include <math.h>
#include <string.h>

#include "core/kernels/half.h"
#include "core/kernels/vec256.h"

static inline __m256i magnitude(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

/* Largest of 8 numbers that are ≥ 0. */
static inline uint32_t largest8(__m256i v)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(a);
}

static inline int32_t sum8(__m256i v)
{
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtsi128_si32(a);
}

static inline __m256i quantise8(__m256 x, __m256 inverse)
{
    /* Adding the magic number rounds half to even and leaves the integer in the low bits. */
    __m256 v = _mm256_add_ps(_mm256_mul_ps(x, inverse), _mm256_set1_ps(EXP_MAGIC));
    __m256i q = _mm256_sub_epi32(_mm256_castps_si256(v), _mm256_set1_epi32(EXP_MAGIC_BITS));
    return _mm256_max_epi32(_mm256_min_epi32(q, _mm256_set1_epi32(127)), _mm256_set1_epi32(-127));
}

static inline uint32_t largest32(const __m256 x[4])
{
    return largest8(_mm256_max_epi32(_mm256_max_epi32(magnitude(x[0]), magnitude(x[1])),
                                     _mm256_max_epi32(magnitude(x[2]), magnitude(x[3]))));
}

/* Quantises 32 numbers to bytes; the sums of the two halves. */
static inline void quantise32(const __m256 x[4], float factor, int8_t *dst, int32_t sum16[2])
{
    const __m256 inverse = _mm256_set1_ps(factor);
    __m256i q[4];
    for (int i = 0; i < 4; i++)
        q[i] = quantise8(x[i], inverse);
    /* Packing works within 128-bit lanes; the permutation puts the dwords back in order. */
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((void *)dst, bytes);
    sum16[0] = sum8(_mm256_add_epi32(q[0], q[1]));
    sum16[1] = sum8(_mm256_add_epi32(q[2], q[3]));
}

/* Quantises 32 numbers; false if one is not finite. */
static inline bool pack_block(const __m256 x[4], struct act_block *b)
{
    const uint32_t largest = largest32(x);
    if (largest >= 0x7f800000)
        return false;
    const float amax = bits_to_f32(largest);
    if (amax < PACK_TINY) {
        memset(b, 0, sizeof(*b));
        return true;
    }
    int32_t sum16[2];
    quantise32(x, 127.0f / amax, b->q, sum16);
    b->d = amax / 127.0f;
    b->dsum = b->d * (float)(sum16[0] + sum16[1]);
    b->seed = -8 * (sum16[0] + sum16[1]);
    b->seed16 = -8 * sum16[0];
    return true;
}

/* Zeros behind the last block of cols numbers. */
static inline void pack_tail(uint32_t cols, void *dst)
{
    const size_t used = ((size_t)cols + 31) / 32 * sizeof(struct act_block);
    memset((uint8_t *)dst + used, 0, acts_stride(ACTS_Q8, cols) - used);
}

static bool pack_q8(const float *x, uint32_t cols, void *dst)
{
    struct act_block *b = dst;
    for (uint32_t i = 0; i < cols; i += 32) {
        __m256 v[4];
        for (uint32_t j = 0; j < 4; j++)
            v[j] = load_first8(x, i + 8 * j, cols);
        if (!pack_block(v, b++)) {
            memset(dst, 0, acts_stride(ACTS_Q8, cols));
            return false;
        }
    }
    pack_tail(cols, dst);
    return true;
}

/* Quantises 256 numbers. */
static inline bool pack_group(const __m256 x[32], struct act_block256 *b)
{
    uint32_t largest = 0, own[8];
    for (int i = 0; i < 8; i++) {
        own[i] = largest32(x + 4 * i);
        largest = own[i] > largest ? own[i] : largest;
    }
    if (largest >= 0x7f800000)
        return false;
    const float amax = bits_to_f32(largest);
    memset(b, 0, 8 * sizeof(*b));
    if (amax < PACK_TINY)
        return true;
    b->d = amax / 127.0f * 0.125f;
    for (int i = 0; i < 8; i++) {
        const float a = bits_to_f32(own[i]);
        const int shift = (a > amax * 0.125f) + (a > amax * 0.25f) + (a > amax * 0.5f);
        int32_t sum16[2];
        quantise32(x + 4 * i, 127.0f / amax * (float)(8 >> shift), b[i].q, sum16);
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
    for (uint32_t i = 0; i < cols; i += 256, b += 8) {
        __m256 v[32];
        for (uint32_t j = 0; j < 32; j++)
            v[j] = load_first8(x, i + 8 * j, cols);
        if (!pack_group(v, b)) {
            memset(dst, 0, acts_stride(ACTS_Q8_256, cols));
            return false;
        }
    }
    return true;
}

static bool finite_all(const float *x, uint32_t n)
{
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8)
        largest = _mm256_max_epi32(largest, magnitude(load_first8(x, i, n)));
    return largest8(largest) < 0x7f800000;
}

static bool pack_f32(const float *x, uint32_t cols, void *dst)
{
    memset(dst, 0, acts_stride(ACTS_F32, cols));
    if (!finite_all(x, cols))
        return false;
    memcpy(dst, x, (size_t)cols * sizeof(float));
    return true;
}

static float norm_factor(const float *x, float eps, uint32_t n)
{
    struct lanes16 s = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < n; i += 16) {
        __m256 a = load_first8(x, i, n), b = load_first8(x, i + 8, n);
        s.a = _mm256_fmadd_ps(a, a, s.a);
        s.b = _mm256_fmadd_ps(b, b, s.b);
    }
    const float sum = tree16_256(s);
    if ((f32_to_bits(sum) & 0x7f800000) == 0x7f800000)
        return NAN;
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static inline __m256 norm_at(const float *x, const float *w, __m256 r, uint32_t i, uint32_t n)
{
    return _mm256_mul_ps(_mm256_mul_ps(load_first8(x, i, n), r), load_first8(w, i, n));
}

static void rmsnorm(float *y, const float *x, const float *w, float eps, uint32_t n)
{
    const __m256 r = _mm256_set1_ps(norm_factor(x, eps, n));
    for (uint32_t i = 0; i < n; i += 8)
        store_first8(y, i, n, norm_at(x, w, r, i, n));
}

static bool norm_pack_q8(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    struct act_block *b = dst;
    const __m256 r = _mm256_set1_ps(norm_factor(x, eps, cols));
    for (uint32_t i = 0; i < cols; i += 32) {
        __m256 v[4];
        for (uint32_t j = 0; j < 4; j++)
            v[j] = norm_at(x, w, r, i + 8 * j, cols);
        if (!pack_block(v, b++)) {
            memset(dst, 0, acts_stride(ACTS_Q8, cols));
            return false;
        }
    }
    pack_tail(cols, dst);
    return true;
}

static bool norm_pack_q8_256(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    struct act_block256 *b = dst;
    const __m256 r = _mm256_set1_ps(norm_factor(x, eps, cols));
    for (uint32_t i = 0; i < cols; i += 256, b += 8) {
        __m256 y[32];
        for (uint32_t j = 0; j < 32; j++)
            y[j] = i + 8 * j < cols ? norm_at(x, w, r, i + 8 * j, cols) : _mm256_setzero_ps();
        if (!pack_group(y, b)) {
            memset(dst, 0, acts_stride(ACTS_Q8_256, cols));
            return false;
        }
    }
    return true;
}

static bool norm_pack_f32(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    memset(dst, 0, acts_stride(ACTS_F32, cols));
    rmsnorm(dst, x, w, eps, cols);
    if (finite_all(dst, cols))
        return true;
    memset(dst, 0, acts_stride(ACTS_F32, cols));
    return false;
}

static void silu_mul(float *y, const float *gate, const float *up, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 g = load_first8(gate, i, n);
        __m256 e = exp256(_mm256_xor_ps(g, sign));
        store_first8(y, i, n,
                     _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), load_first8(up, i, n)));
    }
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        store_first8(y, i, n, _mm256_add_ps(load_first8(y, i, n), load_first8(x, i, n)));
}

static void rope_norm(float *x, uint32_t heads, uint32_t dim, const float *cosines,
                      const float *sines, uint32_t pairs)
{
    /* 4 pairs at a time; each cosine and sine stands in both lanes of its pair. */
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    /* even lanes: a·cos − b·sin; odd lanes: b·cos + a·sin */
    const __m256 signs = _mm256_setr_ps(-0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f);
    for (uint32_t i = 0; i < pairs; i += 4) {
        __m256 c = _mm256_permutevar8x32_ps(load_first8(cosines, i, pairs), twice);
        __m256 s = _mm256_permutevar8x32_ps(load_first8(sines, i, pairs), twice);
        s = _mm256_xor_ps(s, signs);
        for (uint32_t h = 0; h < heads; h++) {
            float *p = x + (size_t)h * dim;
            __m256 v = load_first8(p, 2 * i, 2 * pairs);
            __m256 swapped = _mm256_permute_ps(v, 0xb1);
            v = _mm256_add_ps(_mm256_mul_ps(v, c), _mm256_mul_ps(swapped, s));
            store_first8(p, 2 * i, 2 * pairs, v);
        }
    }
}

static void rope_neox(float *x, uint32_t heads, uint32_t dim, const float *cosines,
                      const float *sines, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i += 8) {
        const __m256 c = load_first8(cosines, i, pairs), s = load_first8(sines, i, pairs);
        for (uint32_t h = 0; h < heads; h++) {
            float *pa = x + (size_t)h * dim, *pb = pa + pairs;
            __m256 a = load_first8(pa, i, pairs), b = load_first8(pb, i, pairs);
            store_first8(pa, i, pairs, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
            store_first8(pb, i, pairs, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
        }
    }
}

static void exp_all(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        store_first8(y, i, n, exp256(load_first8(x, i, n)));
}

static float max_all(const float *x, uint32_t n)
{
    __m256 m = _mm256_set1_ps(x[0]);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        m = _mm256_max_ps(m, _mm256_loadu_ps(x + i));
    float largest = max8(m);
    for (; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest + 0.0f;
}

static float exp_sum(float *y, const float *x, uint32_t n, float max)
{
    const __m256 m = _mm256_set1_ps(max);
    struct lanes16 s = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < n; i += 16) {
        __m256 a = exp256(_mm256_sub_ps(load_first8(x, i, n), m));
        __m256 b = exp256(_mm256_sub_ps(load_first8(x, i + 8, n), m));
        store_first8(y, i, n, a);
        store_first8(y, i + 8, n, b);
        const uint32_t left = n - i;
        s.a = _mm256_add_ps(s.a, _mm256_and_ps(a, _mm256_castsi256_ps(first8(left))));
        s.b = _mm256_add_ps(s.b,
                            _mm256_and_ps(b, _mm256_castsi256_ps(first8(left > 8 ? left - 8 : 0))));
    }
    return tree16_256(s);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    const float largest = max_all(x, n);
    const __m256 m = _mm256_set1_ps(largest);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        int hit = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), m, _CMP_EQ_OQ));
        if (hit)
            return i + (uint32_t)__builtin_ctz((unsigned)hit);
    }
    while (i + 1 < n && x[i] != largest)
        i++;
    return i;
}

void avx2_fill_vector(struct kernels *k)
{
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
}
