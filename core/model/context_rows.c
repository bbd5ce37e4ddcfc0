#include "core/model/context_rows.h"

#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"

void context_rows_init(struct context_rows *c, const struct matrix *head)
{
    struct error err = {0};
    *c = (struct context_rows){.head = head};
    void *memory = xaligned(matrix_bytes(head->type, CONTEXT_ROWS, head->cols));
    check(matrix_init(&c->rows, head->type, CONTEXT_ROWS, head->cols, memory, &err) == STATUS_OK);
}

void context_rows_release(struct context_rows *c)
{
    free(c->rows.data);
    *c = (struct context_rows){0};
}

void context_rows_add(struct context_rows *c, uint32_t token)
{
    uint32_t place = context_tokens_add(&c->set, token);
    if (place != CONTEXT_ROWS)
        matrix_copy_row(&c->rows, place, c->head, token);
}

bool context_rows_logits(const struct context_rows *c, const struct kernels *k, const float *hidden,
                         void *acts, float *logits)
{
    struct matrix m = c->rows;
    enum acts_kind kind = weight_info(m.type)->acts;
    struct acts packed = acts_make(kind, m.cols, acts);
    if (c->set.n == 0)
        return true;
    m.rows = c->set.n;
    m.panels = (m.rows + PANEL_ROWS - 1) / PANEL_ROWS;
    if (!k->pack[kind](hidden, m.cols, acts_column(&packed, 0)))
        return false;
    k->product[m.type](&m, 0, m.panels, &packed, 0, 1, logits, m.rows, false);
    return k->finite(logits, m.rows);
}
