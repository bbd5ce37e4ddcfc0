#include "core/sched/draw.h"

#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/kernels/team.h"
#include "core/model/hash.h"

void drawer_init(struct drawer *d, const struct sched_engine *engine, uint32_t max_slots,
                 const uint32_t *eog, uint32_t n_eog, bool trace)
{
    *d = (struct drawer){.engine = engine, .eog = eog, .n_eog = n_eog, .trace = trace};
    d->drawn = xcalloc(max_slots, sizeof(*d->drawn));
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

/* Draws from one row, for the token at `position`. hash: chain of the rows before it. */
static void draw_row(const struct drawer *d, struct sampler *sampler, const struct sequence *s,
                     const struct sample_params *params, const float *logits, uint32_t position,
                     uint64_t hash, struct drawn *out)
{
    const struct generation *g = s->generation;
    out->token = sampler_draw(sampler, params, s->needs_history ? &s->history : NULL, NULL, logits,
                              position);
    out->ends = !g->ignore_eos && is_end(d, out->token);
    out->logprob = 0;
    out->n_top = 0;
    out->hash = hash;
    if (out->ends)
        return;
    if (g->n_top >= 0) {
        double log_sum = sampler_log_sum(sampler, logits);
        out->logprob = (float)((double)logits[out->token] - log_sum);
        if (g->n_top > 0)
            out->n_top = sampler_top(sampler, logits, log_sum, (uint32_t)g->n_top, out->top);
    }
    if (d->trace)
        out->hash = logits_hash(hash, logits, d->engine->n_vocab);
}

static void draw(struct drawer *d, uint32_t i, struct sampler *sampler)
{
    const struct batch_draw *what = &d->batch->draws[i];
    struct batch_member *m = what->member;
    struct sequence *s = m->sequence;
    struct sample_params params = s->generation->sampling;
    struct drawn *out = &d->drawn[what->slot];
    if (d->batch->sequences[m - d->batch->members].failed)
        return;
    params.choice += what->fork;
    uint64_t hash = s->hash;
    for (uint32_t k = 0;; k++) {
        const float *logits = d->logits + (size_t)(what->row + k) * d->engine->logits_stride;
        draw_row(d, sampler, s, &params, logits, sequence_tokens(s) + k, hash, &out[k]);
        if (k == m->n_drafts || out[k].ends || out[k].token != s->draft->draft.tokens[k]) {
            /* Choices of one member have no drafts and all say 1. */
            if (what->fork == 0)
                m->n_drawn = k + 1;
            return;
        }
        if (s->needs_history)
            sample_state_add(&s->history, &params, out[k].token, true);
        hash = out[k].hash;
    }
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
