/* model.h: a loaded model and the one operation on it, the step.
 *
 *     gguf ──model_inspect──▶ model_info (sizes, faults; milliseconds)
 *          └─model_load─────▶ model: weights repacked into panels, scratch for one step
 *
 *     step: tokens (token, position, sequence, logits wanted?) of any mix of sequences
 *           │ embed → layers: norm, qkv, RoPE, K and V into pages, attention, output, ffn
 *           │       → norm, head
 *           ▼
 *     logits, one row for each token that wanted them
 *
 * Many tokens of one sequence may be in a step, in any number: decodes, prefill chunks and the
 * verification of drafts are the same path. The logits of a token are the same bits whatever else
 * is in the step, however the prompt was cut and with however many threads.
 *
 * Ownership: the model borrows the gguf (which nobody reads after the load), kernels, team and page
 * pools; all must outlive it. A model has scratch for one step at a time: one thread (the
 * scheduler) calls model_step; it uses the team. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/status.h"
#include "core/gguf/gguf.h"
#include "core/model/kv_geometry.h"

struct matrix;
struct model;
struct pages;
struct team;

/* Sizes of a model; what can be said before its weights are loaded. */
struct model_info {
    char arch[32]; /* "llama" */
    char name[96]; /* general.name, "" if absent */
    uint32_t layers;
    uint32_t width; /* numbers of a token between layers */
    uint32_t heads, kv_heads;
    uint32_t head_size;
    uint32_t ffn;                  /* numbers inside the feed-forward part */
    uint32_t vocab;                /* token ids */
    uint32_t outputs;              /* logits of a row: vocab, fewer in a draft with a token map */
    const uint32_t *output_tokens; /* their tokens, or NULL: in order; lives as long as the model */
    /* The target's head, if that is what such a draft's head was taken from; lives as long as the
     * target. NULL before the load. */
    const struct matrix *target_head;
    uint32_t context; /* longest sequence that the model was made for */
    uint64_t parameters;
    size_t weight_bytes; /* memory of the repacked weights: what a step reads */
    size_t table_bytes;  /* memory of an embedding that is no part of them */
    size_t head_row;     /* of a draft: memory of a row of its head, which is in neither */
    bool tied;           /* the head is the embedding */
};

struct model_options {
    const struct kernels *kernels;
    struct team *team;
    enum kv_type kv_type; /* or KV_AUTO (kv_geometry.h) */
    uint32_t max_tokens;  /* most tokens of a step; 0: 512 */
    uint32_t context;     /* longest sequence that will be asked for; 0: the model's */
    /* The model is a draft for this one: where it has no embedding and head of its own, it uses the
     * target's (draft_tables.h). Must outlive the model. NULL: it is none. */
    const struct model *target;
    /* Called with done growing from 0 to 1, about a hundred times, by any of the loading threads, never
     * by two at a time. False ends the load (STATUS_CANCELLED). May be NULL. */
    bool (*progress)(void *data, double done);
    void *progress_data;
};

/* One token of a step. Tokens of one sequence stand together, in order of their positions. */
struct step_token {
    uint32_t token;
    uint32_t position; /* from 0 */
    uint32_t sequence; /* index into the step's sequences */
    bool logits;       /* a row of logits is wanted */
};

/* A sequence of a step. The pages of all positions up to its last token are there, those that it
 * writes are its own alone. */
struct step_sequence {
    const uint32_t *pages; /* ids; position / 32 is the index */
    uint32_t n_pages;
    bool failed; /* out: a number of this sequence was not finite; its logits and K, V are void */
    /* q4: the open pages (alloc/open_pages.h) of all pages with tokens of the step, from page open_first on, with what earlier
     * steps wrote to them. */
    void *const *open;
    uint32_t open_first, n_open;
};

struct step {
    const struct step_token *tokens;
    uint32_t n_tokens; /* 1 … max_tokens */
    struct step_sequence *sequences;
    uint32_t n_sequences;
    const struct pages
        *pool; /* pages of model_kv_geometry()->page bytes, with open ones of ->open_page */
};

/* Reads sizes and checks names, shapes and types of all tensors; reads no weight. Each fault is
 * named with tensor and shapes (CORRUPT), what is not supported by its name (UNSUPPORTED). */
enum status model_inspect(const struct gguf *g, struct model_info *info, struct error *err);
/* The same for a draft model, and that it suits its target. */
enum status model_inspect_draft(const struct gguf *g, const struct gguf *target,
                                struct model_info *info, struct error *err);

/* Loads: model_inspect, then reads and repacks piece by piece. Nothing of the file is needed after
 * that. On failure, also if the file has become shorter, *model is NULL. */
enum status model_load(const struct gguf *g, const struct model_options *options,
                       struct model **model, struct error *err);
/* NULL is fine. */
void model_free(struct model *model);

const struct model_info *model_info(const struct model *model);
const struct kv_geometry *model_kv_geometry(const struct model *model);
uint32_t model_max_tokens(const struct model *model);
/* Bytes of weights, embedding and scratch. */
size_t model_memory(const struct model *model);
/* Bytes that a draft's weights will take: model_inspect_draft's info, and that many rows more of the head that is its
 * target's (context_rows.h). */
uint64_t model_draft_memory(const struct model_info *info, uint64_t more_rows);
/* Floats from one row of logits to the next: the outputs rounded up to 16. */
uint32_t model_logits_stride(const struct model *model);

/* Computes one step. logits: 64-byte aligned, a row of model_logits_stride() floats for each token
 * that wants logits, in the order of the tokens (may be NULL if none does); the numbers behind the
 * vocabulary are left as they are. Token ids, sequence indices, positions and pages are the
 * caller's promise (checked). */
void model_step(struct model *model, const struct step *step, float *logits);
/* The same; and hidden, if not NULL, gets a row of info->width floats for each token that wants
 * logits: its final state behind the last norm, which the head's rows are multiplied with. */
void model_step_hidden(struct model *model, const struct step *step, float *logits, float *hidden);

/* Measures in which number of streams (kernels.h) this machine reads the model's weights fastest, over some 60 MB of
 * them, in 1 to 10 ms, and sets kernels->streams: the table that the model was loaded with. More than one only if it
 * wins 5 % nearly every time. seconds: of one reading in 1, 2 and 4 streams, 0 if the tier has but one; may be NULL. No step may run. */
void model_choose_streams(struct model *model, struct kernels *kernels, double seconds[3]);
/* "auto" → 0, "1", "2", "4" → the number; INVALID otherwise. */
enum status model_streams_parse(const char *text, uint32_t *streams, struct error *err);

/* Bytes of K and V that attention read in the last step: whole tiles, those that sequences share once
 * where they were read once; open pages are not counted. */
uint64_t model_kv_read(const struct model *model);

#endif
