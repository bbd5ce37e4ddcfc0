/* weights.h: tensors of a model file → matrices and vectors in memory, checked and repacked.
 *
 * Two passes over the same calls: the first (plan) checks names, shapes and types and adds up
 * bytes; then one block of memory is mapped, and the second says where in it everything goes. Then
 * weights_load fills it, in one run of the team (weights_load.c): the block is cut into items, ordered
 * by where their bytes are in the file, and the thread that takes an item reads its rows into a buffer
 * that its cache holds and repacks them from there. So memory never holds a model twice, nothing of
 * the file stays mapped, the file is read from front to back, and no thread waits for another before
 * the end. The thread that takes the first item of a huge page has the system make one of the next
 * pages, so that two threads never make the same one.
 *
 *     block: | attn_q panels | attn_k panels | … | norm vector | …      each 64-byte aligned
 *     item:  |<─ 256 KiB ─>|<─ 256 KiB ─>| …      a panel is part of the item that it begins in
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
struct weights_part;

struct weights {
    const struct gguf *gguf;
    uint8_t *block; /* NULL: planning */
    size_t size;    /* bytes of the block */
    size_t used;    /* bytes given out so far in this pass */
    uint64_t parameters;
    uint64_t n_tensors;
    bool *seen;         /* by tensor, in file order: asked for */
    size_t table_bytes; /* of the table, if one was asked for */
    /* From the second pass on, until they are filled. */
    struct weights_part *parts;
    size_t n_parts;
    void *table;
    size_t table_mapped;
};

/* What a tensor becomes: pieces that each can be made alone, side by side. */
struct weights_part {
    const struct gguf_tensor *tensor;
    enum weights_kind { PART_MATRIX, PART_VECTOR, PART_TABLE } kind;
    struct matrix matrix;  /* PART_MATRIX: pieces are its panels */
    enum weight_type type; /* PART_VECTOR: one piece */
    uint8_t *to;           /* the first piece */
    uint32_t pieces;
    size_t bytes, from_file; /* of a piece; the last one may have fewer in the file */
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
/* After a complete plan pass: maps the block (huge pages advised) and starts the second pass.
 * NO_MEMORY names the size. */
enum status weights_start(struct weights *w, struct error *err);
/* After the second pass: reads and repacks all that it asked for. progress as in model_options. A tensor
 * whose bytes are bad or not there is named (CORRUPT, IO); if there are several, any of them. */
enum status weights_load(struct weights *w, struct team *team,
                         bool (*progress)(void *data, double done), void *progress_data,
                         struct error *err);
void weights_release(struct weights *w);

/* In the second pass the following only say where the numbers will be.
 *
 * Matrix W[rows][cols] from tensor `name`, dims = [cols, rows]. */
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
