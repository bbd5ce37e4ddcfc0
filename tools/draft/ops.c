#include "tools/draft/ops.h"

#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"

#define QUERY_BLOCK 64u

/* ---- exp, by the kernels where they have it ---- */

static real largest(const struct kernels *k, const real *x, uint32_t n)
{
#ifndef DRAFT_DOUBLE
    return k->max(x, n);
#else
    (void)k;
    real most = x[0];
    for (uint32_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
#endif
}

/* y = exp(x − max); returns the sum. y may be x. */
static real exp_sum(const struct kernels *k, real *y, const real *x, uint32_t n, real max)
{
#ifdef DRAFT_DOUBLE
    (void)k;
    real sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += y[i] = exp(x[i] - max);
    return sum;
#else
    return k->exp_sum(y, x, n, max);
#endif
}

/* ---- norm, rope ---- */

void rms_forward(size_t n, uint32_t width, const real *x, const real *w, real eps, real *y, real *r)
{
    for (size_t t = 0; t < n; t++, x += width, y += width) {
        real sum = 0;
        for (uint32_t i = 0; i < width; i++)
            sum += x[i] * x[i];
        r[t] = 1 / (real)sqrt((double)(sum / (real)width + eps));
        for (uint32_t i = 0; i < width; i++)
            y[i] = x[i] * r[t] * w[i];
    }
}

void rms_backward(size_t n, uint32_t width, const real *x, const real *w, const real *r,
                  const real *dy, real *dx, real *dw)
{
    for (size_t t = 0; t < n; t++, x += width, dy += width, dx += width) {
        real sum = 0, scale = r[t];
        for (uint32_t i = 0; i < width; i++) {
            sum += dy[i] * w[i] * x[i];
            dw[i] += dy[i] * x[i] * scale;
        }
        real slope = sum * scale * scale * scale / (real)width;
        for (uint32_t i = 0; i < width; i++)
            dx[i] += scale * dy[i] * w[i] - x[i] * slope;
    }
}

void rope_turn(const struct rope_angles *angles, size_t n, uint32_t heads, uint32_t head_size,
               real *x, size_t ld, bool back)
{
    for (size_t t = 0; t < n; t++, x += ld) {
        const real *cos = angles->cos + t % angles->length * angles->pairs;
        const real *sin = angles->sin + t % angles->length * angles->pairs;
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < angles->pairs; i++) {
                real *pair = x + (size_t)h * head_size + 2 * i, a = pair[0], b = pair[1];
                real s = back ? -sin[i] : sin[i];
                pair[0] = a * cos[i] - b * s;
                pair[1] = a * s + b * cos[i];
            }
    }
}

/* ---- attention: blocks of queries of one head against all keys before the block's end ---- */

struct block {
    uint32_t first, n, keys; /* queries [first, first + n) see keys [0, keys) */
    const real *q, *k, *v;
    size_t ld;
};

size_t attention_work(uint32_t length)
{
    return 2 * (size_t)QUERY_BLOCK * length;
}

static struct block block_of(const struct attention_shape *a, const real *qkv, uint32_t row,
                             uint32_t head, uint32_t first)
{
    size_t ld = (size_t)(a->heads + 2 * a->kv_heads) * a->head_size;
    const real *begin = qkv + (size_t)row * a->length * ld;
    uint32_t n = a->length - first < QUERY_BLOCK ? a->length - first : QUERY_BLOCK;
    uint32_t kv = head / (a->heads / a->kv_heads);
    return (struct block){.first = first,
                          .n = n,
                          .keys = first + n,
                          .q = begin + first * ld + (size_t)head * a->head_size,
                          .k = begin + (size_t)(a->heads + kv) * a->head_size,
                          .v = begin + (size_t)(a->heads + a->kv_heads + kv) * a->head_size,
                          .ld = ld};
}

/* p[n][keys] = the block's softmax; 0 where a query doesn't look. */
static void block_softmax(const struct attention_shape *a, const struct block *b, uint32_t row,
                          real *p)
{
    real scale = 1 / (real)sqrt((double)a->head_size);
    multiply(b->n, b->keys, a->head_size, scale, plain(b->q, b->ld), turned(b->k, b->ld), 0, p,
             b->keys);
    for (uint32_t i = 0; i < b->n; i++, p += b->keys) {
        uint32_t at = b->first + i, from = a->start[(size_t)row * a->length + at];
        real sum = exp_sum(a->kernels, p + from, p + from, at + 1 - from,
                           largest(a->kernels, p + from, at + 1 - from));
        memset(p, 0, from * sizeof *p);
        memset(p + at + 1, 0, (b->keys - at - 1) * sizeof *p);
        for (uint32_t j = from; j <= at; j++)
            p[j] /= sum;
    }
}

void attention_forward(const struct attention_shape *a, const real *qkv, real *out, real *work)
{
    size_t ldo = (size_t)a->heads * a->head_size;
    for (uint32_t row = 0; row < a->rows; row++)
        for (uint32_t head = 0; head < a->heads; head++)
            for (uint32_t first = 0; first < a->length; first += QUERY_BLOCK) {
                struct block b = block_of(a, qkv, row, head, first);
                block_softmax(a, &b, row, work);
                multiply(b.n, a->head_size, b.keys, 1, plain(work, b.keys), plain(b.v, b.ld), 0,
                         out + ((size_t)row * a->length + first) * ldo +
                             (size_t)head * a->head_size,
                         ldo);
            }
}

void attention_backward(const struct attention_shape *a, const real *qkv, const real *dout,
                        real *dqkv, real *work)
{
    size_t ldo = (size_t)a->heads * a->head_size;
    size_t ld = (size_t)(a->heads + 2 * a->kv_heads) * a->head_size;
    real scale = 1 / (real)sqrt((double)a->head_size);
    real *p = work, *ds = work + (size_t)QUERY_BLOCK * a->length;
    memset(dqkv, 0, (size_t)a->rows * a->length * ld * sizeof *dqkv);
    for (uint32_t row = 0; row < a->rows; row++)
        for (uint32_t head = 0; head < a->heads; head++)
            for (uint32_t first = 0; first < a->length; first += QUERY_BLOCK) {
                struct block b = block_of(a, qkv, row, head, first);
                real *dq = dqkv + (b.q - qkv), *dk = dqkv + (b.k - qkv), *dv = dqkv + (b.v - qkv);
                const real *dy =
                    dout + ((size_t)row * a->length + first) * ldo + (size_t)head * a->head_size;
                block_softmax(a, &b, row, p);
                multiply(b.keys, a->head_size, b.n, 1, turned(p, b.keys), plain(dy, ldo), 1, dv,
                         ld);
                multiply(b.n, b.keys, a->head_size, 1, plain(dy, ldo), turned(b.v, ld), 0, ds,
                         b.keys);
                for (uint32_t i = 0; i < b.n; i++) {
                    real *d = ds + (size_t)i * b.keys, *w = p + (size_t)i * b.keys, sum = 0;
                    for (uint32_t j = 0; j < b.keys; j++)
                        sum += d[j] * w[j];
                    for (uint32_t j = 0; j < b.keys; j++)
                        d[j] = w[j] * (d[j] - sum) * scale;
                }
                multiply(b.n, a->head_size, b.keys, 1, plain(ds, b.keys), plain(b.k, ld), 0, dq,
                         ld);
                multiply(b.keys, a->head_size, b.n, 1, turned(ds, b.keys), plain(b.q, ld), 1, dk,
                         ld);
            }
}

/* ---- feed-forward ---- */

/* s = 1 / (1 + exp(−x)). */
static void sigmoid(const struct kernels *k, real *s, const real *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s[i] = -x[i];
#ifdef DRAFT_DOUBLE
    (void)k;
    for (uint32_t i = 0; i < n; i++)
        s[i] = exp(s[i]);
#else
    k->exp(s, s, n);
#endif
    for (uint32_t i = 0; i < n; i++)
        s[i] = 1 / (1 + s[i]);
}

void swiglu_forward(const struct kernels *k, size_t n, uint32_t ffn, const real *gate_up, real *act)
{
    for (size_t t = 0; t < n; t++, gate_up += 2 * (size_t)ffn, act += ffn) {
        sigmoid(k, act, gate_up, ffn);
        for (uint32_t i = 0; i < ffn; i++)
            act[i] *= gate_up[i] * gate_up[ffn + i];
    }
}

void swiglu_backward(const struct kernels *k, size_t n, uint32_t ffn, const real *gate_up,
                     const real *dact, real *dgate_up)
{
    for (size_t t = 0; t < n; t++, gate_up += 2 * (size_t)ffn, dgate_up += 2 * (size_t)ffn) {
        const real *d = dact + t * ffn;
        real *dup = dgate_up + ffn;
        sigmoid(k, dup, gate_up, ffn);
        for (uint32_t i = 0; i < ffn; i++) {
            real g = gate_up[i], u = gate_up[ffn + i], s = dup[i];
            dgate_up[i] = d[i] * u * (s + g * s * (1 - s));
            dup[i] = d[i] * g * s;
        }
    }
}

/* ---- loss ---- */

real distil_row(const struct kernels *k, uint32_t n, real *student, real *teacher)
{
    real top_s = largest(k, student, n), top_t = largest(k, teacher, n);
    real sum_s = 0, sum_t = 0, mean = 0, difference[256];
    for (uint32_t i = 0; i < n; i++)
        student[i] -= top_s, teacher[i] -= top_t;
    for (uint32_t at = 0; at < n; at += 256) {
        uint32_t now = n - at < 256 ? n - at : 256;
        for (uint32_t i = 0; i < now; i++)
            difference[i] = teacher[at + i] - student[at + i];
        sum_s += exp_sum(k, student + at, student + at, now, 0);
        sum_t += exp_sum(k, teacher + at, teacher + at, now, 0);
        for (uint32_t i = 0; i < now; i++)
            mean += teacher[at + i] * difference[i];
    }
    real by_s = 1 / sum_s, by_t = 1 / sum_t;
    for (uint32_t i = 0; i < n; i++)
        student[i] = student[i] * by_s - teacher[i] * by_t;
    /* Σ t·(ln t − ln s) with t = e^teacher / sum_t, s likewise */
    return mean / sum_t - (real)log((double)sum_t) + (real)log((double)sum_s);
}
