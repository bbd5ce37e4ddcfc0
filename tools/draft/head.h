/* head.h: the trimmed head: the target's own rows of the vocabulary's most frequent tokens, frozen.
 *
 *     teacher: the target's stored final state · rowsᵀ   = its exact logits over these tokens
 *     student: net->h · rowsᵀ */
#ifndef TOOLS_DRAFT_HEAD_H
#define TOOLS_DRAFT_HEAD_H

#include <stdint.h>

#include "tools/draft/real.h"

struct kernels;

struct head {
    uint32_t tokens, width;
    real *rows; /* [tokens][width] */
    const struct kernels *kernels;
    real *student, *teacher; /* scratch: logits of HEAD_TOKENS tokens */
};

/* Tokens whose logits are in memory at once. */
#define HEAD_TOKENS 128u

size_t head_bytes(uint32_t tokens, uint32_t width);
/* rows: to be filled by the caller. */
void head_init(struct head *head, uint32_t tokens, uint32_t width, const struct kernels *kernels);
void head_release(struct head *head);

/* Σ weight · KL(teacher ‖ student) over n tokens, h and teacher [n][width], weights that add up to
 * what the caller likes. dh = its derivative by h. */
real head_loss(struct head *head, size_t n, const real *h, const real *teacher, const real *weight,
               real *dh);
/* The likeliest of the head's tokens (an index of its rows) for each of n states, and its logit. */
void head_best(struct head *head, size_t n, const real *h, uint32_t *best, real *logit);

#endif
