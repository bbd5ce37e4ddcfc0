/* lookup.h: the token that followed when the text's last tokens stood here before: what a server
 * proposes for nothing, before it asks a draft. */
#ifndef TOOLS_DRAFT_LOOKUP_H
#define TOOLS_DRAFT_LOOKUP_H

#include <stdint.h>

#define LOOKUP_NONE UINT32_MAX
#define LOOKUP_LEAST 2u /* tokens that must agree */
#define LOOKUP_MOST 5u

/* A guess for the token behind n tokens: the continuation of the longest earlier match of their end
 * (2 … 5 tokens), the latest of equally long ones. */
static inline uint32_t lookup_next(const uint32_t *tokens, uint32_t n)
{
    uint32_t best = LOOKUP_LEAST - 1, guess = LOOKUP_NONE;
    for (uint32_t at = n - 1; n > 1 && at-- > 0 && best < LOOKUP_MOST;) {
        uint32_t same = 0; /* tokens that end at `at` and at n − 1 alike */
        while (same < LOOKUP_MOST && same <= at && tokens[at - same] == tokens[n - 1 - same])
            same++;
        if (same > best) {
            best = same;
            guess = tokens[at + 1];
        }
    }
    return guess;
}

#endif
