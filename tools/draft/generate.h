/* generate.h: the target writes its own training texts.
 *
 * Many texts grow at once, in slots that share each step of the model; a finished one goes to the
 * corpus with the target's states, and the next begins. A text:
 *
 *     chat models   [system] user's turn (ours, or drawn at temperature 1) → answer (drawn greedily,
 *                   at 0.7 or at 1) → in a fifth of them a second turn
 *     other models  BOS, the first words of something, and on from there
 *
 * An answer ends with its end token, at its limit, or when it repeats itself. */
#ifndef TOOLS_DRAFT_GENERATE_H
#define TOOLS_DRAFT_GENERATE_H

#include "tools/draft/corpus.h"
#include "tools/draft/target.h"

struct generate_options {
    uint32_t threads, slots;
    uint64_t tokens; /* the corpus is to hold so many */
    uint64_t seed;
    /* Called after every step with the corpus's tokens and those still growing; false ends the work
     * (what is not finished is lost). */
    bool (*go_on)(void *data, uint64_t tokens, uint64_t growing);
    void *data;
};

/* Bytes of memory that it takes at most. */
uint64_t generate_bytes(const struct target *t, uint32_t slots);

/* Adds texts to the corpus until it holds enough, or until go_on says no. */
enum status generate(const struct target *t, const struct generate_options *options,
                     struct corpus *corpus, struct error *err);

/* Whether a text ends in a loop: a period of at most 16 tokens, for the last 48. */
bool generate_loops(const uint32_t *tokens, uint32_t n);

#endif
