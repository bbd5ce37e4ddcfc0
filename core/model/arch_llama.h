/* arch_llama.h: state of the llama architecture; shared by its loading and its forward pass.
 *
 *     x (token's row of the embedding)
 *     ├─ norm ─ q, k, v ─ RoPE (q, k) ─ K, V into the page ─ attention ─ output ─▶ + ┐   a layer
 *     x ◀──────────────────────────────────────────────────────────────────────────┘
 *     ├─ norm ─ gate, up ─ silu(gate) · up ─ down ─▶ +
 *     x ─ norm ─ head ─▶ logits
 *
 * RoPE turns neighbouring pairs (2i, 2i+1): llama's converter permutes the rows of attn_q and
 * attn_k for that. Query head h reads KV head h / group: group 1 is multi-head, one KV head
 * multi-query, anything between grouped-query attention. */
#ifndef MODEL_ARCH_LLAMA_H
#define MODEL_ARCH_LLAMA_H

#include "core/kernels/kernels.h"
#include "core/model/arch.h"
#include "core/model/attention.h"
#include "core/model/draft_tables.h"
#include "core/model/rope.h"

/* Steps of at most this many tokens are packed by each thread for itself: cheaper than a stage. */
#define LLAMA_LOCAL_TOKENS 4u

/* Rows of gate and up, and tokens, that a thread multiplies and packs together at most: they fit a second-level cache
 * with their weights. The rows are whole cache lines of packed activations of every kind. */
#define LLAMA_GATED_ROWS 256u
#define LLAMA_GATED_TOKENS 128u

struct llama_layer {
    const float *attn_norm, *ffn_norm;
    struct matrix q, k, v, output, gate, up, down;
};

/* Packed activations of both kinds; a kind that no weight wants has no memory. */
struct llama_acts {
    uint8_t *data[ACTS_KINDS];
};

struct llama {
    uint32_t layers, width, heads, kv_heads, head_size, ffn, vocab, context;
    float eps;
    struct rope rope;
    struct embedding embedding;
    const struct embedding *target; /* a draft: its target's embedding and head */
    const struct matrix *target_head;
    struct llama_layer *layer;
    const float *output_norm;
    struct matrix head;
    struct draft_tables tables; /* of a draft */

    const struct kernels *kernels;
    const struct kv_geometry *geometry;
    struct attention attention;
    uint32_t threads;

    /* Scratch: rows of max_tokens tokens. */
    void *scratch;
    size_t scratch_mapped;
    float *x;         /* [width] */
    float *qkv;       /* [q_cols + 2 · kv_cols] */
    float *mixed;     /* [q_cols]: attention's result */
    float *gate, *up; /* [ffn] */
    float *cos, *sin; /* [pairs] */
    struct llama_acts acts;
    struct llama_acts *local; /* per thread, LLAMA_LOCAL_TOKENS rows */
    float **local_ffn;        /* per thread, [ffn] */
    struct llama_acts gated;  /* silu(gate) · up of many tokens */
    float **local_gated;      /* per thread: gate and up, [LLAMA_GATED_TOKENS][LLAMA_GATED_ROWS] */
};

/* One thread's part of a step (struct arch). */
void llama_step(void *state, const struct arch_step *in, struct team_member *me);
/* The products of the first `layers` layers alone. */
void llama_multiply(void *state, uint32_t layers, struct team_member *me);

static inline uint32_t llama_q_cols(const struct llama *l)
{
    return l->heads * l->head_size;
}

static inline uint32_t llama_kv_cols(const struct llama *l)
{
    return l->kv_heads * l->head_size;
}

#endif
