#include "tools/draft/adam.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/xalloc.h"

#define BETA_MEAN 0.9
#define BETA_SQUARE 0.98
#define DECAY 0.01
#define LAST 0.03 /* of the peak rate, at the end */

size_t adam_bytes(size_t n)
{
    return 2 * n * sizeof(real);
}

void adam_init(struct adam *adam, size_t n)
{
    *adam = (struct adam){
        .n = n, .mean = xaligned(n * sizeof(real)), .square = xaligned(n * sizeof(real))};
}

void adam_release(struct adam *adam)
{
    free(adam->mean);
    free(adam->square);
    *adam = (struct adam){0};
}

double adam_rate(double peak, uint64_t step, double done)
{
    if (step < ADAM_WARM_UP)
        return peak * (double)(step + 1) / ADAM_WARM_UP;
    done = done < 0 ? 0 : done > 1 ? 1 : done;
    return peak * (LAST + (1 - LAST) * 0.5 * (1 + cos(3.14159265358979 * done)));
}

static void update(struct adam *adam, struct net *net, const struct net_tensor *t, real scale,
                   real rate)
{
    size_t n = t->rows == 0 ? t->cols : (size_t)t->rows * t->cols;
    real decay = t->rows == 0 ? 0 : (real)DECAY * rate;
    real by_mean = (real)(1 / (1 - pow(BETA_MEAN, (double)adam->step)));
    real by_square = (real)(1 / (1 - pow(BETA_SQUARE, (double)adam->step)));
    real *w = net->w + t->at, *mean = adam->mean + t->at, *square = adam->square + t->at;
    const real *grad = net->grad + t->at;
    for (size_t i = 0; i < n; i++) {
        real g = grad[i] * scale;
        mean[i] += (g - mean[i]) * (real)(1 - BETA_MEAN);
        square[i] += (g * g - square[i]) * (real)(1 - BETA_SQUARE);
        real size = (real)sqrtf((float)(square[i] * by_square)) + (real)1e-8;
        w[i] -= rate * mean[i] * by_mean / size + decay * w[i];
    }
}

real adam_step(struct adam *adam, struct net *net, double rate)
{
    double sum = 0;
    for (size_t at = 0; at < adam->n; at += 4096) {
        size_t end = at + 4096 < adam->n ? at + 4096 : adam->n;
        real part[8] = {0};
        for (size_t i = at; i < end; i++)
            part[i % 8] += net->grad[i] * net->grad[i];
        for (int i = 0; i < 8; i++)
            sum += (double)part[i];
    }
    double norm = sqrt(sum);
    if (!isfinite(norm))
        return (real)norm;
    adam->step++;
    for (uint32_t i = 0; i < net->n_tensors; i++)
        update(adam, net, &net->tensors[i], (real)(norm > 1 ? 1 / norm : 1), (real)rate);
    return (real)norm;
}
