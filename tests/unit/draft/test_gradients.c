/* The training code's backward passes against finite differences, in double: every piece by itself,
 * then the whole loss by every weight of a small student. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"
#include "tests/check_main.h"
#include "tools/draft/head.h"
#include "tools/draft/net.h"

enum {
    WIDTH = 8,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_SIZE = 4,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_SIZE,
    MIXED = HEADS * HEAD_SIZE,
    FFN = 12,
    ROWS = 2,
    LENGTH = 70, /* more than a block of queries */
    TOKENS = ROWS * LENGTH,
    VOCAB = 11
};

static uint64_t seed = 1;

static real random_number(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (real)(seed >> 40) * 0x1p-23 - 1;
}

static void fill(real *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_number();
}

/* f's slope by x[i], by a five-point formula. */
static real slope(real (*f)(void *arg), void *arg, real *x)
{
    const real step = 1e-4, weights[] = {8, -1};
    real was = *x, sum = 0;
    for (int i = 0; i < 2; i++) {
        *x = was + step * (i + 1);
        sum += weights[i] * f(arg);
        *x = was - step * (i + 1);
        sum -= weights[i] * f(arg);
    }
    *x = was;
    return sum / (12 * step);
}

static void compare(const char *what, real (*f)(void *arg), void *arg, real *x, const real *dx,
                    size_t n)
{
    real largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fabs(dx[i]) > largest ? fabs(dx[i]) : largest;
    ck_assert_msg(largest > 1e-6, "%s: no derivative at all", what);
    for (size_t i = 0; i < n; i++) {
        real want = slope(f, arg, x + i);
        ck_assert_msg(fabs(want - dx[i]) < 1e-7 * (1 + largest), "%s[%zu]: %.10g, not %.10g", what,
                      i, dx[i], want);
    }
}

/* A piece's outputs y, weighed by dy and added up: a loss whose derivative by y is dy. */
static real weighed(const real *y, const real *dy, size_t n)
{
    real sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += y[i] * dy[i];
    return sum;
}

struct piece {
    real x[TOKENS * QKV], w[WIDTH], y[TOKENS * QKV], dy[TOKENS * QKV], dx[TOKENS * QKV], dw[WIDTH];
    real r[TOKENS], work[2 * 64 * LENGTH];
    uint32_t start[TOKENS];
    struct attention_shape attention;
};

static struct piece *piece_new(void)
{
    struct piece *p = xcalloc(1, sizeof *p);
    fill(p->x, TOKENS * QKV);
    fill(p->w, WIDTH);
    fill(p->dy, TOKENS * QKV);
    for (uint32_t i = 0; i < TOKENS; i++) /* texts begin at 0, 3 and 66 of a row */
        p->start[i] = i % LENGTH >= 66 ? 66 : i % LENGTH >= 3 && i < LENGTH ? 3 : 0;
    p->attention =
        (struct attention_shape){ROWS, LENGTH, HEADS, KV_HEADS, HEAD_SIZE, p->start, NULL};
    return p;
}

static real rms(void *arg)
{
    struct piece *p = arg;
    rms_forward(3, WIDTH, p->x, p->w, 0.1, p->y, p->r);
    return weighed(p->y, p->dy, 3 * WIDTH);
}

START_TEST(norm)
{
    struct piece *p = piece_new();
    rms(p);
    rms_backward(3, WIDTH, p->x, p->w, p->r, p->dy, p->dx, p->dw);
    compare("x", rms, p, p->x, p->dx, 3 * WIDTH);
    compare("w", rms, p, p->w, p->dw, WIDTH);
    real before = p->dx[0]; /* it adds */
    rms_backward(3, WIDTH, p->x, p->w, p->r, p->dy, p->dx, p->dw);
    ck_assert_double_eq_tol(p->dx[0], 2 * before, 1e-12);
    free(p);
}
END_TEST

START_TEST(rope)
{
    /* Turned there and back is the same; turned by known angles is known. */
    real cosines[] = {1, 1, 0.6, 0}, sines[] = {0, 0, 0.8, 1};
    struct rope_angles angles = {2, 2, cosines, sines};
    real x[4 * 6], was[4 * 6]; /* four tokens of a head of 5 */
    fill(x, 24);
    memcpy(was, x, sizeof x);
    rope_turn(&angles, 4, 1, 5, x, 6, false);
    ck_assert(memcmp(x + 12, was + 12, 6 * sizeof(real)) == 0);
    ck_assert_double_eq_tol(x[18], was[18] * 0.6 - was[19] * 0.8, 1e-15);
    ck_assert_double_eq_tol(x[20], -was[21], 1e-15);
    ck_assert_double_eq(x[22], was[22]);
    rope_turn(&angles, 4, 1, 5, x, 6, true);
    for (int i = 0; i < 24; i++)
        ck_assert_double_eq_tol(x[i], was[i], 1e-15);
}
END_TEST

static real attend(void *arg)
{
    struct piece *p = arg;
    attention_forward(&p->attention, p->x, p->y, p->work);
    return weighed(p->y, p->dy, TOKENS * MIXED);
}

START_TEST(attention)
{
    struct piece *p = piece_new();
    fill(p->dx, TOKENS * QKV); /* is overwritten */
    ck_assert_uint_eq(attention_work(LENGTH), sizeof p->work / sizeof *p->work);
    attention_backward(&p->attention, p->x, p->dy, p->dx, p->work);
    compare("qkv", attend, p, p->x, p->dx, TOKENS * QKV);

    /* The first token of a text sees itself alone; one text never sees another. */
    attend(p);
    for (int i = 0; i < HEAD_SIZE; i++)
        ck_assert_double_eq_tol(p->y[3 * MIXED + i],
                                p->x[3 * QKV + (HEADS + KV_HEADS) * HEAD_SIZE + i], 1e-12);
    real before = p->y[5 * MIXED];
    fill(p->x, 3 * QKV);
    fill(p->x + 6 * QKV, QKV);
    attend(p);
    ck_assert_double_eq(p->y[5 * MIXED], before);
    free(p);
}
END_TEST

static real swiglu(void *arg)
{
    struct piece *p = arg;
    swiglu_forward(NULL, 5, FFN, p->x, p->y);
    return weighed(p->y, p->dy, 5 * FFN);
}

START_TEST(feed_forward)
{
    struct piece *p = piece_new();
    swiglu_backward(NULL, 5, FFN, p->x, p->dy, p->dx);
    compare("gate_up", swiglu, p, p->x, p->dx, 5 * 2 * FFN);
    free(p);
}
END_TEST

static real distil(void *arg)
{
    struct piece *p = arg;
    memcpy(p->y, p->x, 700 * sizeof(real));
    memcpy(p->dx, p->dy, 700 * sizeof(real));
    return distil_row(NULL, 700, p->y, p->dx);
}

START_TEST(divergence)
{
    struct piece *p = piece_new();
    real slopes[700];
    for (int i = 0; i < 700; i++)
        p->x[i] *= 3;
    ck_assert_double_gt(distil(p), 0.1);
    memcpy(slopes, p->y, sizeof slopes);
    compare("student", distil, p, p->x, slopes, 700);
    memcpy(p->dy, p->x, sizeof slopes);
    p->dy[0] = p->x[0] += 500; /* large logits overflow nothing */
    ck_assert_double_eq_tol(distil(p), 0, 1e-9);
    free(p);
}
END_TEST

struct whole {
    struct net net;
    struct head head;
    struct net_batch batch;
    uint32_t start[TOKENS];
    real x[TOKENS * WIDTH], teacher[TOKENS * WIDTH], weight[TOKENS], dh[TOKENS * WIDTH];
    real cos[LENGTH * 2], sin[LENGTH * 2];
};

static real loss(void *arg)
{
    struct whole *w = arg;
    net_forward(&w->net, &w->batch);
    return head_loss(&w->head, TOKENS, w->net.h, w->teacher, w->weight, w->dh);
}

START_TEST(whole_loss)
{
    struct whole *w = xcalloc(1, sizeof *w);
    struct net_shape shape = {2, WIDTH, HEADS, KV_HEADS, HEAD_SIZE, FFN, 1e-3};
    net_init(&w->net, &shape, NULL, TOKENS, LENGTH);
    head_init(&w->head, VOCAB, WIDTH, NULL);
    fill(w->net.w, w->net.n_weights);
    fill(w->head.rows, VOCAB * WIDTH);
    fill(w->x, TOKENS * WIDTH);
    fill(w->teacher, TOKENS * WIDTH);
    for (uint32_t i = 0; i < TOKENS; i++) {
        w->start[i] = i % LENGTH >= 50 ? 50 : 0;
        w->weight[i] = i % 3 == 0 ? 0 : 0.01 * (1 + i % 5);
    }
    for (uint32_t i = 0; i < LENGTH * 2; i++) {
        w->cos[i] = cos(0.1 * i);
        w->sin[i] = sin(0.1 * i);
    }
    w->batch = (struct net_batch){ROWS, LENGTH, w->x, w->start, {LENGTH, 2, w->cos, w->sin}};
    loss(w);
    net_backward(&w->net, &w->batch, w->dh);
    for (uint32_t t = 0; t < w->net.n_tensors; t++) {
        const struct net_tensor *tensor = &w->net.tensors[t];
        size_t n = (tensor->rows == 0 ? 1 : tensor->rows) * (size_t)tensor->cols;
        compare(tensor->name, loss, w, w->net.w + tensor->at, w->net.grad + tensor->at, n);
    }
    ck_assert_uint_eq(w->net.n_tensors, 2 * 9 + 1);
    net_release(&w->net);
    head_release(&w->head);
    free(w);
}
END_TEST

CHECK_MAIN("draft_gradients", norm, rope, attention, feed_forward, divergence, whole_loss)
