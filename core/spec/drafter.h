/* drafter.h: who guesses the next tokens of a text, for the target to verify.
 *
 *     text      [ prompt ........ | made ...... ]                    the scheduler's tokens
 *     draft                                      [ d0 | d1 | d2 ]    guesses of what follows
 *     kinds                                        how sure the drafter was of each (acceptance.h)
 *
 * A drafter may propose anything: the target draws every token itself, with the same noise, and a
 * guess is kept only where it is what was drawn. So drafts decide about speed, never about output.
 *
 * A draft_text is the drafters' view of one sequence. Its owner (the scheduler) sets tokens, counts
 * and `most` before each call; drafters fill `draft`. Drafters are asked in order, each for the
 * texts whose draft is still empty. One thread. */
#ifndef SPEC_DRAFTER_H
#define SPEC_DRAFTER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/siphash.h"
#include "core/model/sample.h"
#include "core/spec/acceptance.h"

struct controller;

struct draft {
    uint32_t n;
    uint32_t tokens[DRAFT_MAX];
    uint8_t kinds[DRAFT_MAX]; /* enum draft_kind */
};

struct draft_text {
    const uint32_t *tokens; /* prompt and answer so far */
    uint32_t n_tokens, n_prompt;
    uint32_t most; /* tokens wanted at most, up to DRAFT_MAX; 0: none */
    struct siphash salt;
    const struct sample_params *sampling;
    struct draft draft;
    struct acceptance mine;
    uint32_t drafted, accepted; /* tokens verified, and of those confirmed */
    uint32_t fed, fed_guesses;  /* tokens that the draft model has seen, and guesses behind them */
    void *model;                /* the draft model's state (model_drafter.h), or NULL */
};

struct drafter {
    const char *name;
    bool is_model; /* its guesses cost time */
    /* Fills the drafts of those texts whose draft is empty and whose `most` is not 0. */
    void (*propose)(struct drafter *d, struct draft_text **texts, uint32_t n, struct controller *c);
    /* The text ends (or ends to be drafted for): its state goes. May be NULL. */
    void (*finish)(struct drafter *d, struct draft_text *text);
    void (*free)(struct drafter *d);
};

static inline void draft_add(struct draft *d, uint32_t token, enum draft_kind kind)
{
    d->tokens[d->n] = token;
    d->kinds[d->n++] = (uint8_t)kind;
}

#endif
