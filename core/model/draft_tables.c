#include "core/model/draft_tables.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"

#define MAP_KEY "tokenring.draft.token_map"

static enum status read_map(const struct gguf *g, uint64_t vocab, struct draft_tables *t,
                            struct error *err)
{
    struct gguf_array array;
    struct error found = {0};
    if (!gguf_array(g, MAP_KEY, &array, &found)) {
        if (found.status != STATUS_OK)
            *err = found;
        return found.status;
    }
    if ((array.type != GGUF_I32 && array.type != GGUF_U32) || array.count == 0 ||
        array.count > vocab)
        return error_set(err, STATUS_CORRUPT,
                         MAP_KEY " has %llu entries; from 1 to %llu token ids are expected",
                         (unsigned long long)array.count, (unsigned long long)vocab);
    t->n_map = (uint32_t)array.count;
    t->map = xreallocarray(NULL, t->n_map, sizeof(*t->map));
    for (uint32_t i = 0; i < t->n_map; i++) {
        uint64_t token = gguf_array_u64(&array, i);
        if (token >= vocab)
            return error_set(err, STATUS_UNSUPPORTED,
                             MAP_KEY " names token %llu; the target's vocabulary has %llu tokens",
                             (unsigned long long)token, (unsigned long long)vocab);
        t->map[i] = (uint32_t)token;
    }
    return STATUS_OK;
}

static const struct gguf_tensor *head_of(const struct draft_tables *t)
{
    const struct gguf_tensor *head = gguf_tensor(t->source, "output.weight");
    return head != NULL ? head : gguf_tensor(t->source, "token_embd.weight");
}

enum status draft_tables_find(const struct gguf *g, const struct gguf *target, uint32_t width,
                              struct draft_tables *t, struct error *err)
{
    const struct gguf_tensor *own = gguf_tensor(g, "token_embd.weight");
    const struct gguf_tensor *its = gguf_tensor(target, "token_embd.weight");
    if (its == NULL || its->n_dims != 2)
        return error_set(err, STATUS_UNSUPPORTED, "the target has no table token_embd.weight");
    if (own != NULL && (own->n_dims != 2 || own->dims[1] != its->dims[1]))
        return error_set(err, STATUS_UNSUPPORTED,
                         "the draft's vocabulary has %llu tokens, the target's %llu",
                         (unsigned long long)own->dims[1], (unsigned long long)its->dims[1]);
    if (own == NULL && its->dims[0] != width)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the draft's width is %u, that of the target, whose tables it borrows, "
                         "%llu",
                         width, (unsigned long long)its->dims[0]);
    t->source = own != NULL ? g : target;
    const struct gguf_tensor *head = head_of(t);
    enum weight_type type;
    if (weight_type_from_gguf(head->type, &type) && width % weight_info(type)->block_cols == 0)
        t->head_row = matrix_bytes(type, PANEL_ROWS, width) / PANEL_ROWS;
    return read_map(g, its->dims[1], t, err);
}

enum status draft_tables_head(struct draft_tables *t, uint32_t cols, struct matrix *m,
                              struct error *err)
{
    const struct gguf_tensor *table = head_of(t);
    enum weight_type type;
    if (!weight_type_from_gguf(table->type, &type))
        return error_set(err, STATUS_UNSUPPORTED, "the draft's head has type %s",
                         tensor_type_name(table->type));
    uint64_t vocab = gguf_tensor(t->source, "token_embd.weight")->dims[1];
    if (t->map == NULL && table->dims[1] != vocab)
        return error_set(err, STATUS_CORRUPT, "the draft's head has %llu rows for %llu tokens",
                         (unsigned long long)table->dims[1], (unsigned long long)vocab);
    uint32_t n = t->map != NULL ? t->n_map : (uint32_t)vocab;
    struct error why = {0};
    if (table->n_dims != 2 || table->dims[0] != cols || matrix_init(m, type, n, cols, NULL, &why))
        return error_set(err, STATUS_UNSUPPORTED, "the draft's head: rows of %llu numbers, not %u",
                         (unsigned long long)table->dims[0], cols);
    size_t row = weight_row_bytes(type, cols);
    t->memory = m->data = aligned_alloc(64, matrix_bytes(type, n, cols));
    unsigned char *rows = malloc(n * row);
    enum status status = STATUS_OK;
    if (rows == NULL || m->data == NULL)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the draft's head");
    if (t->map == NULL && status == STATUS_OK)
        status = gguf_read(t->source, table->offset, rows, n * row, err);
    for (uint32_t i = 0; i < n && t->map != NULL && status == STATUS_OK; i++) {
        if (t->map[i] >= table->dims[1])
            status =
                error_set(err, STATUS_UNSUPPORTED, "the draft's head has no row %u", t->map[i]);
        else
            status =
                gguf_read(t->source, table->offset + t->map[i] * row, rows + i * row, row, err);
    }
    if (status == STATUS_OK)
        status = matrix_repack(m, rows, 0, m->panels, err);
    free(rows);
    return status;
}

void draft_tables_release(struct draft_tables *t)
{
    free(t->map);
    free(t->memory);
    *t = (struct draft_tables){0};
}
