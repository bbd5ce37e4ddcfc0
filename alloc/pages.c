#include "alloc/pages.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/arena_priv.h"
#include "alloc/poison_priv.h"
#include "core/base/check.h"
#include "core/base/xalloc.h"

#define AHEAD_PAGES 32u /* pages kept ready ahead of the takes, at least (or a slab's worth) */

struct page {
    uint32_t refs;
    uint32_t next; /* free list inside the slab, by number in the slab */
    bool dirty;    /* was used before, must be zeroed when taken */
    bool kept;     /* one of the references is the cache's */
};

struct slab {
    unsigned char *base; /* NULL: this pool does not have it */
    struct page *pages;  /* per_slab entries */
    uint32_t n_free;
    uint32_t first_free;
    uint64_t empty_since; /* clock_ns() when trim first saw it empty, 0 = not empty then */
};

struct pages {
    struct arena_client client; /* first: nothing depends on it, but it is shared with the helper */
    struct arena *arena;
    size_t page_bytes;
    uint32_t per_slab;
    uint32_t n_slabs_max;
    struct slab *slabs;
    uint32_t lowest;   /* no slab below this index has a free page */
    uint32_t n_free;   /* pages free in owned slabs */
    uint32_t n_owned;  /* slabs owned */
    uint32_t n_coming; /* slabs asked for, not collected */
    int64_t accounted; /* slabs that this pool claims in the arena's account */
    pages_reclaim_fn reclaim;
    void *reclaim_data;
    struct open_pages open; /* of 0 bytes: none */
    /* Written by the owner alone. used: all pages in use, kept_used those of them that are kept. */
    _Atomic uint32_t used, kept_used, idle, reserved;
    _Atomic uint64_t taken, copied;
};

/* The owner's own counters need no read-modify-write. */
#define LOAD(counter) atomic_load_explicit(&(counter), memory_order_relaxed)
#define STORE(counter, value) atomic_store_explicit(&(counter), (value), memory_order_relaxed)

/* Pages that are claimed: promises, and kept pages in use, whose promises passed to them. */
static uint32_t claimed(const struct pages *p)
{
    return LOAD(p->reserved) + LOAD(p->kept_used);
}

static uint32_t slabs_for(const struct pages *p, uint32_t n_pages)
{
    return n_pages / p->per_slab + (n_pages % p->per_slab != 0);
}

/* Claims what `pages` and `held` slabs need, whichever is more; false if the limit is in the way. */
static bool account(struct pages *p, uint32_t pages, uint32_t held)
{
    uint32_t promised = slabs_for(p, pages);
    int64_t claim = promised > held ? promised : held;
    if (!arena_account(p->arena, claim - p->accounted))
        return false;
    p->accounted = claim;
    return true;
}

static void ask_for_slab(struct pages *p)
{
    if (account(p, claimed(p), p->n_owned + p->n_coming + 1)) {
        if (arena_claim(p->arena, &p->client))
            p->n_coming++;
        else
            account(p, claimed(p), p->n_owned + p->n_coming);
    }
}

/* Asks for slabs until n pages are free or on their way; gives up where no slot is free (the helper
 * wakes us). */
static void ask_for(struct pages *p, uint64_t n)
{
    uint32_t coming;
    do {
        coming = p->n_coming;
        if (p->n_free + (uint64_t)coming * p->per_slab < n || p->n_owned + coming == 0)
            ask_for_slab(p);
    } while (p->n_coming != coming);
}

/* Memory follows use: keeps a slab's worth ready, but no more than what is promised and not yet
 * taken. */
static void keep_ahead(struct pages *p)
{
    uint32_t used = LOAD(p->used), claims = claimed(p);
    uint32_t open = claims > used ? claims - used : 0;
    uint32_t ahead = p->per_slab > AHEAD_PAGES ? p->per_slab : AHEAD_PAGES;
    ask_for(p, open < ahead ? open : ahead);
}

static void collect(struct pages *p)
{
    void *base;
    uint32_t i;
    while ((i = arena_collect(p->arena, &p->client, &base)) != SLAB_NONE) {
        struct slab *s = &p->slabs[i];
        *s = (struct slab){.base = base, .n_free = p->per_slab};
        s->pages = xcalloc(p->per_slab, sizeof(*s->pages));
        for (uint32_t k = 0; k < p->per_slab; k++)
            s->pages[k].next = k + 1;
        poison(base, arena_slab_size(p->arena));
        p->n_coming--;
        p->n_owned++;
        p->n_free += p->per_slab;
        p->lowest = i < p->lowest ? i : p->lowest;
    }
}

enum status pages_create(struct arena *arena, size_t page_bytes, struct pages **pool,
                         struct error *err)
{
    check(page_bytes > 0 && page_bytes % 64 == 0);
    uint64_t per_slab = arena_slab_size(arena) / page_bytes;
    uint64_t slabs = arena_slabs_max(arena);
    if (per_slab == 0 || per_slab * slabs >= PAGES_NONE)
        return error_set(err, STATUS_NO_MEMORY, "pages of %zu bytes do not suit slabs of %zu bytes",
                         page_bytes, arena_slab_size(arena));
    struct pages *p = xcalloc(1, sizeof(*p));
    p->arena = arena;
    p->page_bytes = page_bytes;
    p->per_slab = (uint32_t)per_slab;
    p->n_slabs_max = (uint32_t)slabs;
    p->slabs = xcalloc(slabs, sizeof(*p->slabs));
    arena_attach(arena, &p->client);
    keep_ahead(p);
    *pool = p;
    return STATUS_OK;
}

static void give_back(struct pages *p, uint32_t i)
{
    struct slab *s = &p->slabs[i];
    check(s->n_free == p->per_slab);
    unpoison(s->base, arena_slab_size(p->arena));
    arena_return(p->arena, i);
    free(s->pages);
    *s = (struct slab){0};
    p->n_free -= p->per_slab;
    p->n_owned--;
    account(p, claimed(p), p->n_owned + p->n_coming);
}

void pages_free(struct pages *p)
{
    if (p == NULL)
        return;
    arena_settle(p->arena);
    collect(p);
    for (uint32_t i = 0; i < p->n_slabs_max; i++)
        if (p->slabs[i].base != NULL)
            give_back(p, i);
    STORE(p->reserved, 0);
    account(p, 0, 0);
    arena_settle(p->arena);
    arena_detach(p->arena, &p->client);
    open_pages_release(&p->open);
    free(p->slabs);
    free(p);
}

void pages_set_wake(struct pages *p, pages_wake_fn wake, void *data)
{
    arena_set_wake(p->arena, &p->client, wake, data);
}

void pages_set_reclaim(struct pages *p, pages_reclaim_fn reclaim, void *data)
{
    p->reclaim = reclaim;
    p->reclaim_data = data;
}

uint32_t pages_total(const struct pages *p)
{
    return p->per_slab * p->n_slabs_max;
}

bool pages_reserve(struct pages *p, uint32_t n)
{
    uint32_t claims = claimed(p);
    if (n > pages_total(p) - claims || !account(p, claims + n, p->n_owned + p->n_coming))
        return false;
    STORE(p->reserved, LOAD(p->reserved) + n);
    keep_ahead(p);
    return true;
}

void pages_unreserve(struct pages *p, uint32_t n)
{
    uint32_t reserved = LOAD(p->reserved);
    check(n <= reserved);
    STORE(p->reserved, reserved - n);
    account(p, claimed(p), p->n_owned + p->n_coming);
}

bool pages_want(struct pages *p, uint32_t n)
{
    collect(p);
    if (p->n_free >= n)
        return true;
    atomic_store(&p->client.waits, true);
    ask_for(p, n);
    collect(p); /* it may have come before `waits` was set */
    uint64_t there = p->n_free + (uint64_t)p->n_coming * p->per_slab;
    if (there < n && p->reclaim != NULL && LOAD(p->idle) > 0)
        p->reclaim(p->reclaim_data, (uint32_t)(n - there));
    return p->n_free >= n;
}

bool pages_take(struct pages *p, uint32_t *id)
{
    if (!pages_want(p, 1))
        return false;
    while (p->slabs[p->lowest].n_free == 0)
        p->lowest++;
    struct slab *s = &p->slabs[p->lowest];
    uint32_t k = s->first_free;
    struct page *page = &s->pages[k];
    s->first_free = page->next;
    s->n_free--;
    s->empty_since = 0;
    p->n_free--;
    unsigned char *bytes = s->base + k * p->page_bytes;
    unpoison(bytes, p->page_bytes);
    if (page->dirty)
        memset(bytes, 0, p->page_bytes);
    page->dirty = true;
    page->refs = 1;
    *id = p->lowest * p->per_slab + k;
    STORE(p->used, LOAD(p->used) + 1);
    STORE(p->taken, LOAD(p->taken) + 1);
    keep_ahead(p);
    return true;
}

static struct page *live_page(const struct pages *p, uint32_t id)
{
    uint32_t i = id / p->per_slab;
    check(i < p->n_slabs_max && p->slabs[i].base != NULL);
    struct page *page = &p->slabs[i].pages[id % p->per_slab];
    check(page->refs > 0);
    return page;
}

/* A promise of the caller's becomes the page's own. */
static void pass_promise(struct pages *p)
{
    check(LOAD(p->reserved) > 0);
    STORE(p->reserved, LOAD(p->reserved) - 1);
    STORE(p->kept_used, LOAD(p->kept_used) + 1);
}

void pages_ref(struct pages *p, uint32_t id)
{
    struct page *page = live_page(p, id);
    check(page->refs < UINT32_MAX);
    if (page->kept && page->refs == 1) {
        pass_promise(p);
        STORE(p->used, LOAD(p->used) + 1);
        STORE(p->idle, LOAD(p->idle) - 1);
    }
    page->refs++;
}

void pages_keep(struct pages *p, uint32_t id)
{
    struct page *page = live_page(p, id);
    check(!page->kept && page->refs < UINT32_MAX);
    pass_promise(p);
    page->kept = true;
    page->refs++;
}

void pages_drop(struct pages *p, uint32_t id)
{
    struct page *page = live_page(p, id);
    check(page->kept && page->refs == 1);
    page->kept = false;
    STORE(p->used, LOAD(p->used) + 1); /* for the moment: pages_unref takes it off again */
    STORE(p->idle, LOAD(p->idle) - 1);
    pages_unref(p, id);
}

bool pages_idle(const struct pages *p, uint32_t id)
{
    const struct page *page = live_page(p, id);
    return page->kept && page->refs == 1;
}

void pages_unref(struct pages *p, uint32_t id)
{
    struct page *page = live_page(p, id);
    page->refs--;
    if (page->kept && page->refs == 1) {
        STORE(p->kept_used, LOAD(p->kept_used) - 1);
        STORE(p->used, LOAD(p->used) - 1);
        STORE(p->idle, LOAD(p->idle) + 1);
        account(p, claimed(p), p->n_owned + p->n_coming);
    }
    check(page->refs > 0 || !page->kept); /* the cache's reference goes by pages_drop */
    if (page->refs > 0)
        return;
    uint32_t i = id / p->per_slab;
    struct slab *s = &p->slabs[i];
    page->next = s->first_free;
    s->first_free = id % p->per_slab;
    s->n_free++;
    p->n_free++;
    p->lowest = i < p->lowest ? i : p->lowest;
    poison(pages_at(p, id), p->page_bytes);
    STORE(p->used, LOAD(p->used) - 1);
}

uint32_t pages_refs(const struct pages *p, uint32_t id)
{
    uint32_t i = id / p->per_slab;
    return i < p->n_slabs_max && p->slabs[i].base != NULL ? p->slabs[i].pages[id % p->per_slab].refs
                                                          : 0;
}

bool pages_copy(struct pages *p, uint32_t id, uint32_t *copy)
{
    live_page(p, id);
    if (!pages_take(p, copy))
        return false;
    memcpy(pages_at(p, *copy), pages_at(p, id), p->page_bytes);
    pages_unref(p, id);
    STORE(p->copied, LOAD(p->copied) + 1);
    return true;
}

void *pages_at(const struct pages *p, uint32_t id)
{
    return p->slabs[id / p->per_slab].base + id % p->per_slab * p->page_bytes;
}

void pages_set_open(struct pages *p, size_t bytes)
{
    check(bytes % 64 == 0 && p->open.used == 0 && p->open.free == NULL);
    p->open.bytes = bytes;
}

struct open_pages *pages_open(struct pages *p)
{
    return p->open.bytes > 0 ? &p->open : NULL;
}

size_t pages_open_bytes(const struct pages *p)
{
    return p->open.bytes;
}

size_t pages_bytes(const struct pages *p)
{
    return p->page_bytes;
}

struct arena *pages_arena(const struct pages *p)
{
    return p->arena;
}

unsigned pages_trim(struct pages *p, uint64_t now_ns, uint64_t idle_ns)
{
    unsigned n = 0;
    uint32_t used = LOAD(p->used), claims = claimed(p);
    uint32_t open = claims > used ? claims - used : 0;
    collect(p);
    for (uint32_t i = p->n_slabs_max; i-- > 0;) {
        struct slab *s = &p->slabs[i];
        if (s->base == NULL || s->n_free < p->per_slab)
            continue;
        if (s->empty_since == 0)
            s->empty_since = now_ns;
        if (now_ns - s->empty_since < idle_ns || p->n_owned == 1 || p->n_free - p->per_slab < open)
            continue;
        give_back(p, i);
        n++;
    }
    return n;
}

void pages_counts(const struct pages *p, struct pages_counts *c)
{
    *c = (struct pages_counts){.used = LOAD(p->used),
                               .idle = LOAD(p->idle),
                               .reserved = claimed(p),
                               .total = pages_total(p),
                               .taken = LOAD(p->taken),
                               .copied = LOAD(p->copied)};
}
