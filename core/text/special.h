/* special.h: finds special tokens written out in a text.
 *
 * Longer tokens are cut out first, wherever they are, then shorter ones from what is left; of one
 * length the leftmost first (llama.cpp's rule). Immutable after special_init, except for the memory
 * of a search, which is the caller's. */
#ifndef TEXT_SPECIAL_H
#define TEXT_SPECIAL_H

#include "core/text/vocab.h"

struct special {
    const struct vocab *v;
    uint32_t *ids; /* sorted by text */
    uint32_t n;
    uint32_t first[257]; /* ids[first[b]..first[b + 1]) begin with the byte b */
    uint32_t *lengths;   /* the lengths that occur, descending */
    uint32_t n_lengths;
};

struct special_hit {
    size_t at;
    uint32_t len; /* 0: no hit after all */
    uint32_t id;
};

/* Takes the user-defined tokens of v, with `all` also control and unknown ones. v must outlive s.
 */
void special_init(struct special *s, const struct vocab *v, bool all);
void special_release(struct special *s);
/* The hits in text, ascending and disjoint; the array is the caller's to free, *n its length (NULL
 * and 0 if there are none). */
struct special_hit *special_find(const struct special *s, struct slice text, size_t *n);

#endif
