/* bpe.h: byte-level BPE of one word: its bytes are symbols, and the adjacent pair with the lowest
 * rank merges, the leftmost of equals first, until no pair is left. O(n log n) in the word's
 * length. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "core/text/merge_heap.h"
#include "core/text/tokenizer.h"

struct bpe_symbol {
    uint32_t id; /* TOKEN_NONE: merged into its left neighbour */
    uint32_t prev, next;
};

/* Scratch memory of one caller, kept from word to word; { 0 } is empty. */
struct bpe {
    struct bpe_symbol *symbols;
    size_t cap;
    struct merge_heap heap;
};

void bpe_release(struct bpe *b);
/* Appends the word's tokens to out. A symbol that is no token becomes the tokens of its bytes; a
 * byte that has no token (some vocabularies lack those that UTF-8 never uses) is left out. */
void bpe_encode(struct bpe *b, const struct vocab *v, struct slice word, struct token_list *out);

#endif
