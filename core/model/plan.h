/* plan.h: one step's tokens, cut into the pieces that the stages of a forward pass hand out.
 *
 *     tokens   s0 p70 | s0 p71 | s1 p5 | s2 p62 | s2 p63 | s2 p64 | s2 p65
 *     spans    [ page 2      ]  [pg 0]  [ page 1        ]  [ page 2      ]    a page each: K, V written
 *     blocks   [             ]  [    ]  [                                ]    a sequence each: attention
 *
 * How tokens are cut changes who does what when, never the numbers. Neutral of the architecture. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model/model.h"

/* Tokens of a block at most: enough queries to share each K and V that is read. */
#define PLAN_BLOCK_TOKENS 16u

/* Consecutive positions of one sequence in one page. */
struct plan_span {
    uint32_t first, n; /* tokens of the step */
    uint32_t at;       /* position of the first one in the page */
    void *page;
};

/* Consecutive tokens of one sequence, in ascending positions. */
struct plan_block {
    uint32_t first, n;
    uint32_t query;     /* tokens in the blocks before it */
    uint32_t runs;      /* runs of KV_RUN_POSITIONS up to the last token's position */
    void *const *pages; /* of the sequence */
};

/* Blocks, and the tokens in them one after the other. */
struct plan_queries {
    uint32_t n_blocks, n_tokens;
    uint32_t most_runs; /* of a block */
    struct plan_block *blocks;
    uint32_t *tokens;
};

struct plan {
    uint32_t n_spans;
    struct plan_queries all, asked; /* of max_tokens tokens each */
    struct plan_span *spans;        /* max_tokens of them */
    void **pages;                   /* of all sequences, one after the other */
    size_t pages_cap;
    struct plan_table {
        void **pages; /* of one sequence */
        bool begun;   /* has had a token in this step */
    } * tables;
    size_t tables_cap;
};

void plan_init(struct plan *plan, uint32_t max_tokens);
void plan_release(struct plan *plan);
/* Cuts a step; checks (check.h) what its caller promised. */
void plan_make(struct plan *plan, const struct step *step, const struct kv_geometry *geometry,
               uint32_t vocab);

#endif
