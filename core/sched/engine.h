/* engine.h: what the scheduler needs of a model, as a table of functions, so that scheduling can be tested
 * without weights (tests/unit/sched has an engine of a few lines).
 *
 * The step and its rules are core/model/model.h's `struct step`: many tokens of one sequence are allowed, their
 * positions ascend; all positions before them are in the sequence's pages; the pages of their own positions are
 * writable. Everything here is called by the scheduler thread alone. */
#ifndef SCHED_ENGINE_H
#define SCHED_ENGINE_H

#include <stdint.h>

struct model;
struct step;

struct sched_engine {
    void *data;       /* first argument of the functions */
    uint32_t n_vocab;
    uint32_t context; /* positions that the model can handle */
    /* One pass over the batch. logits gets one row of n_vocab floats for each token that wants them, in the
     * order of the tokens. */
    void (*step)(void *data, struct step *step, float *logits);
    /* Calls fn(arg, i) for all i < n, spread over the compute threads; NULL: the scheduler loops itself. */
    void (*parallel)(void *data, void (*fn)(void *arg, uint32_t i), void *arg, uint32_t n);
};

/* The engine of a loaded model, which stays the caller's. */
struct sched_engine sched_engine_of(struct model *model);

#endif
