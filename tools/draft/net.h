/* net.h: the student: a few llama layers and the last norm, their derivatives, and nothing else.
 *
 *     x (the target's embedding, given) ─ layers ─ norm ─▶ h ─ head (head.h, the target's) ─▶ loss
 *
 *     w, grad: one block each, tensor after tensor, each W[rows][cols] as in a GGUF
 *              | attn_norm | q | k | v | output | ffn_norm | gate | up | down | … | output_norm |
 *
 * q, k, v and gate, up are one product each, being neighbours. net_forward keeps what
 * net_backward needs, so they come in pairs. */
#ifndef TOOLS_DRAFT_NET_H
#define TOOLS_DRAFT_NET_H

#include <stdint.h>

#include "tools/draft/ops.h"
#include "tools/draft/real.h"

struct net_shape {
    uint32_t layers, width, heads, kv_heads, head_size, ffn;
    real eps;
};

/* A place in the block of weights. */
struct net_tensor {
    char name[40];       /* "blk.0.attn_q.weight" */
    uint32_t rows, cols; /* rows 0: a norm's vector of cols numbers */
    size_t at;
};

struct net_layer; /* what a layer's backward pass needs of its forward pass */

struct net {
    struct net_shape shape;
    const struct kernels *kernels;
    uint32_t max_tokens;
    size_t n_weights;
    uint32_t n_tensors;
    struct net_tensor *tensors;
    real *w, *grad;
    struct net_layer *layer;
    real *x, *h, *r; /* before and behind the last norm, [max_tokens][width] */
    real *dx, *d_act, *d_wide, *d_norm, *d_mixed, *work;
};

/* Tokens that go through at once: rows of `length`, start as in ops.h. */
struct net_batch {
    uint32_t rows, length;
    const real *x; /* [rows · length][width] */
    const uint32_t *start;
    struct rope_angles angles; /* of at least `length` positions */
};

/* Bytes that net_init takes. */
size_t net_bytes(const struct net_shape *shape, uint32_t max_tokens, uint32_t length);
/* Weights are zero. kernels: borrowed. length: of a row at most. */
void net_init(struct net *net, const struct net_shape *shape, const struct kernels *kernels,
              uint32_t max_tokens, uint32_t length);
void net_release(struct net *net);

/* Fills net->h. */
void net_forward(struct net *net, const struct net_batch *batch);
/* dh: the loss's derivative by h. Overwrites net->grad. */
void net_backward(struct net *net, const struct net_batch *batch, const real *dh);

#endif
