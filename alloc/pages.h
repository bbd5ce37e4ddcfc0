/* pages.h: a pool of equal pages, reference counted, named by u32 ids.
 *
 * One pool per (model, layer group, KV type). Pools of one arena share its slabs and its byte
 * limit.
 *
 *   slab s of the arena, when this pool has it            id = s * per_slab + k
 *   +--------+--------+--------+-- --+--------+-------+
 *   | page 0 | page 1 | page 2 | ... | page k | waste |   waste <= 3 % of the slab
 *   +--------+--------+--------+-- --+--------+-------+
 *
 *   free (poisoned) --take: zeroed, 1 reference--> live --last unref--> free (poisoned)
 *
 *   live, kept by the cache:  in use (others hold references) <--> idle (the cache's reference alone)
 *
 * Promises: whoever starts work reserves the pages that it may need at most (pages_reserve), so
 * that it never fails half-way; taking needs no further permission. Memory follows use, not
 * promises: the arena's helper keeps about one populated slab ahead of what is taken. pages_take
 * says false when that helper is behind; the caller leaves that sequence out of the step and tries
 * again when the pool's wake function was called.
 *
 * Pages that the prefix cache keeps: pages_keep turns a page into one that stays when its users are
 * gone. While in use it is claimed once, however many hold it: the promise that it was taken under
 * passes to the page itself. Idle it is claimed by nobody, and counts as free: where a take finds
 * no other page, the reclaim function must drop as many idle ones as it is asked for. The first
 * reference to an idle page uses up one promise of the caller, as a take does.
 *
 * Threads: one owner, the same for all pools of an arena (the scheduler), for everything but
 * pages_at and pages_counts. pages_at is called by compute threads inside a step, while the owner
 * changes nothing. The numbered rules of ownership: alloc/README.md. */
#ifndef ALLOC_PAGES_H
#define ALLOC_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/arena.h"
#include "alloc/open_pages.h"

struct pages;

#define PAGES_NONE UINT32_MAX /* no page has this id */

struct pages_counts {
    uint64_t used;     /* pages in use: with a reference that is not the cache's */
    uint64_t idle;     /* pages that the cache alone keeps */
    uint64_t reserved; /* pages promised, taken or not, and kept ones in use */
    uint64_t total;    /* pages that the limit allows this pool, were it alone */
    uint64_t taken;    /* pages_take calls that succeeded, ever */
    uint64_t copied;   /* copies on write, ever */
};

/* Called by the arena's helper thread when memory that a take was refused for is there. Must not
 * block. */
typedef void (*pages_wake_fn)(void *data);

/* Asked by the owner inside a take when no page is free and no memory can come: drops n idle pages
 * or more (pages_drop), fewer only if there are not so many. */
typedef void (*pages_reclaim_fn)(void *data, uint32_t n);

/* A pool of pages of page_bytes (a multiple of 64, one of arena_options.page_bytes). The first slab
 * is asked for at once, so that it is there when the first request comes. */
enum status pages_create(struct arena *arena, size_t page_bytes, struct pages **pool,
                         struct error *err);
/* Sets (or, with NULL, removes) the wake function; after it returns the old one is not called any
 * more. */
void pages_set_wake(struct pages *pool, pages_wake_fn wake, void *data);
/* Sets the reclaim function, NULL for none. */
void pages_set_reclaim(struct pages *pool, pages_reclaim_fn reclaim, void *data);
/* Gives all slabs back; every page must be free. */
void pages_free(struct pages *pool);

/* The most pages that can ever be promised at once. */
uint32_t pages_total(const struct pages *pool);
/* Promises n more pages; false if the limit does not allow that now. */
bool pages_reserve(struct pages *pool, uint32_t n);
/* Takes back a promise of n pages (at most what is promised). */
void pages_unreserve(struct pages *pool, uint32_t n);

/* True if n pages can be taken now. If not, the helper is asked for what is missing, and wake is
 * called later. */
bool pages_want(struct pages *pool, uint32_t n);
/* A zeroed page with one reference. False if no populated page is free now: wake is called later.
 * Never false after pages_want said true for so many. */
bool pages_take(struct pages *pool, uint32_t *id);
/* One more reference. To an idle page: one promise of the caller's goes to the page. */
void pages_ref(struct pages *pool, uint32_t id);
/* One reference less; the last one frees the page, and its bytes may not be read any more. */
void pages_unref(struct pages *pool, uint32_t id);
/* The cache keeps a page that is in use under a promise of the caller's, and takes a reference; the
 * promise goes to the page. */
void pages_keep(struct pages *pool, uint32_t id);
/* The cache drops an idle page: it is free. */
void pages_drop(struct pages *pool, uint32_t id);
/* Whether the page is kept and nobody uses it. */
bool pages_idle(const struct pages *pool, uint32_t id);
/* References of a page; 0 = free. */
uint32_t pages_refs(const struct pages *pool, uint32_t id);
/* A page with the same bytes and one reference, in place of one reference to id: copy on write. */
bool pages_copy(struct pages *pool, uint32_t id, uint32_t *copy);

/* From now on block tables over the pool hold open pages of that many bytes (a multiple of 64; 0: none) beside those that
 * are being filled (open_pages.h). Before the first table. */
void pages_set_open(struct pages *pool, size_t bytes);
/* NULL if there are none. */
struct open_pages *pages_open(struct pages *pool);
size_t pages_open_bytes(const struct pages *pool);

/* The page's bytes, 64-byte aligned. Any thread, during a step. */
void *pages_at(const struct pages *pool, uint32_t id);
size_t pages_bytes(const struct pages *pool);
struct arena *pages_arena(const struct pages *pool);

/* Gives slabs back to the system that have been empty for idle_ns at now_ns (clock_ns), one kept.
 * Returns how many. For a timer of the owner. */
unsigned pages_trim(struct pages *pool, uint64_t now_ns, uint64_t idle_ns);

/* Any thread; each figure is exact, together they may be of slightly different moments. */
void pages_counts(const struct pages *pool, struct pages_counts *counts);

#endif
