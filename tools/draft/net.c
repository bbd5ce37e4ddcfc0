#include "tools/draft/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"

enum part { ATTN_NORM, Q, K, V, OUTPUT, FFN_NORM, GATE, UP, DOWN, PARTS };

struct net_layer {
    size_t at[PARTS]; /* in the block of weights */
    real *x;          /* the layer's input */
    real *r1, *norm1, *qkv, *mixed;
    real *middle; /* behind the attention */
    real *r2, *norm2, *gate_up, *act;
};

static size_t q_cols(const struct net_shape *s)
{
    return (size_t)s->heads * s->head_size;
}

static size_t qkv_cols(const struct net_shape *s)
{
    return (size_t)(s->heads + 2 * s->kv_heads) * s->head_size;
}

/* Shapes of a layer's tensors; rows 0: a vector. */
static void part_shape(const struct net_shape *s, enum part part, uint32_t *rows, uint32_t *cols)
{
    uint32_t q = s->heads * s->head_size, kv = s->kv_heads * s->head_size;
    const uint32_t shapes[PARTS][2] = {{0, s->width},      {q, s->width},      {kv, s->width},
                                       {kv, s->width},     {s->width, q},      {0, s->width},
                                       {s->ffn, s->width}, {s->ffn, s->width}, {s->width, s->ffn}};
    *rows = shapes[part][0];
    *cols = shapes[part][1];
}

static size_t weights_of(const struct net_shape *s)
{
    size_t n = s->width;
    for (int part = 0; part < PARTS; part++) {
        uint32_t rows, cols;
        part_shape(s, (enum part)part, &rows, &cols);
        n += s->layers * (rows == 0 ? cols : (size_t)rows * cols);
    }
    return n;
}

static size_t layer_numbers(const struct net_shape *s)
{
    return 4 * (size_t)s->width + 2 + qkv_cols(s) + q_cols(s) + 3 * (size_t)s->ffn;
}

static size_t wide(const struct net_shape *s)
{
    size_t a = qkv_cols(s), b = 2 * (size_t)s->ffn;
    return a > b ? a : b;
}

size_t net_bytes(const struct net_shape *s, uint32_t max_tokens, uint32_t length)
{
    size_t token =
        s->layers * layer_numbers(s) + 4 * (size_t)s->width + 1 + s->ffn + wide(s) + q_cols(s);
    return (2 * weights_of(s) + max_tokens * token + attention_work(length)) * sizeof(real);
}

static real *numbers(size_t n)
{
    return xaligned(n * sizeof(real));
}

static struct net_tensor *add_tensor(struct net *net, uint32_t rows, uint32_t cols)
{
    struct net_tensor *t = &net->tensors[net->n_tensors++];
    t->rows = rows;
    t->cols = cols;
    t->at = net->n_weights;
    net->n_weights += rows == 0 ? cols : (size_t)rows * cols;
    return t;
}

static void init_layer(struct net *net, uint32_t i)
{
    static const char *const names[PARTS] = {"attn_norm", "attn_q",      "attn_k",
                                             "attn_v",    "attn_output", "ffn_norm",
                                             "ffn_gate",  "ffn_up",      "ffn_down"};
    const struct net_shape *s = &net->shape;
    struct net_layer *l = &net->layer[i];
    size_t n = net->max_tokens;
    for (int part = 0; part < PARTS; part++) {
        uint32_t rows, cols;
        part_shape(s, (enum part)part, &rows, &cols);
        l->at[part] = net->n_weights;
        struct net_tensor *t = add_tensor(net, rows, cols);
        snprintf(t->name, sizeof t->name, "blk.%u.%s.weight", i, names[part]);
    }
    l->x = numbers(n * s->width);
    l->r1 = numbers(n);
    l->norm1 = numbers(n * s->width);
    l->qkv = numbers(n * qkv_cols(s));
    l->mixed = numbers(n * q_cols(s));
    l->middle = numbers(n * s->width);
    l->r2 = numbers(n);
    l->norm2 = numbers(n * s->width);
    l->gate_up = numbers(n * 2 * s->ffn);
    l->act = numbers(n * s->ffn);
}

void net_init(struct net *net, const struct net_shape *shape, const struct kernels *kernels,
              uint32_t max_tokens, uint32_t length)
{
    size_t n = max_tokens;
    *net = (struct net){.shape = *shape, .kernels = kernels, .max_tokens = max_tokens};
    net->tensors = xcalloc(PARTS * (size_t)shape->layers + 1, sizeof *net->tensors);
    net->layer = xcalloc(shape->layers, sizeof *net->layer);
    for (uint32_t i = 0; i < shape->layers; i++)
        init_layer(net, i);
    struct net_tensor *last = add_tensor(net, 0, shape->width);
    snprintf(last->name, sizeof last->name, "output_norm.weight");
    net->w = numbers(net->n_weights);
    net->grad = numbers(net->n_weights);
    net->x = numbers(n * shape->width);
    net->h = numbers(n * shape->width);
    net->r = numbers(n);
    net->dx = numbers(n * shape->width);
    net->d_norm = numbers(n * shape->width);
    net->d_act = numbers(n * shape->ffn);
    net->d_wide = numbers(n * wide(shape));
    net->d_mixed = numbers(n * q_cols(shape));
    net->work = numbers(attention_work(length));
}

void net_release(struct net *net)
{
    for (uint32_t i = 0; i < net->shape.layers; i++) {
        struct net_layer *l = &net->layer[i];
        real *all[] = {l->x,      l->r1, l->norm1, l->qkv,     l->mixed,
                       l->middle, l->r2, l->norm2, l->gate_up, l->act};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            free(all[k]);
    }
    real *all[] = {net->w,    net->grad,   net->x,     net->h,      net->r,      net->dx,
                   net->work, net->d_norm, net->d_act, net->d_wide, net->d_mixed};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
    free(net->tensors);
    free(net->layer);
    *net = (struct net){0};
}

static struct attention_shape attention_of(const struct net *net, const struct net_batch *b)
{
    const struct net_shape *s = &net->shape;
    return (struct attention_shape){b->rows,      b->length, s->heads,    s->kv_heads,
                                    s->head_size, b->start,  net->kernels};
}

/* y[n][rows] = x[n][cols] · Wᵀ, or added to y. */
static void linear(const struct net *net, size_t at, size_t rows, size_t cols, size_t n,
                   const real *x, real *y, bool add)
{
    multiply(n, rows, cols, 1, plain(x, cols), turned(net->w + at, cols), add, y, rows);
}

/* From dy: dx[n][cols] = dy · W, and W's gradient += dyᵀ · x. */
static void linear_back(struct net *net, size_t at, size_t rows, size_t cols, size_t n,
                        const real *x, const real *dy, real *dx)
{
    multiply(n, cols, rows, 1, plain(dy, rows), plain(net->w + at, cols), 0, dx, cols);
    multiply(rows, cols, n, 1, turned(dy, rows), plain(x, cols), 1, net->grad + at, cols);
}

static void layer_forward(struct net *net, const struct net_batch *b, uint32_t i, real *out)
{
    const struct net_shape *s = &net->shape;
    struct net_layer *l = &net->layer[i];
    size_t n = (size_t)b->rows * b->length, width = s->width;
    struct attention_shape attention = attention_of(net, b);

    rms_forward(n, s->width, l->x, net->w + l->at[ATTN_NORM], s->eps, l->norm1, l->r1);
    linear(net, l->at[Q], qkv_cols(s), width, n, l->norm1, l->qkv, false);
    rope_turn(&b->angles, n, s->heads + s->kv_heads, s->head_size, l->qkv, qkv_cols(s), false);
    attention_forward(&attention, l->qkv, l->mixed, net->work);
    memcpy(l->middle, l->x, n * width * sizeof(real));
    linear(net, l->at[OUTPUT], width, q_cols(s), n, l->mixed, l->middle, true);

    rms_forward(n, s->width, l->middle, net->w + l->at[FFN_NORM], s->eps, l->norm2, l->r2);
    linear(net, l->at[GATE], 2 * (size_t)s->ffn, width, n, l->norm2, l->gate_up, false);
    swiglu_forward(net->kernels, n, s->ffn, l->gate_up, l->act);
    memcpy(out, l->middle, n * width * sizeof(real));
    linear(net, l->at[DOWN], width, s->ffn, n, l->act, out, true);
}

/* net->dx: by the layer's output, then by its input. */
static void layer_backward(struct net *net, const struct net_batch *b, uint32_t i)
{
    const struct net_shape *s = &net->shape;
    struct net_layer *l = &net->layer[i];
    size_t n = (size_t)b->rows * b->length, width = s->width;
    struct attention_shape attention = attention_of(net, b);

    linear_back(net, l->at[DOWN], width, s->ffn, n, l->act, net->dx, net->d_act);
    swiglu_backward(net->kernels, n, s->ffn, l->gate_up, net->d_act, net->d_wide);
    linear_back(net, l->at[GATE], 2 * (size_t)s->ffn, width, n, l->norm2, net->d_wide, net->d_norm);
    rms_backward(n, s->width, l->middle, net->w + l->at[FFN_NORM], l->r2, net->d_norm, net->dx,
                 net->grad + l->at[FFN_NORM]);

    linear_back(net, l->at[OUTPUT], width, q_cols(s), n, l->mixed, net->dx, net->d_mixed);
    attention_backward(&attention, l->qkv, net->d_mixed, net->d_wide, net->work);
    rope_turn(&b->angles, n, s->heads + s->kv_heads, s->head_size, net->d_wide, qkv_cols(s), true);
    linear_back(net, l->at[Q], qkv_cols(s), width, n, l->norm1, net->d_wide, net->d_norm);
    rms_backward(n, s->width, l->x, net->w + l->at[ATTN_NORM], l->r1, net->d_norm, net->dx,
                 net->grad + l->at[ATTN_NORM]);
}

void net_forward(struct net *net, const struct net_batch *b)
{
    const struct net_shape *s = &net->shape;
    size_t n = (size_t)b->rows * b->length;
    memcpy(net->layer[0].x, b->x, n * s->width * sizeof(real));
    for (uint32_t i = 0; i < s->layers; i++)
        layer_forward(net, b, i, i + 1 < s->layers ? net->layer[i + 1].x : net->x);
    rms_forward(n, s->width, net->x, net->w + net->n_weights - s->width, s->eps, net->h, net->r);
}

void net_backward(struct net *net, const struct net_batch *b, const real *dh)
{
    const struct net_shape *s = &net->shape;
    size_t n = (size_t)b->rows * b->length, norm = net->n_weights - s->width;
    memset(net->grad, 0, net->n_weights * sizeof(real));
    memset(net->dx, 0, n * s->width * sizeof(real));
    rms_backward(n, s->width, net->x, net->w + norm, net->r, dh, net->dx, net->grad + norm);
    for (uint32_t i = s->layers; i-- > 0;)
        layer_backward(net, b, i);
}
