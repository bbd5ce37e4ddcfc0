#define _GNU_SOURCE
#include "core/sched/sequence.h"

#include <stdlib.h>

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
    g->n_top = -1;
    g->arrival_ns = clock_ns();
    g->sampling = sample_params_default();
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

struct sequence *sequence_new(struct generation *g, uint64_t serial, uint32_t limit, bool grows)
{
    struct sequence *s = xcalloc(1, sizeof(*s));
    list_init(&s->node);
    s->id = g->id;
    s->serial = serial;
    s->generation = g;
    s->tokens = g->tokens;
    s->tokens_cap = g->n_tokens;
    s->n_prompt = g->n_tokens;
    s->limit = limit;
    s->grows = grows;
    s->hash = LOGITS_HASH_START;
    s->needs_history = sample_needs_state(&g->sampling);
    for (uint32_t i = 0; i < s->n_prompt && s->needs_history; i++)
        sample_state_add(&s->history, &g->sampling, s->tokens[i], false);
    return s;
}

static void drop_memory(struct sequence *s, struct pages *pool)
{
    if (s->state != SEQUENCE_WAITING)
        block_table_release(&s->table);
    pages_unreserve(pool, s->promised);
    s->promised = 0;
}

void sequence_free(struct sequence *s, struct pages *pool)
{
    drop_memory(s, pool);
    list_remove(&s->node);
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

bool sequence_admit(struct sequence *s, struct pages *pool, uint32_t ahead, uint64_t now_ns)
{
    check(s->state == SEQUENCE_WAITING);
    uint32_t n = block_pages_for(positions_ahead(s, sequence_tokens(s), ahead));
    if (!pages_reserve(pool, n))
        return false;
    s->promised = n;
    s->state = SEQUENCE_PREFILL;
    s->n_seen = 0;
    block_table_init(&s->table, pool);
    if (s->admitted_ns == 0)
        s->admitted_ns = now_ns;
    return true;
}

enum status sequence_extend(struct sequence *s, struct pages *pool, uint32_t count, uint32_t ahead)
{
    uint32_t need = block_pages_for(s->n_seen + count);
    if (need > s->promised) {
        check(s->grows);
        uint32_t want = block_pages_for(positions_ahead(s, s->n_seen + count, ahead)) - s->promised;
        if (!pages_reserve(pool, want)) {
            want = need - s->promised;
            if (!pages_reserve(pool, want))
                return STATUS_NO_MEMORY;
        }
        s->promised += want;
    }
    return block_table_append(&s->table, count) ? STATUS_OK : STATUS_LOADING;
}

void sequence_preempt(struct sequence *s, struct pages *pool)
{
    drop_memory(s, pool);
    s->state = SEQUENCE_WAITING;
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
    if (s->needs_history)
        sample_state_add(&s->history, &s->generation->sampling, token, true);
}
