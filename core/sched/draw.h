/* draw.h: from the logits of a step to the tokens of its sequences, spread over the compute team. */
#ifndef SCHED_DRAW_H
#define SCHED_DRAW_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model/sample.h"
#include "core/sched/batch.h"
#include "core/sched/engine.h"

/* What was drawn, once. */
struct drawn {
    uint32_t token;
    bool ends;     /* an end token: the sequence stops, the token is not part of the answer */
    float logprob; /* of the token; 0 unless asked for */
    uint32_t n_top;
    struct sample_logprob top[SAMPLE_TOP_MAX];
    uint64_t hash; /* the sequence's chain with this row; unchanged without trace or if it ends */
};

struct drawer {
    const struct sched_engine *engine;
    struct sampler **samplers; /* one a thread of the team */
    struct drawn *drawn;       /* by slot of the batch */
    const uint32_t *eog;       /* borrowed */
    uint32_t n_eog;
    bool trace;
    const struct batch *batch; /* of the call in progress */
    const float *logits;
};

void drawer_init(struct drawer *d, const struct sched_engine *engine, uint32_t max_slots,
                 const uint32_t *eog, uint32_t n_eog, bool trace);
void drawer_release(struct drawer *d);
/* Does every draw of the batch whose sequence did not fail, into d->drawn. Where there are drafts:
 * until one is not what was drawn; what was is put into the history that the next draw sees. */
void drawer_run(struct drawer *d, const struct batch *b, const float *logits);

#endif
