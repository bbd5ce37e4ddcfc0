/* weights.h: tensors of a model file → matrices and vectors in memory, checked and repacked.
 *
 * Two passes over the same calls: the first (plan) checks names, shapes and types and adds up
 * bytes; then one block of memory is mapped, and the second (load) fills it, slice by slice: each
 * thread reads some rows into a buffer that its cache holds and repacks them from there. So memory
 * never holds a model twice, nothing of the file stays mapped, and what follows in the file is being
 * read meanwhile (ahead.h).
 *
 *     block: | attn_q panels | attn_k panels | … | norm vector | …      each 64-byte aligned
 *     table: the rows of an embedding of which no matrix is made, as in the file */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/status.h"
#include "core/gguf/gguf.h"
#include "core/kernels/weights.h"

struct team;

struct weights {
    const struct gguf *gguf;
    uint8_t *block; /* NULL: planning */
    size_t size;    /* bytes of the block */
    size_t used;    /* bytes given out so far in this pass */
    uint64_t parameters;
    uint64_t n_tensors;
    bool *seen;         /* by tensor, in file order: asked for */
    size_t table_bytes; /* of the table, if one was asked for */
    size_t panel_most;  /* bytes of the file that a panel is made of, at most */
    /* Load pass only. */
    struct team *team;
    struct ahead *ahead;
    bool (*progress)(void *data, double done);
    void *progress_data;
    size_t total;   /* bytes that the plan pass found */
    size_t slice;   /* bytes repacked between two reports */
    size_t touched; /* bytes of the block whose pages are there */
    void *table;
    size_t table_mapped;
    uint8_t *stage; /* a buffer a thread */
    size_t stage_bytes;
};

/* Where a token's row of an embedding is read: rows of a matrix, or of the table. */
struct embedding {
    const struct matrix *matrix; /* borrowed; NULL: data */
    enum weight_type type;
    uint32_t rows, cols;
    const uint8_t *data;
    size_t row_bytes;
};

/* Starts the plan pass; weights_release frees it. */
void weights_plan(struct weights *w, const struct gguf *g);
/* Ends the plan pass: a tensor that nobody asked for is refused by name (UNSUPPORTED): a model with
 * parts that we would leave out is another model. */
enum status weights_check_complete(const struct weights *w, struct error *err);
/* After a complete plan pass: maps the block (huge pages advised) and starts the load pass.
 * NO_MEMORY names the size. */
enum status weights_start(struct weights *w, struct team *team,
                          bool (*progress)(void *data, double done), void *progress_data,
                          struct error *err);
/* Ends the load pass: nothing more is read. */
void weights_finish(struct weights *w);
void weights_release(struct weights *w);

/* Matrix W[rows][cols] from tensor `name`, dims = [cols, rows]. */
enum status weights_matrix(struct weights *w, const char *name, uint32_t rows, uint32_t cols,
                           struct matrix *m, struct error *err);
/* n numbers as f32, 64-byte aligned; a tensor of one dimension, F32, F16 or BF16. */
enum status weights_vector(struct weights *w, const char *name, uint32_t n, const float **v,
                           struct error *err);
/* The embedding [rows][cols]: `same`, if that matrix is made of the same tensor, or a table of its own. */
enum status weights_embedding(struct weights *w, const char *name, uint32_t rows, uint32_t cols,
                              const struct matrix *same, struct embedding *e, struct error *err);
/* Counts the tensor, if there is one, as asked for; somebody else reads it. */
void weights_skip(struct weights *w, const char *name);
void embedding_row(const struct embedding *e, uint32_t row, float *dst);

#endif
