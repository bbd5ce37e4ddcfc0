/* session.h: a model with its own team, arena and page pool, for tools and tests that work through one
 * text: feed tokens, get logits. The worker has the scheduler for this.
 *
 * One sequence at a time; session_reset starts the next. */
#ifndef MODEL_SESSION_H
#define MODEL_SESSION_H

#include "alloc/block_table.h"
#include "core/kernels/kernels.h"
#include "core/model/model.h"

struct session_options {
    const char *path;
    const char *tier;     /* NULL: the best */
    uint32_t threads;     /* 0: 1 */
    uint32_t streams;     /* of weights: 1, 2 or 4; 0: 1 */
    uint32_t context;     /* longest sequence; 0: the model's */
    uint64_t positions;   /* KV memory for so many positions of all sequences; 0: two contexts */
    uint32_t max_tokens;  /* of a step; 0: 512 */
    enum kv_type kv_type; /* or KV_AUTO (kv_geometry.h) */
    bool (*progress)(void *data, double done); /* as in model.h */
    void *progress_data;
};

struct session {
    struct kernels kernels;
    struct gguf *gguf;
    struct team *team;
    struct model *model;
    struct arena *arena;
    struct pages *pool;
    struct block_table table;
    uint32_t context; /* longest sequence */
};

/* On failure nothing is left open. */
enum status session_open(struct session *s, const struct session_options *options,
                         struct error *err);
void session_close(struct session *s);
/* Forgets the sequence's tokens. */
void session_reset(struct session *s);

enum session_logits { SESSION_LOGITS_NONE, SESSION_LOGITS_LAST, SESSION_LOGITS_ALL };

/* Makes `count` positions behind the table's end writable, waiting for the arena's helper. False if
 * the pool is full. The table may be any of the session's pool. */
bool session_append(struct session *s, struct block_table *table, uint32_t count);

/* A table as a step's sequence. */
static inline struct step_sequence session_sequence(const struct block_table *t)
{
    return (struct step_sequence){.pages = t->ids,
                                  .n_pages = t->n_pages,
                                  .open = t->open,
                                  .open_first = t->open_first,
                                  .n_open = t->n_open};
}

/* Appends n tokens to the sequence, in steps of at most `chunk` (0: the model's most). logits: rows of
 * model_logits_stride floats, one, or n for ALL. CONTEXT_LENGTH if they do not fit, NON_FINITE if
 * the model produced no number. */
enum status session_feed(struct session *s, const uint32_t *tokens, uint32_t n, uint32_t chunk,
                         enum session_logits which, float *logits, struct error *err);

#endif
