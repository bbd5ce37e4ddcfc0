/* ngram.h: the drafter that looks the end of a text up in the text itself.
 *
 *     ... a b c d e f ... x b c d | ?        the last three tokens stood there before:
 *           ^^^^^ ^ ^                        e f ... are proposed
 *
 * Of all earlier places the one with the longest equal past counts, among equals the latest; two
 * tokens at least. What follows may run into the draft itself: so a loop goes on in its period. No
 * state, nothing but the text. Source: prompt lookup decoding (A. Saxena, 2023).
 *
 * Another place with an equal past, the latest, is asked, too: where it goes on alike a guess is
 * right twice as often as where nothing else is found, and where it does not half as often. */
#ifndef SPEC_NGRAM_H
#define SPEC_NGRAM_H

#include "core/spec/drafter.h"

#define NGRAM_LEAST 2u /* equal tokens that a proposal wants */
#define NGRAM_MOST 16u /* so many are as good as more */

/* Indices are into the text, and behind it into its draft. */
struct ngram_match {
    uint32_t length; /* 0: nothing of NGRAM_LEAST tokens was found */
    uint32_t next;   /* what followed there */
    uint32_t other;  /* what followed at the latest other place; 0: there is none */
};

/* Looks the end of a text with n_draft drafted tokens behind it up in the text. */
struct ngram_match ngram_find(const uint32_t *tokens, uint32_t n_tokens, const uint32_t *draft,
                              uint32_t n_draft);
/* Appends what is found behind the text and its draft to the draft. Returns whether there was
 * anything. */
bool ngram_extend(struct draft_text *t);

struct drafter *ngram_drafter(void);

#endif
