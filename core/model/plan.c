#include "core/model/plan.h"

#include <stdlib.h>

#include "alloc/pages.h"
#include "core/base/check.h"
#include "core/base/xalloc.h"

void plan_init(struct plan *plan, uint32_t max_tokens)
{
    *plan = (struct plan){0};
    plan->spans = xreallocarray(NULL, max_tokens, sizeof *plan->spans);
    plan->blocks = xreallocarray(NULL, max_tokens, sizeof *plan->blocks);
    plan->wanted = xreallocarray(NULL, max_tokens, sizeof *plan->wanted);
}

void plan_release(struct plan *plan)
{
    free(plan->spans);
    free(plan->blocks);
    free(plan->wanted);
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

void plan_make(struct plan *plan, const struct step *step, const struct kv_geometry *geometry,
               uint32_t vocab)
{
    check(pages_bytes(step->pool) == geometry->page);
    resolve_pages(plan, step);
    plan->n_spans = plan->n_blocks = plan->n_wanted = plan->most_runs = 0;
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

        if (!same || plan->blocks[plan->n_blocks - 1].n == PLAN_BLOCK_TOKENS)
            plan->blocks[plan->n_blocks++] = (struct plan_block){.first = i, .pages = table->pages};
        struct plan_block *block = &plan->blocks[plan->n_blocks - 1];
        block->n++;
        block->runs = t->position / KV_RUN_POSITIONS + 1;
        if (block->runs > plan->most_runs)
            plan->most_runs = block->runs;
        if (t->logits)
            plan->wanted[plan->n_wanted++] = i;
    }
}
