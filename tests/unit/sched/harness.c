#define _GNU_SOURCE
#include "harness.h"

#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

void harness_init(struct harness *h, struct sched_options options, size_t limit, size_t page_bytes,
                  uint32_t threads)
{
    struct error err = {0};
    memset(h, 0, sizeof(*h));
    fake_init(&h->fake, limit, page_bytes, threads);
    h->stats = stats_writer_anonymous();
    struct sched_engine engine = fake_engine(&h->fake);
    ck_assert_msg(sched_create(&engine, h->fake.pool, h->stats, &options, &h->sched, &err) ==
                      STATUS_OK,
                  "%s", err.text);
}

void harness_release(struct harness *h)
{
    harness_open(h);
    sched_free(h->sched);
    fake_release(&h->fake);
    stats_writer_free(h->stats);
}

uint32_t *harness_prompt(uint64_t id, uint32_t n)
{
    uint32_t *tokens = malloc(n * sizeof(*tokens));
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)((id * 2654435761u + i * 40503u + (i * i >> 3)) % (FAKE_VOCAB - 1));
    return tokens;
}

struct generation *harness_generation(uint64_t id, uint32_t n, uint32_t max_tokens)
{
    struct generation *g = generation_new(id, harness_prompt(id, n), n);
    g->max_tokens = max_tokens;
    g->sampling.temperature = 0;
    return g;
}

struct generation *harness_choices(uint64_t id, uint32_t n, uint32_t max_tokens, uint32_t choices,
                                   uint64_t seed)
{
    struct generation *g = harness_generation(id, n, max_tokens);
    g->n_choices = choices;
    g->sampling.temperature = 1;
    g->sampling.seed = seed;
    return g;
}

void harness_submit(struct harness *h, struct generation *g)
{
    struct error err = {0};
    ck_assert(g->id + g->n_choices <= MOST_STREAMS);
    h->n_choices[g->id] = g->n_choices;
    ck_assert_msg(sched_submit(h->sched, g, NULL, &err) == STATUS_OK, "%s", err.text);
}

/* As ck_assert, which makes a system call even when all is well. */
#define expect(condition) ((condition) ? (void)0 : ck_abort_msg("%s", #condition))

static void end_stream(struct harness *h, struct stream *s, const struct sched_event *e)
{
    s->ended = true;
    s->done = e->kind == SCHED_DONE;
    s->end = e->end;
    s->end_order = h->n_ended++;
    ck_assert_int_eq(e->end.status == STATUS_OK, s->done);
}

/* FAILED ends all choices that have not ended. */
static void end_all(struct harness *h, const struct sched_event *e)
{
    uint32_t tokens = 0, living = 0;
    for (uint32_t k = 0; k < h->n_choices[e->id]; k++) {
        struct stream *s = &h->streams[e->id + k];
        if (s->ended)
            continue;
        tokens += s->n;
        living++;
        end_stream(h, s, e);
    }
    ck_assert_uint_gt(living, 0);
    ck_assert_uint_eq(e->end.completion_tokens, tokens);
    ck_assert(e->end.last);
}

static void take_event(struct harness *h, const struct sched_event *e)
{
    expect(e->id < MOST_STREAMS);
    expect(!h->over[e->id]);
    expect(e->choice < h->n_choices[e->id] || e->kind == SCHED_FAILED);
    struct stream *s = &h->streams[e->id + e->choice];
    expect(!s->ended || e->kind == SCHED_FAILED);
    switch (e->kind) {
    case SCHED_STARTED:
        ck_assert(!s->started);
        s->started = true;
        break;
    case SCHED_TOKEN:
        expect(h->streams[e->id].started);
        expect(e->token.index == s->n);
        expect(s->n < MOST_TOKENS);
        s->tokens[s->n++] = e->token.token;
        s->last = e->token;
        break;
    case SCHED_DONE:
        end_stream(h, s, e);
        ck_assert_uint_eq(e->end.completion_tokens, s->n);
        h->over[e->id] = e->end.last;
        break;
    case SCHED_FAILED:
        end_all(h, e);
        h->over[e->id] = true;
        break;
    }
}

void harness_collect(struct harness *h)
{
    struct sched_event e;
    while (sched_next_event(h->sched, &e))
        take_event(h, &e);
}

static void sleep_on_events(struct harness *h)
{
    struct pollfd p = {.fd = sched_event_fd(h->sched), .events = POLLIN};
    ck_assert_msg(poll(&p, 1, 120000) == 1, "no event for two minutes");
}

void harness_until(struct harness *h, uint64_t id, uint32_t n)
{
    for (harness_collect(h); h->streams[id].n < n && !h->streams[id].ended; harness_collect(h))
        sleep_on_events(h);
}

void harness_until_ended(struct harness *h, uint32_t n)
{
    for (harness_collect(h); h->n_ended < n; harness_collect(h))
        sleep_on_events(h);
}

void harness_gate(struct harness *h)
{
    while (sem_trywait(&h->fake.permits) == 0 || sem_trywait(&h->fake.arrivals) == 0)
        ; /* of the last time */
    h->fake.gated = true;
}

void harness_at_gate(struct harness *h)
{
    while (sem_wait(&h->fake.arrivals) != 0)
        ;
}

void harness_pass(struct harness *h)
{
    sem_post(&h->fake.permits);
    harness_at_gate(h);
}

void harness_open(struct harness *h)
{
    if (h->fake.gated) {
        h->fake.gated = false;
        for (int i = 0; i < 4; i++)
            sem_post(&h->fake.permits);
    }
}

void harness_expect_greedy(const struct harness *h, uint64_t id, uint32_t n_prompt)
{
    const struct stream *s = &h->streams[id];
    uint32_t *text = harness_prompt(id, n_prompt);
    text = realloc(text, (n_prompt + s->n + 1) * sizeof(*text));
    for (uint32_t i = 0; i < s->n; i++) {
        float row[FAKE_STRIDE];
        uint32_t best = 0;
        fake_row(text, n_prompt + i, row);
        for (uint32_t v = 1; v < FAKE_VOCAB; v++)
            best = row[v] > row[best] ? v : best;
        if (s->tokens[i] != best)
            ck_abort_msg("stream %u token %u: %u, expected %u", (unsigned)id, i, s->tokens[i],
                         best);
        text[n_prompt + i] = best;
    }
    free(text);
}
