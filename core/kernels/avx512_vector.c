/* avx512_vector.c: packing, norms, activations, RoPE, exp and reductions with AVX-512. */
#include <math.h>
#include <string.h>

#include "core/kernels/forced_inline.h"
#include "core/kernels/half.h"
#include "core/kernels/vec512.h"

static inline __m512 load_first(const float *x, uint32_t i, uint32_t n)
{
    return _mm512_maskz_loadu_ps(first16(n - i), x + i);
}

static inline __m512i magnitude(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

static inline __m512i quantise(__m512 x, __m512 inverse)
{
    /* Adding the magic number rounds half to even and leaves the integer in the low bits. */
    __m512i q = _mm512_sub_epi32(
        _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(x, inverse), _mm512_set1_ps(EXP_MAGIC))),
        _mm512_set1_epi32(EXP_MAGIC_BITS));
    return _mm512_max_epi32(_mm512_min_epi32(q, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
}

/* Four blocks are packed at a time: their maxima, sums and scales stand side by side in one vector. */
#define GROUP 4
#define GROUP_COLS (32u * GROUP)

/* Largest of each of four vectors. */
static inline __m128i largest_of_4(const __m512i m[GROUP])
{
    const __m512i a =
        _mm512_max_epu32(_mm512_unpacklo_epi32(m[0], m[1]), _mm512_unpackhi_epi32(m[0], m[1]));
    const __m512i b =
        _mm512_max_epu32(_mm512_unpacklo_epi32(m[2], m[3]), _mm512_unpackhi_epi32(m[2], m[3]));
    const __m512i c = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i d = _mm256_max_epu32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
    return _mm_max_epu32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

/* Scales of four blocks. */
struct scales {
    __m512 inverse; /* 127 / amax, four times */
    __m128 d;
    bool finite;
};

static inline struct scales scales_of(const __m512 x[2 * GROUP])
{
    struct scales s;
    __m512i m[GROUP];
    for (int i = 0; i < GROUP; i++)
        m[i] = _mm512_max_epu32(magnitude(x[2 * i]), magnitude(x[2 * i + 1]));
    const __m128i largest = largest_of_4(m);
    const __m128 amax = _mm_castsi128_ps(largest), most = _mm_set1_ps(127.0f);
    const __mmask8 some = _mm_cmp_ps_mask(amax, _mm_set1_ps(PACK_TINY), _CMP_GE_OQ);
    s.finite = _mm_cmpge_epu32_mask(largest, _mm_set1_epi32(0x7f800000)) == 0;
    s.inverse = _mm512_broadcast_f32x4(_mm_maskz_div_ps(some, most, amax));
    s.d = _mm_maskz_div_ps(some, amax, most);
    return s;
}

/* Quantises four blocks, of which the first n are stored. No product x · inverse lies beyond ±127 by more than its
 * rounding, so that no integer needs to be clamped. */
static inline void pack_group4(const __m512 x[2 * GROUP], const struct scales *s,
                               struct act_block *b, uint32_t n)
{
    __m512i bytes[2], sums[2];
    /* packs leaves 128 bits with four bytes of each half of both blocks; a half has its own 128 bits after it. */
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    for (int i = 0; i < 2; i++) {
        const __m512 f0 =
            i == 0 ? _mm512_permute_ps(s->inverse, 0x00) : _mm512_permute_ps(s->inverse, 0xaa);
        const __m512 f1 =
            i == 0 ? _mm512_permute_ps(s->inverse, 0x55) : _mm512_permute_ps(s->inverse, 0xff);
        const __m512i first =
            _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x[4 * i], f0)),
                               _mm512_cvtps_epi32(_mm512_mul_ps(x[4 * i + 1], f0)));
        const __m512i second =
            _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x[4 * i + 2], f1)),
                               _mm512_cvtps_epi32(_mm512_mul_ps(x[4 * i + 3], f1)));
        bytes[i] = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
        sums[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes[i]);
    }
    /* Sums of 16: 128 bits hold a half of a block of bytes[0] and of bytes[1], twice. */
    __m512i halves = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[0], sums[1]),
                                      _mm512_unpackhi_epi32(sums[0], sums[1]));
    halves = _mm512_add_epi32(halves, _mm512_shuffle_epi32(halves, _MM_PERM_BADC));
    const __m512i ordered = _mm512_permutexvar_epi32(
        _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 13, 5, 12, 4, 9, 1, 8, 0), halves);
    const __m128i sum16 = _mm512_castsi512_si128(ordered);
    const __m128i sum = _mm_add_epi32(sum16, _mm512_extracti32x4_epi32(ordered, 1));
    const __m128i seed = _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(sum, 3));
    const __m128i seed16 = _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(sum16, 3));
    __m128 t0 = s->d, t1 = _mm_mul_ps(s->d, _mm_cvtepi32_ps(sum)), t2 = _mm_castsi128_ps(seed),
           t3 = _mm_castsi128_ps(seed16);
    _MM_TRANSPOSE4_PS(t0, t1, t2, t3);
    const __m128 tails[GROUP] = {t0, t1, t2, t3};
    for (uint32_t i = 0; i < n; i++, b++) {
        const __m512i pair = bytes[i / 2];
        _mm256_storeu_si256((void *)b->q, i % 2 == 0 ? _mm512_castsi512_si256(pair)
                                                     : _mm512_extracti64x4_epi64(pair, 1));
        _mm_storeu_ps(&b->d, tails[i]);
    }
}

/* What is packed: numbers, or their norm. */
struct source {
    const float *x, *w; /* w NULL: as they are */
    __m512 r;
    uint32_t cols;
};

/* Eight vectors of the group that begins at column i, zeros behind the last column. */
INLINE void load_group(const struct source *s, uint32_t i, bool whole, __m512 x[2 * GROUP])
{
    for (uint32_t j = 0; j < 2 * GROUP; j++) {
        const uint32_t at = i + 16 * j;
        const __mmask16 mask = whole ? 0xffff : at >= s->cols ? 0 : first16(s->cols - at);
        x[j] = whole ? _mm512_loadu_ps(s->x + at) : _mm512_maskz_loadu_ps(mask, s->x + at);
        if (s->w != NULL)
            x[j] = _mm512_mul_ps(_mm512_mul_ps(x[j], s->r),
                                 whole ? _mm512_loadu_ps(s->w + at)
                                       : _mm512_maskz_loadu_ps(mask, s->w + at));
    }
}

/* Zeros behind the last block of cols numbers. */
static inline void pack_tail(uint32_t cols, void *dst)
{
    const size_t used = ((size_t)cols + 31) / 32 * sizeof(struct act_block);
    memset((uint8_t *)dst + used, 0, acts_stride(ACTS_Q8, cols) - used);
}

/* A group's scales are found before the group ahead of it is quantised: the division's time passes in that. */
INLINE bool pack_from(const struct source *from, void *dst)
{
    const uint32_t cols = from->cols, whole = cols / GROUP_COLS * GROUP_COLS;
    struct act_block *b = dst;
    __m512 x[2 * GROUP];
    struct scales s, next;
    bool finite = true;

    if (whole > 0) {
        load_group(from, 0, true, x);
        next = scales_of(x);
    }
    for (uint32_t i = 0; i < whole; i += GROUP_COLS, b += GROUP) {
        s = next;
        finite &= s.finite;
        if (i + GROUP_COLS < whole) {
            load_group(from, i + GROUP_COLS, true, x);
            next = scales_of(x);
        }
        load_group(from, i, true, x);
        pack_group4(x, &s, b, GROUP);
    }
    if (whole < cols) {
        load_group(from, whole, false, x);
        s = scales_of(x);
        finite &= s.finite;
        pack_group4(x, &s, b, (cols - whole + 31) / 32);
    }
    if (!finite) {
        memset(dst, 0, acts_stride(ACTS_Q8, cols));
        return false;
    }
    pack_tail(cols, dst);
    return true;
}

static bool pack_q8(const float *x, uint32_t cols, void *dst)
{
    return pack_from(&(struct source){.x = x, .cols = cols}, dst);
}

/* Quantises 256 numbers. */
static inline bool pack_group(const __m512 x[16], struct act_block256 *b)
{
    __m512i all = _mm512_setzero_si512(), own[8];
    for (int i = 0; i < 8; i++) {
        own[i] = _mm512_max_epu32(magnitude(x[2 * i]), magnitude(x[2 * i + 1]));
        all = _mm512_max_epu32(all, own[i]);
    }
    const uint32_t largest = (uint32_t)_mm512_reduce_max_epu32(all);
    if (largest >= 0x7f800000)
        return false;
    const float amax = bits_to_f32(largest);
    if (amax < PACK_TINY) {
        memset(b, 0, 8 * sizeof(*b));
        return true;
    }
    for (int i = 0; i < 8; i++) {
        /* How many of A/8, A/4, A/2 (by the exponent) lie below the block's largest. */
        int shift = 0;
        for (uint32_t s = 3; s > 0; s--)
            shift += _mm512_cmpgt_epu32_mask(
                         own[i], _mm512_set1_epi32((int32_t)(largest - (s << 23)))) != 0;
        const __m512 inverse = _mm512_set1_ps(127.0f / amax * (float)(8 >> shift));
        const __m512i q0 = quantise(x[2 * i], inverse), q1 = quantise(x[2 * i + 1], inverse);
        const int32_t first = _mm512_reduce_add_epi32(q0), second = _mm512_reduce_add_epi32(q1);
        _mm_storeu_si128((void *)b[i].q, _mm512_cvtepi32_epi8(q0));
        _mm_storeu_si128((void *)(b[i].q + 16), _mm512_cvtepi32_epi8(q1));
        b[i].shift = shift;
        b[i].seeds[0] = -32 * first;
        b[i].seeds[1] = -32 * second;
        if ((i & 1) == 0)
            b[i].d = 0;
        b[i | 1].sums[i & 1] = (int16_t)((first + second) * (1 << shift));
    }
    b->d = amax / 127.0f * 0.125f;
    return true;
}

static bool pack_q8_256(const float *x, uint32_t cols, void *dst)
{
    struct act_block256 *b = dst;
    for (uint32_t i = 0; i < cols; i += 256, b += 8) {
        __m512 v[16];
        for (uint32_t j = 0; j < 16; j++)
            v[j] = i + 16 * j < cols ? load_first(x, i + 16 * j, cols) : _mm512_setzero_ps();
        if (!pack_group(v, b)) {
            memset(dst, 0, acts_stride(ACTS_Q8_256, cols));
            return false;
        }
    }
    return true;
}

static bool finite_all(const float *x, uint32_t n)
{
    __m512i largest = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16)
        largest = _mm512_max_epu32(largest, magnitude(load_first(x, i, n)));
    return _mm512_cmplt_epu32_mask(largest, _mm512_set1_epi32(0x7f800000)) == 0xffff;
}

static bool pack_f32(const float *x, uint32_t cols, void *dst)
{
    float *y = dst;
    if (!finite_all(x, cols)) {
        memset(dst, 0, acts_stride(ACTS_F32, cols));
        return false;
    }
    for (uint32_t i = 0; i < cols; i += 16)
        _mm512_storeu_ps(y + i, load_first(x, i, cols));
    return true;
}

static float norm_factor(const float *x, float eps, uint32_t n)
{
    __m512 s = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = load_first(x, i, n);
        s = _mm512_fmadd_ps(v, v, s);
    }
    const float sum = tree16_512(s);
    if ((f32_to_bits(sum) & 0x7f800000) == 0x7f800000)
        return NAN;
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static inline __m512 norm_at(const float *x, const float *w, __m512 r, uint32_t i, uint32_t n)
{
    return _mm512_mul_ps(_mm512_mul_ps(load_first(x, i, n), r), load_first(w, i, n));
}

static void rmsnorm(float *y, const float *x, const float *w, float eps, uint32_t n)
{
    const __m512 r = _mm512_set1_ps(norm_factor(x, eps, n));
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_mask_storeu_ps(y + i, first16(n - i), norm_at(x, w, r, i, n));
}

static bool norm_pack_q8(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    const __m512 r = _mm512_set1_ps(norm_factor(x, eps, cols));
    return pack_from(&(struct source){.x = x, .w = w, .r = r, .cols = cols}, dst);
}

static bool norm_pack_q8_256(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    struct act_block256 *b = dst;
    const __m512 r = _mm512_set1_ps(norm_factor(x, eps, cols));
    for (uint32_t i = 0; i < cols; i += 256, b += 8) {
        __m512 y[16];
        for (uint32_t j = 0; j < 16; j++)
            y[j] = i + 16 * j < cols ? norm_at(x, w, r, i + 16 * j, cols) : _mm512_setzero_ps();
        if (!pack_group(y, b)) {
            memset(dst, 0, acts_stride(ACTS_Q8_256, cols));
            return false;
        }
    }
    return true;
}

static bool norm_pack_f32(const float *x, const float *w, float eps, uint32_t cols, void *dst)
{
    float *y = dst;
    const float r = norm_factor(x, eps, cols);
    const __m512 factor = _mm512_set1_ps(r);
    __m512i largest = _mm512_setzero_si512();
    for (uint32_t i = 0; i < cols; i += 16) {
        __m512 v = norm_at(x, w, factor, i, cols);
        /* Lanes behind the end are 0 · r, which is not 0 if r isn't finite. */
        v = _mm512_maskz_mov_ps(first16(cols - i), v);
        largest = _mm512_max_epu32(largest, magnitude(v));
        _mm512_storeu_ps(y + i, v);
    }
    if (_mm512_cmplt_epu32_mask(largest, _mm512_set1_epi32(0x7f800000)) == 0xffff)
        return true;
    memset(dst, 0, acts_stride(ACTS_F32, cols));
    return false;
}

/* 1 + exp(−g), as exp512 gives it. Here the smallest exp vanishes in the sum, so that clamping is enough, as integers;
 * the power of two goes into the exponent, which can't overflow. */
static inline __m512 silu_divisor(__m512 g)
{
    __m512i bits = _mm512_castps_si512(_mm512_xor_ps(g, _mm512_set1_ps(-0.0f)));
    bits = _mm512_min_epu32(bits, _mm512_castps_si512(_mm512_set1_ps(EXP_LOW)));
    bits = _mm512_min_epi32(bits, _mm512_castps_si512(_mm512_set1_ps(EXP_HIGH)));
    __m512 t;
    const __m512 y = exp512_fraction(_mm512_castsi512_ps(bits), &t);
    const __m512i e =
        _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(t), 23));
    return _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_castsi512_ps(e));
}

static inline __m512 silu_times(__m512 g, __m512 up)
{
    return _mm512_mul_ps(_mm512_div_ps(g, silu_divisor(g)), up);
}

static void silu_mul(float *y, const float *gate, const float *up, uint32_t n)
{
    const uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16)
        _mm512_storeu_ps(y + i, silu_times(_mm512_loadu_ps(gate + i), _mm512_loadu_ps(up + i)));
    if (whole < n)
        _mm512_mask_storeu_ps(y + whole, first16(n - whole),
                              silu_times(load_first(gate, whole, n), load_first(up, whole, n)));
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_mask_storeu_ps(y + i, first16(n - i),
                              _mm512_add_ps(load_first(y, i, n), load_first(x, i, n)));
}

static void rope_norm(float *x, uint32_t heads, uint32_t dim, const float *cosines,
                      const float *sines, uint32_t pairs)
{
    /* 8 pairs at a time; each cosine and sine stands in both lanes of its pair. */
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    for (uint32_t i = 0; i < pairs; i += 8) {
        const uint32_t n = pairs - i < 8 ? pairs - i : 8;
        const __mmask16 mask = first16(2 * n);
        __m512 c = _mm512_permutexvar_ps(twice, load_first(cosines + i, 0, n));
        __m512 s = _mm512_permutexvar_ps(twice, load_first(sines + i, 0, n));
        /* even lanes: a·cos − b·sin; odd lanes: b·cos + a·sin */
        s = _mm512_mask_xor_ps(s, 0x5555, s, _mm512_set1_ps(-0.0f));
        for (uint32_t h = 0; h < heads; h++) {
            float *p = x + (size_t)h * dim + 2 * i;
            __m512 v = _mm512_maskz_loadu_ps(mask, p);
            __m512 swapped = _mm512_permute_ps(v, 0xb1);
            v = _mm512_add_ps(_mm512_mul_ps(v, c), _mm512_mul_ps(swapped, s));
            _mm512_mask_storeu_ps(p, mask, v);
        }
    }
}

static void rope_neox(float *x, uint32_t heads, uint32_t dim, const float *cosines,
                      const float *sines, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i += 16) {
        const __mmask16 mask = first16(pairs - i);
        const __m512 c = load_first(cosines, i, pairs), s = load_first(sines, i, pairs);
        for (uint32_t h = 0; h < heads; h++) {
            float *pa = x + (size_t)h * dim + i, *pb = pa + pairs;
            __m512 a = _mm512_maskz_loadu_ps(mask, pa), b = _mm512_maskz_loadu_ps(mask, pb);
            _mm512_mask_storeu_ps(pa, mask,
                                  _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
            _mm512_mask_storeu_ps(pb, mask,
                                  _mm512_add_ps(_mm512_mul_ps(a, s), _mm512_mul_ps(b, c)));
        }
    }
}

static void exp_all(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_mask_storeu_ps(y + i, first16(n - i), exp512(load_first(x, i, n)));
}

static float max_all(const float *x, uint32_t n)
{
    __m512 m = _mm512_set1_ps(x[0]);
    for (uint32_t i = 0; i < n; i += 16)
        m = _mm512_mask_max_ps(m, first16(n - i), m, load_first(x, i, n));
    return _mm512_reduce_max_ps(m) + 0.0f;
}

static float exp_sum(float *y, const float *x, uint32_t n, float max)
{
    const __m512 m = _mm512_set1_ps(max);
    __m512 s = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = first16(n - i);
        __m512 e = exp512(_mm512_sub_ps(load_first(x, i, n), m));
        _mm512_mask_storeu_ps(y + i, mask, e);
        s = _mm512_mask_add_ps(s, mask, s, e);
    }
    return tree16_512(s);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    const __m512 largest = _mm512_set1_ps(max_all(x, n));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 hit =
            _mm512_mask_cmp_ps_mask(first16(n - i), load_first(x, i, n), largest, _CMP_EQ_OQ);
        if (hit)
            return i + (uint32_t)__builtin_ctz(hit);
    }
    return 0;
}

void avx512_fill_vector(struct kernels *k)
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
