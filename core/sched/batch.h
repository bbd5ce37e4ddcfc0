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
 * while others decode, by what measured steps say keeps the time between two of their tokens within
 * `target` times that of a step of those decodes alone. */
#ifndef SCHED_BATCH_H
#define SCHED_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model/model.h"
#include "core/sched/fair.h"
#include "core/sched/sequence.h"

/* Mixed steps are planned for this share of the target, so that nearly all keep it, not half of them.
 * With a target of 3 a prompt gets 3/5 of the time, so it takes 5/3 as long as alone. */
#define PACE_MARGIN (5.0 / 6)
#define PACE_CHUNK_FIRST 16u /* prompt tokens of a mixed step while nothing is measured yet */
#define PACE_CHUNK_MIN 4u    /* those that it may always have */
#define PACE_CHUNK_ROUND 8u  /* from twice that on budgets are multiples of it, as kernels' tiles */

#define PACE_SIZES 13 /* steps of 1, 2, 3-4, 5-8, ... decodes are measured apart */

/* What steps cost on this machine, as running averages; 0 = not measured yet. */
struct pace {
    double target;                /* see above; at least 1 */
    double decode_ns[PACE_SIZES]; /* a step of decodes alone */
    double mixed_ns;              /* a prompt token beside decodes: beyond their time */
    double prefill_ns;            /* a prompt token in a step without decodes */
};

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
    uint32_t n_decodes, n_drafts, n_prefill; /* tokens of each kind */
    bool waits; /* somebody was left out because a page is not populated yet */
    uint32_t max_tokens, max_members;
};

void batch_init(struct batch *b, uint32_t max_tokens, uint32_t max_members);
void batch_release(struct batch *b);

/* Prompt tokens that a step with this many decodes may have. */
uint32_t pace_budget(const struct pace *p, uint32_t prefill_chunk, uint32_t n_decodes);
/* Learns from a step that took ns. */
void pace_learn(struct pace *p, const struct batch *b, uint64_t ns);

/* Plans the next step over the running sequences and makes its positions writable. Where the pool
 * can promise no more, sequences are preempted, the last of `running` first: they leave `running` for `waiting`;
 * returns how many. */
uint32_t batch_plan(struct batch *b, struct queue *running, struct queue *waiting,
                    struct pages *pool, const struct pace *pace, uint32_t prefill_chunk,
                    uint32_t ahead, uint64_t now_ns);

#endif
