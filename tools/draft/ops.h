/* ops.h: the pieces of a llama layer between its matrix products, forwards and backwards.
 *
 * Backward functions get the loss's derivatives by a piece's outputs (d…) and give those by its
 * inputs. Rows are tokens. A batch is `rows` rows of `length` tokens; a token attends from start[i]
 * (in its row; where its text begins) to itself. */
#ifndef TOOLS_DRAFT_OPS_H
#define TOOLS_DRAFT_OPS_H

#include <stdint.h>

#include "tools/draft/real.h"

struct kernels;

/* y = x · r · w, r = 1 / sqrt(Σx² / width + eps), which is kept for the way back. */
void rms_forward(size_t n, uint32_t width, const real *x, const real *w, real eps, real *y,
                 real *r);
/* Adds to dx and dw:  dw += Σ dy·x·r;  dx += r·dy·w − x · r³/width · Σ dy·w·x. */
void rms_backward(size_t n, uint32_t width, const real *x, const real *w, const real *r,
                  const real *dy, real *dx, real *dw);

/* Turns pairs (2i, 2i+1) of `heads` heads of n tokens by the angles of their position, token index
 * mod length; with back by the opposite ones, which is the derivative. */
struct rope_angles {
    uint32_t length, pairs;
    const real *cos, *sin; /* [length][pairs] */
};
void rope_turn(const struct rope_angles *angles, size_t n, uint32_t heads, uint32_t head_size,
               real *x, size_t ld, bool back);

struct attention_shape {
    uint32_t rows, length, heads, kv_heads, head_size;
    const uint32_t *start; /* [rows · length] */
    const struct kernels *kernels;
};
/* Reals of scratch that either direction needs. */
size_t attention_work(uint32_t length);
/* qkv: a row a token, queries of all heads, then keys, then values, after RoPE.
 * out[heads · head_size] = Σ softmax(q·k / sqrt(head_size)) · v. */
void attention_forward(const struct attention_shape *a, const real *qkv, real *out, real *work);
/* Computes the softmax again; dqkv is written whole. */
void attention_backward(const struct attention_shape *a, const real *qkv, const real *dout,
                        real *dqkv, real *work);

/* act = silu(gate) · up; gate_up: a row is `ffn` gates, then as many ups. */
void swiglu_forward(const struct kernels *k, size_t n, uint32_t ffn, const real *gate_up,
                    real *act);
/* dgate_up from dact. */
void swiglu_backward(const struct kernels *k, size_t n, uint32_t ffn, const real *gate_up,
                     const real *dact, real *dgate_up);

/* One row of logits against the teacher's: KL(softmax(teacher) ‖ softmax(student)). Both rows are
 * overwritten, student by the loss's derivative by it. */
real distil_row(const struct kernels *k, uint32_t n, real *student, real *teacher);

#endif
