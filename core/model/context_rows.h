/* context_rows.h: rows of the head for tokens that a draft's trimmed head lacks but that stand in the text.
 *
 * A head of the 8192 most frequent tokens can't propose a tenth of what is written: names, rare words.
 * Most of these stand in the text before they come again, so the rows of the text's own rare tokens
 * make up for nearly the whole head:
 *
 *     logits of a text   [ the draft's head: token map[i] ...... | context rows: tokens[j] ]
 *                          8192 rows, of all texts                 up to CONTEXT_ROWS, of this text
 *
 * The rows are copied out of the target's own head, panel to panel, as tokens appear; a token beyond CONTEXT_ROWS takes the place of the one that came first. Which tokens have rows depends on
 * the text alone. Cost of a pass: the bytes of these rows, for the default model 360 a row, so with a
 * hundred rows half a per cent of what the draft reads. */
#ifndef MODEL_CONTEXT_ROWS_H
#define MODEL_CONTEXT_ROWS_H

#include <stdbool.h>

#include "core/kernels/kernels.h"

/* In 50 texts of 233 tokens on average, 8 different ones on average lay outside of 8192, 35 at most. */
#define CONTEXT_ROWS 256u
/* Added to their logits before the two are compared: a draft learns over its head's tokens alone, so it believes in
 * others too little. Two drafts of the default model proposed 13 and 2.5 times as many rare tokens with it, 0.72 and 0.60
 * of them right, and agreed in 0.382 and 0.397 of the tokens instead of 0.369 and 0.389; 1 and 3 do about the same. */
#define CONTEXT_ROWS_LEAD 2.0f
/* Tokens of a text's end that are looked at when it begins, so that long prompts cost little. */
#define CONTEXT_ROWS_WINDOW 4096u

/* Which tokens of a text have rows: the latest CONTEXT_ROWS different ones that were added. */
struct context_tokens {
    uint32_t n, next; /* tokens [0, n) are there; place of the next one */
    uint32_t tokens[CONTEXT_ROWS];
};

/* Adds a token. Returns its new place, or CONTEXT_ROWS if it is there already. */
static inline uint32_t context_tokens_add(struct context_tokens *c, uint32_t token)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->tokens[i] == token)
            return CONTEXT_ROWS;
    uint32_t place = c->next;
    c->tokens[place] = token;
    c->next = (place + 1) % CONTEXT_ROWS;
    c->n = c->n < CONTEXT_ROWS ? c->n + 1 : CONTEXT_ROWS;
    return place;
}

struct context_rows {
    struct context_tokens set;
    const struct matrix *head; /* borrowed */
    struct matrix rows;        /* CONTEXT_ROWS of the same kind, of which set.n are filled */
};

/* head: of all tokens (model_info.target_head); must outlive it. */
void context_rows_init(struct context_rows *c, const struct matrix *head);
void context_rows_release(struct context_rows *c);
/* Adds a token that stands in the text and has no row in the draft's own head. */
void context_rows_add(struct context_rows *c, uint32_t token);
/* logits[j] = row of set.tokens[j] · hidden, a final state of the draft (model_step_hidden): the same bits
 * as a whole head's. acts: 64-byte aligned scratch of acts_stride(..., head->cols) of the largest
 * kind. False if a number is not finite. */
bool context_rows_logits(const struct context_rows *c, const struct kernels *k, const float *hidden,
                         void *acts, float *logits);

#endif
