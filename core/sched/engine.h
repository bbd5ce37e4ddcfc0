/* engine.h: what the scheduler needs of a model, as a table of functions, so that scheduling can be
 * tested without weights (tests/unit/sched has an engine of a few lines).
 *
 * The step and its rules are core/model/model.h's. Everything here is called by the scheduler
 * thread alone. */
#ifndef SCHED_ENGINE_H
#define SCHED_ENGINE_H

#include <stdint.h>

struct kernels;
struct model;
struct step;
struct team;

struct sched_engine {
    void *data; /* first argument of step */
    uint32_t n_vocab;
    uint32_t logits_stride; /* floats from one row of logits to the next, a multiple of 16 */
    uint32_t context;       /* positions that the model can handle */
    uint32_t max_tokens;    /* tokens of a step at most */
    const struct kernels *kernels;
    struct team *team; /* draws the tokens of a step in parallel */
    /* One pass over the batch. logits gets one row for each token that wants one, in the order of
     * the tokens. */
    void (*step)(void *data, const struct step *step, float *logits);
    /* Bytes of K and V that the last step read. May be NULL: not known. */
    uint64_t (*kv_read)(void *data);
};

/* The engine of a loaded model, which stays the caller's. kernels and team: those it was loaded
 * with. */
struct sched_engine sched_engine_of(struct model *model, const struct kernels *kernels,
                                    struct team *team);

#endif
