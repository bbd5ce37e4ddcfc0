/* controller.h: how far to draft.
 *
 * For a step of m sequences, each of which may offer a draft, it takes from the drafts those tokens
 * that make the most tokens of a nanosecond, over the whole step:
 *
 *     rate(k) = (m + sum of the k best chances) / cost(m + k rows)        k = 0 ... budget
 *
 * The chance of a token is that it and all before it in its draft are right, so the best k are
 * always the beginnings of drafts. cost() is measured (cost.h), chances are (acceptance.h). Under
 * load a row costs more of a step, a token gained is a smaller part of it: k falls to 0 by itself.
 *
 * Never losing: an account is kept of the time that drafting saved and cost, by what was accepted in
 * truth. It starts with a little, earns CONTROLLER_EARN of every step, and holds no more than
 * CONTROLLER_SAVED steps; below zero nothing is drafted. So whatever the estimates say, drafting
 * costs no more than CONTROLLER_EARN of the time and a few steps. The same account pays for probes: where nothing is
 * worth drafting, now and then one token is tried all the same, to learn whether that has changed.
 *
 * No clock: times are given. */
#ifndef SPEC_CONTROLLER_H
#define SPEC_CONTROLLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/spec/cost.h"
#include "core/spec/drafter.h"

#define CONTROLLER_MARGIN 1.01 /* drafting must promise so much more than not drafting */
#define CONTROLLER_EARN 0.01   /* of a step's time goes to the account */
#define CONTROLLER_START 1.0   /* the account's beginning, in steps */
#define CONTROLLER_SAVED 3.0   /* its most */
#define CONTROLLER_PROBE 16u   /* steps between two probes at least */
#define CONTROLLER_REFRESH 64u /* drafted steps in a row until one goes without, to measure it */

struct controller {
    bool always;           /* drafts are made and verified whole, whatever that costs: for tests */
    struct cost step;      /* by rows: sequences and drafted tokens */
    struct cost model;     /* a pass of the draft model, by rows */
    struct acceptance all; /* of all requests */
    double account;        /* ns; see above */
    bool begun;            /* the account has had its start */
    bool probes;           /* the draft model was asked on trial, for one text of this step */
    uint32_t since_probe;  /* steps */
    uint32_t drafted_in_a_row; /* steps */
};

/* Cuts the drafts of the n texts (all that take part in the step; a draft may be empty) to what is
 * worth verifying, together at most budget tokens. */
void controller_plan(struct controller *c, struct draft_text **texts, uint32_t n, uint32_t budget);

/* Whether the draft model is worth a pass for n texts whose best draft so far is of `chance` each:
 * its guesses would be at place `place`. Part of drafter.propose. */
bool controller_wants_model(struct controller *c, const struct draft_text *t, uint32_t n,
                            uint32_t place, double chance);

/* A step of n texts with n_drafted tokens took ns; in it, emitted tokens came out. draft_ns was
 * spent on making the drafts. alone: nothing else, as prompt tokens, was in the step. */
void controller_settle(struct controller *c, uint32_t n, uint32_t n_drafted, uint32_t emitted,
                       double ns, double draft_ns, bool alone);

#endif
