#include "core/model/plan.h"

#include <stdlib.h>

#include "alloc/pages.h"
#include "core/base/check.h"
#include "core/base/xalloc.h"

static void init_queries(struct plan_queries *q, uint32_t max_tokens)
{
    q->blocks = xreallocarray(NULL, max_tokens, sizeof *q->blocks);
    q->tokens = xreallocarray(NULL, max_tokens, sizeof *q->tokens);
}

void plan_init(struct plan *plan, uint32_t max_tokens)
{
    *plan = (struct plan){0};
    plan->spans = xreallocarray(NULL, max_tokens, sizeof *plan->spans);
    init_queries(&plan->all, max_tokens);
    init_queries(&plan->asked, max_tokens);
}

void plan_release(struct plan *plan)
{
    free(plan->spans);
    free(plan->all.blocks);
    free(plan->all.tokens);
    free(plan->asked.blocks);
    free(plan->asked.tokens);
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

/* Appends a token to the last block, or begins one: `same` tells that the last block is of its
 * sequence. */
static void add_query(struct plan_queries *q, uint32_t token, const struct step_token *t, bool same,
                      void *const *pages)
{
    struct plan_block *block = q->n_blocks > 0 ? &q->blocks[q->n_blocks - 1] : NULL;
    if (block == NULL || !same || block->n == PLAN_BLOCK_TOKENS ||
        block->first + block->n != token) {
        block = &q->blocks[q->n_blocks++];
        *block = (struct plan_block){.first = token, .query = q->n_tokens, .pages = pages};
    }
    block->n++;
    block->runs = t->position / KV_RUN_POSITIONS + 1;
    q->most_runs = block->runs > q->most_runs ? block->runs : q->most_runs;
    q->tokens[q->n_tokens++] = token;
}

void plan_make(struct plan *plan, const struct step *step, const struct kv_geometry *geometry,
               uint32_t vocab)
{
    check(pages_bytes(step->pool) == geometry->page);
    resolve_pages(plan, step);
    plan->n_spans = 0;
    plan->all.n_blocks = plan->all.n_tokens = plan->all.most_runs = 0;
    plan->asked.n_blocks = plan->asked.n_tokens = plan->asked.most_runs = 0;
    for (uint32_t i = 0; i < step->n_tokens; i++) {
        const struct step_token *t = &step->tokens[i];
        const struct step_token *before = i > 0 ? &step->tokens[i - 1] : NULL;
        check(t->token < vocab && t->sequence < step->n_sequences);
        uint32_t page = t->position / KV_TILE_POSITIONS, at = t->position % KV_TILE_POSITIONS;
        check(page < step->sequences[t->sequence].n_pages);
        bool same = before != NULL && before->sequence == t->sequence;
        struct plan_table *table = &plan->tables[t->sequence];
        check(same ? t->position > before->position : !table->begun);
        table->begun = true;

        if (same && t->position == before->position + 1 && at != 0)
            plan->spans[plan->n_spans - 1].n++;
        else
            plan->spans[plan->n_spans++] = (struct plan_span){i, 1, at, table->pages[page]};

        add_query(&plan->all, i, t, same, table->pages);
        if (t->logits)
            add_query(&plan->asked, i, t, same, table->pages);
    }
}
