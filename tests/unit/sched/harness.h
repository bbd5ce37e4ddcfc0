/* harness.h: a scheduler over the fake engine, and the loop's side of it: submits, collects events
 * by id. */
#ifndef TEST_SCHED_HARNESS_H
#define TEST_SCHED_HARNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/sched/sched.h"
#include "core/stats/writer.h"
#include "fake_engine.h"

#define MOST_STREAMS 512
#define MOST_TOKENS 2048

struct stream {
    bool started, ended;
    uint32_t n;
    uint32_t tokens[MOST_TOKENS];
    struct sched_token last;
    struct sched_end end;
    bool done; /* ended by DONE */
    uint32_t end_order;
};

struct harness {
    struct fake_engine fake;
    struct sched *sched;
    struct stats_writer *stats;
    struct stream streams[MOST_STREAMS]; /* by id; a choice k: id + k */
    uint32_t n_choices[MOST_STREAMS];    /* by id */
    bool over[MOST_STREAMS];             /* by id: its last event came */
    uint32_t n_ended;
};

void harness_init(struct harness *h, struct sched_options options, size_t limit, size_t page_bytes,
                  uint32_t threads);
/* Frees the scheduler, then checks that every page came back. */
void harness_release(struct harness *h);

/* A prompt of n tokens that depends on id alone. */
uint32_t *harness_prompt(uint64_t id, uint32_t n);
/* A generation with that prompt, max_tokens, greedy. */
struct generation *harness_generation(uint64_t id, uint32_t n, uint32_t max_tokens);
/* Submits; must be accepted. */
void harness_submit(struct harness *h, struct generation *g);
/* Takes all events that are there; checks their order. */
void harness_collect(struct harness *h);
/* Collects, sleeping on the event descriptor, until the stream of id has n tokens or ended. */
void harness_until(struct harness *h, uint64_t id, uint32_t n);
/* Collects until n streams ended. */
void harness_until_ended(struct harness *h, uint32_t n);
/* Gate: waits until a step stands at the gate; lets n steps through, waiting for the next after
 * each. */
void harness_gate(struct harness *h);
void harness_at_gate(struct harness *h);
void harness_pass(struct harness *h);
void harness_open(struct harness *h);

/* A generation of n choices as harness_generation's, drawn at temperature 1 with that seed. */
struct generation *harness_choices(uint64_t id, uint32_t n, uint32_t max_tokens, uint32_t choices,
                                   uint64_t seed);

/* Compares with what the engine says for that prompt: n tokens, greedy. */
void harness_expect_greedy(const struct harness *h, uint64_t id, uint32_t n_prompt);

#endif
