/* weights.h: tensors of a model file → matrices and vectors in memory, checked and repacked.
 *
 * Two passes over the same calls: the first (plan) checks names, shapes and types and adds up
 * bytes; then one block of memory is mapped, and the second (load) repacks into it, slice by
 * slice, with the file's pages asked for some tensors ahead and dropped behind it, so that the disk is
 * never idle and memory never holds a model twice.
 *
 *     block: | attn_q panels | attn_k panels | … | norm vector | …      each 64-byte aligned */
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
    bool *seen; /* by tensor, in file order: asked for */
    /* Load pass only. */
    struct team *team;
    bool (*progress)(void *data, double done);
    void *progress_data;
    size_t total;     /* bytes that the plan pass found */
    size_t slice;     /* bytes repacked between two reports */
    size_t touched;   /* bytes of the block whose pages are there */
    uint64_t fetched; /* the file has been asked for up to here */
    /* What was read of the file and is still mapped lies within these bytes of it. */
    uint64_t old_from, old_to;
};

/* Where a token's row of an embedding is read: the file itself. */
struct embedding {
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
void weights_release(struct weights *w);

/* Matrix W[rows][cols] from tensor `name`, dims = [cols, rows]. */
enum status weights_matrix(struct weights *w, const char *name, uint32_t rows, uint32_t cols,
                           struct matrix *m, struct error *err);
/* n numbers as f32, 64-byte aligned; a tensor of one dimension, F32, F16 or BF16. */
enum status weights_vector(struct weights *w, const char *name, uint32_t n, const float **v,
                           struct error *err);
/* The embedding [rows][cols]; nothing is copied. If no matrix is made of the same tensor (`own`), its
 * pages are read and mapped now: no token waits for the disk. */
enum status weights_embedding(struct weights *w, const char *name, uint32_t rows, uint32_t cols,
                              bool own, struct embedding *e, struct error *err);
/* The embedding [rows][cols] of another model's file; nothing is copied. */
enum status weights_borrow_embedding(const struct gguf *g, const char *name, uint32_t rows,
                                     uint32_t cols, struct embedding *e, struct error *err);
/* Counts the tensor, if there is one, as asked for; somebody else reads it. */
void weights_skip(struct weights *w, const char *name);
void embedding_row(const struct embedding *e, uint32_t row, float *dst);

#endif
