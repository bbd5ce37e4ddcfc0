/* model_drafter.h: the drafter that is a small model.
 *
 *     text       [ ............... | t t t t t t t t t ]
 *     draft's                       0 1 2 3 4 5 6 7 8 | g g g     positions: the text's end, from 0,
 *                                                                  then its own guesses
 *
 * It sees the last tokens of a text, DRAFT_WINDOW of them when it begins, more as the text grows, up
 * to DRAFT_CONTEXT; then it begins anew. So catching up with a long prompt costs little, and a small model
 * hardly looks further. All texts that are drafted for go through it together, a pass for each place
 * of the drafts; a text leaves as soon as a further guess is not worth its time (controller.h).
 * Guesses that turn out right stay in its KV pages.
 *
 * Where its head is trimmed it can also propose the rare tokens that stand in the text (context_rows.h).
 *
 * Its pages come from a pool of its own. When there are no more than max_pages, texts go without. */
#ifndef SPEC_MODEL_DRAFTER_H
#define SPEC_MODEL_DRAFTER_H

#include "core/spec/drafter.h"

#define DRAFT_WINDOW 64u
#define DRAFT_CONTEXT 1024u
#define DRAFT_TEXTS 16u        /* texts that it drafts for at a time */
#define DRAFT_STEP_TOKENS 512u /* model_options.max_tokens of the draft */

struct kernels;
struct model;
struct pages;

/* model: loaded with the target named, DRAFT_STEP_TOKENS and a context of DRAFT_CONTEXT or the draft's, if that
 * is less, but of DRAFT_WINDOW + DRAFT_MAX at least. All are borrowed. */
struct drafter *model_drafter(struct model *model, const struct kernels *kernels,
                              struct pages *pool, uint32_t max_pages);

#endif
