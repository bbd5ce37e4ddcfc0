/* avx2_products.c: products of quantised weights with AVX2; compiled again with vpdpbusd for AVX-VNNI (dot256.h).
 *
 * A tile is one or both halves (8 rows) of a panel times up to four columns. vpmaddubsw multiplies unsigned
 * weights by signed activations and adds pairs to 16 bits; those sums are gathered in 16 bits as long as
 * they cannot overflow (fold_after), then in 32. Weights of Q8_0, IQ4_NL and IQ4_XS are signed: their sign moves
 * to the activation. vpdpbusd adds fours to 32 bits and never saturates, so that there these weights get a zero point
 * of 128, which comes off as the others' do. */
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/avx2_unpack.h"

#define MAX_NC 4
#define PREFETCH_BYTES 2304u
#define MAX_STREAMS 4

/* Groups whose 16-bit sums may be added: 15 · 127 · 2 · 8, 31 · 127 · 2 · 4, 63 · 127 · 2 · 2, 128 · 127 · 2;
 * a half has four. */
INLINE int fold_after(enum weight_type type)
{
    if (type == WEIGHT_Q2_K || type == WEIGHT_Q3_K || type == WEIGHT_MXFP4)
        return 4;
    return is_signed(type) ? 1 : type == WEIGHT_Q6_K ? 2 : has_bits(type) ? 4 : 8;
}

INLINE __m256i quad(const int8_t *x, int g)
{
    int32_t v;
    memcpy(&v, x + 4 * g, sizeof(v));
    return _mm256_set1_epi32(v);
}

INLINE __m256i multiply(enum weight_type type, __m256i w, __m256i x)
{
    if (is_signed(type))
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

/* sum[c] += Σ weights · activations over steps [begin, end) of a block's eight. */
INLINE void dots(enum weight_type type, int nc, const uint8_t *quants, uint32_t half,
                 const int8_t *const x[MAX_NC], int begin, int end, __m256i sum[MAX_NC])
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int fold = fold_after(type);
    __m256i words[MAX_NC];

    UNROLL
    for (int step = begin; step < end; step++) {
        /* Low and high nibbles of one load after each other, where the order is free. */
        const int g = has_halves(type) || type == WEIGHT_Q6_K || type == WEIGHT_Q8_0
                          ? step
                          : step / 2 + 4 * (step & 1);
        const __m256i w = group(type, quants, half, g);
        UNROLL
        for (int c = 0; c < nc; c++) {
            if (DOT256_EXACT) {
                sum[c] = dot256(sum[c], w, quad(x[c], g));
                continue;
            }
            __m256i product = multiply(type, w, quad(x[c], g));
            words[c] = step % fold == 0 ? product : _mm256_add_epi16(words[c], product);
            if (step % fold == fold - 1)
                sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(words[c], ones));
        }
    }
}

/* Pairs of words for vpmaddwd: the low half of `first` and of `second`, both within 16 bits. */
INLINE __m256i pair(__m256i first, __m256i second)
{
    return _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa);
}

/* Scaled sum of the two halves' sums. */
INLINE __m256i join(enum weight_type type, const uint8_t *unit, uint32_t i, uint32_t half,
                    __m256i first, __m256i second)
{
    __m256i sc = scale_pairs(type, unit, i, half);
    if (type == WEIGHT_Q2_K)
        sc = _mm256_and_si256(sc, _mm256_set1_epi16(15));
    return _mm256_madd_epi16(pair(first, second), sc);
}

/* Q2_K's sum of minimums: −8·Σx of the halves, times −m0 and −m1, is eight times that. */
INLINE __m256 minimums(const uint8_t *unit, uint32_t i, uint32_t half, const struct act_block *x)
{
    const __m256i m = _mm256_srli_epi16(scale_pairs(WEIGHT_Q2_K, unit, i, half), 4);
    const __m256i sums = pair(_mm256_set1_epi32(x->seed16), _mm256_set1_epi32(x->seed - x->seed16));
    const __m256i eight = _mm256_madd_epi16(sums, _mm256_sub_epi16(_mm256_setzero_si256(), m));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(eight, 3));
}

/* −zp·Σx where the zero point is 8, 16, 4 or 128, from −8·Σx. */
INLINE int32_t seeded(enum weight_type type, int32_t seed)
{
    switch (type) {
    case WEIGHT_Q4_0:
        return seed;
    case WEIGHT_Q5_0:
    case WEIGHT_MXFP4:
        return 2 * seed;
    case WEIGHT_Q3_K:
        return seed / 2;
    case WEIGHT_Q8_0:
    case WEIGHT_IQ4_NL:
    case WEIGHT_IQ4_XS:
        return DOT256_EXACT ? 16 * seed : 0;
    default:
        return 0;
    }
}

/* f[c] += 8 rows of block i · columns. */
INLINE void accumulate(enum weight_type type, int nc, const uint8_t *unit, uint32_t i,
                       uint32_t half, const uint8_t *x, size_t stride, __m256 f[MAX_NC])
{
    const uint8_t *quants = unit + quants_at(type, i);
    const struct act_block *column[MAX_NC];
    const int8_t *q[MAX_NC];
    __m256i sum[MAX_NC];
    __m256 d, m = _mm256_setzero_ps();

    UNROLL
    for (int c = 0; c < nc; c++) {
        column[c] = (const struct act_block *)(x + (size_t)c * stride) + i;
        q[c] = column[c]->q;
        sum[c] =
            _mm256_set1_epi32(seeded(type, has_halves(type) ? column[c]->seed16 : column[c]->seed));
    }
    if (has_halves(type)) {
        __m256i second[MAX_NC];
        dots(type, nc, quants, half, q, 0, 4, sum);
        UNROLL
        for (int c = 0; c < nc; c++)
            second[c] = _mm256_set1_epi32(seeded(type, column[c]->seed - column[c]->seed16));
        dots(type, nc, quants, half, q, 4, 8, second);
        UNROLL
        for (int c = 0; c < nc; c++)
            sum[c] = join(type, unit, i, half, sum[c], second[c]);
    } else {
        dots(type, nc, quants, half, q, 0, 8, sum);
    }
    scales(type, unit, i, half, &d, &m);
    UNROLL
    for (int c = 0; c < nc; c++) {
        f[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[c]),
                               _mm256_mul_ps(d, _mm256_set1_ps(column[c]->d)), f[c]);
        if (has_min(type))
            f[c] = _mm256_fmadd_ps(m, _mm256_set1_ps(column[c]->dsum), f[c]);
        if (type == WEIGHT_Q2_K)
            f[c] = _mm256_fnmadd_ps(minimums(unit, i, half, column[c]),
                                    _mm256_mul_ps(m, _mm256_set1_ps(column[c]->d)), f[c]);
    }
}

/* sums[c] += 8 rows of block i · columns, scaled integers. */
INLINE void accumulate256(enum weight_type type, int nc, const uint8_t *unit, uint32_t i,
                          uint32_t half, const uint8_t *x, size_t stride, __m256i sums[MAX_NC])
{
    const uint8_t *quants = unit + quants_at(type, i);
    const struct act_block256 *column[MAX_NC];
    const int8_t *q[MAX_NC];
    __m256i sum[MAX_NC], second[MAX_NC];

    UNROLL
    for (int c = 0; c < nc; c++) {
        column[c] = (const struct act_block256 *)(x + (size_t)c * stride) + i;
        q[c] = column[c]->q;
        sum[c] =
            type == WEIGHT_Q6_K ? _mm256_set1_epi32(column[c]->seeds[0]) : _mm256_setzero_si256();
    }
    dots(type, nc, quants, half, q, 0, type == WEIGHT_Q6_K ? 4 : 8, sum);
    if (type == WEIGHT_Q6_K) {
        UNROLL
        for (int c = 0; c < nc; c++)
            second[c] = _mm256_set1_epi32(column[c]->seeds[1]);
        dots(type, nc, quants, half, q, 4, 8, second);
    }
    UNROLL
    for (int c = 0; c < nc; c++) {
        if (type == WEIGHT_Q6_K)
            sum[c] = _mm256_add_epi32(_mm256_mullo_epi32(sum[c], sub_scales(unit, i, 0, half)),
                                      _mm256_mullo_epi32(second[c], sub_scales(unit, i, 1, half)));
        else
            sum[c] =
                _mm256_mullo_epi32(sum[c], _mm256_cvtepu8_epi32(_mm_loadl_epi64(
                                               (const void *)(unit + K_SC + 16 * i + half / 4))));
        sums[c] = _mm256_add_epi32(sums[c],
                                   _mm256_sllv_epi32(sum[c], _mm256_set1_epi32(column[c]->shift)));
    }
}

/* f[c] += the unit's scales · sums[c], minimums off. */
INLINE void fold256(enum weight_type type, int nc, const uint8_t *unit, uint32_t half,
                    const uint8_t *x, size_t stride, const __m256i sums[MAX_NC], __m256 f[MAX_NC])
{
    const __m256 d = load_half(unit + K_D + half / 2), dmin = load_half(unit + K_DMIN + half / 2);
    UNROLL
    for (int c = 0; c < nc; c++) {
        const struct act_block256 *b = (const struct act_block256 *)(x + (size_t)c * stride);
        const __m256 dy = _mm256_set1_ps(b->d), sum = _mm256_cvtepi32_ps(sums[c]);
        if (type == WEIGHT_Q6_K) {
            f[c] = _mm256_fmadd_ps(sum, _mm256_mul_ps(d, dy), f[c]);
            continue;
        }
        __m256i min = _mm256_setzero_si256();
        for (uint32_t k = 0; k < 4; k++) {
            int32_t pair;
            memcpy(&pair, b[2 * k + 1].sums, sizeof(pair));
            const __m256i m = _mm256_cvtepu8_epi16(
                _mm_load_si128((const void *)(unit + K_M + 32 * k + half / 2)));
            min = _mm256_add_epi32(min, _mm256_madd_epi16(m, _mm256_set1_epi32(pair)));
        }
        f[c] = _mm256_fmadd_ps(
            _mm256_fnmadd_ps(_mm256_cvtepi32_ps(min), dmin, _mm256_mul_ps(sum, d)), dy, f[c]);
    }
}

/* One panel times nc columns. */
struct tile {
    const uint8_t *w;
    uint32_t units, unit_bytes;
    uint32_t rows; /* of the panel that exist */
    bool fetch;    /* prefetch ahead */
    const uint8_t *x;
    size_t stride;
    float *y;
    size_t ldy;
    bool add;
};

INLINE void tile_store(const struct tile *t, int nc, uint32_t row, const __m256 f[MAX_NC])
{
    UNROLL
    for (int c = 0; c < nc; c++) {
        float *y = t->y + (size_t)c * t->ldy;
        __m256 v = f[c];
        if (t->add)
            v = _mm256_add_ps(load_first8(y, row, t->rows), v);
        store_first8(y, row, t->rows, v);
    }
}

INLINE void prefetch(const struct tile *t, const uint8_t *unit)
{
    if (t->fetch)
        for (uint32_t line = 0; line < t->unit_bytes; line += 64)
            _mm_prefetch((const char *)unit + PREFETCH_BYTES + line, _MM_HINT_T0);
}

/* One half after the other. */
INLINE void tile256(enum weight_type type, int nc, const struct tile *t)
{
    for (uint32_t half = 0; half < 64; half += 32) {
        const uint8_t *w = t->w, *x = t->x;
        __m256 f[MAX_NC];
        UNROLL
        for (int c = 0; c < nc; c++)
            f[c] = _mm256_setzero_ps();
        for (uint32_t u = 0; u < t->units; u++) {
            __m256i sums[MAX_NC];
            UNROLL
            for (int c = 0; c < nc; c++)
                sums[c] = _mm256_setzero_si256();
            if (half == 0)
                prefetch(t, w);
            for (uint32_t i = 0; i < 8; i++)
                accumulate256(type, nc, w, i, half, x, t->stride, sums);
            fold256(type, nc, w, half, x, t->stride, sums, f);
            w += t->unit_bytes;
            x += 8 * sizeof(struct act_block256);
        }
        tile_store(t, nc, half / 4, f);
    }
}

/* Both halves side by side where the registers suffice, else one after the other. */
INLINE void tile_run(enum weight_type type, int halves, int nc, const struct tile *t)
{
    const uint32_t blocks = unit_blocks(type);
    for (uint32_t first = 0; first < 2; first += (uint32_t)halves) {
        __m256 f[2][MAX_NC];
        const uint8_t *w = t->w, *x = t->x;
        UNROLL
        for (int h = 0; h < halves; h++)
            UNROLL
        for (int c = 0; c < nc; c++)
            f[h][c] = _mm256_setzero_ps();
        for (uint32_t u = 0; u < t->units; u++) {
            if (first == 0)
                prefetch(t, w);
            for (uint32_t i = 0; i < blocks; i++) {
                UNROLL
                for (int h = 0; h < halves; h++)
                    accumulate(type, nc, w, i, 32 * (first + (uint32_t)h), x, t->stride, f[h]);
            }
            w += t->unit_bytes;
            x += blocks * sizeof(struct act_block);
        }
        UNROLL
        for (int h = 0; h < halves; h++)
            tile_store(t, nc, 8 * (first + (uint32_t)h), f[h]);
    }
}

typedef void tile_fn(const struct tile *t);

static void product(tile_fn *const fns[MAX_NC + 1], const struct matrix *w, uint32_t p0,
                    uint32_t p1, const struct acts *x, uint32_t c0, uint32_t n, float *y,
                    size_t ldy, bool add)
{
    struct tile t = {.units = w->units,
                     .unit_bytes = weight_info(w->type)->unit_bytes,
                     .stride = x->stride,
                     .ldy = ldy,
                     .add = add};

    check(x->kind == weight_info(w->type)->acts && x->cols == w->cols);
    const uint32_t tiles = (n + MAX_NC - 1) / MAX_NC;
    for (uint32_t p = p0; p < p1; p++) {
        const uint32_t left = w->rows - p * PANEL_ROWS;
        t.w = w->data + p * w->panel_bytes;
        t.rows = left < PANEL_ROWS ? left : PANEL_ROWS;
        uint32_t c = 0;
        for (uint32_t k = 0; k < tiles; k++) {
            const uint32_t columns = (n - c) / (tiles - k);
            t.x = acts_column(x, c0 + c);
            t.y = y + (size_t)c * ldy + (size_t)p * PANEL_ROWS;
            t.fetch = k == 0;
            fns[columns](&t);
            c += columns;
        }
    }
}

/* As many panels as there are streams, far apart, times one or two columns. */
struct streams {
    struct tile tile[MAX_STREAMS];
};

typedef void streams_fn(const struct streams *t);

/* The panels take turns, unit by unit; one half after the other. */
INLINE void streams_run(enum weight_type type, int streams, int nc, const struct streams *t)
{
    const uint32_t blocks = is_256(type) ? 8 : unit_blocks(type);
    const size_t stride = t->tile[0].stride;
    for (uint32_t half = 0; half < 64; half += 32) {
        const uint8_t *x = t->tile[0].x;
        __m256 f[MAX_STREAMS][MAX_NC];
        size_t at = 0;
        UNROLL
        for (int s = 0; s < streams; s++)
            UNROLL
        for (int c = 0; c < nc; c++)
            f[s][c] = _mm256_setzero_ps();
        for (uint32_t u = 0; u < t->tile[0].units; u++) {
            UNROLL
            for (int s = 0; s < streams; s++) {
                const uint8_t *w = t->tile[s].w + at;
                __m256i sums[MAX_NC];
                UNROLL
                for (int c = 0; c < nc; c++)
                    sums[c] = _mm256_setzero_si256();
                if (half == 0)
                    prefetch(&t->tile[s], w);
                for (uint32_t i = 0; i < blocks; i++) {
                    if (is_256(type))
                        accumulate256(type, nc, w, i, half, x, stride, sums);
                    else
                        accumulate(type, nc, w, i, half, x, stride, f[s]);
                }
                if (is_256(type))
                    fold256(type, nc, w, half, x, stride, sums, f[s]);
            }
            at += t->tile[0].unit_bytes;
            x += blocks * sizeof(struct act_block);
        }
        UNROLL
        for (int s = 0; s < streams; s++)
            tile_store(&t->tile[s], nc, half / 4, f[s]);
    }
}

/* Panel p as stream s. */
static void set_stream(struct streams *t, uint32_t s, const struct matrix *w, uint32_t p,
                       const struct acts *x, uint32_t c0, float *y, size_t ldy, bool add)
{
    const uint32_t left = w->rows - p * PANEL_ROWS;
    t->tile[s] = (struct tile){.w = w->data + p * w->panel_bytes,
                               .units = w->units,
                               .unit_bytes = weight_info(w->type)->unit_bytes,
                               .rows = left < PANEL_ROWS ? left : PANEL_ROWS,
                               .fetch = true,
                               .x = acts_column(x, c0),
                               .stride = x->stride,
                               .y = y + (size_t)p * PANEL_ROWS,
                               .ldy = ldy,
                               .add = add};
}

#include "core/kernels/product_streams.inc"

#define TILE(type, halves, nc)                                                                     \
    static void tile_##type##_##nc(const struct tile *t)                                           \
    {                                                                                              \
        if (is_256(WEIGHT_##type))                                                                 \
            tile256(WEIGHT_##type, nc, t);                                                         \
        else                                                                                       \
            tile_run(WEIGHT_##type, halves, nc, t);                                                \
    }
#define TILES(type)                                                                                \
    TILE(type, 2, 1)                                                                               \
    TILE(type, 2, 2)                                                                               \
    TILE(type, 1, 3)                                                                               \
    TILE(type, 1, 4)                                                                               \
    static void product_##type(const struct matrix *w, uint32_t p0, uint32_t p1,                   \
                               const struct acts *x, uint32_t c0, uint32_t n, float *y,            \
                               size_t ldy, bool add)                                               \
    {                                                                                              \
        static tile_fn *const fns[MAX_NC + 1] = {NULL, tile_##type##_1, tile_##type##_2,           \
                                                 tile_##type##_3, tile_##type##_4};                \
        product(fns, w, p0, p1, x, c0, n, y, ldy, add);                                            \
    }

#define TYPE(type)                                                                                 \
    TILES(type)                                                                                    \
    STREAMED(type, 2)                                                                              \
    STREAMED(type, 4)

QUANTISED_TYPES(TYPE)

void avx2_fill_products(struct kernels *k)
{
    QUANTISED_TYPES(FILL)
}
