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
#include "core/worker/channels.h"
#include "core/worker/stream.h"
#include "core/worker/terms.h"
#include "core/worker/worker.h"

/* A token that was made and whose text has not begun to leave the detokenizer. */
struct waiting_token {
    struct api_token token;
    struct api_top top[SAMPLE_TOP_MAX];
};

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

/* The reply is complete. */
static void finish(struct stream *s, enum api_finish reason)
{
    struct worker *w = s->worker;
    s->finish = reason == API_FINISH_STOP ? "stop" : "length";
    stats_add(w->stats, STATS_CELL_LOOP,
              reason == API_FINISH_STOP ? STAT_requests_done_stop : STAT_requests_done_length, 1);
    if (s->totals.has_hash)
        stats_set(w->stats, STAT_last_logits_hash, s->totals.logits_hash);
    api_reply_finish(&s->reply, reason, buffer_slice(&s->text), &s->totals, &s->out);
    if (s->http_status == 0)
        stream_head(s, 200, api_reply_content_type(&s->reply));
    stream_end(s);
}

static void begin_reply(struct stream *s)
{
    const struct api_request *r = &s->request;
    const struct engine *e = &s->worker->engine;
    s->sse = r->stream;
    s->has_reply = true;
    s->totals.prompt_tokens = (uint32_t)r->n_tokens;
    api_reply_init(&s->reply, &e->context, r, slice_of(s->id), clock_wall_ns() / 1000000000);
    detokenizer_init(&s->detokenizer, e->tokenizer, r->stop, r->n_stop, 0);
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
    begin_reply(s);
    if (r->max_tokens == 0) {
        admit(s);
        finish(s, API_FINISH_LENGTH);
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
    free(s->waiting);
    buffer_release(&s->text);
    if (!s->has_reply)
        return;
    api_reply_release(&s->reply);
    detokenizer_release(&s->detokenizer);
}

/* Gives the first n waiting tokens to the reply; the text that is out goes with the last of them. */
static void release_tokens(struct stream *s, size_t n)
{
    if (n > s->n_waiting)
        n = s->n_waiting;
    for (size_t i = 0; i < n; i++) {
        bool last = i + 1 == n;
        s->waiting[i].token.top = s->waiting[i].top;
        api_reply_token(&s->reply, &s->waiting[i].token,
                        last ? buffer_slice(&s->text) : (struct slice){0}, &s->out);
        if (last)
            buffer_clear(&s->text);
    }
    s->n_released += n;
    s->n_waiting -= n;
    memmove(s->waiting, s->waiting + n, s->n_waiting * sizeof(*s->waiting));
}

static void add_waiting(struct stream *s, const struct sched_token *from)
{
    if (s->n_waiting == s->cap_waiting) {
        s->cap_waiting = s->cap_waiting * 2 + 4;
        s->waiting = xreallocarray(s->waiting, s->cap_waiting, sizeof(*s->waiting));
    }
    struct waiting_token *to = &s->waiting[s->n_waiting++];
    to->token =
        (struct api_token){.token = from->token, .logprob = from->logprob, .n_top = from->n_top};
    for (uint32_t i = 0; i < from->n_top; i++)
        to->top[i] = (struct api_top){from->top[i].token, from->top[i].logprob};
}

static void token_made(struct stream *s, const struct sched_token *token)
{
    struct worker *w = s->worker;
    uint64_t now = clock_ns();
    if (s->first_ns == 0) {
        s->first_ns = now;
        stats_record(w->stats, STATS_CELL_LOOP, STAT_ttft, now - s->arrival_ns);
    } else {
        stats_record(w->stats, STATS_CELL_LOOP, STAT_itl, now - s->last_ns);
    }
    s->last_ns = now;
    stats_add(w->stats, STATS_CELL_LOOP, STAT_completion_tokens_total, 1);
    s->totals.has_hash = w->options->trace_logits;
    s->totals.logits_hash = token->logits_hash;
    add_waiting(s, token);
    bool stopped = detokenizer_feed(&s->detokenizer, token->token, &s->text);
    s->totals.completion_tokens = (uint32_t)s->detokenizer.tokens;
    release_tokens(s, (size_t)(s->detokenizer.tokens_out - s->n_released));
    if (stopped) {
        s->totals.prompt_ms = (double)(s->first_ns - s->arrival_ns) / 1e6 - s->totals.queue_ms;
        s->totals.predicted_ms = (double)(s->last_ns - s->first_ns) / 1e6;
        sched_cancel(w->engine.sched, s->number); /* its last event frees the stream */
        finish(s, API_FINISH_STOP);
        return;
    }
    if (!s->sse)
        return;
    if (s->http_status == 0)
        stream_head(s, 200, api_reply_content_type(&s->reply));
    stream_flush(s);
}

static void set_totals(struct stream *s, const struct sched_end *end)
{
    s->totals.prompt_tokens = end->prompt_tokens;
    s->totals.cached_tokens = end->cached_tokens;
    s->totals.completion_tokens = end->completion_tokens;
    s->totals.queue_ms = (double)end->queue_ns / 1e6;
    s->totals.prompt_ms = (double)end->prefill_ns / 1e6;
    s->totals.predicted_ms = (double)end->decode_ns / 1e6;
    s->totals.has_hash = s->worker->options->trace_logits;
    s->totals.logits_hash = end->logits_hash;
}

static void generation_done(struct stream *s, const struct sched_end *end)
{
    set_totals(s, end);
    bool stopped = detokenizer_finish(&s->detokenizer, &s->text);
    release_tokens(s, stopped ? (size_t)(s->detokenizer.tokens_out - s->n_released) : s->n_waiting);
    finish(s, stopped || end->reason == SCHED_STOP ? API_FINISH_STOP : API_FINISH_LENGTH);
}

static void generation_failed(struct stream *s, const struct sched_end *end)
{
    struct error err = {0};
    set_totals(s, end);
    error_set(&err, end->status, "%s", end->text != NULL ? end->text : status_text(end->status));
    stream_fail(s, &err);
}

static void handle(struct worker *w, const struct sched_event *event)
{
    struct stream *s = map_get(&w->by_number, event->id);
    check(s != NULL && s->in_sched); /* a stream outlives its generation */
    bool wanted = s->cs != NULL && !s->ended;
    switch (event->kind) {
    case SCHED_STARTED:
        s->totals.cached_tokens = event->started.cached_tokens;
        s->totals.queue_ms = (double)event->started.queue_ns / 1e6;
        s->cache = event->started.cache;
        break;
    case SCHED_TOKEN:
        if (wanted)
            token_made(s, &event->token);
        break;
    case SCHED_DONE:
    case SCHED_FAILED:
        s->in_sched = false;
        if (!wanted)
            stream_settle(s);
        else if (event->kind == SCHED_DONE)
            generation_done(s, &event->end);
        else
            generation_failed(s, &event->end);
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
    if (s->ended && s->totals.has_hash) {
        snprintf(figures[n], 32, "%016llx", (unsigned long long)s->totals.logits_hash);
        message_add_pair(head->pairs, &head->n_pairs, slice_of("x-tokenring-logits-hash"),
                         slice_of(figures[n]));
    }
}
