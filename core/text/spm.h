/* spm.h: SentencePiece-style merging of a fragment of text: spaces become U+2581, characters are
 * symbols, and the adjacent pair that forms the token with the highest score merges, the leftmost
 * of equals first. A character that is no token becomes byte tokens. O(n log n) in the fragment's
 * length. */
#ifndef TEXT_SPM_H
#define TEXT_SPM_H

#include "core/text/tokenizer.h"

/* Appends the fragment's tokens to out; space_prefix puts a space in front first. Fragments of 1
 * GiB and more fail (STATUS_TOO_LARGE). */
enum status spm_encode(const struct vocab *v, struct slice fragment, bool space_prefix,
                       struct token_list *out, struct error *err);

#endif
