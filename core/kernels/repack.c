/* repack.c: panels of 16 whole rows, four rows at a time with what every x86-64 has (SSE2). Loading a
 * file that the system's cache holds takes as long as this does. */
#include <emmintrin.h>
#include <string.h>

#include "core/kernels/half.h"
#include "core/kernels/weights_priv.h"

static __m128i load16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

static void store16(uint8_t *p, __m128i v)
{
    _mm_storeu_si128((__m128i *)p, v);
}

static bool f16_bad(const uint8_t *p)
{
    return (load_u16(p) & 0x7c00) == 0x7c00;
}

/* Words j of four rows go to dst + 64j, side by side. */
static void put_words(uint8_t *dst, const __m128i rows[4])
{
    __m128i a = _mm_unpacklo_epi32(rows[0], rows[1]), b = _mm_unpacklo_epi32(rows[2], rows[3]);
    __m128i c = _mm_unpackhi_epi32(rows[0], rows[1]), d = _mm_unpackhi_epi32(rows[2], rows[3]);
    store16(dst, _mm_unpacklo_epi64(a, b));
    store16(dst + 64, _mm_unpackhi_epi64(a, b));
    store16(dst + 128, _mm_unpacklo_epi64(c, d));
    store16(dst + 192, _mm_unpackhi_epi64(c, d));
}

/* Words 0 and 1 of four rows go to dst and dst + 64. */
static void put_word_pairs(uint8_t *dst, const __m128i rows[4])
{
    __m128i a = _mm_unpacklo_epi32(rows[0], rows[1]), b = _mm_unpacklo_epi32(rows[2], rows[3]);
    store16(dst, _mm_unpacklo_epi64(a, b));
    store16(dst + 64, _mm_unpackhi_epi64(a, b));
}

static __m128i even_words(__m128i a, __m128i b)
{
    return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0x88));
}

static __m128i odd_words(__m128i a, __m128i b)
{
    return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0xdd));
}

/* Bits [shift, shift + n) of each byte, n being the bits of mask. */
static __m128i bits_at(__m128i v, uint32_t shift, int mask)
{
    return _mm_and_si128(_mm_srl_epi16(v, _mm_cvtsi32_si128((int)shift)),
                         _mm_set1_epi8((char)mask));
}

/* 2-bit values of 32 columns (a: the first 16) → words h = 0, 1, with word g of the 16 columns at bits
 * 2g of each byte. */
static __m128i join_pairs(__m128i a, __m128i b)
{
    __m128i halves = _mm_or_si128(even_words(a, b), _mm_slli_epi16(odd_words(a, b), 2));
    return _mm_or_si128(even_words(halves, halves), _mm_slli_epi16(odd_words(halves, halves), 4));
}

/* Bits of 32 columns, a byte each → the word with the bit of column 4g + i at bit 8i + g. */
static uint32_t join_bits(__m128i a, __m128i b)
{
    const __m128i places = _mm_set_epi16(8, 8, 4, 4, 2, 2, 1, 1);
    __m128i v =
        _mm_or_si128(_mm_mullo_epi16(a, places), _mm_slli_epi16(_mm_mullo_epi16(b, places), 4));
    v = _mm_or_si128(v, _mm_unpackhi_epi64(v, v));
    v = _mm_or_si128(v, _mm_srli_epi64(v, 32));
    return (uint32_t)_mm_cvtsi128_si32(v);
}

/* Bit s of the 32 bytes at `high` of each row → the bits at dst. */
static void put_high_bits(uint8_t *dst, const uint8_t *high, size_t row_bytes, uint32_t s)
{
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *row = high + r * row_bytes;
        const uint32_t word =
            join_bits(bits_at(load16(row), s, 1), bits_at(load16(row + 16), s, 1));
        memcpy(dst + 4 * r, &word, 4);
    }
}

/* Nibbles that stand in the file as in the unit. */
static void put_nibbles16(uint8_t *dst, const uint8_t *src, size_t row_bytes)
{
    for (uint32_t r = 0; r < PANEL_ROWS; r += 4) {
        __m128i rows[4];
        for (uint32_t k = 0; k < 4; k++)
            rows[k] = load16(src + (r + k) * row_bytes);
        put_words(dst + 4 * r, rows);
    }
}

/* What stands where in a GGUF block of 32, and how it lies in the unit. */
struct block32 {
    uint32_t quants, words; /* of the GGUF block: where its quants begin, 4 bytes each */
    uint32_t at, stride;    /* of the unit's blocks */
    bool has_min, has_bits;
};

static struct block32 block32_of(enum weight_type type)
{
    struct block32 b = {.words = type == WEIGHT_Q8_0 ? 8 : 4};
    b.has_min = type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1;
    b.has_bits = type == WEIGHT_Q5_0 || type == WEIGHT_Q5_1;
    b.quants = weight_info(type)->block_bytes - 4 * b.words;
    b.at = b.has_min ? 128 : 64;
    b.stride = 64 * b.words + (b.has_bits ? BITS_BYTES : 0);
    return b;
}

/* Four rows' first four bytes: their f16 scales in the low half, in the high one what follows. */
static __m128i scales4(const uint8_t *src, size_t row_bytes)
{
    __m128i rows[4];
    for (uint32_t r = 0; r < 4; r++)
        rows[r] = _mm_cvtsi32_si128((int)load_u32(src + r * row_bytes));
    __m128i v = _mm_unpacklo_epi64(_mm_unpacklo_epi32(rows[0], rows[1]),
                                   _mm_unpacklo_epi32(rows[2], rows[3]));
    v = _mm_shufflehi_epi16(_mm_shufflelo_epi16(v, 0xd8), 0xd8);
    return _mm_shuffle_epi32(v, 0xd8);
}

/* Ones where f16 numbers are not finite. */
static __m128i f16_bad8(__m128i v)
{
    const __m128i exponent = _mm_set1_epi16(0x7c00);
    return _mm_cmpeq_epi16(_mm_and_si128(v, exponent), exponent);
}

/* The scales of 16 rows go to d, what follows them (minimums) to m, if not NULL. False if one is not finite. */
static bool put_scales(uint8_t *d, uint8_t *m, const uint8_t *src, size_t row_bytes)
{
    __m128i bad = _mm_setzero_si128();
    for (uint32_t r = 0; r < PANEL_ROWS; r += 8) {
        __m128i a = scales4(src + r * row_bytes, row_bytes);
        __m128i b = scales4(src + (r + 4) * row_bytes, row_bytes);
        __m128i scales = _mm_unpacklo_epi64(a, b), minimums = _mm_unpackhi_epi64(a, b);
        store16(d + 2 * r, scales);
        bad = _mm_or_si128(bad, f16_bad8(scales));
        if (m != NULL) {
            store16(m + 2 * r, minimums);
            bad = _mm_or_si128(bad, f16_bad8(minimums));
        }
    }
    return _mm_movemask_epi8(bad) == 0;
}

static bool rows_block32(const struct block32 *layout, uint8_t *unit, uint32_t half,
                         const uint8_t *src, size_t row_bytes)
{
    uint8_t *dst = unit + layout->at + half * layout->stride;
    bool fine = put_scales(unit + UNIT_D + 32 * half,
                           layout->has_min ? unit + UNIT_M + 32 * half : NULL, src, row_bytes);
    for (uint32_t r = 0; r < PANEL_ROWS && layout->has_bits; r++) {
        const uint32_t word =
            spread_bits(load_u32(src + r * row_bytes + (layout->has_min ? 4 : 2)));
        memcpy(dst + NIBBLES_BYTES + 4 * r, &word, 4);
    }
    for (uint32_t j = 0; j < layout->words; j += 4)
        put_nibbles16(dst + 64 * j, src + layout->quants + 4 * j, row_bytes);
    return fine;
}

static bool panel_block32(const struct matrix *m, uint8_t *panel, const uint8_t *src,
                          size_t row_bytes)
{
    const struct weight_info *info = weight_info(m->type);
    const struct block32 layout = block32_of(m->type);
    const uint32_t blocks = m->cols / info->block_cols;
    if (blocks % 2 != 0)
        memset(panel + (size_t)(m->units - 1) * info->unit_bytes, 0, info->unit_bytes);
    for (uint32_t b = 0; b < blocks; b++)
        if (!rows_block32(&layout, panel + (size_t)(b / 2) * info->unit_bytes, b & 1,
                          src + (size_t)b * info->block_bytes, row_bytes))
            return false;
    return true;
}

static bool rows_q45_k(enum weight_type type, uint8_t *unit, const uint8_t *src, size_t row_bytes)
{
    const bool has_bits = type == WEIGHT_Q5_K;
    const size_t block = NIBBLES_BYTES + (has_bits ? BITS_BYTES : 0);
    const __m128i low = _mm_set1_epi8(15), high = _mm_set1_epi8((char)0xf0);
    bool bad = false;
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *row = src + r * row_bytes;
        memcpy(unit + K_D + 2 * r, row, 2);
        memcpy(unit + K_DMIN + 2 * r, row + 2, 2);
        bad |= f16_bad(row) || f16_bad(row + 2);
        for (uint32_t s = 0; s < 8; s++)
            k_scale_min(row + 4, s, &unit[K_SC + 16 * s + r],
                        &unit[K_M + 32 * (s / 2) + 2 * r + (s & 1)]);
    }
    for (uint32_t r = 0; r < PANEL_ROWS; r += 4)
        for (uint32_t s = 0; s < 8; s += 2) {
            __m128i even[4], odd[4];
            for (uint32_t k = 0; k < 4; k++) {
                const uint8_t *q = src + (r + k) * row_bytes + (has_bits ? 48 : 16) + 16 * s;
                __m128i a = load16(q), b = load16(q + 16);
                even[k] =
                    _mm_or_si128(_mm_and_si128(a, low), _mm_and_si128(_mm_slli_epi16(b, 4), high));
                odd[k] =
                    _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), low), _mm_and_si128(b, high));
            }
            put_words(unit + K_QUANTS + s * block + 4 * r, even);
            put_words(unit + K_QUANTS + (s + 1) * block + 4 * r, odd);
        }
    for (uint32_t s = 0; s < 8 && has_bits; s++)
        put_high_bits(unit + K_QUANTS + s * block + NIBBLES_BYTES, src + 16, row_bytes, s);
    return !bad;
}

static bool rows_q6_k(uint8_t *unit, const uint8_t *src, size_t row_bytes)
{
    bool bad = false;
    memset(unit, 0, Q6_SC);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *row = src + r * row_bytes;
        memcpy(unit + K_D + 2 * r, row + 208, 2);
        bad |= f16_bad(row + 208);
        for (uint32_t i = 0; i < 16; i++)
            unit[Q6_SC + 16 * i + r] = row[192 + i];
    }
    for (uint32_t s = 0; s < 8; s++) {
        uint8_t *dst = unit + Q6_QUANTS + s * Q6_BLOCK_BYTES;
        const uint32_t half = s / 4, quarter = s % 4, shift = quarter & 2 ? 4 : 0;
        for (uint32_t r = 0; r < PANEL_ROWS; r += 4) {
            __m128i lows[4], highs[4];
            for (uint32_t k = 0; k < 4; k++) {
                const uint8_t *row = src + (r + k) * row_bytes;
                const uint8_t *q = row + 64 * half + 32 * (quarter & 1), *h = row + 128 + 32 * half;
                __m128i a = bits_at(load16(q), shift, 15), b = bits_at(load16(q + 16), shift, 15);
                lows[k] = _mm_or_si128(even_words(a, b), _mm_slli_epi16(odd_words(a, b), 4));
                /* words 2 and 3 of 16 columns stand below words 0 and 1 */
                a = _mm_shuffle_epi32(bits_at(load16(h), 2 * quarter, 3), 0x4e);
                b = _mm_shuffle_epi32(bits_at(load16(h + 16), 2 * quarter, 3), 0x4e);
                highs[k] = join_pairs(a, b);
            }
            put_words(dst + 4 * r, lows);
            put_word_pairs(dst + Q6_LOW_BYTES + 4 * r, highs);
        }
    }
    return !bad;
}

static bool rows_q23_k(enum weight_type type, uint8_t *unit, const uint8_t *src, size_t row_bytes)
{
    const bool has_bits = type == WEIGHT_Q3_K;
    const size_t block = PAIRS_BYTES + (has_bits ? BITS_BYTES : 0);
    bool bad = false;
    memset(unit, 0, HALVES_SC);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *row = src + r * row_bytes, *d = row + (has_bits ? 108 : 80);
        memcpy(unit + K_D + 2 * r, d, 2);
        bad |= f16_bad(d);
        if (!has_bits) {
            memcpy(unit + K_DMIN + 2 * r, d + 2, 2);
            bad |= f16_bad(d + 2);
        }
        for (uint32_t j = 0; j < 16; j++)
            unit[HALVES_SC + 32 * (j / 2) + 2 * r + j % 2] =
                has_bits ? (uint8_t)q3_k_scale(row, j) : row[j];
    }
    for (uint32_t s = 0; s < 8; s++) {
        uint8_t *dst = unit + HALVES_QUANTS + s * block;
        for (uint32_t r = 0; r < PANEL_ROWS; r += 4) {
            __m128i pairs[4];
            for (uint32_t k = 0; k < 4; k++) {
                const uint8_t *q = src + (r + k) * row_bytes + (has_bits ? 32 : 16) + 32 * (s / 4);
                pairs[k] = join_pairs(bits_at(load16(q), 2 * (s % 4), 3),
                                      bits_at(load16(q + 16), 2 * (s % 4), 3));
            }
            put_word_pairs(dst + 4 * r, pairs);
        }
        if (has_bits)
            put_high_bits(dst + PAIRS_BYTES, src, row_bytes, s);
    }
    return !bad;
}

static bool rows_iq4_xs(uint8_t *unit, const uint8_t *src, size_t row_bytes)
{
    bool bad = false;
    memset(unit, 0, XS_QUANTS);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *row = src + r * row_bytes;
        memcpy(unit + K_D + 2 * r, row, 2);
        bad |= f16_bad(row);
        for (uint32_t s = 0; s < 8; s++)
            unit[XS_SC + 16 * s + r] = (uint8_t)iq4_xs_scale(row, s);
    }
    for (uint32_t s = 0; s < 8; s++)
        put_nibbles16(unit + XS_QUANTS + NIBBLES_BYTES * s, src + 8 + 16 * s, row_bytes);
    return !bad;
}

static bool panel_256(const struct matrix *m, uint8_t *panel, const uint8_t *src, size_t row_bytes)
{
    const struct weight_info *info = weight_info(m->type);
    bool fine = true;
    for (uint32_t u = 0; u < m->units && fine; u++) {
        uint8_t *unit = panel + (size_t)u * info->unit_bytes;
        const uint8_t *from = src + (size_t)u * info->block_bytes;
        if (m->type == WEIGHT_Q6_K)
            fine = rows_q6_k(unit, from, row_bytes);
        else if (m->type == WEIGHT_IQ4_XS)
            fine = rows_iq4_xs(unit, from, row_bytes);
        else if (m->type == WEIGHT_Q2_K || m->type == WEIGHT_Q3_K)
            fine = rows_q23_k(m->type, unit, from, row_bytes);
        else
            fine = rows_q45_k(m->type, unit, from, row_bytes);
    }
    return fine;
}

bool repack_panel(const struct matrix *m, uint8_t *panel, const uint8_t *src)
{
    const struct weight_info *info = weight_info(m->type);
    const size_t row_bytes = weight_row_bytes(m->type, m->cols);
    if (info->block_cols == 256)
        return panel_256(m, panel, src, row_bytes);
    return info->block_cols == 32 && m->type != WEIGHT_MXFP4 &&
           panel_block32(m, panel, src, row_bytes);
}
