/* batch.h: what runs in a step.
 *
 *      tokens   | a | b b' b'' | d | c c c c c c c c c | e e e |
 *                 decodes, one token each   prefill chunks, in fair.h's order
 *                 and its drafts
 *      rows       0   1 2  3     4                   5     -    logits rows of the tokens that want one
 *
 * A prompt whose next page another one is filling sits out until that page is in the prefix cache.
 *
 * Decodes always run, all of them. The prompt tokens of a step are bounded by prefill_chunk, and,
 * while others decode, by pace.h. */
#ifndef SCHED_BATCH_H
#define SCHED_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model/model.h"
#include "core/sched/fair.h"
#include "core/sched/pace.h"
#include "core/sched/sequence.h"

struct batch_member {
    struct sequence *sequence;
    uint32_t count; /* tokens in this step */
    bool draws; /* its last token's row of logits gives a token, and so do those of its drafts */
    uint32_t n_drafts; /* of the tokens, guesses that follow the sequence's own last one */
    uint32_t n_drawn;  /* out, by the drawer: 1 and the drafts that were right */
};

/* A token to be drawn. */
struct batch_draw {
    struct batch_member *member;
    uint32_t row;  /* the first; one more for each draft of the member */
    uint32_t slot; /* of the first token in what was drawn, as many */
    uint32_t fork; /* for the member's so many-th further choice; 0: its own */
};

struct batch {
    struct step_token *tokens;
    struct step_sequence *sequences; /* parallel to members */
    struct batch_member *members;
    struct batch_draw *draws; /* in the order of the rows */
    struct sequence **order;  /* those that prefill */
    uint32_t n_tokens, n_members, n_rows, n_draws, n_slots;
    uint32_t n_drafts;
    struct pace_work work; /* without drafts */
    bool waits;            /* somebody was left out because a page is not populated yet */
    uint32_t max_tokens, max_members;
};

void batch_init(struct batch *b, uint32_t max_tokens, uint32_t max_members);
void batch_release(struct batch *b);

/* Plans the next step over the running sequences and makes its positions writable. Where the pool
 * can promise no more, sequences are preempted, the last of `running` first: they leave `running` for `waiting`;
 * returns how many. */
uint32_t batch_plan(struct batch *b, struct queue *running, struct queue *waiting,
                    struct pages *pool, const struct pace *pace, uint32_t prefill_chunk,
                    uint32_t ahead, uint64_t now_ns);

#endif
