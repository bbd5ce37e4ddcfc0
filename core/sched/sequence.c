#define _GNU_SOURCE
#include "core/sched/sequence.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/model/hash.h"

struct generation *generation_new(uint64_t id, uint32_t *tokens, uint32_t n_tokens)
{
    struct generation *g = xcalloc(1, sizeof(*g));
    g->id = id;
    g->tokens = tokens;
    g->n_tokens = n_tokens;
    g->max_tokens = SCHED_REST;
    g->n_choices = 1;
    g->n_top = -1;
    g->priority = SCHED_PRIORITY_DEFAULT;
    g->arrival_ns = clock_ns();
    g->sampling = sample_params_default();
    return g;
}

/* The same, for the k-th further choice. */
static struct generation *copy_generation(const struct generation *from, uint32_t k)
{
    struct generation *g = xmalloc(sizeof(*g));
    *g = *from;
    g->tokens = xmalloc(g->n_tokens * sizeof(*g->tokens));
    memcpy(g->tokens, from->tokens, g->n_tokens * sizeof(*g->tokens));
    if (g->bias != NULL) {
        g->bias = xmalloc(g->n_bias * sizeof(*g->bias));
        memcpy(g->bias, from->bias, g->n_bias * sizeof(*g->bias));
        g->sampling.bias = g->bias;
    }
    g->sampling.choice += k;
    return g;
}

void generation_free(struct generation *g)
{
    if (g == NULL)
        return;
    free(g->tokens);
    free(g->bias);
    free(g);
}

struct sequence *sequence_new(struct generation *g, uint64_t serial, uint32_t limit, bool grows,
                              struct prefix_cache *cache)
{
    struct sequence *s = xcalloc(1, sizeof(*s));
    list_init(&s->node);
    list_init(&s->kin);
    s->forks = g->n_choices - 1;
    s->id = g->id;
    s->serial = serial;
    s->generation = g;
    s->tokens = g->tokens;
    s->tokens_cap = g->n_tokens;
    s->n_prompt = g->n_tokens;
    s->limit = limit;
    s->grows = grows;
    s->priority = g->priority;
    s->cache = cache;
    s->hash = LOGITS_HASH_START;
    s->needs_history = sample_needs_state(&g->sampling);
    for (uint32_t i = 0; i < s->n_prompt && s->needs_history; i++)
        sample_state_add(&s->history, &g->sampling, s->tokens[i], false);
    return s;
}

static void drop_memory(struct sequence *s, struct pages *pool)
{
    if (s->entry != NULL)
        prefix_cache_touch(s->cache, s->entry, s->generation->priority, clock_ns());
    s->entry = NULL;
    s->n_shared = 0;
    if (s->state != SEQUENCE_WAITING)
        block_table_release(&s->table);
    pages_unreserve(pool, s->promised);
    s->promised = 0;
}

void sequence_free(struct sequence *s, struct pages *pool)
{
    drop_memory(s, pool);
    list_remove(&s->node);
    list_remove(&s->kin);
    free(s->chain);
    sample_state_release(&s->history);
    s->generation->tokens = s->tokens;
    generation_free(s->generation);
    free(s);
}

/* Positions to promise when `needed` are needed now. */
static uint32_t positions_ahead(const struct sequence *s, uint32_t needed, uint32_t ahead)
{
    uint32_t most = sequence_positions_max(s);
    return !s->grows || most - needed < ahead ? most : needed + ahead;
}

/* ---- the prefix cache ---- */

/* The hash of the text up to the end of page k, all of whose tokens are known. */
static struct siphash chain_at(struct sequence *s, uint32_t k)
{
    if (k >= s->chain_cap) {
        s->chain_cap = k + 1 + s->n_prompt / BLOCK_POSITIONS;
        s->chain = xreallocarray(s->chain, s->chain_cap, sizeof(*s->chain));
    }
    for (; s->n_chain <= k; s->n_chain++) {
        uint32_t n = s->n_chain;
        struct siphash before = n > 0 ? s->chain[n - 1] : s->generation->salt;
        s->chain[n] = prefix_cache_next(s->cache, before, s->tokens + n * BLOCK_POSITIONS);
    }
    return s->chain[k];
}

/* Pages that a lookup may take. */
static uint32_t takeable(const struct sequence *s)
{
    return s->cache != NULL ? (sequence_tokens(s) - 1) / BLOCK_POSITIONS : 0;
}

/* What the cache has of page k behind parent. */
static struct prefix_entry *find(struct sequence *s, const struct prefix_entry *parent, uint32_t k)
{
    return prefix_cache_find(s->cache, parent, chain_at(s, k), s->tokens + k * BLOCK_POSITIONS);
}

/* The next page of the table is the entry's. promised: under a promise of the sequence. */
static void adopt(struct sequence *s, struct pages *pool, struct prefix_entry *e, bool promised)
{
    uint32_t page = prefix_entry_page(e);
    bool passes = pages_idle(pool, page);
    block_table_adopt(&s->table, page);
    if (promised && !passes)
        pages_unreserve(pool, 1);
    s->promised -= promised || passes;
    s->entry = e;
    s->n_shared++;
    s->n_seen += BLOCK_POSITIONS;
}

/* How many pages the cache has of it; *idle: those of them that nobody uses. */
static uint32_t look_up(struct sequence *s, uint32_t *idle, const struct pages *pool)
{
    uint32_t hits = 0;
    struct prefix_entry *e, *last = NULL;
    for (; hits < takeable(s) && (e = find(s, last, hits)) != NULL; hits++) {
        *idle += pool != NULL && pages_idle(pool, prefix_entry_page(e));
        last = e;
    }
    return hits;
}

uint32_t sequence_cached_pages(struct sequence *s)
{
    uint32_t idle = 0;
    return look_up(s, &idle, NULL);
}

bool sequence_admit(struct sequence *s, struct pages *pool, uint32_t ahead, uint64_t now_ns)
{
    check(s->state == SEQUENCE_WAITING);
    uint32_t n = block_pages_for(positions_ahead(s, sequence_tokens(s), ahead));
    uint32_t idle = 0, hits = look_up(s, &idle, pool);
    /* What choices share is claimed once only where the cache keeps it. */
    s->fork_pages = n - (s->cache != NULL ? s->n_prompt / BLOCK_POSITIONS : 0);
    uint32_t promise = n - hits + s->forks * s->fork_pages;
    /* Pages that others use are claimed already; idle ones need a promise to become claimed. */
    if (!pages_reserve(pool, promise + idle))
        return false;
    s->promised = promise + idle;
    s->state = SEQUENCE_PREFILL;
    s->n_seen = 0;
    block_table_init(&s->table, pool);
    for (uint32_t k = 0; k < hits; k++)
        adopt(s, pool, find(s, s->entry, k), false);
    if (s->admitted_ns == 0)
        s->admitted_ns = now_ns;
    if (!s->started)
        s->n_cached = s->n_seen;
    return true;
}

void sequence_follow(struct sequence *s, struct pages *pool)
{
    struct prefix_entry *e;
    if (s->n_seen != s->n_shared * BLOCK_POSITIONS)
        return;
    while (s->n_shared < takeable(s) && (e = find(s, s->entry, s->n_shared)) != NULL)
        adopt(s, pool, e, true);
    if (!s->started)
        s->n_cached = s->n_seen;
}

bool sequence_waits_for(struct sequence *s, struct sequence *other)
{
    uint32_t k = s->n_shared;
    if (other == s || other->state != SEQUENCE_PREFILL || other->paused || other->cache == NULL ||
        k >= takeable(s) || s->n_seen != k * BLOCK_POSITIONS)
        return false;
    if (other->n_seen / BLOCK_POSITIONS != k || other->level < s->level ||
        sequence_tokens(other) < (k + 1) * BLOCK_POSITIONS)
        return false;
    if (other->n_seen == s->n_seen && other->level == s->level && other->serial > s->serial)
        return false;
    struct siphash mine = chain_at(s, k), its = chain_at(other, k);
    return mine.word[0] == its.word[0] && mine.word[1] == its.word[1];
}

void sequence_keep(struct sequence *s, struct pages *pool, uint64_t now_ns)
{
    while (s->cache != NULL && (s->n_shared + 1) * BLOCK_POSITIONS <= s->n_seen) {
        uint32_t k = s->n_shared, own = s->table.ids[k];
        struct prefix_entry *e = find(s, s->entry, k);
        if (e == NULL) {
            e = prefix_cache_add(s->cache, s->entry, chain_at(s, k),
                                 s->tokens + k * BLOCK_POSITIONS, own, s->generation->priority,
                                 now_ns);
        } else {
            uint32_t page = prefix_entry_page(e);
            bool passes = pages_idle(pool, page);
            pages_ref(pool, page);
            s->table.ids[k] = page;
            pages_unref(pool, own);
            if (!passes)
                pages_unreserve(pool, 1);
        }
        s->promised--;
        s->entry = e;
        s->n_shared++;
    }
}

const char *sequence_cache_word(struct sequence *s)
{
    static const char *const words[] = {[PREFIX_WHOLE] = "whole",
                                        [PREFIX_NEW] = "new",
                                        [PREFIX_DIVERGED] = "diverged",
                                        [PREFIX_EVICTED] = "evicted"};
    if (s->cache == NULL)
        return "off";
    if (takeable(s) == 0)
        return "short";
    if (s->n_shared >= takeable(s))
        return words[PREFIX_WHOLE];
    return words[prefix_cache_why(s->cache, s->entry, chain_at(s, s->n_shared))];
}

enum status sequence_extend(struct sequence *s, struct pages *pool, uint32_t count, uint32_t ahead)
{
    uint32_t need = block_pages_for(s->n_seen + count) - s->n_shared;
    if (need > s->promised) {
        check(s->grows);
        uint32_t most = block_pages_for(positions_ahead(s, s->n_seen + count, ahead));
        uint32_t want = most - s->n_shared - s->promised;
        if (!pages_reserve(pool, want)) {
            want = need - s->promised;
            if (!pages_reserve(pool, want))
                return STATUS_NO_MEMORY;
        }
        s->promised += want;
    }
    return block_table_append(&s->table, count) ? STATUS_OK : STATUS_LOADING;
}

uint32_t sequence_extend_draft(struct sequence *s)
{
    if (s->draft == NULL)
        return 0;
    uint32_t n = s->draft->draft.n, used = s->table.n_positions;
    uint32_t fits = (s->n_shared + s->promised) * BLOCK_POSITIONS - used;
    n = n < fits ? n : fits;
    if (n > 0 && !block_table_append(&s->table, n))
        n = 0;
    s->draft->draft.n = n;
    return n;
}

void sequence_advance(struct sequence *s, uint32_t n)
{
    s->n_seen += n;
    block_table_truncate(&s->table, s->n_seen);
}

struct sequence *sequence_fork(struct sequence *s, uint32_t k, uint64_t serial)
{
    check(s->forks > 0 && s->n_made == 0 && s->n_seen == s->n_prompt);
    struct sequence *f =
        sequence_new(copy_generation(s->generation, k), serial, s->limit, s->grows, s->cache);
    f->forks = 0;
    f->choice = k;
    list_append(&s->kin, &f->kin); /* so the ring is in the order of the choices */
    f->state = s->state;
    f->started = s->started;
    f->paused = s->paused;
    f->paused_ns = s->paused_ns;
    f->n_seen = s->n_seen;
    f->n_cached = s->n_cached;
    f->admitted_ns = s->admitted_ns;
    block_table_fork(&f->table, &s->table);
    f->n_shared = s->n_shared;
    f->entry = s->entry;
    f->promised = s->fork_pages;
    s->promised -= s->fork_pages;
    s->forks--;
    return f;
}

void sequence_abandon(struct sequence *s, struct pages *pool)
{
    check(s->state == SEQUENCE_PREFILL && s->n_made == 0);
    uint32_t need = block_pages_for(s->n_prompt) - s->n_shared;
    s->abandoned = true;
    s->paused = false;
    s->forks = 0;
    s->limit = 1;
    s->grows = false;
    pages_unreserve(pool, s->promised - need);
    s->promised = need;
}

void sequence_preempt(struct sequence *s, struct pages *pool)
{
    drop_memory(s, pool);
    if (s->draft != NULL)
        s->draft->draft.n = 0;
    s->state = SEQUENCE_WAITING;
    s->put_back = true;
    s->n_seen = 0;
}

void sequence_add(struct sequence *s, uint32_t token)
{
    uint32_t n = sequence_tokens(s);
    if (n == s->tokens_cap) {
        s->tokens_cap += s->tokens_cap / 2 + 64;
        s->tokens = xreallocarray(s->tokens, s->tokens_cap, sizeof(*s->tokens));
    }
    s->tokens[n] = token;
    s->n_made++;
    if (s->needs_history && s->history.n_tokens == n)
        sample_state_add(&s->history, &s->generation->sampling, token, true);
}
