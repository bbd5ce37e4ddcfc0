/* acceptance.h: how often guesses were right, by how the drafter came to them and by their place in
 * the draft.
 *
 *     tried    [kind][group]   guesses that the target got to (all before them were right)
 *     accepted [kind][group]   those that were right
 *
 * Two tables: of one request, and of all. What is known of all stands for some tries of the
 * request, and a guess about the kind for a few tries of all; so an estimate is never 0, never 1,
 * and a request's own experience rules after some ten tokens. Counts decay: they are halved when
 * they are full. Pure functions.
 *
 * The kinds are what tells right guesses from wrong ones best (docs/speculation.md has figures): for
 * a lookup the number of equal tokens before the guess, those of the draft included, and whether a
 * second place with an equal past goes on alike; for a model the probability that it gave. */
#ifndef SPEC_ACCEPTANCE_H
#define SPEC_ACCEPTANCE_H

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_MAX 16u   /* tokens of a draft at most */
#define DRAFT_GROUPS 3u /* places 0, 1-3, 4-15 */

/* What a second place in the text, where the same tokens stood before, says to a guess. */
enum draft_second { DRAFT_ALONE, DRAFT_CONFIRMED, DRAFT_DISPUTED, DRAFT_SECONDS };

#define DRAFT_LENGTHS 5u /* 2, 3, 4-5, 6-9, 10 and more equal tokens */
#define DRAFT_TENTHS 10u

/* How a guess came about. TEXT: the last tokens stood earlier in the same text, by length and
 * second; STORE: in a recent answer to somebody of the same salt; MODEL: the draft model gave it a
 * probability of up to 0.1, 0.2, ...; DRAWN: the same where tokens are drawn at a temperature, when
 * an unlikely guess is right more often, because target and draft have the same noise. */
enum draft_kind {
    DRAFT_TEXT = 0,
    DRAFT_STORE_3 = DRAFT_LENGTHS * DRAFT_SECONDS,
    DRAFT_STORE_6,
    DRAFT_STORE_10,
    DRAFT_MODEL,
    DRAFT_DRAWN = DRAFT_MODEL + DRAFT_TENTHS,
    DRAFT_KINDS = DRAFT_DRAWN + DRAFT_TENTHS
};

struct acceptance {
    float tried[DRAFT_KINDS][DRAFT_GROUPS];
    float accepted[DRAFT_KINDS][DRAFT_GROUPS];
};

/* The kind of a guess after n equal tokens in the same text, in the store; of a model that gave it
 * probability p, for a text that is drawn or not. */
enum draft_kind draft_kind_text(uint32_t n, enum draft_second second);
enum draft_kind draft_kind_store(uint32_t n);
enum draft_kind draft_kind_model(float p, bool drawn);

/* Probability that a guess of this kind at place `place` of a draft is right if those before it
 * are. */
double acceptance_of(const struct acceptance *all, const struct acceptance *mine,
                     enum draft_kind kind, uint32_t place);
/* Learns that of `n` guesses of these kinds the first `right` were right, and the next one, if there
 * is one, wrong. */
void acceptance_learn(struct acceptance *all, struct acceptance *mine, const uint8_t *kinds,
                      uint32_t n, uint32_t right);

#endif
