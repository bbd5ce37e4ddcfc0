#include "alloc/block_table.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"

void block_table_init(struct block_table *t, struct pages *pool)
{
    *t = (struct block_table){.pool = pool};
}

/* Of the open pages only [first, first + n) stay. */
static void keep_open(struct block_table *t, uint32_t first, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->n_open; i++)
        if (t->open_first + i >= first && t->open_first + i - first < n)
            t->open[kept++] = t->open[i];
        else
            open_page_unref(pages_open(t->pool), t->open[i]);
    t->open_first = first;
    t->n_open = kept;
}

/* Each page from n_positions on, up to the last, has an open one that is the table's own. */
static void open_more(struct block_table *t)
{
    struct open_pages *open = pages_open(t->pool);
    uint32_t first = t->n_positions / BLOCK_POSITIONS;
    if (open == NULL || first == t->n_pages)
        return;
    if (t->n_open == 0) {
        check(t->n_positions % BLOCK_POSITIONS == 0);
        t->open_first = first;
    }
    uint32_t n = t->n_pages - t->open_first, at = first - t->open_first;
    if (n > t->open_cap) {
        t->open_cap = n;
        t->open = xreallocarray(t->open, n, sizeof(*t->open));
    }
    if (at < t->n_open && open_page_refs(t->open[at]) > 1) {
        void *shared = t->open[at];
        t->open[at] = open_page_take(open);
        memcpy(t->open[at], shared, open->bytes);
        open_page_unref(open, shared);
    }
    while (t->n_open < n)
        t->open[t->n_open++] = open_page_take(open);
}

void block_table_release(struct block_table *t)
{
    for (uint32_t i = 0; i < t->n_pages; i++)
        pages_unref(t->pool, t->ids[i]);
    keep_open(t, 0, 0);
    free(t->open);
    free(t->ids);
    *t = (struct block_table){0};
}

static void make_room(struct block_table *t, uint32_t n_pages)
{
    if (n_pages <= t->cap)
        return;
    t->cap = n_pages > t->cap + t->cap / 2 ? n_pages : t->cap + t->cap / 2;
    t->ids = xreallocarray(t->ids, t->cap, sizeof(*t->ids));
}

bool block_table_append(struct block_table *t, uint32_t count)
{
    check(count <= UINT32_MAX - BLOCK_POSITIONS - t->n_positions);
    uint32_t need = block_pages_for(t->n_positions + count) - t->n_pages;
    bool partly = t->n_positions % BLOCK_POSITIONS != 0;
    bool copy = count > 0 && partly && pages_refs(t->pool, t->ids[t->n_pages - 1]) > 1;
    if (need + copy > 0 && !pages_want(t->pool, need + copy))
        return false;
    if (copy)
        check(pages_copy(t->pool, t->ids[t->n_pages - 1], &t->ids[t->n_pages - 1]));
    make_room(t, t->n_pages + need);
    for (uint32_t i = 0; i < need; i++)
        check(pages_take(t->pool, &t->ids[t->n_pages++]));
    if (count > 0)
        open_more(t);
    t->n_positions += count;
    return true;
}

void block_table_adopt(struct block_table *t, uint32_t id)
{
    check(t->n_positions % BLOCK_POSITIONS == 0);
    keep_open(t, 0, 0);
    make_room(t, t->n_pages + 1);
    pages_ref(t->pool, id);
    t->ids[t->n_pages++] = id;
    t->n_positions += BLOCK_POSITIONS;
}

void block_table_truncate(struct block_table *t, uint32_t n_positions)
{
    check(n_positions <= t->n_positions);
    uint32_t keep = block_pages_for(n_positions);
    while (t->n_pages > keep)
        pages_unref(t->pool, t->ids[--t->n_pages]);
    t->n_positions = n_positions;
    if (pages_open(t->pool) == NULL)
        return;
    uint32_t partly = n_positions % BLOCK_POSITIONS != 0;
    keep_open(t, n_positions / BLOCK_POSITIONS, partly);
    check(t->n_open == partly);
}

void block_table_fork(struct block_table *dst, const struct block_table *src)
{
    block_table_init(dst, src->pool);
    make_room(dst, src->n_pages);
    for (uint32_t i = 0; i < src->n_pages; i++)
        pages_ref(src->pool, src->ids[i]);
    if (src->n_pages > 0)
        memcpy(dst->ids, src->ids, src->n_pages * sizeof(*dst->ids));
    dst->n_pages = src->n_pages;
    dst->open_first = src->open_first;
    dst->n_open = dst->open_cap = src->n_open;
    if (src->n_open > 0)
        dst->open = xreallocarray(NULL, src->n_open, sizeof(*dst->open));
    for (uint32_t i = 0; i < src->n_open; i++)
        open_page_ref(dst->open[i] = src->open[i]);
    dst->n_positions = src->n_positions;
}
