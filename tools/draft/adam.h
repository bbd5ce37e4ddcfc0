/* adam.h: AdamW (Loshchilov & Hutter, arXiv 1711.05101) with the gradient's norm clipped at 1, and
 * the learning rate's course: linear warm-up, then half a cosine down to 3 %. */
#ifndef TOOLS_DRAFT_ADAM_H
#define TOOLS_DRAFT_ADAM_H

#include <stdint.h>

#include "tools/draft/net.h"

#define ADAM_WARM_UP 40u /* steps */

struct adam {
    size_t n;
    real *mean, *square; /* running means of the gradient and of its square */
    uint64_t step;
};

size_t adam_bytes(size_t n);
void adam_init(struct adam *adam, size_t n);
void adam_release(struct adam *adam);
/* One step of net's weights along net->grad; matrices decay, norms don't. Returns the gradient's
 * norm before clipping; if that is not finite nothing is changed. */
real adam_step(struct adam *adam, struct net *net, double rate);

/* The rate of step `step` when `done` (0 … 1) of the run is over. */
double adam_rate(double peak, uint64_t step, double done);

#endif
