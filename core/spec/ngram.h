/* ngram.h: the drafter that looks the end of a text up in the text itself.
 *
 *     ... a b c d e f ... x b c d | ?        the last three tokens stood there before:
 *           ^^^^^ ^ ^                        e f ... are proposed
 *
 * Of all earlier places the one with the longest equal past counts, among equals the latest; two
 * tokens at least. What follows may run into the draft itself: so a loop goes on in its period. No
 * state, nothing but the text. Source: prompt lookup decoding (A. Saxena, 2023). */
#ifndef SPEC_NGRAM_H
#define SPEC_NGRAM_H

#include "core/spec/drafter.h"

#define NGRAM_LEAST 2u /* equal tokens that a proposal wants */
#define NGRAM_MOST 16u /* the search ends where so many are equal */

/* The length of the longest earlier match of the text's end, 0 if under NGRAM_LEAST; *next: index of
 * the token that followed it. */
uint32_t ngram_find(const uint32_t *tokens, uint32_t n_tokens, uint32_t *next);

struct drafter *ngram_drafter(void);

#endif
