/* avx512_store_q8.c: what turns numbers into q8_0 with AVX-512: K and V on their way into tiles (kv_q8.h), queries.
 *
 * K and V go four positions at a time, those of a dword of V: their scales side by side, their quants put together by
 * shifts. Positions of a tile are only ever written alone or in whole dwords: the others may be another thread's. */
#include "core/kernels/forced_inline.h"
#include "core/kernels/kv_q8.h"
#include "core/kernels/vec512.h"

#define ROWS 4

/* Four positions' 32 dimensions. */
struct rows {
    __m512i q[ROWS][2];
    uint16_t d[8];
};

/* Quantises `count` numbers of n rows as kv_q8_quantise does; what stands in the other rows means nothing. */
INLINE void quantise_rows(const float *x, size_t ldx, uint32_t n, uint32_t count, struct rows *r)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i most = _mm512_set1_epi32(127), least = _mm512_set1_epi32(-127);
    const __mmask16 first = first16(count), second = first16(count > 16 ? count - 16 : 0);
    __m512 v[ROWS][2], largest[ROWS];
    float inverses[ROWS];

    UNROLL
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *row = x + (i < n ? i : 0) * ldx;
        v[i][0] = _mm512_maskz_loadu_ps(first, row);
        v[i][1] = _mm512_maskz_loadu_ps(second, row + 16);
        largest[i] = _mm512_castsi512_ps(
            _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v[i][0]), magnitude),
                             _mm512_and_si512(_mm512_castps_si512(v[i][1]), magnitude)));
    }
    const __m128 amax = fold_four(FOLD_MAX_BITS, largest);
    const __mmask8 broken =
        _mm_cmpge_epu32_mask(_mm_castps_si128(amax), _mm_set1_epi32(0x7f800000));
    const __mmask8 fine =
        _mm_cmp_ps_mask(amax, _mm_set1_ps(PACK_TINY), _CMP_GE_OQ) & (__mmask8)~broken;
    const __m128i d = _mm_mask_mov_epi16(
        _mm_cvtps_ph(_mm_maskz_div_ps(fine, amax, _mm_set1_ps(127.0f)), _MM_FROUND_TO_NEAREST_INT),
        broken, _mm_set1_epi16(0x7e00));
    const __m128 back = _mm_cvtph_ps(d);
    const __mmask8 scaled = _mm_mask_cmp_ps_mask(fine, back, _mm_setzero_ps(), _CMP_GT_OQ);
    _mm_storeu_ps(inverses, _mm_maskz_div_ps(scaled, _mm_set1_ps(1.0f), back));
    _mm_storeu_si128((void *)r->d, d);
    UNROLL
    for (uint32_t i = 0; i < ROWS; i++)
        UNROLL
    for (int h = 0; h < 2; h++) {
        const __m512 y = _mm512_mul_ps(v[i][h], _mm512_set1_ps(inverses[i]));
        const __m512i q =
            _mm512_maskz_cvtps_epi32(scaled >> i & 1 ? 0xffff : 0, y); /* NaN · 0 isn't 0 */
        r->q[i][h] = _mm512_max_epi32(_mm512_min_epi32(q, most), least);
    }
}

INLINE void store_k_rows(uint8_t *tile, uint32_t pos, uint32_t n, uint32_t words, uint32_t first,
                         const struct rows *r)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t q[8];
        uint8_t *out = tile + kv_q8_k_at(first / 4, pos + i);
        _mm_storeu_si128((void *)q, _mm512_cvtepi32_epi8(r->q[i][0]));
        _mm_storeu_si128((void *)(q + 4), _mm512_cvtepi32_epi8(r->q[i][1]));
        for (uint32_t w = 0; w < words; w++)
            memcpy(out + kv_q8_k_at(w, 0), &q[w], sizeof(q[w]));
    }
}

INLINE void store_v_rows(uint8_t *tile, uint32_t dim, uint32_t pos, uint32_t n, uint32_t padded,
                         uint32_t first, const struct rows *r)
{
    uint8_t *out = tile + kv_q8_v_at(dim, first, pos);
    if (n == ROWS) {
        const __m512i byte = _mm512_set1_epi32(255);
        UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            __m512i x = _mm512_slli_epi32(r->q[ROWS - 1][h], 8);
            UNROLL
            for (int i = ROWS - 2; i >= 0; i--) {
                x = _mm512_or_si512(x, _mm512_and_si512(r->q[i][h], byte));
                x = i > 0 ? _mm512_slli_epi32(x, 8) : x;
            }
            const uint32_t left = padded > 16 * h ? padded - 16 * h : 0;
            if (left >= 16)
                _mm512_storeu_si512((void *)(out + 64 * h), x);
            else
                _mm512_mask_storeu_epi32((void *)(out + 64 * h), first16(left), x);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        int8_t q[KV_Q8_BLOCK];
        _mm_storeu_si128((void *)q, _mm512_cvtepi32_epi8(r->q[i][0]));
        _mm_storeu_si128((void *)(q + 16), _mm512_cvtepi32_epi8(r->q[i][1]));
        for (uint32_t j = 0; j < padded; j++)
            out[4 * j + i] = (uint8_t)q[j];
    }
}

INLINE void store(bool values, uint8_t *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx,
                  uint32_t dim)
{
    for (uint32_t end = pos + n, some; pos < end; pos += some, x += some * ldx) {
        some = ROWS - pos % ROWS < end - pos ? ROWS - pos % ROWS : end - pos;
        for (uint32_t b = 0; b < kv_q8_blocks(dim); b++) {
            const uint32_t first = b * KV_Q8_BLOCK, count = kv_q8_in_block(dim, b);
            struct rows r;
            quantise_rows(x + first, ldx, some, count, &r);
            memcpy(tile + kv_q8_scale_at(dim, b, pos), r.d, some * sizeof(r.d[0]));
            if (values)
                store_v_rows(tile, dim, pos, some, kv_q8_padded(count), first, &r);
            else
                store_k_rows(tile, pos, some, kv_q8_padded(count) / 4, first, &r);
        }
    }
}

static void store_k(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx, uint32_t dim)
{
    store(false, tile, pos, n, x, ldx, dim);
}

static void store_v(void *tile, uint32_t pos, uint32_t n, const float *x, size_t ldx, uint32_t dim)
{
    store(true, tile, pos, n, x, ldx, dim);
}

/* Quantises a query as kv_q8_query does. Where a number is not finite, the step says so and the quants mean nothing. */
static void quantise(const float *x, uint32_t dim, struct query_block *blocks)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (uint32_t b = 0; b < kv_q8_blocks(dim); b++, x += KV_Q8_BLOCK) {
        const uint32_t n = kv_q8_in_block(dim, b);
        const __m512 x0 = _mm512_maskz_loadu_ps(first16(n), x),
                     x1 = _mm512_maskz_loadu_ps(first16(n > 16 ? n - 16 : 0), x + 16);
        const uint32_t bits = _mm512_reduce_max_epu32(
            _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                             _mm512_and_si512(_mm512_castps_si512(x1), magnitude)));
        const float amax = bits_to_f32(bits);
        const bool fine = bits < 0x7f800000 && amax >= PACK_TINY;
        const __m512 scale = _mm512_set1_ps(fine ? 127.0f / amax : 0);
        const __m128i q0 = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x0, scale)));
        const __m128i q1 = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x1, scale)));
        __m128i sum = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), q0);
        sum = _mm_dpbusd_epi32(sum, _mm_set1_epi8(1), q1);
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
        _mm_storeu_si128((void *)blocks[b].q, q0);
        _mm_storeu_si128((void *)(blocks[b].q + 16), q1);
        blocks[b].d = bits >= 0x7f800000 ? NAN : fine ? amax / 127.0f : 0;
        blocks[b].sum = _mm_cvtsi128_si32(sum);
    }
}

void avx512_fill_store_q8(struct kernels *k)
{
    k->store_k[KV_Q8_0] = store_k;
    k->store_v[KV_Q8_0] = store_v;
    k->quantise_query = quantise;
}
