#include "core/model/plan.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/pages.h"
#include "core/base/check.h"
#include "core/base/xalloc.h"

static void init_queries(struct plan_queries *q, uint32_t max_tokens)
{
    q->blocks = xreallocarray(NULL, max_tokens, sizeof *q->blocks);
    q->items = xreallocarray(NULL, max_tokens, sizeof *q->items);
    q->tokens = xreallocarray(NULL, max_tokens, sizeof *q->tokens);
}

static void release_queries(struct plan_queries *q)
{
    free(q->blocks);
    free(q->items);
    free(q->tokens);
}

void plan_init(struct plan *plan, uint32_t max_tokens, uint32_t shares)
{
    *plan = (struct plan){.shares = shares};
    plan->spans = xreallocarray(NULL, max_tokens, sizeof *plan->spans);
    init_queries(&plan->all, max_tokens);
    init_queries(&plan->asked, max_tokens);
}

void plan_release(struct plan *plan)
{
    free(plan->spans);
    release_queries(&plan->all);
    release_queries(&plan->asked);
    free(plan->pages);
    free(plan->tables);
    *plan = (struct plan){0};
}

/* Page ids → addresses, once a step. */
static void resolve_pages(struct plan *plan, const struct step *step)
{
    size_t total = 0;
    for (uint32_t s = 0; s < step->n_sequences; s++)
        total += step->sequences[s].n_pages;
    if (total > plan->pages_cap) {
        plan->pages_cap = total + total / 2;
        plan->pages = xreallocarray(plan->pages, plan->pages_cap, sizeof *plan->pages);
    }
    if (step->n_sequences > plan->tables_cap) {
        plan->tables_cap = step->n_sequences;
        plan->tables = xreallocarray(plan->tables, plan->tables_cap, sizeof *plan->tables);
    }
    size_t at = 0;
    for (uint32_t s = 0; s < step->n_sequences; s++) {
        const struct step_sequence *sequence = &step->sequences[s];
        plan->tables[s] = (struct plan_table){plan->pages + at, false};
        for (uint32_t i = 0; i < sequence->n_pages; i++)
            plan->pages[at++] = pages_at(step->pool, sequence->pages[i]);
    }
}

/* Tokens of a block at most. Where heads alone don't make equal shares, a step of few tokens needs smaller blocks. */
static uint32_t block_tokens(const struct plan *plan, const struct step *step)
{
    uint32_t share = (step->n_tokens + plan->shares - 1) / plan->shares;
    if (plan->shares == 1 || share > PLAN_BLOCK_TOKENS)
        return PLAN_BLOCK_TOKENS;
    return share > PLAN_LEAST_TOKENS ? share : PLAN_LEAST_TOKENS;
}

/* Appends a token to the last block, or begins one: `same` tells that the last block is of its
 * sequence. */
static void add_query(struct plan_queries *q, uint32_t token, const struct step_token *t, bool same,
                      uint32_t most, void *const *pages, const struct step_sequence *sequence)
{
    struct plan_block *block = q->n_blocks > 0 ? &q->blocks[q->n_blocks - 1] : NULL;
    if (block == NULL || !same || block->n >= most || block->first + block->n != token) {
        block = &q->blocks[q->n_blocks++];
        *block = (struct plan_block){
            .first = token, .query = q->n_tokens, .pages = pages, .sequence = sequence};
    }
    block->n++;
    block->runs = t->position / KV_RUN_POSITIONS + 1;
    block->n_pages = t->position / KV_TILE_POSITIONS + 1;
    q->most_runs = block->runs > q->most_runs ? block->runs : q->most_runs;
    q->tokens[q->n_tokens++] = token;
}

/* Leading runs, before the last one of both, that have the same pages. */
static uint32_t same_runs(const struct plan_block *a, const struct plan_block *b)
{
    uint32_t runs = (a->runs < b->runs ? a->runs : b->runs) - 1, r = 0;
    while (r < runs && memcmp(a->pages + r * KV_RUN_TILES, b->pages + r * KV_RUN_TILES,
                              KV_RUN_TILES * sizeof(*a->pages)) == 0)
        r++;
    return r;
}

/* By pages, then from few to many runs, then as they stood. */
static int by_pages(const void *a, const void *b)
{
    const struct plan_block *x = a, *y = b;
    uint32_t same = same_runs(x, y);
    if (same + 1 < x->runs && same + 1 < y->runs)
        return memcmp(x->pages + same * KV_RUN_TILES, y->pages + same * KV_RUN_TILES,
                      KV_RUN_TILES * sizeof(*x->pages));
    if (x->runs != y->runs)
        return x->runs < y->runs ? -1 : 1;
    return x->query < y->query ? -1 : 1;
}

/* Orders the blocks and cuts them into items. */
static void make_items(struct plan_queries *q, const struct plan *plan, uint32_t n_sequences)
{
    /* So many tokens an item leave items for all threads. */
    uint32_t most = q->n_tokens / plan->shares, tokens = 0;
    most = most < PLAN_ITEM_TOKENS ? most : PLAN_ITEM_TOKENS;
    bool may_share = q->most_runs > 1 && n_sequences > 1;
    if (may_share)
        qsort(q->blocks, q->n_blocks, sizeof *q->blocks, by_pages);
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        struct plan_block *block = &q->blocks[i], *before = block - 1;
        block->shared = 0;
        if (may_share && i > 0 && block->pages != before->pages && tokens + block->n <= most)
            block->shared = same_runs(before, block);
        if (block->shared == 0) {
            q->items[q->n_items++] = (struct plan_item){.first = i};
            tokens = 0;
        }
        struct plan_item *item = &q->items[q->n_items - 1];
        item->n++;
        item->runs = block->runs > item->runs ? block->runs : item->runs;
        tokens += block->n;
        q->pages += block->n_pages - block->shared * KV_RUN_TILES;
    }
}

static void clear_queries(struct plan_queries *q)
{
    q->n_blocks = q->n_tokens = q->n_items = q->most_runs = 0;
    q->pages = 0;
}

void plan_make(struct plan *plan, const struct step *step, const struct kv_geometry *geometry,
               uint32_t vocab)
{
    check(pages_bytes(step->pool) == geometry->page);
    check(pages_open_bytes(step->pool) == geometry->open_page);
    resolve_pages(plan, step);
    const uint32_t most = block_tokens(plan, step);
    plan->n_spans = 0;
    clear_queries(&plan->all);
    clear_queries(&plan->asked);
    for (uint32_t i = 0; i < step->n_tokens; i++) {
        const struct step_token *t = &step->tokens[i];
        const struct step_token *before = i > 0 ? &step->tokens[i - 1] : NULL;
        check(t->token < vocab && t->sequence < step->n_sequences);
        uint32_t page = t->position / KV_TILE_POSITIONS, at = t->position % KV_TILE_POSITIONS;
        const struct step_sequence *sequence = &step->sequences[t->sequence];
        check(page < sequence->n_pages);
        void *open = NULL;
        if (geometry->open_page > 0) {
            check(page - sequence->open_first < sequence->n_open);
            open = sequence->open[page - sequence->open_first];
        }
        bool same = before != NULL && before->sequence == t->sequence;
        struct plan_table *table = &plan->tables[t->sequence];
        check(same ? t->position > before->position : !table->begun);
        table->begun = true;

        if (same && t->position == before->position + 1 && at != 0)
            plan->spans[plan->n_spans - 1].n++;
        else
            plan->spans[plan->n_spans++] = (struct plan_span){i, 1, at, table->pages[page], open};

        add_query(&plan->all, i, t, same, most, table->pages, sequence);
        if (t->logits)
            add_query(&plan->asked, i, t, same, most, table->pages, sequence);
    }
    make_items(&plan->all, plan, step->n_sequences);
    make_items(&plan->asked, plan, step->n_sequences);
}
