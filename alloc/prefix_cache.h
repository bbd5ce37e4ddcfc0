/* prefix_cache.h: full pages of finished text, found again by the tokens that they hold.
 *
 *   salt ──▶ [tokens 0..31] ──▶ [32..63] ──▶ [64..95]        an entry: one page, its 32 tokens,
 *                    │  page 17       page 4       page 9     its parent, the hash of all before
 *                    └─────────▶ [32..63]
 *                                   page 31                   hash = SipHash128(key, parent's hash, tokens)
 *
 * The entries are a forest: what a page holds depends on all tokens before it, so an entry is the
 * text from the start to its own end. A lookup goes by the hash and then compares parent and tokens:
 * an equal hash alone gives nobody another one's page. The key is the caller's (random, one a
 * process). A salt is hashed into the root, so texts of different salts never meet.
 *
 * Rules:
 * 1. The cache holds one reference to each of its pages (pages_keep). A page in use is never
 *    dropped.
 * 2. Whoever holds the page of an entry holds those of all entries before it. So below an idle
 *    entry all are idle, and every idle page can be dropped, children first.
 * 3. Dropped is the idle entry without children that was least recently used, of the lowest
 *    priority there is. A use counts for the entry and all before it.
 * 4. Between two calls of pages_take, and inside of it, idle entries may go (the pool's reclaim
 *    function is the cache's); entries whose page the caller holds stay.
 *
 * Owner: the thread of the pool (the scheduler); prefix_cache_root and _next may be called by any
 * thread. */
#ifndef ALLOC_PREFIX_CACHE_H
#define ALLOC_PREFIX_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/block_table.h"
#include "alloc/pages.h"
#include "core/base/siphash.h"

#define PREFIX_PRIORITIES 10u /* 0 goes first, 9 last */

struct prefix_cache;
struct prefix_entry;

struct prefix_counts {
    uint64_t entries; /* pages in the cache, in use and idle */
    uint64_t evicted; /* pages dropped for want of memory, ever */
    uint64_t expired; /* pages dropped after their idle time, ever */
};

/* Why a text was found in the cache no further than it was. */
enum prefix_miss {
    PREFIX_WHOLE,    /* it was found as far as it can be */
    PREFIX_NEW,      /* its first page was never seen, or so long ago that nobody remembers */
    PREFIX_DIVERGED, /* its beginning is there; then other texts go on otherwise */
    PREFIX_EVICTED,  /* the next page was there once */
};

/* A cache over pool, whose reclaim function it becomes. */
struct prefix_cache *prefix_cache_create(struct pages *pool, const unsigned char key[16]);
/* Drops all pages; none may be in use. NULL is fine. */
void prefix_cache_free(struct prefix_cache *c);

/* The hash in front of the first page of texts with a salt of len bytes (0: none). */
struct siphash prefix_cache_root(const struct prefix_cache *c, const void *salt, size_t len);
/* The hash of a page of BLOCK_POSITIONS tokens behind the text with the hash before. */
struct siphash prefix_cache_next(const struct prefix_cache *c, struct siphash before,
                                 const uint32_t *tokens);

/* The entry behind parent (NULL: the first page) with that hash and those tokens, or NULL. */
struct prefix_entry *prefix_cache_find(const struct prefix_cache *c,
                                       const struct prefix_entry *parent, struct siphash hash,
                                       const uint32_t *tokens);
/* Why prefix_cache_find found nothing there. */
enum prefix_miss prefix_cache_why(const struct prefix_cache *c, const struct prefix_entry *parent,
                                  struct siphash hash);
uint32_t prefix_entry_page(const struct prefix_entry *e);
/* Keeps a page under hash and tokens, which must not be there yet; the caller holds it under a
 * promise, which passes to the page, and holds parent's page too. */
struct prefix_entry *prefix_cache_add(struct prefix_cache *c, struct prefix_entry *parent,
                                      struct siphash hash, const uint32_t *tokens, uint32_t page,
                                      unsigned priority, uint64_t now_ns);
/* The entry and all before it were used at now_ns by somebody of that priority. */
void prefix_cache_touch(struct prefix_cache *c, struct prefix_entry *e, unsigned priority,
                        uint64_t now_ns);

/* Drops up to n idle pages for want of memory; returns how many. */
uint32_t prefix_cache_evict(struct prefix_cache *c, uint32_t n);
/* Drops the idle pages that nobody used for idle_ns at now_ns; returns how many. */
uint32_t prefix_cache_expire(struct prefix_cache *c, uint64_t now_ns, uint64_t idle_ns);

void prefix_cache_counts(const struct prefix_cache *c, struct prefix_counts *counts);

#endif
