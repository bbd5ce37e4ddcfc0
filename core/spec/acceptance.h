/* acceptance.h: how often guesses were right, by how the drafter came to them and by their place in
 * the draft.
 *
 *     tried    [kind][group]   guesses that the target got to (all before them were right)
 *     accepted [kind][group]   those that were right
 *
 * Two tables: of one request, and of all. What is known of all stands for a few tries of the
 * request, and a guess about the kind for a few tries of all; so an estimate is never 0, never 1,
 * and a request's own experience rules after about ten tokens. Counts decay: they are halved when
 * they are full. Pure functions. */
#ifndef SPEC_ACCEPTANCE_H
#define SPEC_ACCEPTANCE_H

#include <stdint.h>

#define DRAFT_MAX 16u   /* tokens of a draft at most */
#define DRAFT_GROUPS 5u /* places 0, 1, 2-3, 4-7, 8-15 */

/* How a guess came about. TEXT: the last 2, 3, ... tokens stood earlier in the same text; STORE: in
 * a recent answer to somebody of the same salt; MODEL: the draft model gave it a probability of up
 * to 0.2, 0.4, ... */
enum draft_kind {
    DRAFT_TEXT_2,
    DRAFT_TEXT_3,
    DRAFT_TEXT_4,
    DRAFT_TEXT_6,
    DRAFT_TEXT_10,
    DRAFT_STORE_3,
    DRAFT_STORE_6,
    DRAFT_STORE_10,
    DRAFT_MODEL_0,
    DRAFT_MODEL_20,
    DRAFT_MODEL_40,
    DRAFT_MODEL_60,
    DRAFT_MODEL_80,
    DRAFT_KINDS
};

struct acceptance {
    float tried[DRAFT_KINDS][DRAFT_GROUPS];
    float accepted[DRAFT_KINDS][DRAFT_GROUPS];
};

/* The kind of a guess after n equal tokens in the same text, in the store; of a model that gave it
 * probability p. */
enum draft_kind draft_kind_text(uint32_t n);
enum draft_kind draft_kind_store(uint32_t n);
enum draft_kind draft_kind_model(float p);

/* Probability that a guess of this kind at place `place` of a draft is right if those before it
 * are. */
double acceptance_of(const struct acceptance *all, const struct acceptance *mine,
                     enum draft_kind kind, uint32_t place);
/* The same for a guess of the draft model whose kind is not known yet. */
double acceptance_of_model(const struct acceptance *all, const struct acceptance *mine,
                           uint32_t place);
/* Learns that of `n` guesses of these kinds the first `right` were right, and the next one, if there
 * is one, wrong. */
void acceptance_learn(struct acceptance *all, struct acceptance *mine, const uint8_t *kinds,
                      uint32_t n, uint32_t right);

#endif
