/* mask.h: which tokens may come next. The interface between what constrains a sequence (a grammar,
 * a schema) and what draws its tokens (the sampler, drafters). Wherever a struct token_mask * may
 * be NULL, everything is allowed.
 *
 * A mask belongs to one sequence and is used by one thread at a time. */
#ifndef TEXT_MASK_H
#define TEXT_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct token_mask {
    /* The tokens allowed at the next position: bit id % 64 of word id / 64, (n_vocab + 63) / 64
     * words; at least one bit is set. NULL: all are allowed. Valid until the next call on this
     * mask. */
    const uint64_t *(*allowed)(struct token_mask *mask);
    /* The sequence goes on with this token, one of those allowed. False if it was not allowed
     * (nothing changes). */
    bool (*advance)(struct token_mask *mask, uint32_t token);
    /* Takes back the last n tokens (a draft that was not accepted). */
    void (*rewind)(struct token_mask *mask, size_t n);
    void (*free)(struct token_mask *mask);
};

/* Whether the bitmap (NULL: everything) allows the token. */
static inline bool token_mask_has(const uint64_t *allowed, uint32_t token)
{
    return allowed == NULL || (allowed[token / 64] >> (token % 64) & 1);
}

#endif
