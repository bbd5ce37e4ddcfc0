#include "core/sched/draw.h"

#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/kernels/team.h"
#include "core/model/hash.h"

void drawer_init(struct drawer *d, const struct sched_engine *engine, uint32_t max_draws,
                 const uint32_t *eog, uint32_t n_eog, bool trace)
{
    *d = (struct drawer){.engine = engine, .eog = eog, .n_eog = n_eog, .trace = trace};
    d->drawn = xcalloc(max_draws, sizeof(*d->drawn));
    d->samplers = xcalloc(team_size(engine->team), sizeof(*d->samplers));
    for (uint32_t i = 0; i < team_size(engine->team); i++)
        d->samplers[i] = sampler_create(engine->kernels, engine->n_vocab);
}

void drawer_release(struct drawer *d)
{
    for (uint32_t i = 0; d->samplers != NULL && i < team_size(d->engine->team); i++)
        sampler_free(d->samplers[i]);
    free(d->samplers);
    free(d->drawn);
}

static bool is_end(const struct drawer *d, uint32_t token)
{
    for (uint32_t i = 0; i < d->n_eog; i++)
        if (d->eog[i] == token)
            return true;
    return false;
}

static void draw(struct drawer *d, uint32_t i, struct sampler *sampler)
{
    const struct batch_draw *what = &d->batch->draws[i];
    const struct sequence *s = what->member->sequence;
    const struct generation *g = s->generation;
    const float *logits = d->logits + (size_t)what->row * d->engine->logits_stride;
    struct sample_params params = g->sampling;
    struct drawn *out = &d->drawn[i];
    if (d->batch->sequences[what->member - d->batch->members].failed)
        return;
    params.choice += what->fork;
    out->token = sampler_draw(sampler, &params, s->needs_history ? &s->history : NULL, NULL, logits,
                              sequence_tokens(s));
    out->ends = !g->ignore_eos && is_end(d, out->token);
    out->logprob = 0;
    out->n_top = 0;
    out->hash = s->hash;
    if (out->ends)
        return;
    if (g->n_top >= 0) {
        double log_sum = sampler_log_sum(sampler, logits);
        out->logprob = (float)((double)logits[out->token] - log_sum);
        if (g->n_top > 0)
            out->n_top = sampler_top(sampler, logits, log_sum, (uint32_t)g->n_top, out->top);
    }
    if (d->trace)
        out->hash = logits_hash(s->hash, logits, d->engine->n_vocab);
}

static void draw_share(void *arg, struct team_member *me)
{
    struct drawer *d = arg;
    uint32_t begin, end;
    while (team_next(me, d->batch->n_draws, 1, &begin, &end))
        for (uint32_t i = begin; i < end; i++)
            draw(d, i, d->samplers[me->index]);
}

void drawer_run(struct drawer *d, const struct batch *b, const float *logits)
{
    d->batch = b;
    d->logits = logits;
    if (b->n_draws == 1)
        draw(d, 0, d->samplers[0]);
    else if (b->n_draws > 1)
        team_run(d->engine->team, draw_share, d);
}
