/* verify.h: drafts in the scheduler's steps.
 *
 *     text of a decoding sequence   ... t | d0 d1 d2        drafts behind its last token
 *     the step's rows                   r0  r1 r2 r3        what the target draws after each
 *     drawn                             d0  d1 x            d0, d1 were right; x comes for d2
 *     kept                              t   d0 d1           K and V of these; x is the next token
 *
 * A sequence that decodes gives its drafts to the step as if they were its tokens; each row is drawn
 * in order, with what the tokens before it make of position, noise and penalties, until one is not
 * what was guessed (draw.h). So the tokens are those of a run without drafts, and so are their
 * logits, by the model's rule. The positions of wrong guesses are forgotten by truncating the block
 * table before any page goes to the prefix cache.
 *
 * Drafts use pages that are promised anyway. In a step that computes prompts they count as tokens of
 * these: their time is taken off the prompts' room (pace.h), and there are only as many as bring more
 * than that. Where a guess made the numbers of a sequence not finite, it is put back and goes on without
 * drafts: alone it would not have failed. */
#ifndef SCHED_VERIFY_H
#define SCHED_VERIFY_H

#include <stdint.h>

#include "core/sched/batch.h"

struct sched;

/* The sequence is there: its text can be drafted for; and gone. */
void verify_join(struct sched *s, struct sequence *q);
void verify_leave(struct sched *s, struct sequence *q);
/* The step took ns: what its pace learns from that. */
void verify_pace(struct sched *s, uint64_t ns);
/* Before a step is planned: the drafts of all sequences that decode. */
void verify_propose(struct sched *s);
/* Of the member's drafts, n were right. */
void verify_learn(struct sched *s, struct batch_member *m, uint32_t n);
/* After the step, which took ns and gave its decodes n_made tokens. */
void verify_settle(struct sched *s, uint32_t n_made, uint64_t ns);

#endif
