/* amx.c: the AMX tier: products of 16 columns and more by the tile unit, all else by the tier below.
 *
 * A call is cut so that what is used again stays near:
 *
 *     256 columns                       their part of a slice fits the second-level cache
 *       8 panels
 *         a slice of K                  512 columns of K for few activations, 2048 for many
 *           a panel: unpacked once      first-level cache
 *             16 columns: run_piece     accumulators in registers, kept in `partial` between slices
 *
 * Columns that fill no tile: 8 … 15 of them take one more tile, which overlaps the last one and
 * writes only its own columns; fewer go to the tier below.
 *
 * On some machines the tile unit is throttled for milliseconds to seconds (a neighbour, a power
 * limit): its instructions take two to four times as long while vectors lose a third. Since every
 * tier gives the same bits, a timed probe decides every few milliseconds who does the work. */
#include <stdatomic.h>
#include <stdbool.h>

#include "core/base/check.h"
#include "core/kernels/amx_products.h"
#include "core/kernels/kernels_priv.h"

#define GROUP_COLUMNS 256u
#define GROUP_TILES (GROUP_COLUMNS / TILE_COLUMNS)
#define GROUP_PANELS 8u
/* From so many columns on long slices are better than short ones, whose unpacked form stays in the
 * first-level cache beside the activations. */
#define MANY_COLUMNS 128u
#define SHORT_BLOCKS 16u
#define OVERLAP_COLUMNS 8u

/* How a weight type becomes pieces. */
struct form {
    unpack_fn *unpack;
    piece_fn *run;
    uint32_t unit_blocks, unit_bytes;
    uint32_t planes;      /* B tiles a block */
    uint32_t min_columns; /* fewer are not worth unpacking */
    bool direct;          /* B tiles are the panel's own bytes */
};

static const struct form forms[WEIGHT_TYPES] = {
    [WEIGHT_Q8_0] = {unpack_q8_0, run_plain, 2, 1088, 1, 16, true},
    [WEIGHT_Q4_0] = {unpack_q4_0, run_plain, 2, 576, 1, 16, false},
    [WEIGHT_Q4_1] = {unpack_q4_1, run_minimum, 2, 640, 1, 16, false},
    [WEIGHT_Q5_0] = {unpack_q5_0, run_plain, 2, 704, 1, 16, false},
    [WEIGHT_Q5_1] = {unpack_q5_1, run_minimum, 2, 768, 1, 16, false},
    [WEIGHT_Q4_K] = {unpack_q4_k, run_q45_k, 8, 2368, 2, 48, false},
    [WEIGHT_Q5_K] = {unpack_q5_k, run_q45_k, 8, 2880, 2, 48, false},
    [WEIGHT_Q6_K] = {unpack_q6_k, run_q6_k, 8, 3392, 2, 48, false},
};

/* The slots of the tier below; the same whenever a table is filled, so that no call sees them change. */
static product_fn *below[WEIGHT_TYPES];

/* --- The probe --- */

#define PROBE_TICKS 8000000u /* between probes of a thread: some 3 ms */
/* A slow unit still wins from so many columns on, a crawling one never. */
#define SLOW_COLUMNS 32u

/* A clock that drops by a quarter under AMX is full pace; throttling takes twice the time or more. */
enum pace { PACE_FULL, PACE_SLOW, PACE_CRAWL };

static enum pace pace_of(uint64_t took, uint64_t best)
{
    return took / 50 > best / 10 ? PACE_CRAWL : took / 17 > best / 10 ? PACE_SLOW : PACE_FULL;
}

/* Fewest ticks that a probe took, by any thread. */
static _Atomic uint64_t best_ticks = UINT64_MAX;

static _Thread_local struct {
    uint64_t next;
    enum pace pace;
} probed;

/* 40 tile loads and 60 products: 0.6 µs at full pace. */
static uint64_t probe_ticks(struct ring *ring)
{
    const uint64_t start = tile_ticks();
    tile_load(6, ring->c[0], 64);
    tile_load(4, ring->c[0], 64);
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    for (int i = 0; i < 20; i++) {
        tile_load(5, ring->c[1], 64);
        tile_load(7, ring->c[2], 64);
        tile_dpbssd(0, 4, 6);
        tile_dpbssd(1, 4, 6);
        tile_dpbssd(2, 4, 6);
    }
    tile_store(0, ring->c[3], 64);
    return tile_ticks() - start;
}

/* How the tile unit fares; the configuration must be loaded. */
static enum pace pace_now(struct ring *ring)
{
    const uint64_t now = tile_ticks();
    if (now < probed.next)
        return probed.pace;
    for (uint32_t i = 0; i < RING; i++)
        for (uint32_t j = 0; j < TILE_COLUMNS; j++)
            ring->c[i][j] = (v16i){0};
    uint64_t best = atomic_load_explicit(&best_ticks, memory_order_relaxed);
    uint64_t took = probe_ticks(ring);
    if (pace_of(took, best) != PACE_FULL) { /* that may have been an interrupt */
        const uint64_t again = probe_ticks(ring);
        took = again < took ? again : took;
    }
    while (took < best && !atomic_compare_exchange_weak_explicit(
                              &best_ticks, &best, took, memory_order_relaxed, memory_order_relaxed))
        ;
    probed.pace = pace_of(took, best);
    probed.next = now + PROBE_TICKS;
    return probed.pace;
}

/* --- Products --- */

/* What a thread needs beside its operands. */
struct scratch {
    struct ring ring;
    struct slice slice;
    v16f partial[GROUP_PANELS][GROUP_TILES][TILE_COLUMNS];
};

/* One call, and its place in the cuts above. */
struct call {
    const struct matrix *w;
    const struct form *form;
    const struct acts *x;
    uint32_t c0, tiled; /* the columns that tiles do */
    float *y;
    size_t ldy;
    bool add;
    uint32_t blocks, slice_blocks; /* of a panel, of a full slice */
};

/* Tiles [t0, t1) of panel p, slice at block k. `ahead`: what to prefetch during the last of them. */
static void run_tiles(const struct call *call, struct scratch *s, uint32_t p, uint32_t k,
                      uint32_t t0, uint32_t t1, v16f (*partial)[TILE_COLUMNS], const uint8_t *ahead)
{
    const struct form *f = call->form;
    const struct matrix *w = call->w;
    const uint8_t *src =
        w->data + p * w->panel_bytes + (size_t)(k / f->unit_blocks) * f->unit_bytes;
    const uint32_t left = call->blocks - k, rows = w->rows - p * PANEL_ROWS;
    struct piece piece = {
        .s = &s->slice,
        .b = f->direct ? src + 64 : s->slice.b,
        .b_pair = f->direct ? f->unit_bytes : 2 * B_BYTES,
        .stride = call->x->stride,
        .blocks = left < call->slice_blocks ? left : call->slice_blocks,
        .lines = (f->unit_bytes / f->unit_blocks + 63) / 64,
        .first = k == 0,
        .last = left <= call->slice_blocks,
        .ldy = call->ldy,
        .rows = rows < PANEL_ROWS ? rows : PANEL_ROWS,
        .add = call->add,
    };

    f->unpack(src, piece.blocks, &s->slice);
    for (uint32_t t = t0; t < t1; t++) {
        /* The last tile may overlap the one before. */
        const uint32_t end = (t + 1) * TILE_COLUMNS;
        piece.skip = end > call->tiled ? end - call->tiled : 0;
        const uint32_t column = t * TILE_COLUMNS - piece.skip;
        piece.x = (const uint8_t *)acts_column(call->x, call->c0 + column) +
                  (size_t)k * sizeof(struct act_block);
        piece.y = call->y + column * call->ldy + (size_t)p * PANEL_ROWS;
        piece.partial = partial[t - t0];
        piece.ahead = t + 1 == t1 ? ahead : NULL;
        f->run(&piece, &s->ring);
    }
}

/* Tiles [t0, t1) of panels [p0, p1), at most a group of each. */
static void run_group(const struct call *call, struct scratch *s, uint32_t p0, uint32_t p1,
                      uint32_t t0, uint32_t t1)
{
    const struct matrix *w = call->w;
    const struct form *f = call->form;
    for (uint32_t k = 0; k < call->blocks; k += call->slice_blocks)
        for (uint32_t p = p0; p < p1; p++) {
            /* Next is this slice of the next panel, or the first panel's next slice. */
            const uint32_t next_k = p + 1 < p1 ? k : k + call->slice_blocks;
            const uint32_t next_p = p + 1 < p1 ? p + 1 : next_k < call->blocks ? p0 : p1;
            const size_t at =
                next_p * w->panel_bytes +
                (size_t)((next_k < call->blocks ? next_k : 0) / f->unit_blocks) * f->unit_bytes;
            run_tiles(call, s, p, k, t0, t1, s->partial[p - p0], w->data + at);
        }
}

/* Panels [p0, p1), configuration loaded. */
static void run_call(const struct call *call, struct scratch *s, uint32_t p0, uint32_t p1)
{
    const uint32_t count = (call->tiled + TILE_COLUMNS - 1) / TILE_COLUMNS;
    for (uint32_t t = 0; t < count; t += GROUP_TILES) {
        const uint32_t t1 = count - t < GROUP_TILES ? count : t + GROUP_TILES;
        for (uint32_t p = p0; p < p1; p += GROUP_PANELS)
            run_group(call, s, p, p1 - p < GROUP_PANELS ? p1 : p + GROUP_PANELS, t, t1);
    }
}

static void product(const struct matrix *w, uint32_t p0, uint32_t p1, const struct acts *x,
                    uint32_t c0, uint32_t n, float *y, size_t ldy, bool add)
{
    const struct form *f = &forms[w->type];
    struct scratch s;
    struct call call = {.w = w,
                        .form = f,
                        .x = x,
                        .c0 = c0,
                        .tiled = n,
                        .y = y,
                        .ldy = ldy,
                        .add = add,
                        .blocks = w->units * f->unit_blocks,
                        .slice_blocks = n < MANY_COLUMNS ? SHORT_BLOCKS : SLICE_BLOCKS / f->planes};
    enum pace pace = PACE_CRAWL;

    check(x->kind == weight_info(w->type)->acts && x->cols == w->cols);
    if (n >= f->min_columns && p0 < p1) {
        tile_configure(&tiles);
        pace = pace_now(&s.ring);
    }
    if (pace == PACE_CRAWL || (pace == PACE_SLOW && n < SLOW_COLUMNS)) {
        if (n >= f->min_columns && p0 < p1)
            tile_release();
        below[w->type](w, p0, p1, x, c0, n, y, ldy, add);
        return;
    }
    if (n % TILE_COLUMNS < OVERLAP_COLUMNS)
        call.tiled -= n % TILE_COLUMNS;
    run_call(&call, &s, p0, p1);
    tile_release();
    if (call.tiled < n)
        below[w->type](w, p0, p1, x, c0 + call.tiled, n - call.tiled, y + call.tiled * ldy, ldy,
                       add);
}

void kernels_fill_amx(struct kernels *k)
{
    for (unsigned t = 0; t < WEIGHT_TYPES; t++)
        if (forms[t].run) {
            check(k->product[t] != product);
            below[t] = k->product[t];
            k->product[t] = product;
        }
}
