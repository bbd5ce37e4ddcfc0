/* draft_tables.h: embedding and head of a draft model, which may be the target's.
 *
 *     embedding   the draft's token_embd, or the target's
 *     head        rows of the same file's head (output, or token_embd where tied), those that
 *                 tokenring.draft.token_map names:   row i of the logits = token map[i]
 *
 * A draft without own tables needs its layers' few megabytes only, and a head of the most frequent
 * tokens is a fraction of the whole one, which would be most of a small draft's time. */
#ifndef MODEL_DRAFT_TABLES_H
#define MODEL_DRAFT_TABLES_H

#include <stdint.h>

#include "core/base/status.h"
#include "core/gguf/gguf.h"
#include "core/kernels/weights.h"

struct draft_tables {
    const struct gguf *source; /* file of embedding and head; NULL: this is no draft */
    uint32_t *map;             /* n_map tokens, or NULL: the head is whole */
    uint32_t n_map;
    size_t head_row; /* memory of a row of the head; 0 if its type is not supported */
    void *memory;    /* of the head */
};

/* Finds where the tables of draft g for target are and reads the map. A draft whose tables have
 * another vocabulary or another width than the target is refused with both sizes (UNSUPPORTED). */
enum status draft_tables_find(const struct gguf *g, const struct gguf *target, uint32_t width,
                              struct draft_tables *t, struct error *err);
/* The head of the mapped rows, cols numbers each, repacked into memory of its own. */
enum status draft_tables_head(struct draft_tables *t, uint32_t cols, struct matrix *m,
                              struct error *err);
void draft_tables_release(struct draft_tables *t);

#endif
