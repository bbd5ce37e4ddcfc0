#include "core/model/weights.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/huge.h"
#include "core/base/xalloc.h"

#define TABLE_PIECE ((size_t)64 << 10)

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

void weights_plan(struct weights *w, const struct gguf *g)
{
    *w = (struct weights){.gguf = g};
    gguf_tensors(g, &w->n_tensors);
    w->seen = xcalloc(w->n_tensors + 1, sizeof *w->seen);
}

enum status weights_check_complete(const struct weights *w, struct error *err)
{
    uint64_t n;
    const struct gguf_tensor *tensors = gguf_tensors(w->gguf, &n);
    for (uint64_t i = 0; i < n; i++)
        if (!w->seen[i])
            return error_set(
                err, STATUS_UNSUPPORTED,
                "tensor %.*s belongs to no part of this architecture that is supported",
                (int)(tensors[i].name.len < 100 ? tensors[i].name.len : 100), tensors[i].name.ptr);
    return STATUS_OK;
}

enum status weights_start(struct weights *w, struct error *err)
{
    check(w->block == NULL);
    w->block = huge_map(w->used, &w->size);
    if (w->block == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for %zu MiB of weights", w->used >> 20);
    w->used = 0;
    w->parts = xcalloc(w->n_tensors + 1, sizeof *w->parts);
    return STATUS_OK;
}

void weights_release(struct weights *w)
{
    huge_unmap(w->block, w->size);
    huge_unmap(w->table, w->table_mapped);
    free(w->parts);
    free(w->seen);
    *w = (struct weights){0};
}

static void shape_text(char *text, size_t size, const uint64_t *dims, uint32_t n)
{
    size_t len = 0;
    for (uint32_t i = 0; i < n && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%llu", i > 0 ? ", " : "",
                                (unsigned long long)dims[i]);
}

/* The tensor of that name with exactly these dimensions and a type that we can compute with. */
static enum status find(struct weights *w, const char *name, const uint64_t *dims, uint32_t n_dims,
                        const struct gguf_tensor **tensor, enum weight_type *type,
                        struct error *err)
{
    const struct gguf_tensor *t = gguf_tensor(w->gguf, name);
    if (t == NULL)
        return error_set(err, STATUS_CORRUPT, "the model has no tensor %s", name);
    bool same = t->n_dims == n_dims;
    for (uint32_t i = 0; i < n_dims && same; i++)
        same = t->dims[i] == dims[i];
    if (!same) {
        char have[100], want[100];
        shape_text(have, sizeof have, t->dims, t->n_dims);
        shape_text(want, sizeof want, dims, n_dims);
        return error_set(err, STATUS_CORRUPT, "tensor %s has shape [%s], expected [%s]", name, have,
                         want);
    }
    if (!weight_type_from_gguf(t->type, type))
        return error_set(err, STATUS_UNSUPPORTED, "tensor %s has type %s, which is not supported",
                         name, tensor_type_name(t->type));
    bool *seen = &w->seen[t - gguf_tensors(w->gguf, &w->n_tensors)];
    if (!*seen)
        w->parameters += dims[0] * (n_dims == 2 ? dims[1] : 1);
    *seen = true;
    *tensor = t;
    return STATUS_OK;
}

static void *give(struct weights *w, size_t bytes)
{
    size_t at = w->used;
    w->used += round_up(bytes, 64);
    if (w->block == NULL)
        return NULL;
    check(w->used <= w->size);
    return w->block + at;
}

static void add(struct weights *w, const struct weights_part *part)
{
    if (w->block == NULL)
        return;
    check(w->n_parts < w->n_tensors + 1);
    w->parts[w->n_parts++] = *part;
}

enum status weights_matrix(struct weights *w, const char *name, uint32_t rows, uint32_t cols,
                           struct matrix *m, struct error *err)
{
    const struct gguf_tensor *t;
    enum weight_type type;
    enum status status = find(w, name, (uint64_t[]){cols, rows}, 2, &t, &type, err);
    if (status != STATUS_OK)
        return status;
    struct error why = {0};
    if (matrix_init(m, type, rows, cols, NULL, &why) != STATUS_OK)
        return error_set(err, why.status, "tensor %s: %s", name, why.text);
    m->data = give(w, matrix_bytes(type, rows, cols));
    struct weights_part part = {.tensor = t,
                                .kind = PART_MATRIX,
                                .matrix = *m,
                                .to = m->data,
                                .pieces = m->panels,
                                .bytes = m->panel_bytes,
                                .from_file = PANEL_ROWS * weight_row_bytes(type, cols)};
    add(w, &part);
    return STATUS_OK;
}

enum status weights_vector(struct weights *w, const char *name, uint32_t n, const float **v,
                           struct error *err)
{
    const struct gguf_tensor *t;
    enum weight_type type;
    enum status status = find(w, name, (uint64_t[]){n}, 1, &t, &type, err);
    if (status != STATUS_OK)
        return status;
    if (weight_info(type)->acts != ACTS_F32)
        return error_set(err, STATUS_UNSUPPORTED, "tensor %s has type %s; F32 is expected", name,
                         weight_info(type)->name);
    float *dst = give(w, n * sizeof *dst);
    *v = dst;
    struct weights_part part = {.tensor = t,
                                .kind = PART_VECTOR,
                                .type = type,
                                .to = (uint8_t *)dst,
                                .pieces = 1,
                                .bytes = n * sizeof *dst,
                                .from_file = t->bytes};
    add(w, &part);
    return STATUS_OK;
}

enum status weights_embedding(struct weights *w, const char *name, uint32_t rows, uint32_t cols,
                              const struct matrix *same, struct embedding *e, struct error *err)
{
    const struct gguf_tensor *t;
    enum weight_type type;
    enum status status = find(w, name, (uint64_t[]){cols, rows}, 2, &t, &type, err);
    if (status != STATUS_OK)
        return status;
    *e = (struct embedding){same, type, rows, cols, NULL, weight_row_bytes(type, cols)};
    if (same != NULL)
        return STATUS_OK;
    w->table_bytes = t->bytes;
    if (w->block == NULL)
        return STATUS_OK;
    check(w->table == NULL);
    w->table = huge_map(t->bytes, &w->table_mapped);
    if (w->table == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for %llu MiB of embedding",
                         (unsigned long long)t->bytes >> 20);
    e->data = w->table;
    struct weights_part part = {.tensor = t,
                                .kind = PART_TABLE,
                                .to = w->table,
                                .pieces = (uint32_t)((t->bytes + TABLE_PIECE - 1) / TABLE_PIECE),
                                .bytes = TABLE_PIECE,
                                .from_file = TABLE_PIECE};
    add(w, &part);
    return STATUS_OK;
}

void weights_skip(struct weights *w, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(w->gguf, name);
    if (t != NULL)
        w->seen[t - gguf_tensors(w->gguf, &w->n_tensors)] = true;
}

void embedding_row(const struct embedding *e, uint32_t row, float *dst)
{
    if (e->matrix != NULL) {
        matrix_row(e->matrix, row, dst);
        return;
    }
    dequantise_row(e->type, e->data + row * e->row_bytes, e->cols, dst);
}
