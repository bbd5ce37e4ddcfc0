#include "core/sched/verify.h"

#include "core/sched/sched_priv.h"
#include "core/spec/spec.h"
#include "core/stats/writer.h"

#define BESIDE_PROMPTS 4u /* drafted tokens of a step that computes prompts, at most */

void verify_join(struct sched *s, struct sequence *q)
{
    if (s->options.spec != NULL && !q->generation->no_drafts)
        q->draft = spec_join(s->options.spec, q->generation->salt, &q->generation->sampling);
}

static void show_text(struct sequence *q)
{
    uint32_t left = q->limit - q->n_made - 1;
    q->draft->tokens = q->tokens;
    q->draft->n_tokens = sequence_tokens(q);
    q->draft->n_prompt = q->n_prompt;
    q->draft->most = left < DRAFT_MAX ? left : DRAFT_MAX;
}

void verify_leave(struct sched *s, struct sequence *q)
{
    if (q->draft == NULL)
        return;
    show_text(q);
    spec_leave(s->options.spec, q->draft);
    q->draft = NULL;
}

void verify_propose(struct sched *s)
{
    struct spec *spec = s->options.spec;
    uint32_t n = 0, n_decodes = 0, room = s->batch.max_tokens;
    double positions = 0, beside = 0;
    bool alone = true;
    if (spec == NULL)
        return;
    queue_each(it, tmp, &s->running)
    {
        struct sequence *q = queue_entry(it);
        if (q->paused)
            continue;
        alone &= q->state == SEQUENCE_DECODE;
        if (q->state != SEQUENCE_DECODE)
            continue;
        n_decodes++;
        positions += q->n_seen;
        if (q->draft == NULL)
            continue;
        show_text(q);
        s->texts[n++] = q->draft;
    }
    if (!alone && n > 0)
        beside = pace_draft(&s->pace, n_decodes, positions / n_decodes);
    room = n_decodes < room ? room - n_decodes : 0; /* beside all that decode, drafted for or not */
    uint32_t most = alone ? SPEC_STEP_MAX : beside > 0 ? BESIDE_PROMPTS : 0;
    spec->controller.beside = beside;
    spec_propose(spec, s->texts, n, room < most ? room : most);
}

void verify_pace(struct sched *s, uint64_t ns)
{
    struct pace_work work = s->batch.work;
    uint32_t n = s->batch.n_drafts;
    /* Steps of decodes with drafts are not what the pace compares with. */
    if (n > 0 && work.prefill == 0)
        return;
    if (n > 0) {
        work.prefill += n;
        work.prefill_positions += n * work.decode_positions / work.decodes;
    }
    pace_learn(&s->pace, &work, ns);
}

/* Counters by the place of a guess in its draft. */
static const struct place {
    enum stats_id tried, right;
} places[] = {{STAT_draft_tried_1, STAT_draft_right_1},
              {STAT_draft_tried_2, STAT_draft_right_2},
              {STAT_draft_tried_3, STAT_draft_right_3},
              {STAT_draft_tried_5, STAT_draft_right_5},
              {STAT_draft_tried_9, STAT_draft_right_9}};

void verify_learn(struct sched *s, struct batch_member *m, uint32_t n)
{
    if (m->n_drafts == 0)
        return;
    spec_learn(s->options.spec, m->sequence->draft, n);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_draft_tokens_total, m->n_drafts);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_draft_accepted_total, n);
    stats_record(s->stats, STATS_CELL_SCHED, STAT_draft_length, m->n_drafts);
    for (uint32_t i = 0; i < m->n_drafts && i <= n; i++) {
        const struct place *p = &places[i >= 8 ? 4 : i >= 4 ? 3 : i >= 2 ? 2 : i];
        stats_add(s->stats, STATS_CELL_SCHED, p->tried, 1);
        if (i < n)
            stats_add(s->stats, STATS_CELL_SCHED, p->right, 1);
    }
}

void verify_settle(struct sched *s, uint32_t n_made, uint64_t ns)
{
    const struct batch *b = &s->batch;
    if (s->options.spec != NULL && b->work.decodes > 0)
        spec_settle(s->options.spec, b->work.decodes, b->n_drafts, n_made, (double)ns,
                    b->work.prefill == 0);
}
