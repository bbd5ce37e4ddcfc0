/* plan.h: one step's tokens, cut into the pieces that the stages of a forward pass hand out.
 *
 *     tokens   s0 p70 | s0 p71 | s1 p5 | s2 p62 | s2 p63 | s2 p64 | s2 p65
 *     spans    [ page 2      ]  [pg 0]  [ page 1        ]  [ page 2      ]    a page each: K, V written
 *     blocks   [             ]  [    ]  [                                ]    a sequence each: attention
 *     items    [       A              ]  [             B                  ]    blocks: shared pages read once
 *
 * Sequences that begin with the same pages (a prompt in the prefix cache, choices of one prompt) read them together:
 * blocks are put in the order of their pages, so that those that share a run of KV_RUN_POSITIONS stand together, and
 * an item is a series of blocks each of which shares its first runs with the one before it:
 *
 *     run            0      1      2      3
 *     block 0       [a]    [b]    [c]    [d                shared 0
 *     block 1        |      |     [e]    [f]    [g         shared 2
 *     block 2        |      |      |     [h                shared 3        a, b, e are read once
 *
 * How tokens are cut changes who does what when, never the numbers. Neutral of the architecture. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model/model.h"

/* Tokens of a block at most: enough queries to share each K and V that is read. */
#define PLAN_BLOCK_TOKENS 16u

/* A smaller block is not worth the second reading of K and V. */
#define PLAN_LEAST_TOKENS 4u

/* Tokens of an item at most. */
#define PLAN_ITEM_TOKENS 64u

/* Consecutive positions of one sequence in one page. */
struct plan_span {
    uint32_t first, n; /* tokens of the step */
    uint32_t at;       /* position of the first one in the page */
    void *page;
    void *open; /* NULL: the KV type has none */
};

/* Consecutive tokens of one sequence, in ascending positions. */
struct plan_block {
    uint32_t first, n;
    uint32_t query;     /* tokens in the blocks before it */
    uint32_t runs;      /* runs of KV_RUN_POSITIONS up to the last token's position */
    uint32_t n_pages;   /* up to that position */
    void *const *pages; /* of the sequence */
    const struct step_sequence *sequence;
    /* Leading runs, before its last one, whose pages are those of the block before it in its item; 0 for the item's
     * first block. */
    uint32_t shared;
};

/* Blocks [first, first + n) that go through the runs together. */
struct plan_item {
    uint32_t first, n;
    uint32_t runs; /* most of a block */
};

/* Blocks, and the tokens in them one after the other. */
struct plan_queries {
    uint32_t n_blocks, n_tokens, n_items;
    uint32_t most_runs; /* of a block */
    uint64_t pages;     /* read by all items of a layer and KV head, shared ones once an item */
    struct plan_block *blocks;
    struct plan_item *items;
    uint32_t *tokens;
};

struct plan {
    uint32_t shares; /* items at least, if there are so many blocks: enough for all threads */
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

void plan_init(struct plan *plan, uint32_t max_tokens, uint32_t shares);
void plan_release(struct plan *plan);
/* Cuts a step; checks (check.h) what its caller promised. */
void plan_make(struct plan *plan, const struct step *step, const struct kv_geometry *geometry,
               uint32_t vocab);

#endif
