/* acceptance.h: how much of a text a drafter would have got accepted.
 *
 * A round proposes k tokens; the longest right beginning is accepted, the target gives one more, the
 * next round begins behind it. As accepted tokens are the text's own, whether a proposal is right
 * depends on the text alone: rounds are simulated exactly from one flag a token. */
#ifndef TOOLS_DRAFT_ACCEPTANCE_H
#define TOOLS_DRAFT_ACCEPTANCE_H

#include <stdbool.h>
#include <stdint.h>

#define ACCEPTANCE_LENGTHS 3u

struct acceptance {
    uint64_t tokens, right;
    uint64_t rounds[ACCEPTANCE_LENGTHS], accepted[ACCEPTANCE_LENGTHS]; /* k = 1, 2, 4 */
};

/* A run of n consecutive tokens, right[i]: the drafter's guess for token i is it. */
static inline void acceptance_add(struct acceptance *a, const bool *right, uint32_t n)
{
    static const uint32_t lengths[ACCEPTANCE_LENGTHS] = {1, 2, 4};
    a->tokens += n;
    for (uint32_t i = 0; i < n; i++)
        a->right += right[i];
    for (uint32_t k = 0; k < ACCEPTANCE_LENGTHS; k++)
        for (uint32_t at = 0; at < n;) {
            uint32_t same = 0;
            while (same < lengths[k] && at + same < n && right[at + same])
                same++;
            a->rounds[k]++;
            a->accepted[k] += same;
            at += same + 1;
        }
}

static inline double acceptance_share(const struct acceptance *a)
{
    return a->tokens == 0 ? 0 : (double)a->right / (double)a->tokens;
}

/* Accepted tokens a round; k: 0, 1, 2 for proposals of 1, 2, 4. */
static inline double acceptance_mean(const struct acceptance *a, uint32_t k)
{
    return a->rounds[k] == 0 ? 0 : (double)a->accepted[k] / (double)a->rounds[k];
}

#endif
