#include "tools/draft/head.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"
#include "tools/draft/ops.h"

size_t head_bytes(uint32_t tokens, uint32_t width)
{
    return ((size_t)tokens * width + 2 * (size_t)HEAD_TOKENS * tokens) * sizeof(real);
}

void head_init(struct head *head, uint32_t tokens, uint32_t width, const struct kernels *kernels)
{
    size_t logits = (size_t)HEAD_TOKENS * tokens * sizeof(real);
    *head = (struct head){
        tokens,           width,           xaligned((size_t)tokens * width * sizeof(real)), kernels,
        xaligned(logits), xaligned(logits)};
}

void head_release(struct head *head)
{
    free(head->rows);
    free(head->student);
    free(head->teacher);
    *head = (struct head){0};
}

static void logits_of(const struct head *head, size_t n, const real *h, real *logits)
{
    multiply(n, head->tokens, head->width, 1, plain(h, head->width),
             turned(head->rows, head->width), 0, logits, head->tokens);
}

real head_loss(struct head *head, size_t n, const real *h, const real *teacher, const real *weight,
               real *dh)
{
    real loss = 0;
    size_t width = head->width;
    for (size_t at = 0; at < n; at += HEAD_TOKENS) {
        size_t now = n - at < HEAD_TOKENS ? n - at : HEAD_TOKENS;
        logits_of(head, now, h + at * width, head->student);
        logits_of(head, now, teacher + at * width, head->teacher);
        for (size_t i = 0; i < now; i++) {
            real *row = head->student + i * head->tokens, w = weight[at + i];
            if (w != 0) /* a state that nobody learns from may be anything */
                loss += w * distil_row(head->kernels, head->tokens, row,
                                       head->teacher + i * head->tokens);
            for (uint32_t v = 0; v < head->tokens; v++)
                row[v] *= w;
        }
        multiply(now, width, head->tokens, 1, plain(head->student, head->tokens),
                 plain(head->rows, width), 0, dh + at * width, width);
    }
    return loss;
}

void head_best(struct head *head, size_t n, const real *h, uint32_t *best, real *logit)
{
    for (size_t at = 0; at < n; at += HEAD_TOKENS) {
        size_t now = n - at < HEAD_TOKENS ? n - at : HEAD_TOKENS;
        logits_of(head, now, h + at * head->width, head->student);
        for (size_t i = 0; i < now; i++) {
            const real *row = head->student + i * head->tokens;
            uint32_t top = 0;
            for (uint32_t v = 1; v < head->tokens; v++)
                top = row[v] > row[top] ? v : top;
            best[at + i] = top;
            logit[at + i] = row[top];
        }
    }
}
