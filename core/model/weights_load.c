/* weights_load.c: fills what the second pass has laid out (weights.h). */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/huge.h"
#include "core/base/xalloc.h"
#include "core/kernels/team.h"
#include "core/model/ahead.h"
#include "core/model/weights.h"

/* The file is asked for that many bytes before they are repacked: enough for the disk to work while
 * the CPUs do. */
#define AHEAD_BYTES ((uint64_t)128 << 20)
/* Repacked between two reports, at most. */
#define SLICE_BYTES ((size_t)8 << 20)
/* Memory that an item fills, about as much as is read for it: a part of what a thread's second-level cache holds. */
#define ITEM_BYTES ((size_t)256 << 10)

/* Pieces that one thread makes: from this one on, all that begin in the same stretch of memory. */
struct item {
    uint64_t offset; /* of the first one's bytes in the file */
    uint32_t part, piece;
    uint32_t page; /* made before it, or NO_PAGE */
};

#define NO_PAGE UINT32_MAX

struct load {
    struct weights *w;
    struct item *items;
    uint32_t n_items;
    size_t stretch;  /* bytes of memory that an item fills */
    uint8_t **pages; /* huge pages, in the order in which items need them */
    uint32_t n_pages, pages_first;
    struct ahead *ahead;
    uint8_t *stage; /* a buffer a thread */
    size_t stage_bytes;
    bool (*progress)(void *data, double done);
    void *progress_data;
    size_t total;
    atomic_bool stop;

    pthread_mutex_t mutex; /* for all below, and around calls of progress */
    size_t done, reported;
    enum status status; /* of the first thing that ended the load */
    struct error err;
};

static size_t address(const struct weights_part *part, uint32_t piece)
{
    return (size_t)part->to + piece * part->bytes;
}

static int by_offset(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->piece > y->piece) - (x->piece < y->piece);
}

/* Each page is made some pages before it is needed: as many as all threads together may be working on. */
static void plan_pages(struct load *l, uint32_t threads)
{
    uint32_t *starts = xreallocarray(NULL, l->n_items + 1, sizeof *starts);
    l->pages = xreallocarray(NULL, l->n_items + 1, sizeof *l->pages);
    l->pages_first = 1 + threads / 2;
    for (uint32_t i = 0; i < l->n_items; i++) {
        struct item *item = &l->items[i];
        size_t at = address(&l->w->parts[item->part], item->piece);
        uint8_t *page = (uint8_t *)(at / HUGE_PAGE * HUGE_PAGE);
        item->page = NO_PAGE;
        if (l->n_pages > 0 && l->pages[l->n_pages - 1] == page)
            continue;
        if (l->n_pages >= l->pages_first)
            l->items[starts[l->n_pages - l->pages_first]].page = l->n_pages;
        starts[l->n_pages] = i;
        l->pages[l->n_pages++] = page;
    }
    l->pages_first = l->pages_first < l->n_pages ? l->pages_first : l->n_pages;
    free(starts);
}

/* Cuts all parts into items. */
static void cut(struct load *l)
{
    const struct weights *w = l->w;
    size_t cap = 0, last = SIZE_MAX;
    for (uint32_t p = 0; p < w->n_parts; p++) {
        const struct weights_part *part = &w->parts[p];
        for (uint32_t i = 0; i < part->pieces;) {
            size_t stretch = address(part, i) / l->stretch, border = (stretch + 1) * l->stretch;
            if (stretch != last) {
                if (l->n_items == cap) {
                    cap = cap * 2 + 64;
                    l->items = xreallocarray(l->items, cap, sizeof *l->items);
                }
                l->items[l->n_items++] =
                    (struct item){part->tensor->offset + i * part->from_file, p, i, NO_PAGE};
                last = stretch;
            }
            size_t more = (border - address(part, i) + part->bytes - 1) / part->bytes;
            i = part->pieces - i > more ? i + (uint32_t)more : part->pieces;
        }
    }
    qsort(l->items, l->n_items, sizeof *l->items, by_offset);
}

static void fail(struct load *l, const struct weights_part *part, const struct error *why)
{
    pthread_mutex_lock(&l->mutex);
    if (l->status == STATUS_OK)
        l->status = error_set(&l->err, why->status, "tensor %.*s: %s", (int)part->tensor->name.len,
                              part->tensor->name.ptr, why->text);
    pthread_mutex_unlock(&l->mutex);
    atomic_store(&l->stop, true);
}

/* So many bytes more are there. */
static void report(struct load *l, size_t bytes)
{
    size_t slice = l->total / 100 + 1;
    slice = slice < SLICE_BYTES ? slice : SLICE_BYTES;
    pthread_mutex_lock(&l->mutex);
    l->done += bytes;
    if (l->progress != NULL && l->status == STATUS_OK &&
        (l->done / slice > l->reported / slice || l->done == l->total)) {
        l->reported = l->done;
        if (!l->progress(l->progress_data, (double)l->done / (double)l->total)) {
            l->status = error_set(&l->err, STATUS_CANCELLED, "loading was cancelled");
            atomic_store(&l->stop, true);
        }
    }
    pthread_mutex_unlock(&l->mutex);
}

static enum status make_vector(const struct weights_part *part, const uint8_t *from,
                               struct error *err)
{
    float *to = (float *)part->to;
    uint32_t n = (uint32_t)(part->bytes / sizeof *to);
    dequantise_row(part->type, from, n, to);
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(to[i]))
            return error_set(err, STATUS_CORRUPT, "number %u is not finite", i);
    return STATUS_OK;
}

/* Makes pieces [begin, end). */
static enum status make(struct load *l, const struct weights_part *part, uint32_t begin,
                        uint32_t end, uint8_t *stage, struct error *err)
{
    const struct gguf_tensor *t = part->tensor;
    uint64_t from = begin * part->from_file, to = end * part->from_file;
    to = to < t->bytes ? to : t->bytes;
    uint8_t *into = part->kind == PART_TABLE ? part->to + (size_t)begin * part->bytes : stage;
    enum status status = gguf_read(l->w->gguf, t->offset + from, into, to - from, err);
    if (status == STATUS_OK && part->kind == PART_MATRIX)
        status = matrix_repack(&part->matrix, stage, begin, end, err);
    if (status == STATUS_OK && part->kind == PART_VECTOR)
        status = make_vector(part, stage, err);
    return status;
}

/* Bytes of a piece in the file, at most: a matrix may have fewer rows than a panel. */
static size_t in_file(const struct weights_part *part)
{
    return part->from_file < part->tensor->bytes ? part->from_file : part->tensor->bytes;
}

static void make_item(struct load *l, const struct item *item, uint8_t *stage)
{
    const struct weights *w = l->w;
    const size_t stretch = address(&w->parts[item->part], item->piece) / l->stretch;
    ahead_want(l->ahead, item->offset + l->stretch + AHEAD_BYTES);
    if (item->page != NO_PAGE)
        huge_touch(l->pages[item->page]);
    uint32_t piece = item->piece;
    for (uint32_t p = item->part; p < w->n_parts; p++, piece = 0) {
        const struct weights_part *part = &w->parts[p];
        uint32_t most = (uint32_t)(l->stage_bytes / in_file(part));
        while (piece < part->pieces && address(part, piece) / l->stretch == stretch) {
            struct error err = {0};
            size_t left = (stretch + 1) * l->stretch - address(part, piece);
            uint32_t n = (uint32_t)((left + part->bytes - 1) / part->bytes);
            n = n < most ? n : most;
            n = n < part->pieces - piece ? n : part->pieces - piece;
            if (atomic_load_explicit(&l->stop, memory_order_relaxed))
                return;
            if (make(l, part, piece, piece + n, stage, &err) != STATUS_OK) {
                fail(l, part, &err);
                return;
            }
            report(l, n * part->bytes);
            piece += n;
        }
        if (piece < part->pieces)
            return;
    }
}

static void run(void *arg, struct team_member *me)
{
    struct load *l = arg;
    uint32_t begin, end;
    me->ascending = true; /* as files are read ahead */
    while (team_next(me, l->pages_first, 1, &begin, &end))
        huge_touch(l->pages[begin]);
    while (team_next(me, l->n_items, 1, &begin, &end))
        make_item(l, &l->items[begin], l->stage + me->index * l->stage_bytes);
}

enum status weights_load(struct weights *w, struct team *team,
                         bool (*progress)(void *data, double done), void *progress_data,
                         struct error *err)
{
    struct load l = {.w = w, .progress = progress, .progress_data = progress_data};
    for (uint32_t p = 0; p < w->n_parts; p++)
        l.total += w->parts[p].pieces * w->parts[p].bytes;
    l.stretch = l.total / 100 + 1 < ITEM_BYTES ? l.total / 100 + 1 : ITEM_BYTES;
    l.stage_bytes = ITEM_BYTES;
    for (uint32_t p = 0; p < w->n_parts; p++)
        if (in_file(&w->parts[p]) > l.stage_bytes)
            l.stage_bytes = in_file(&w->parts[p]);
    l.stage_bytes = (l.stage_bytes + 63) / 64 * 64;
    l.stage = xaligned(l.stage_bytes * team_size(team));
    cut(&l);
    plan_pages(&l, team_size(team));
    l.ahead = ahead_start(w->gguf);
    pthread_mutex_init(&l.mutex, NULL);
    team_run(team, run, &l);
    pthread_mutex_destroy(&l.mutex);
    ahead_stop(l.ahead);
    free(l.stage);
    free(l.items);
    free(l.pages);
    free(w->parts);
    w->parts = NULL;
    w->n_parts = 0;
    if (l.status != STATUS_OK)
        return error_set(err, l.status, "%s", l.err.text);
    check(l.done == l.total);
    return STATUS_OK;
}
