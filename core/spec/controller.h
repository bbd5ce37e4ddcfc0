/* controller.h: how far to draft.
 *
 * A token gained is worth the time that a token takes, drafts and all, as measured over the last
 * steps; not the time that it would take without drafts, which is more. (The rule of renewal-reward
 * processes: what maximises tokens by time takes a further cost where it brings more than the rate
 * that is reached anyway.) For a step of m sequences, each of which may offer a draft, it takes
 * those drafted tokens whose gain is the highest, over the whole step:
 *
 *     gain(k) = worth * sum of the k best chances - (cost(m + k rows) - cost(m))   k = 0 ... budget
 *
 * The chance of a token is that it and all before it in its draft are right, so the best k are
 * always the beginnings of drafts. cost() is measured (cost.h), chances are (acceptance.h). Under
 * load a row costs more of a step, a token gained is a smaller part of it: k falls to 0 by itself.
 *
 * The draft model is asked where its time is less than what its guess may be expected to bring: how
 * sure it will be of it is not known before, but how often it was how sure is. What it says then
 * decides whether the guess is verified and whether another one is asked for:
 *
 *     ask(chance) = sum over kinds of share(kind) * max(0, v(kind)) - pass
 *     v(kind)     = worth * chance * acceptance(kind) - row + max(0, ask(chance * acceptance(kind)))
 *
 * looked at two guesses deep. Beside prompts a row costs what their tokens do, since they would be in
 * its place. A pass for a text that has grown meanwhile counts the tokens that the
 * draft model has to catch up with.
 *
 * Never losing: an account is kept of the time that drafting saved and cost, by what was accepted in
 * truth. It starts with a little, earns CONTROLLER_EARN of every step, and holds no more than
 * CONTROLLER_SAVED steps; no draft is longer than what the account can lose. So whatever the
 * estimates say, drafting costs no more than CONTROLLER_EARN of the time and a few steps. The same
 * account pays for probes: where nothing is worth drafting, now and then one token is tried all the
 * same, to learn whether that has changed.
 *
 * A step behind drafts costs more than a plain one, without drafts of its own, too: the draft model's
 * weights have pushed others out of the caches. So plain is only a step behind another one that had
 * no drafts; where all have, two go without now and then.
 *
 * No clock: times are given. */
#ifndef SPEC_CONTROLLER_H
#define SPEC_CONTROLLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/spec/cost.h"
#include "core/spec/drafter.h"

#define CONTROLLER_MARGIN 0.005 /* of a step: so much must drafting promise to bring */
#define CONTROLLER_EARN 0.006 /* of a step's time goes to the account */
#define CONTROLLER_START 1.0    /* the account's beginning, in steps */
#define CONTROLLER_SAVED 3.0    /* its most */
#define CONTROLLER_PROBE 16u    /* steps between two probes at least */
#define CONTROLLER_REFRESH 256u /* steps until two go without, to measure a plain one */

struct controller {
    uint32_t always;   /* that many tokens are drafted and verified in each step, whatever it costs:
                        for tests and measurements; 0: as many as pay */
    struct cost step;  /* by rows: sequences and drafted tokens */
    struct cost model; /* a pass of the draft model, by rows */
    double beside;     /* ns of a drafted token in this step, where it computes prompts; else 0 */
    struct acceptance all;          /* of all requests */
    float sure[2][2][DRAFT_TENTHS]; /* how often the model was how sure: of texts not drawn, drawn;
                                       of its first guess, later ones */
    double spent, made;             /* ns and tokens of the last steps, fading */
    double account;                 /* ns; see above */
    uint64_t passes;                /* of the draft model so far */
    double excess_ns;               /* of this step's passes: beyond what they can have cost */
    uint32_t n_asking;              /* texts of this step that may ask the draft model */
    bool begun;                     /* the account has had its start */
    bool probes;            /* the draft model was asked on trial, for one text of this step */
    uint32_t since_probe;   /* steps */
    bool undisturbed;       /* the last step had no drafts and no pass of the draft model */
    uint32_t since_plain;   /* steps since a plain one was measured */
    uint64_t passes_before; /* of the draft model, before this step */
};

/* Cuts the drafts of the n texts (all that take part in the step; a draft may be empty) to what is
 * worth verifying, together at most budget tokens. */
void controller_plan(struct controller *c, struct draft_text **texts, uint32_t n, uint32_t budget);

/* What the text's draft promises to bring in a step of n texts, in ns. */
double controller_gain(const struct controller *c, const struct draft_text *t, uint32_t n);
/* Whether the draft model is worth a pass for t in a step of n texts:
 * for a draft that is empty, its first guess, in place of a lookup that promises `instead` ns; else
 * a guess behind the draft, which is right up to there with probability `chance`. Part of
 * drafter.propose. */
bool controller_wants_model(struct controller *c, const struct draft_text *t, uint32_t n,
                            double chance, double instead);
/* The draft model guesses `token` next, with probability p in its eyes: appended to the draft.
 * Returns the probability that it is right if all before it are. */
double controller_guessed(struct controller *c, struct draft_text *t, uint32_t token, float p);

/* A pass of the draft model over so many rows took ns. What is beyond twice the usual is no cost of
 * drafting: the thread had lost its CPU. */
void controller_passed(struct controller *c, uint32_t rows, double ns);

/* A step of n texts with n_drafted tokens took ns; in it, emitted tokens came out. draft_ns was
 * spent on making the drafts. alone: nothing else, as prompt tokens, was in the step. */
void controller_settle(struct controller *c, uint32_t n, uint32_t n_drafted, uint32_t emitted,
                       double ns, double draft_ns, bool alone);

#endif
