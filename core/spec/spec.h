/* spec.h: speculative decoding as the scheduler sees it: drafters in their order, and the controller.
 *
 *     each step:  spec_propose(texts)  -> their drafts, as long as is worth verifying
 *                 the model's step over last tokens and drafts, draws, comparison
 *                 spec_learn(text, right) for each, spec_settle(step)
 *
 * In order: the text itself (ngram.h), recent answers (store.h), the draft model. The longest match
 * comes first because it costs nothing; the model is asked where there is none. Owner: the
 * scheduler thread. */
#ifndef SPEC_SPEC_H
#define SPEC_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "core/spec/controller.h"
#include "core/spec/drafter.h"

#define SPEC_STEP_MAX 64u /* drafted tokens of a step at most */

/* Where the time of steps went, for whoever measures: sums since it was last cleared. */
struct spec_account {
    uint64_t steps[DRAFT_MAX + 2]; /* by drafted tokens; the last: more */
    double step_ns[DRAFT_MAX + 2];
    double draft_ns;
    uint64_t passes; /* of the draft model */
    uint64_t drafted, right;
};

struct spec {
    struct spec_account account;
    struct controller controller;
    struct drafter *drafters[3];
    uint32_t n_drafters;
    uint64_t tried[DRAFT_MAX],
        right[DRAFT_MAX]; /* by place: verified where all before were right */
    double draft_ns;      /* what the last spec_propose took */
};

/* No drafter yet. */
struct spec *spec_create(void);
/* NULL is fine. Frees the drafters too. All texts must be finished. */
void spec_free(struct spec *s);
/* Takes over a drafter, to be asked after those that are there. */
void spec_add(struct spec *s, struct drafter *d);

/* A view of a text of that salt, without tokens yet. sampling: borrowed. */
struct draft_text *spec_join(struct spec *s, struct siphash salt,
                             const struct sample_params *sampling);
/* The text ended: drafters may keep what they want of it. Frees the view; NULL is fine. */
void spec_leave(struct spec *s, struct draft_text *t);
/* Fills the drafts of the n texts of a step, with at most budget tokens together. */
void spec_propose(struct spec *s, struct draft_text **texts, uint32_t n, uint32_t budget);
/* The text's draft was verified: its first `right` tokens are what the target drew. Empties it. */
void spec_learn(struct spec *s, struct draft_text *t, uint32_t right);
/* As controller_settle, with the time of the last spec_propose. */
void spec_settle(struct spec *s, uint32_t n, uint32_t n_drafted, uint32_t emitted, double ns,
                 bool alone);

#endif
