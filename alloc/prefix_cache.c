#include "alloc/prefix_cache.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/list.h"
#include "core/base/xalloc.h"

#define BUCKETS_FIRST 256u
#define GHOSTS 8192u /* entries dropped that are remembered; a power of two */

struct prefix_entry {
    struct list node;          /* lru[priority] */
    struct prefix_entry *next; /* in the bucket */
    struct prefix_entry *parent;
    struct siphash hash;
    uint64_t used_ns;
    uint32_t page;
    uint32_t n_children;
    uint32_t priority;
    uint32_t tokens[BLOCK_POSITIONS];
};

struct prefix_cache {
    struct pages *pool;
    unsigned char key[16];
    struct prefix_entry **buckets;
    uint32_t n_buckets; /* a power of two */
    uint32_t n_entries;
    /* Least recently used first. A use moves an entry, then those before it, to the end: behind an
     * entry never stands one of those that come after it in a text, unless both were in use when an
     * eviction passed them. */
    struct list lru[PREFIX_PRIORITIES];
    uint64_t *ghosts; /* half a hash of entries that are gone */
    uint64_t evicted, expired;
};

static void reclaim(void *data, uint32_t n)
{
    prefix_cache_evict(data, n);
}

struct prefix_cache *prefix_cache_create(struct pages *pool, const unsigned char key[16])
{
    struct prefix_cache *c = xcalloc(1, sizeof(*c));
    c->pool = pool;
    memcpy(c->key, key, sizeof(c->key));
    c->n_buckets = BUCKETS_FIRST;
    c->buckets = xcalloc(c->n_buckets, sizeof(*c->buckets));
    c->ghosts = xcalloc(GHOSTS, sizeof(*c->ghosts));
    for (unsigned i = 0; i < PREFIX_PRIORITIES; i++)
        list_init(&c->lru[i]);
    pages_set_reclaim(pool, reclaim, c);
    return c;
}

void prefix_cache_free(struct prefix_cache *c)
{
    if (c == NULL)
        return;
    prefix_cache_evict(c, UINT32_MAX);
    check(c->n_entries == 0);
    pages_set_reclaim(c->pool, NULL, NULL);
    free(c->buckets);
    free(c->ghosts);
    free(c);
}

struct siphash prefix_cache_root(const struct prefix_cache *c, const void *salt, size_t len)
{
    return siphash(c->key, salt, len);
}

struct siphash prefix_cache_next(const struct prefix_cache *c, struct siphash before,
                                 const uint32_t *tokens)
{
    struct {
        struct siphash before;
        uint32_t tokens[BLOCK_POSITIONS];
    } text = {.before = before};
    memcpy(text.tokens, tokens, sizeof(text.tokens));
    return siphash(c->key, &text, sizeof(text));
}

static struct prefix_entry **bucket_of(const struct prefix_cache *c, struct siphash hash)
{
    return &c->buckets[hash.word[0] & (c->n_buckets - 1)];
}

static uint64_t *ghost_of(const struct prefix_cache *c, struct siphash hash)
{
    return &c->ghosts[hash.word[0] & (GHOSTS - 1)];
}

struct prefix_entry *prefix_cache_find(const struct prefix_cache *c,
                                       const struct prefix_entry *parent, struct siphash hash,
                                       const uint32_t *tokens)
{
    struct prefix_entry *e = *bucket_of(c, hash);
    while (e != NULL && (e->hash.word[0] != hash.word[0] || e->hash.word[1] != hash.word[1] ||
                         e->parent != parent || memcmp(e->tokens, tokens, sizeof(e->tokens)) != 0))
        e = e->next;
    return e;
}

enum prefix_miss prefix_cache_why(const struct prefix_cache *c, const struct prefix_entry *parent,
                                  struct siphash hash)
{
    if (*ghost_of(c, hash) == hash.word[1])
        return PREFIX_EVICTED;
    return parent == NULL ? PREFIX_NEW : PREFIX_DIVERGED;
}

uint32_t prefix_entry_page(const struct prefix_entry *e)
{
    return e->page;
}

static void grow(struct prefix_cache *c)
{
    struct prefix_entry **old = c->buckets;
    uint32_t n = c->n_buckets;
    c->n_buckets *= 2;
    c->buckets = xcalloc(c->n_buckets, sizeof(*c->buckets));
    for (uint32_t i = 0; i < n; i++) {
        for (struct prefix_entry *e = old[i], *next; e != NULL; e = next) {
            struct prefix_entry **bucket = bucket_of(c, e->hash);
            next = e->next;
            e->next = *bucket;
            *bucket = e;
        }
    }
    free(old);
}

struct prefix_entry *prefix_cache_add(struct prefix_cache *c, struct prefix_entry *parent,
                                      struct siphash hash, const uint32_t *tokens, uint32_t page,
                                      unsigned priority, uint64_t now_ns)
{
    if (c->n_entries == c->n_buckets)
        grow(c);
    struct prefix_entry *e = xcalloc(1, sizeof(*e)), **bucket = bucket_of(c, hash);
    list_init(&e->node);
    e->next = *bucket;
    *bucket = e;
    e->parent = parent;
    e->hash = hash;
    e->page = page;
    memcpy(e->tokens, tokens, sizeof(e->tokens));
    if (parent != NULL)
        parent->n_children++;
    c->n_entries++;
    pages_keep(c->pool, page);
    prefix_cache_touch(c, e, priority, now_ns);
    return e;
}

void prefix_cache_touch(struct prefix_cache *c, struct prefix_entry *e, unsigned priority,
                        uint64_t now_ns)
{
    check(priority < PREFIX_PRIORITIES);
    for (; e != NULL; e = e->parent) {
        e->priority = e->priority > priority ? e->priority : priority;
        e->used_ns = now_ns;
        list_remove(&e->node);
        list_append(&c->lru[e->priority], &e->node);
    }
}

static void drop(struct prefix_cache *c, struct prefix_entry *e)
{
    struct prefix_entry **at = bucket_of(c, e->hash);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    list_remove(&e->node);
    *ghost_of(c, e->hash) = e->hash.word[1];
    if (e->parent != NULL)
        e->parent->n_children--;
    c->n_entries--;
    pages_drop(c->pool, e->page);
    free(e);
}

static uint64_t n_idle(const struct prefix_cache *c)
{
    struct pages_counts counts;
    pages_counts(c->pool, &counts);
    return counts.idle;
}

/* Drops up to n idle entries of one list that were last used at or before `since`. What cannot go is
 * moved to the end, so that the next walk does not meet it again at once. */
static uint32_t drop_from(struct prefix_cache *c, struct list *lru, uint32_t n, uint64_t since)
{
    uint32_t dropped = 0;
    for (uint32_t moved = 0; dropped < n && moved < c->n_entries && !list_empty(lru);) {
        struct prefix_entry *e = list_entry(lru->next, struct prefix_entry, node);
        if (e->used_ns > since && pages_idle(c->pool, e->page))
            break;
        if (e->n_children == 0 && pages_idle(c->pool, e->page)) {
            drop(c, e);
            dropped++;
            continue;
        }
        list_remove(&e->node);
        list_append(lru, &e->node);
        moved++;
    }
    return dropped;
}

uint32_t prefix_cache_evict(struct prefix_cache *c, uint32_t n)
{
    uint32_t dropped = 0;
    /* A child may have a lower priority than its parent, never a higher one; but one that was moved
     * may stand behind it: then another round drops the parent. */
    for (uint32_t before = UINT32_MAX; dropped < n && n_idle(c) > 0 && dropped != before;) {
        before = dropped;
        for (unsigned i = 0; i < PREFIX_PRIORITIES && dropped < n && n_idle(c) > 0; i++)
            dropped += drop_from(c, &c->lru[i], n - dropped, UINT64_MAX);
    }
    c->evicted += dropped;
    return dropped;
}

uint32_t prefix_cache_expire(struct prefix_cache *c, uint64_t now_ns, uint64_t idle_ns)
{
    uint32_t dropped = 0;
    if (now_ns < idle_ns)
        return 0;
    for (unsigned i = 0; i < PREFIX_PRIORITIES && n_idle(c) > 0; i++)
        dropped += drop_from(c, &c->lru[i], UINT32_MAX, now_ns - idle_ns);
    c->expired += dropped;
    return dropped;
}

void prefix_cache_counts(const struct prefix_cache *c, struct prefix_counts *counts)
{
    *counts = (struct prefix_counts){c->n_entries, c->evicted, c->expired};
}
