#include "core/worker/glue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/xalloc.h"
#include "core/sched/sched.h"
#include "core/stats/writer.h"
#include "core/worker/answer.h"
#include "core/worker/channels.h"
#include "core/worker/stream.h"
#include "core/worker/terms.h"
#include "core/worker/worker.h"

static uint64_t random_seed(const struct stream *s)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof(seed), 0) == (ssize_t)sizeof(seed))
        return seed;
    return clock_ns() * UINT64_C(0x9e3779b97f4a7c15) ^
           s->number; /* only before the kernel's pool is ready */
}

static struct generation *make_generation(struct stream *s)
{
    struct api_request *r = &s->request;
    const struct api_sampling *from = &r->sampling;
    struct generation *g = generation_new(s->number, r->tokens, (uint32_t)r->n_tokens);
    r->tokens = NULL; /* the generation's now */
    /* the rest of the context is promised as it is used, a number at once */
    bool rest = r->n_tokens + r->max_tokens >= s->worker->engine.context.context;
    g->max_tokens = rest ? SCHED_REST : r->max_tokens;
    terms_apply(s, g);
    g->n_choices = r->n_choices;
    g->n_top = r->top_logprobs;
    g->ignore_eos = r->ignore_eos;
    g->arrival_ns = s->arrival_ns;
    struct sample_params *p = &g->sampling;
    p->temperature = from->temperature;
    p->top_k = from->top_k;
    p->top_p = from->top_p;
    p->min_p = from->min_p;
    p->repetition_penalty = from->repetition_penalty;
    p->presence_penalty = from->presence_penalty;
    p->frequency_penalty = from->frequency_penalty;
    p->seed = from->has_seed ? from->seed : random_seed(s);
    if (from->n_bias > 0) {
        g->bias = xmalloc(from->n_bias * sizeof(*g->bias));
        for (size_t i = 0; i < from->n_bias; i++)
            g->bias[i] = (struct logit_bias){from->bias[i].token, from->bias[i].bias};
        g->n_bias = from->n_bias;
    }
    return g;
}

/* What the figures of a choice share: those of the prompt. */
static struct api_totals totals_of(const struct stream *s, const struct answer *a)
{
    struct api_totals t = s->totals;
    t.completion_tokens = a->tokens;
    t.drafts = s->worker->engine.spec != NULL;
    t.drafted = a->drafted;
    t.accepted = a->accepted;
    t.predicted_ms = (double)(a->last_ns - a->first_ns) / 1e6;
    t.has_hash = s->worker->options->trace_logits;
    t.logits_hash = a->logits_hash;
    return t;
}

/* The figures as far as they are known. */
static void sum_up(struct stream *s)
{
    struct api_totals *t = &s->totals;
    t->completion_tokens = t->drafted = t->accepted = 0;
    t->drafts = s->worker->engine.spec != NULL;
    for (uint32_t k = 0; k < s->n_answers; k++) {
        t->completion_tokens += s->answers[k].tokens;
        t->drafted += s->answers[k].drafted;
        t->accepted += s->answers[k].accepted;
    }
    t->has_hash = s->worker->options->trace_logits && s->n_answers == 1;
    t->logits_hash = s->answers[0].logits_hash;
    if (s->first_ns == 0)
        return;
    t->prompt_ms = (double)(s->first_ns - s->arrival_ns) / 1e6 - t->queue_ms;
    t->predicted_ms = (double)(s->last_ns - s->first_ns) / 1e6;
}

/* The reply is complete. */
static void finish(struct stream *s)
{
    struct worker *w = s->worker;
    bool stop = strcmp(s->finish, "stop") == 0;
    stats_add(w->stats, STATS_CELL_LOOP, stop ? STAT_requests_done_stop : STAT_requests_done_length,
              1);
    if (s->timed_out)
        s->finish = "timeout";
    if (w->options->trace_logits)
        stats_set(w->stats, STAT_last_logits_hash, s->answers[0].logits_hash);
    api_reply_finish(&s->reply, &s->totals, &s->out);
    stream_end(s);
}

/* A choice is complete, and with the last one the reply; then the stream may be gone afterwards. */
static void finish_answer(struct stream *s, struct answer *a, enum api_finish reason)
{
    sum_up(s);
    struct api_totals totals = totals_of(s, a);
    a->ended = true;
    s->n_ended++;
    if (s->finish == NULL || reason == API_FINISH_LENGTH)
        s->finish = reason == API_FINISH_STOP ? "stop" : "length";
    api_reply_end(&s->reply, a->choice, reason, buffer_slice(&a->text), &totals, &s->out);
    bool last = s->n_ended == s->n_answers;
    if (s->http_status == 0 && (s->sse || last))
        stream_head(s, 200, api_reply_content_type(&s->reply));
    if (last)
        finish(s);
    else if (s->sse && s->in_sched)
        stream_flush(s);
}

static void begin_reply(struct stream *s)
{
    const struct api_request *r = &s->request;
    const struct engine *e = &s->worker->engine;
    s->sse = r->stream;
    s->has_reply = true;
    s->totals.prompt_tokens = (uint32_t)r->n_tokens;
    api_reply_init(&s->reply, &e->context, r, slice_of(s->id), clock_wall_ns() / 1000000000);
    s->n_answers = r->n_choices;
    s->answers = xcalloc(s->n_answers, sizeof(*s->answers));
    for (uint32_t k = 0; k < s->n_answers; k++)
        answer_init(&s->answers[k], k, e->tokenizer, r);
}

static void admit(struct stream *s)
{
    struct worker *w = s->worker;
    s->admitted = true;
    stats_add(w->stats, STATS_CELL_LOOP, STAT_requests_total, 1);
    stats_add(w->stats, STATS_CELL_LOOP, STAT_prompt_tokens_total, s->request.n_tokens);
}

void glue_submit(struct stream *s)
{
    struct worker *w = s->worker;
    struct api_request *r = &s->request;
    struct error err = {0};
    unsigned retry_after = (unsigned)w->options->retry_after;
    if (lifecycle_admits(w, &err) != STATUS_OK) {
        stream_fail(s, &err);
        return;
    }
    if (s->stop_by_ns != 0 && clock_ns() >= s->stop_by_ns) {
        glue_time_is_up(s);
        return;
    }
    begin_reply(s);
    if (r->max_tokens == 0) {
        uint32_t n = s->n_answers;
        admit(s);
        for (uint32_t k = 0; k < n; k++) /* the last one may end the stream */
            finish_answer(s, &s->answers[k], API_FINISH_LENGTH);
        return;
    }
    struct generation *g = make_generation(s);
    enum status status = sched_submit(w->engine.sched, g, &retry_after, &err);
    if (status != STATUS_OK) {
        generation_free(g);
        stream_fail_later(s, &err, retry_after);
        return;
    }
    s->phase = STREAM_SCHED;
    s->in_sched = true;
    s->last_sent_ns = clock_ns(); /* keepalives count from here */
    admit(s);
}

void glue_release(struct stream *s)
{
    for (uint32_t k = 0; k < s->n_answers; k++)
        answer_release(&s->answers[k]);
    free(s->answers);
    if (s->has_reply)
        api_reply_release(&s->reply);
}

void glue_time_is_up(struct stream *s)
{
    struct worker *w = s->worker;
    stats_add(w->stats, STATS_CELL_LOOP, STAT_requests_timed_out, 1);
    if (s->in_sched)
        sched_cancel(w->engine.sched, s->number); /* its last event frees the stream */
    if (s->first_ns == 0) {
        struct error err = {0};
        error_set(&err, STATUS_TOO_LONG, "%s", status_text(STATUS_TOO_LONG));
        stream_fail(s, &err);
        return;
    }
    s->timed_out = true;
    uint32_t left = s->n_answers - s->n_ended;
    for (struct answer *a = s->answers; left > 0; a++) {
        if (a->ended)
            continue;
        left--;
        bool stopped = answer_close(a, &s->reply, &s->out);
        finish_answer(s, a, stopped ? API_FINISH_STOP : API_FINISH_LENGTH);
    }
}

static void token_made(struct stream *s, struct answer *a, const struct sched_token *token)
{
    struct worker *w = s->worker;
    uint64_t now = clock_ns();
    if (s->first_ns == 0) {
        s->first_ns = now;
        uint64_t limit = s->request.predict_ms * UINT64_C(1000000);
        if (limit > 0 && (s->stop_by_ns == 0 || now + limit < s->stop_by_ns))
            s->stop_by_ns = now + limit;
        stats_record(w->stats, STATS_CELL_LOOP, STAT_ttft, now - s->arrival_ns);
    } else if (a->first_ns != 0) {
        stats_record(w->stats, STATS_CELL_LOOP, STAT_itl, now - a->last_ns);
    }
    s->last_ns = now;
    stats_add(w->stats, STATS_CELL_LOOP, STAT_completion_tokens_total, 1);
    if (answer_token(a, token, now, &s->reply, &s->out)) {
        sched_finish(w->engine.sched, s->number, a->choice);
        finish_answer(s, a, API_FINISH_STOP);
        return;
    }
    if (s->stop_by_ns != 0 && now >= s->stop_by_ns) {
        glue_time_is_up(s);
        return;
    }
    if (!s->sse)
        return;
    if (s->http_status == 0)
        stream_head(s, 200, api_reply_content_type(&s->reply));
    stream_flush(s);
}

static void choice_done(struct stream *s, struct answer *a, const struct sched_end *end)
{
    s->totals.cached_tokens = end->cached_tokens;
    s->totals.queue_ms = (double)end->queue_ns / 1e6;
    bool stopped = answer_close(a, &s->reply, &s->out);
    finish_answer(s, a, stopped || end->reason == SCHED_STOP ? API_FINISH_STOP : API_FINISH_LENGTH);
}

static void generation_failed(struct stream *s, const struct sched_end *end)
{
    struct error err = {0};
    s->totals.cached_tokens = end->cached_tokens;
    s->totals.queue_ms = (double)end->queue_ns / 1e6;
    sum_up(s);
    error_set(&err, end->status, "%s", end->text != NULL ? end->text : status_text(end->status));
    stream_fail(s, &err);
}

static void handle(struct worker *w, const struct sched_event *event)
{
    struct stream *s = map_get(&w->by_number, event->id);
    check(s != NULL && s->in_sched); /* a stream outlives its generation */
    bool wanted = s->cs != NULL && !s->ended;
    struct answer *a = &s->answers[event->choice];
    switch (event->kind) {
    case SCHED_STARTED:
        s->totals.cached_tokens = event->started.cached_tokens;
        s->totals.queue_ms = (double)event->started.queue_ns / 1e6;
        s->cache = event->started.cache;
        break;
    case SCHED_TOKEN:
        if (wanted && !a->ended)
            token_made(s, a, &event->token);
        break;
    case SCHED_DONE:
    case SCHED_FAILED:
        s->in_sched = !event->end.last;
        if (!wanted)
            stream_settle(s);
        else if (event->kind == SCHED_FAILED)
            generation_failed(s, &event->end);
        else if (!a->ended)
            choice_done(s, a, &event->end);
        break;
    }
}

void glue_take_events(struct worker *w)
{
    struct sched_event event;
    while (sched_next_event(w->engine.sched, &event))
        handle(w, &event);
}

void glue_info_pairs(const struct stream *s, struct message_head *head, char figures[][32])
{
    unsigned n = 0;
    struct {
        const char *name;
        bool known;
        double value;
        int digits;
    } pairs[] = {
        {"x-tokenring-prompt-tokens", true, s->totals.prompt_tokens, 0},
        {"x-tokenring-cached-tokens", true, s->totals.cached_tokens, 0},
        {"x-tokenring-completion-tokens", s->ended, s->totals.completion_tokens, 0},
        {"x-tokenring-draft-tokens", s->ended && s->totals.drafts, s->totals.drafted, 0},
        {"x-tokenring-draft-accepted", s->ended && s->totals.drafts, s->totals.accepted, 0},
        {"x-tokenring-queue-ms", true, s->totals.queue_ms, 3},
        {"x-tokenring-ttft-ms", s->first_ns != 0, (double)(s->first_ns - s->arrival_ns) / 1e6, 3},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (!pairs[i].known)
            continue;
        snprintf(figures[n], 32, "%.*f", pairs[i].digits, pairs[i].value);
        message_add_pair(head->pairs, &head->n_pairs, slice_of(pairs[i].name),
                         slice_of(figures[n]));
        n++;
    }
    if (s->cache != NULL)
        message_add_pair(head->pairs, &head->n_pairs, slice_of("x-tokenring-cache"),
                         slice_of(s->cache));
    if (s->ended && s->finish != NULL)
        message_add_pair(head->pairs, &head->n_pairs, slice_of("x-tokenring-finish"),
                         slice_of(s->finish));
    if (s->ended && s->worker->options->trace_logits) {
        snprintf(figures[n], 32, "%016llx", (unsigned long long)s->answers[0].logits_hash);
        message_add_pair(head->pairs, &head->n_pairs, slice_of("x-tokenring-logits-hash"),
                         slice_of(figures[n]));
    }
}
