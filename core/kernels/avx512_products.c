/* avx512_products.c: products of quantised weights with VNNI.
 *
 * A tile is a panel (16 rows) times up to eight columns. Per 32 columns of K the weights are unpacked into eight
 * registers, register g holding columns 4g … 4g+3 of the 16 rows as bytes; each column multiplies them by its
 * eight dwords, broadcast from memory, in one integer accumulator, and folds that into its own f32
 * accumulator. Weights are made unsigned for vpdpbusd; the zero point comes off by starting the integer sum
 * at −zp·Σx, which the packed activations carry. The sum is made in two chains, so that fewer columns
 * hide the latency. Q4_K, Q5_K and Q6_K stay integers over 256 columns (tile256): what multiplies costs time
 * here, and a vector product, a scale and a fold a block are one instruction less each.
 *
 * Many columns: where unpacking is long (Q6_K: 10 %) a panel is unpacked once into a buffer that stays in the
 * second-level cache. Where it is short that costs 3–5 %, more than it saves; there the columns go through the panels in
 * blocks that stay in that cache (2 %).
 *
 * Panels are read one after the other: on Zen 4 one stream a thread is as fast as memory (measured: 30 GB/s
 * where two streams give 26 and four 15); up to two columns the hardware prefetches best by itself, from
 * three on the out-of-order window no longer reaches far enough ahead. CPUs that read faster in two or four streams
 * get them for few columns (streams_run). */
#include <stdbool.h>
#include <string.h>

#include "core/base/check.h"
#include "core/kernels/avx512_unpack.h"

#define MAX_NC 8
/* A single tile prefetches so far ahead, from so many columns on. Of several tiles, the last one fetches the
 * whole next panel. */
#define PREFETCH_BYTES 9216u
#define PREFETCH_FROM 3u
/* From so many columns on, all tiles have MAX_NC or one less, and a panel of up to READY_BLOCKS blocks is unpacked
 * once for all of them, if its type wants that. */
#define READY_FROM 49u
#define READY_BLOCKS 256u
/* How far each of several streams is prefetched. */
#define STREAM_BYTES 2304u
#define MAX_STREAMS 4
/* Activations of the columns that go through the panels together, if that is more than BLOCK_LEAST columns. */
#define BLOCK_BYTES (256u << 10)
#define BLOCK_LEAST 64u

/* sum += weights · the column's group g, broadcast by the instruction itself: compilers load it to a register
 * for all panels of a tile and run out of registers. */
INLINE __m512i dot(__m512i sum, __m512i weights, const int8_t *x, int g)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sum)
            : "v"(weights), "m"(*(const int32_t(*)[1])(const void *)(x + 4 * g)));
    return sum;
}

/* sum + the eight groups. */
INLINE __m512i dot_block(__m512i sum, const __m512i q[8], const int8_t *x)
{
    __m512i other = _mm512_setzero_si512();
    UNROLL
    for (int g = 0; g < 8; g += 2) {
        sum = dot(sum, q[g], x, g);
        other = dot(other, q[g + 1], x, g + 1);
    }
    return _mm512_add_epi32(sum, other);
}

/* The two seeds as words of every dword: −8 · 32 · 127 fits. */
INLINE __m512i seeds(const struct act_block *x)
{
    int64_t both;
    memcpy(&both, (const char *)x + offsetof(struct act_block, seed), sizeof(both));
    return _mm512_shuffle_epi8(_mm512_set1_epi64(both), _mm512_set1_epi32(0x05040100));
}

/* Sums of the two halves, begun at `first` and `second`, as words of a dword: at most 16 · 4 · 127. */
INLINE __m512i dot_halves(const struct block512 *b, const struct act_block *x, __m512i first,
                          __m512i second)
{
    UNROLL
    for (int g = 0; g < 4; g++) {
        first = dot(first, b->q[g], x->q, g);
        second = dot(second, b->q[g + 4], x->q, g + 4);
    }
    return _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16));
}

/* f += block · column. */
INLINE __m512 accumulate(enum weight_type type, const struct block512 *b, const struct act_block *x,
                         __m512 f)
{
    __m512i sum;
    if (type == WEIGHT_Q2_K) {
        const __m512i zero = _mm512_setzero_si512();
        sum = _mm512_madd_epi16(dot_halves(b, x, zero, zero), b->sc0);
    } else if (type == WEIGHT_Q3_K) {
        /* Zero point 4: half the seed. */
        __m512i first = _mm512_srai_epi32(_mm512_set1_epi32(x->seed16), 1);
        __m512i second = _mm512_srai_epi32(_mm512_set1_epi32(x->seed - x->seed16), 1);
        sum = _mm512_madd_epi16(dot_halves(b, x, first, second), b->sc0);
    } else {
        sum = has_min(type) ? _mm512_setzero_si512() : _mm512_set1_epi32(x->seed);
        if (type == WEIGHT_Q8_0 || type == WEIGHT_IQ4_NL || type == WEIGHT_IQ4_XS)
            sum = _mm512_slli_epi32(sum, 4);
        if (type == WEIGHT_Q5_0 || type == WEIGHT_MXFP4)
            sum = _mm512_slli_epi32(sum, 1);
        sum = dot_block(sum, b->q, x->q);
    }
    f = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(b->d, _mm512_set1_ps(x->d)), f);
    if (has_min(type))
        f = _mm512_fmadd_ps(b->m, _mm512_set1_ps(x->dsum), f);
    if (type == WEIGHT_Q2_K) {
        __m512i min = _mm512_srai_epi32(_mm512_madd_epi16(seeds(x), b->sc1), 3);
        f = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min), _mm512_mul_ps(b->m, _mm512_set1_ps(x->d)), f);
    }
    return f;
}

/* One panel times nc columns. */
struct tile {
    const uint8_t *w;
    const struct block512 *ready; /* the panel, unpacked; for tile functions that want that */
    size_t ahead;                 /* bytes from what is read to what is prefetched; 0: nothing */
    uint32_t units;
    const uint8_t *x; /* first column */
    size_t stride;
    float *y; /* the panel's rows of the first column */
    size_t ldy;
    __mmask16 rows;
    bool add;
};

typedef void tile_fn(const struct tile *t);

/* Sums from 0; what they will be stored to is brought near, out of another thread's caches as a rule: 4 % of a prompt's
 * products, 9 % where they are added. */
INLINE void tile_begin(const struct tile *t, int nc, __m512 f[MAX_NC])
{
    UNROLL
    for (int c = 0; c < nc; c++) {
        __builtin_prefetch(t->y + (size_t)c * t->ldy, 1);
        f[c] = _mm512_setzero_ps();
    }
}

INLINE void tile_store(const struct tile *t, int nc, const __m512 f[MAX_NC])
{
    UNROLL
    for (int c = 0; c < nc; c++) {
        float *y = t->y + (size_t)c * t->ldy;
        __m512 v = f[c];
        if (t->add)
            v = _mm512_add_ps(_mm512_maskz_loadu_ps(t->rows, y), v);
        _mm512_mask_storeu_ps(y, t->rows, v);
    }
}

/* Column c of a tile whose columns 0, 3 and 6 are at x: few registers address all. */
INLINE const void *column(const uint8_t *const x[3], size_t stride, int c)
{
    return x[c / 3] + (size_t)(c % 3) * stride;
}

/* Fetches block i of `blocks` of what lies `ahead` of a unit; to the second-level cache only, since in the first one it
 * would push out the activations (4 to 16 columns on Zen 4: 5 to 50 %, most in Q8_0). */
INLINE void prefetch(const uint8_t *unit, size_t ahead, uint32_t bytes, uint32_t i)
{
    if (ahead)
        for (uint32_t line = 0; line < bytes; line += 64)
            _mm_prefetch((const char *)unit + ahead + bytes * i + line, _MM_HINT_T1);
}

INLINE void tile_run(enum weight_type type, int nc, bool ready, const struct tile *t)
{
    const uint32_t bytes = unit_bytes(type), blocks = unit_blocks(type);
    const struct block512 *from = t->ready;
    const size_t stride = t->stride, ahead = t->ahead;
    const uint8_t *w = t->w;
    const uint8_t *x[3] = {t->x, t->x + 3 * stride, t->x + 6 * stride};
    __m512 f[MAX_NC];

    tile_begin(t, nc, f);
    for (uint32_t u = 0; u < t->units; u++) {
        for (uint32_t i = 0; i < blocks; i++) {
            struct block512 b;
            prefetch(w, ahead, bytes / blocks, i);
            if (ready)
                b = *from++;
            else
                unpack(type, w, i, &b);
            UNROLL
            for (int c = 0; c < nc; c++)
                f[c] =
                    accumulate(type, &b, (const struct act_block *)column(x, stride, c) + i, f[c]);
        }
        w += bytes;
        UNROLL
        for (int c = 0; c < 3; c++)
            x[c] += blocks * sizeof(struct act_block);
    }
    tile_store(t, nc, f);
}

/* sum + block i of a unit · the columns at x, not yet shifted. */
INLINE __m512i scaled_dots(enum weight_type type, const struct block512 *b,
                           const struct act_block256 *x)
{
    if (type != WEIGHT_Q6_K)
        return _mm512_mullo_epi32(dot_block(_mm512_setzero_si512(), b->q, x->q), b->sc0);
    __m512i first = _mm512_set1_epi32(x->seeds[0]), second = _mm512_set1_epi32(x->seeds[1]);
    UNROLL
    for (int g = 0; g < 4; g++) {
        first = dot(first, b->q[g], x->q, g);
        second = dot(second, b->q[g + 4], x->q, g + 4);
    }
    return _mm512_add_epi32(_mm512_mullo_epi32(first, b->sc0), _mm512_mullo_epi32(second, b->sc1));
}

/* f[c] += the unit's scales · sums[c], minimums off. */
INLINE void fold256(enum weight_type type, int nc, const uint8_t *unit, const uint8_t *const x[3],
                    size_t stride, const __m512i sums[MAX_NC], __m512 f[MAX_NC])
{
    const __m512 d = load_half(unit + K_D), dmin = load_half(unit + K_DMIN);
    __m512i m[4];
    if (type != WEIGHT_Q6_K)
        UNROLL
    for (uint32_t k = 0; k < 4; k++)
        m[k] = _mm512_cvtepu8_epi16(_mm256_load_si256((const void *)(unit + K_M + 32 * k)));
    UNROLL
    for (int c = 0; c < nc; c++) {
        const struct act_block256 *b = column(x, stride, c);
        const __m512 dy = _mm512_set1_ps(b->d), sum = _mm512_cvtepi32_ps(sums[c]);
        if (type == WEIGHT_Q6_K) {
            f[c] = _mm512_fmadd_ps(sum, _mm512_mul_ps(d, dy), f[c]);
            continue;
        }
        __m512i min = _mm512_setzero_si512();
        UNROLL
        for (int k = 0; k < 4; k++) {
            int32_t pair;
            memcpy(&pair, b[2 * k + 1].sums, sizeof(pair));
            min = _mm512_dpwssd_epi32(min, m[k], _mm512_set1_epi32(pair));
        }
        f[c] = _mm512_fmadd_ps(
            _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min), dmin, _mm512_mul_ps(sum, d)), dy, f[c]);
    }
}

/* sums += block · column a, shifted. */
INLINE __m512i add256(enum weight_type type, const struct block512 *b, const struct act_block256 *a,
                      __m512i sums)
{
    return _mm512_add_epi32(
        sums, _mm512_sllv_epi32(scaled_dots(type, b, a), _mm512_set1_epi32(a->shift)));
}

INLINE void tile256(enum weight_type type, int nc, bool ready, const struct tile *t)
{
    const uint32_t bytes = unit_bytes(type);
    const struct block512 *from = t->ready;
    const size_t stride = t->stride, ahead = t->ahead;
    const uint8_t *w = t->w;
    const uint8_t *x[3] = {t->x, t->x + 3 * stride, t->x + 6 * stride};
    __m512 f[MAX_NC];

    tile_begin(t, nc, f);
    for (uint32_t u = 0; u < t->units; u++) {
        __m512i sums[MAX_NC];
        UNROLL
        for (int c = 0; c < nc; c++)
            sums[c] = _mm512_setzero_si512();
        for (uint32_t i = 0; i < 8; i++) {
            struct block512 b;
            prefetch(w, ahead, bytes / 8, i);
            if (ready)
                b = *from++;
            else
                unpack256(type, w, i, &b);
            UNROLL
            for (int c = 0; c < nc; c++)
                sums[c] = add256(type, &b, (const struct act_block256 *)column(x, stride, c) + i,
                                 sums[c]);
        }
        fold256(type, nc, w, x, stride, sums, f);
        w += bytes;
        UNROLL
        for (int c = 0; c < 3; c++)
            x[c] += 8 * sizeof(struct act_block256);
    }
    tile_store(t, nc, f);
}

/* A whole panel of a type. */
INLINE void unpack_all(enum weight_type type, const uint8_t *w, uint32_t units,
                       struct block512 *ready)
{
    const uint32_t blocks = is_256(type) ? 8 : unit_blocks(type);
    for (; units > 0; units--, w += unit_bytes(type))
        for (uint32_t i = 0; i < blocks; i++, ready++) {
            if (is_256(type))
                unpack256(type, w, i, ready);
            else
                unpack(type, w, i, ready);
        }
}

/* What a type's product is made of. */
struct tiles {
    tile_fn *plain[MAX_NC + 1];
    tile_fn *ready[2]; /* of MAX_NC − 1 and of MAX_NC columns */
    void (*unpack)(const uint8_t *w, uint32_t units,
                   struct block512 *ready); /* NULL: never ready */
};

/* One panel, n columns. */
INLINE void product_panel(const struct tiles *fns, struct tile *t, const struct acts *x,
                          uint32_t c0, uint32_t n, float *y, size_t next)
{
    const uint32_t tiles = (n + MAX_NC - 1) / MAX_NC;
    uint32_t c = 0;
    for (uint32_t k = 0; k < tiles; k++) {
        const uint32_t columns = (n - c) / (tiles - k);
        t->x = acts_column(x, c0 + c);
        t->y = y + (size_t)c * t->ldy;
        if (tiles > 1)
            t->ahead = k + 1 == tiles ? next : 0;
        else
            t->ahead = n < PREFETCH_FROM ? 0 : PREFETCH_BYTES;
        if (t->ready)
            fns->ready[columns - (MAX_NC - 1)](t);
        else
            fns->plain[columns](t);
        c += columns;
    }
}

static void product_ready(const struct tiles *fns, const struct matrix *w, uint32_t p0, uint32_t p1,
                          const struct acts *x, uint32_t c0, uint32_t n, float *y, size_t ldy,
                          bool add)
{
    struct block512 ready[READY_BLOCKS];
    struct tile t = {
        .units = w->units, .stride = x->stride, .ldy = ldy, .add = add, .ready = ready};
    for (uint32_t p = p0; p < p1; p++) {
        t.w = w->data + p * w->panel_bytes;
        t.rows = first16(w->rows - p * PANEL_ROWS);
        fns->unpack(t.w, w->units, ready);
        product_panel(fns, &t, x, c0, n, y + (size_t)p * PANEL_ROWS, w->panel_bytes);
    }
}

static void product_plain(const struct tiles *fns, const struct matrix *w, uint32_t p0, uint32_t p1,
                          const struct acts *x, uint32_t c0, uint32_t n, float *y, size_t ldy,
                          bool add)
{
    struct tile t = {.units = w->units, .stride = x->stride, .ldy = ldy, .add = add};
    for (uint32_t p = p0; p < p1; p++) {
        t.w = w->data + p * w->panel_bytes;
        t.rows = first16(w->rows - p * PANEL_ROWS);
        product_panel(fns, &t, x, c0, n, y + (size_t)p * PANEL_ROWS, w->panel_bytes);
    }
}

static void product(const struct tiles *fns, const struct matrix *w, uint32_t p0, uint32_t p1,
                    const struct acts *x, uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    check(x->kind == weight_info(w->type)->acts && x->cols == w->cols);
    if (fns->unpack != NULL && n >= READY_FROM && w->cols <= 32 * READY_BLOCKS) {
        product_ready(fns, w, p0, p1, x, c0, n, y, ldy, add);
        return;
    }
    uint32_t most = (uint32_t)(BLOCK_BYTES / x->stride);
    most = most < BLOCK_LEAST ? BLOCK_LEAST : most;
    for (uint32_t c = 0, blocks = (n + most - 1) / most; c < n; blocks--) {
        /* Whole tiles, as even as they allow. */
        uint32_t columns = ((n - c) / blocks + MAX_NC - 1) / MAX_NC * MAX_NC;
        columns = blocks == 1 || columns > n - c ? n - c : columns;
        product_plain(fns, w, p0, p1, x, c0 + c, columns, y + c * ldy, ldy, add);
        c += columns;
    }
}

/* As many panels as there are streams, far apart, times up to two columns. */
struct streams {
    const uint8_t *w[MAX_STREAMS];
    struct tile tile[MAX_STREAMS]; /* where their results go */
};

typedef void streams_fn(const struct streams *t);

/* The panels take turns, block by block. */
INLINE void streams_run(enum weight_type type, int streams, int nc, const struct streams *t)
{
    const uint32_t bytes = unit_bytes(type), blocks = is_256(type) ? 8 : unit_blocks(type);
    const size_t stride = t->tile[0].stride;
    const uint8_t *x[3] = {t->tile[0].x, NULL, NULL};
    __m512 f[MAX_STREAMS][MAX_NC];
    size_t at = 0;

    UNROLL
    for (int s = 0; s < streams; s++)
        UNROLL
    for (int c = 0; c < nc; c++)
        f[s][c] = _mm512_setzero_ps();
    for (uint32_t u = 0; u < t->tile[0].units; u++) {
        __m512i sums[MAX_STREAMS][MAX_NC];
        UNROLL
        for (int s = 0; s < streams; s++)
            UNROLL
        for (int c = 0; c < nc; c++)
            sums[s][c] = _mm512_setzero_si512();
        for (uint32_t i = 0; i < blocks; i++) {
            UNROLL
            for (int s = 0; s < streams; s++) {
                const uint8_t *w = t->w[s] + at;
                struct block512 b;
                prefetch(w, STREAM_BYTES, bytes / blocks, i);
                if (is_256(type))
                    unpack256(type, w, i, &b);
                else
                    unpack(type, w, i, &b);
                UNROLL
                for (int c = 0; c < nc; c++) {
                    if (is_256(type))
                        sums[s][c] =
                            add256(type, &b, (const struct act_block256 *)column(x, stride, c) + i,
                                   sums[s][c]);
                    else
                        f[s][c] = accumulate(
                            type, &b, (const struct act_block *)column(x, stride, c) + i, f[s][c]);
                }
            }
        }
        UNROLL
        for (int s = 0; s < streams; s++)
            if (is_256(type))
                fold256(type, nc, t->w[s] + at, x, stride, sums[s], f[s]);
        at += bytes;
        x[0] += blocks * sizeof(struct act_block);
    }
    UNROLL
    for (int s = 0; s < streams; s++)
        tile_store(&t->tile[s], nc, f[s]);
}

/* Panel p as stream s. */
static void set_stream(struct streams *t, uint32_t s, const struct matrix *w, uint32_t p,
                       const struct acts *x, uint32_t c0, float *y, size_t ldy, bool add)
{
    t->w[s] = w->data + p * w->panel_bytes;
    t->tile[s] = (struct tile){.units = w->units,
                               .x = acts_column(x, c0),
                               .stride = x->stride,
                               .y = y + (size_t)p * PANEL_ROWS,
                               .ldy = ldy,
                               .rows = first16(w->rows - p * PANEL_ROWS),
                               .add = add};
}

#include "core/kernels/product_streams.inc"

#define TILE(name, type, nc, ready)                                                                \
    static void name##_##type##_##nc(const struct tile *t)                                         \
    {                                                                                              \
        if (is_256(WEIGHT_##type))                                                                 \
            tile256(WEIGHT_##type, nc, ready, t);                                                  \
        else                                                                                       \
            tile_run(WEIGHT_##type, nc, ready, t);                                                 \
    }
#define PLAIN_TILES(type)                                                                          \
    TILE(plain, type, 1, false)                                                                    \
    TILE(plain, type, 2, false)                                                                    \
    TILE(plain, type, 3, false)                                                                    \
    TILE(plain, type, 4, false)                                                                    \
    TILE(plain, type, 5, false)                                                                    \
    TILE(plain, type, 6, false)                                                                    \
    TILE(plain, type, 7, false)                                                                    \
    TILE(plain, type, 8, false)
#define PLAIN_NAMES(type)                                                                          \
    {                                                                                              \
        NULL, plain_##type##_1, plain_##type##_2, plain_##type##_3, plain_##type##_4,              \
            plain_##type##_5, plain_##type##_6, plain_##type##_7, plain_##type##_8                 \
    }
#define PRODUCT(type, ...)                                                                         \
    static void product_##type(const struct matrix *w, uint32_t p0, uint32_t p1,                   \
                               const struct acts *x, uint32_t c0, uint32_t n, float *y,            \
                               size_t ldy, bool add)                                               \
    {                                                                                              \
        static const struct tiles fns = {PLAIN_NAMES(type), __VA_ARGS__};                          \
        product(&fns, w, p0, p1, x, c0, n, y, ldy, add);                                           \
    }
#define TILES(type)                                                                                \
    PLAIN_TILES(type)                                                                              \
    PRODUCT(type, {NULL, NULL}, NULL)
#define READY_TILES(type)                                                                          \
    PLAIN_TILES(type)                                                                              \
    TILE(ready, type, 7, true)                                                                     \
    TILE(ready, type, 8, true)                                                                     \
    static void unpack_##type(const uint8_t *w, uint32_t units, struct block512 *ready)            \
    {                                                                                              \
        unpack_all(WEIGHT_##type, w, units, ready);                                                \
    }                                                                                              \
    PRODUCT(type, {ready_##type##_7, ready_##type##_8}, unpack_##type)

#define TYPE(type, tiles) tiles(type) STREAMED(type, 2) STREAMED(type, 4)

TYPE(Q8_0, TILES)
TYPE(Q4_0, TILES)
TYPE(Q4_1, TILES)
TYPE(Q5_0, READY_TILES)
TYPE(Q5_1, READY_TILES)
TYPE(Q4_K, READY_TILES)
TYPE(Q5_K, READY_TILES)
TYPE(Q6_K, READY_TILES)
TYPE(IQ4_NL, TILES)
TYPE(IQ4_XS, TILES)
TYPE(MXFP4, TILES)
TYPE(Q2_K, READY_TILES)
TYPE(Q3_K, READY_TILES)

void avx512_fill_products(struct kernels *k)
{
    QUANTISED_TYPES(FILL)
}
