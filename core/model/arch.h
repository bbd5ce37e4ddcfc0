/* arch.h: what a model architecture gives, and what it gets from model.c. Private to core/model.
 *
 *     model.c  knows files, memory, options, steps' promises, failure of sequences
 *     arch_*.c knows keys, tensor names and the forward pass of its architecture
 *
 * An architecture's state is its own struct; calls come in the order read, tensors (plan pass),
 * ready, borrow (a draft), tensors (load pass), then any number of steps, free. */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include "core/kernels/team.h"
#include "core/model/model.h"
#include "core/model/plan.h"
#include "core/model/weights.h"

/* What a forward pass works with. */
struct arch_step {
    const struct step *step;
    const struct plan *plan;
    float *logits; /* a row a wanted token */
    size_t logits_stride;
    float *hidden; /* NULL, or a row a wanted token: what the head takes */
};

struct arch {
    const char *name; /* general.architecture */
    /* Reads the keys (target: see model_options): fills info's sizes, makes the state. Every fault is named. */
    enum status (*read)(const struct gguf *g, const struct gguf *target, struct model_info *info,
                        void **state, struct error *err);
    /* Asks for every tensor (weights.h); fills info->tied. */
    enum status (*tensors)(void *state, struct weights *w, struct model_info *info,
                           struct error *err);
    /* Makes what is left to make before steps; maps scratch, *scratch is its size. */
    enum status (*ready)(void *state, const struct model_options *options,
                         const struct kv_geometry *geometry, size_t *scratch, struct error *err);
    /* Where the rows of its tokens are, for drafts. */
    const struct embedding *(*embedding)(const void *state);
    /* The head's rows of all tokens. */
    const struct matrix *(*head)(const void *state);
    /* A draft gets its target's embedding and head; they live longer. */
    void (*borrow)(void *state, const struct embedding *embedding, const struct matrix *head);
    /* One thread's part of a step. Sets sequences' failed (arch_fail). */
    void (*step)(void *state, const struct arch_step *in, struct team_member *me);
    /* One thread's part of the products of `layers` layers from the one numbered `first` on, for one token of zeros,
     * nothing else: reads weights as a decode does. */
    void (*multiply)(void *state, uint32_t first, uint32_t layers, struct team_member *me);
    void (*free)(void *state);
};

extern const struct arch arch_llama;

/* Marks the sequence of a step's token as failed; any thread. */
static inline void arch_fail(const struct step *step, uint32_t token)
{
    __atomic_store_n(&step->sequences[step->tokens[token].sequence].failed, true, __ATOMIC_RELAXED);
}

#endif
