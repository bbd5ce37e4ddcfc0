/* amx_products.h: a panel's slice times 16 columns of activations.
 *
 * The tile unit only makes the exact integer sums of each block; vectors fold the floats in the
 * order of kernels.h, so the bits are every other tier's. There is no way from a tile to a vector
 * but through memory: C tiles go round a ring of four, three blocks ahead of the vectors:
 *
 *     step k   C[k+1] → ring    load A[k+3] B[k+3], C[k+3] = A·B    ring[k] → 16 accumulators
 *
 * The vectors are the limit, and among them what only one port does while tiles are in flight:
 * conversion, multiplication, fma. So every second conversion is made of an integer and a float
 * addition (exact below 2^22), which also run elsewhere. */
#ifndef KERNELS_AMX_PRODUCTS_H
#define KERNELS_AMX_PRODUCTS_H

#include "core/kernels/amx_tile.h"
#include "core/kernels/amx_unpack.h"
#include "core/kernels/kernels.h"

#define TILE_COLUMNS 16u
#define RING 4u
#define C_BYTES 1024u

/* C tiles on their way to the vectors, page-aligned; one per thread: shared, it would be wrong and slow. */
struct ring {
    _Alignas(4096) v16i c[RING][TILE_COLUMNS];
};

static const struct tile_config tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 32, 32, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 8, 8},
};

/* One slice of a panel against 16 columns. */
struct piece {
    const struct slice *s;
    const uint8_t *b; /* B tiles: two at each step of b_pair, B_BYTES apart */
    size_t b_pair;
    const uint8_t *x;     /* the slice's first act_block of the first column */
    size_t stride;        /* between columns */
    uint32_t blocks;      /* even */
    const uint8_t *ahead; /* prefetched, `lines` cache lines per block; NULL: nothing */
    uint32_t lines;
    bool first, last; /* slice of the panel */
    v16f *partial;    /* 16 accumulators, kept here between slices */
    float *y;         /* where the columns go after the last slice */
    size_t ldy;
    uint32_t rows; /* of the panel that exist: 1 … 16 */
    uint32_t skip; /* columns that belong to the tile before: computed, not written */
    bool add;
};

typedef void piece_fn(const struct piece *p, struct ring *ring);

/* Where column j's act_block is, from few registers. */
struct columns {
    const uint8_t *x0, *x8;
    size_t s1, s3, s5, s7;
};

VEC_INLINE const void *column_at(const struct columns *x, int j)
{
    const uint8_t *base = j < 8 ? x->x0 : x->x8;
    switch (j % 8) {
    case 0:
        break;
    case 1:
        base += x->s1;
        break;
    case 2:
        base += 2 * x->s1;
        break;
    case 3:
        base += x->s3;
        break;
    case 4:
        base += 4 * x->s1;
        break;
    case 5:
        base += x->s5;
        break;
    case 6:
        base += 2 * x->s3;
        break;
    default:
        base += x->s7;
    }
    return base;
}

VEC_INLINE const struct act_block *column_block(const struct columns *x, int j)
{
    return column_at(x, j);
}

VEC_INLINE const struct act_block256 *column_block256(const struct columns *x, int j)
{
    return column_at(x, j);
}

VEC_INLINE struct columns columns_at(const uint8_t *x, size_t stride)
{
    return (struct columns){x, x + 8 * stride, stride, 3 * stride, 5 * stride, 7 * stride};
}

VEC_INLINE v16f to_float(v16i sum, int j)
{
    if (j & 1)
        return __builtin_convertvector(sum, v16f);
    return (v16f)(sum + 0x4b400000) - 12582912.0f;
}

VEC_INLINE void begin(const struct piece *p, v16f f[TILE_COLUMNS])
{
    UNROLL
    for (int j = 0; j < 16; j++)
        f[j] = p->first ? (v16f){0} : p->partial[j];
}

VEC_INLINE void finish(const struct piece *p, const v16f f[TILE_COLUMNS])
{
    UNROLL
    for (int j = 0; j < 16; j++)
        if (!p->last)
            p->partial[j] = f[j];
        else if ((uint32_t)j >= p->skip)
            vec_put_rows(p->y + (size_t)j * p->ldy, p->rows, f[j], p->add);
}

VEC_INLINE void prefetch(const struct piece *p, uint32_t k)
{
    if (p->ahead)
        for (uint32_t i = 0; i < p->lines; i++)
            __builtin_prefetch(p->ahead + 64 * (k * p->lines + i), 0, 3);
}

VEC_INLINE const uint8_t *b_tile(const struct piece *p, uint32_t k)
{
    return p->b + (size_t)(k / 2) * p->b_pair + (k & 1) * B_BYTES;
}

/* C tile c = block k's integers. */
#define MULTIPLY(p, k, c, a, b)                                                                    \
    do {                                                                                           \
        tile_load(b, b_tile(p, k), 64);                                                            \
        tile_load(a, (p)->x + (size_t)(k) * sizeof(struct act_block), (p)->stride);                \
        tile_zero(c);                                                                              \
        tile_dpbssd(c, a, b);                                                                      \
    } while (0)

/* Block k + i, C tile i = (k + i) % 4; n1, n3 the tiles of blocks 1 and 3 later. */
#define STEP(i, n1, n3, a, b)                                                                      \
    do {                                                                                           \
        if (k + i + 1 < p->blocks)                                                                 \
            tile_store(n1, ring->c[n1], 64);                                                       \
        if (k + i + 3 < p->blocks)                                                                 \
            MULTIPLY(p, k + i + 3, n3, a, b);                                                      \
        prefetch(p, k + i);                                                                        \
        fold(p->s, k + i, ring->c[i], &x, minimum, f);                                             \
        x.x0 += sizeof(struct act_block);                                                          \
        x.x8 += sizeof(struct act_block);                                                          \
    } while (0)

VEC_INLINE void fold(const struct slice *s, uint32_t k, const v16i c[TILE_COLUMNS],
                     const struct columns *x, bool minimum, v16f f[TILE_COLUMNS])
{
    const v16f d = *(const v16f *)s->d[k];
    UNROLL
    for (int j = 0; j < 16; j++)
        f[j] = vec_fma(to_float(c[j], j), d * column_block(x, j)->d, f[j]);
    if (minimum) {
        const v16f m = *(const v16f *)s->m[k];
        UNROLL
        for (int j = 0; j < 16; j++)
            f[j] = vec_fma(m, vec_all(column_block(x, j)->dsum), f[j]);
    }
}

VEC_INLINE void run_piece(const struct piece *p, struct ring *ring, bool minimum)
{
    struct columns x = columns_at(p->x, p->stride);
    v16f f[TILE_COLUMNS];

    begin(p, f);
    MULTIPLY(p, 0u, 0, 4, 6);
    MULTIPLY(p, 1u, 1, 5, 7);
    if (p->blocks > 2)
        MULTIPLY(p, 2u, 2, 4, 6);
    tile_store(0, ring->c[0], 64);
    for (uint32_t k = 0; k < p->blocks; k += 4) {
        STEP(0, 1, 3, 5, 7);
        STEP(1, 2, 0, 4, 6);
        if (k + 2 >= p->blocks)
            break;
        STEP(2, 3, 1, 5, 7);
        STEP(3, 0, 2, 4, 6);
    }
    finish(p, f);
}

static void run_plain(const struct piece *p, struct ring *ring)
{
    run_piece(p, ring, false);
}

static void run_minimum(const struct piece *p, struct ring *ring)
{
    run_piece(p, ring, true);
}

/* K-quants: two planes a block, 64 · high + low; two pairs of C tiles, two blocks ahead. */
#define MULTIPLY_PLANES(p, k, high, low, a)                                                        \
    do {                                                                                           \
        const uint8_t *planes = (p)->b + (size_t)(k)*2 * B_BYTES;                                  \
        tile_load(a, (p)->x + (size_t)(k) * sizeof(struct act_block), (p)->stride);                \
        tile_load(6, planes, 64);                                                                  \
        tile_zero(high);                                                                           \
        tile_dpbssd(high, a, 6);                                                                   \
        tile_load(7, planes + B_BYTES, 64);                                                        \
        tile_zero(low);                                                                            \
        tile_dpbssd(low, a, 7);                                                                    \
    } while (0)

#define STORE_PLANES(high, low)                                                                    \
    do {                                                                                           \
        tile_store(high, ring->c[high], 64);                                                       \
        tile_store(low, ring->c[low], 64);                                                         \
    } while (0)

/* sums[j] += block k, shifted. */
VEC_INLINE void add_planes(const v16i high[TILE_COLUMNS], const v16i low[TILE_COLUMNS],
                           const struct columns *x, v16i sums[TILE_COLUMNS])
{
    UNROLL
    for (int j = 0; j < 16; j++)
        sums[j] += ((high[j] << 6) + low[j]) << column_block256(x, j)->shift;
}

/* f[j] += the unit's scales · sums[j], minimums off; sums begin anew. x: at the unit's last block. */
VEC_INLINE void fold_unit(const struct slice *s, uint32_t unit, const struct columns *x,
                          bool minimum, v16i sums[TILE_COLUMNS], v16f f[TILE_COLUMNS])
{
    const v16f d = *(const v16f *)s->d[unit], dmin = *(const v16f *)s->m[unit];
    UNROLL
    for (int j = 0; j < 16; j++) {
        const struct act_block256 *b = column_block256(x, j) - 7;
        const v16f sum = __builtin_convertvector(sums[j], v16f);
        if (minimum) {
            v16i min = {0};
            UNROLL
            for (int k = 0; k < 4; k++)
                min = vec_dot_pairs(min, *(const v32h *)s->mins[unit][k], b[2 * k + 1].sums);
            const v16f g = vec_fma(-__builtin_convertvector(min, v16f), dmin, sum * d);
            f[j] = vec_fma(g, vec_all(b->d), f[j]);
        } else {
            f[j] = vec_fma(sum, d * b->d, f[j]);
        }
        sums[j] = (v16i){0};
    }
}

/* The accumulators wait in p->partial while a unit's integers are in the registers. */
VEC_INLINE void run_planes(const struct piece *p, struct ring *ring, bool minimum)
{
    struct columns x = columns_at(p->x, p->stride);
    v16i sums[TILE_COLUMNS] = {{0}};

    begin(p, p->partial);
    MULTIPLY_PLANES(p, 0u, 0, 1, 4);
    MULTIPLY_PLANES(p, 1u, 2, 3, 5);
    STORE_PLANES(0, 1);
    for (uint32_t k = 0; k < p->blocks; k += 2) {
        STORE_PLANES(2, 3);
        if (k + 2 < p->blocks)
            MULTIPLY_PLANES(p, k + 2, 0, 1, 4);
        prefetch(p, k);
        add_planes(ring->c[0], ring->c[1], &x, sums);
        x.x0 += sizeof(struct act_block256);
        x.x8 += sizeof(struct act_block256);
        if (k + 2 < p->blocks) {
            STORE_PLANES(0, 1);
            MULTIPLY_PLANES(p, k + 3, 2, 3, 5);
        }
        prefetch(p, k + 1);
        add_planes(ring->c[2], ring->c[3], &x, sums);
        if (k % 8 == 6)
            fold_unit(p->s, k / 8, &x, minimum, sums, p->partial);
        x.x0 += sizeof(struct act_block256);
        x.x8 += sizeof(struct act_block256);
    }
    finish(p, p->partial);
}

static void run_q6_k(const struct piece *p, struct ring *ring)
{
    run_planes(p, ring, false);
}

static void run_q45_k(const struct piece *p, struct ring *ring)
{
    run_planes(p, ring, true);
}

#endif
