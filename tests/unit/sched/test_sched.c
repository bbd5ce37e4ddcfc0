/* The scheduler over a made-up engine: streams, order, cancellation, memory. */
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness.h"
#include "tests/check_main.h"

#define MIB ((size_t)1 << 20)
#define SMALL_PAGE 256u /* 32 numbers: memory is never short */
#define BIG_PAGE 65536u /* 8 MiB hold 128 of them: 4096 positions */

static struct harness h;

static void init(struct sched_options options)
{
    harness_init(&h, options, 8 * MIB, SMALL_PAGE, 2);
}

static struct sched_options defaults(void)
{
    return (struct sched_options){.max_queue = 400};
}

START_TEST(a_stream_is_what_the_engine_says)
{
    init(defaults());
    harness_submit(&h, harness_generation(1, 10, 100));
    harness_until_ended(&h, 1);
    ck_assert(h.streams[1].done);
    ck_assert_int_eq(h.streams[1].end.reason, SCHED_LENGTH);
    ck_assert_uint_eq(h.streams[1].n, 100);
    ck_assert_uint_eq(h.streams[1].end.prompt_tokens, 10);
    harness_expect_greedy(&h, 1, 10);
    ck_assert_uint_eq(stats_value(h.stats, STAT_steps_total), 100);
    ck_assert_uint_eq(stats_value(h.stats, STAT_step_tokens_total), 10 + 99);
    ck_assert_uint_eq(stats_value(h.stats, STAT_prefilled_tokens_total), 10);
    harness_release(&h);
}
END_TEST

START_TEST(end_tokens_end)
{
    struct sched_options o = defaults();
    const uint32_t eog[] = {7, 9};
    o.eog = eog;
    o.n_eog = 2;
    init(o);
    harness_submit(&h, harness_generation(1, 10, 1000));
    struct generation *g = harness_generation(2, 10, 300);
    g->ignore_eos = true;
    harness_submit(&h, g);
    harness_until_ended(&h, 2);
    ck_assert_int_eq(h.streams[1].end.reason, SCHED_STOP);
    ck_assert_uint_lt(h.streams[1].n, 1000);
    harness_expect_greedy(&h, 1, 10);
    /* The token after the last is an end token. */
    uint32_t *text = harness_prompt(1, 10), n = 10 + h.streams[1].n, best = 0;
    float row[FAKE_STRIDE];
    text = realloc(text, n * sizeof(*text));
    memcpy(text + 10, h.streams[1].tokens, (n - 10) * sizeof(*text));
    fake_row(text, n, row);
    for (uint32_t v = 1; v < FAKE_VOCAB; v++)
        best = row[v] > row[best] ? v : best;
    ck_assert(best == 7 || best == 9);
    free(text);
    ck_assert_int_eq(h.streams[2].end.reason, SCHED_LENGTH);
    ck_assert_uint_eq(h.streams[2].n, 300);
    for (uint32_t i = 0; i < 300; i++)
        ck_assert(h.streams[2].tokens[i] != 7 && h.streams[2].tokens[i] != 9);
    harness_release(&h);
}
END_TEST

static uint32_t prompt_of(uint64_t id)
{
    return 1 + (uint32_t)(id * 7919 % 300);
}

/* A seeded, penalised generation, or a greedy one. */
static struct generation *mixed(uint64_t id)
{
    struct generation *g = harness_generation(id, prompt_of(id), 1 + (uint32_t)(id * 31 % 90));
    if (id % 2 != 0) {
        g->sampling.temperature = 0.9f;
        g->sampling.seed = id * 1000003;
        g->sampling.top_p = 0.95f;
        g->sampling.presence_penalty = 0.5f;
        g->sampling.repetition_penalty = 1.1f;
    }
    g->n_top = (int)(id % 4) - 1;
    return g;
}

#define MIXED 48

START_TEST(streams_are_the_same_alone_and_together)
{
    static const uint32_t chunks[] = {1, 7, 64, 512};
    static struct stream alone[MIXED];
    struct sched_options o = defaults();
    o.trace_logits = true;
    init(o);
    for (uint64_t id = 0; id < MIXED; id++) {
        harness_submit(&h, mixed(id));
        harness_until_ended(&h, (uint32_t)id + 1);
        if (id % 2 == 0)
            harness_expect_greedy(&h, id, prompt_of(id));
    }
    memcpy(alone, h.streams, sizeof(alone));
    harness_release(&h);
    o.prefill_chunk = chunks[_i];
    o.max_running = 17;
    harness_init(&h, o, 8 * MIB, SMALL_PAGE, 1 + (uint32_t)_i % 2);
    for (uint64_t id = 0; id < MIXED; id++) {
        harness_submit(&h, mixed(id));
        if (id % 5 == 0)
            harness_until(&h, id, 1);
    }
    harness_until_ended(&h, MIXED);
    for (uint64_t id = 0; id < MIXED; id++) {
        ck_assert_uint_eq(h.streams[id].n, alone[id].n);
        ck_assert_int_eq(
            memcmp(h.streams[id].tokens, alone[id].tokens, alone[id].n * sizeof(uint32_t)), 0);
        ck_assert_uint_eq(h.streams[id].end.logits_hash, alone[id].end.logits_hash);
        ck_assert_uint_ne(h.streams[id].end.logits_hash, 0);
        ck_assert_uint_eq(h.streams[id].last.n_top, alone[id].last.n_top);
        ck_assert(h.streams[id].last.logprob == alone[id].last.logprob);
    }
    ck_assert_uint_gt(h.fake.most_sequences, 1);
    ck_assert_uint_le(h.fake.most_sequences, 17);
    harness_release(&h);
}
END_TEST

START_TEST(sequences_join_and_leave_at_every_step)
{
    struct sched_options o = defaults();
    o.prefill_chunk = 16;
    init(o);
    harness_gate(&h);
    harness_submit(&h, harness_generation(1, 5, 1000));
    harness_at_gate(&h); /* prefill of 1 */
    harness_submit(&h, harness_generation(2, 40, 2));
    harness_pass(&h);
    harness_pass(&h); /* decode of 1 with the first chunk of 2 */
    ck_assert_uint_eq(h.fake.last_tokens, 17);
    ck_assert_uint_eq(h.fake.last_sequences, 2);
    harness_pass(&h);
    ck_assert_uint_eq(h.fake.last_tokens, 17);
    harness_pass(&h); /* the rest of 2's prompt: 8 tokens, its first token */
    ck_assert_uint_eq(h.fake.last_tokens, 9);
    harness_collect(&h);
    ck_assert_uint_eq(h.streams[2].n, 1);
    harness_pass(&h); /* two decodes, 2 is done */
    ck_assert_uint_eq(h.fake.last_tokens, 2);
    harness_collect(&h);
    ck_assert(h.streams[2].done);
    ck_assert_uint_eq(h.streams[1].n, 5); /* a token every step */
    harness_pass(&h);
    ck_assert_uint_eq(h.fake.last_tokens, 1);
    sched_cancel(h.sched, 1);
    harness_open(&h);
    harness_until_ended(&h, 2);
    harness_release(&h);
}
END_TEST

START_TEST(first_come_first_served)
{
    struct sched_options o = defaults();
    o.max_running = 1;
    init(o);
    for (uint64_t id = 0; id < 30; id++)
        harness_submit(&h,
                       harness_generation(id, 1 + (uint32_t)id % 7, 3 + (uint32_t)(id * 5 % 11)));
    harness_until_ended(&h, 30);
    for (uint64_t id = 0; id < 30; id++)
        ck_assert_uint_eq(h.streams[id].end_order, id);
    harness_release(&h);
}
END_TEST

START_TEST(the_queue_has_a_limit)
{
    struct sched_options o = {.max_queue = 3, .max_running = 2};
    struct error err = {0};
    unsigned retry = 0;
    init(o);
    harness_gate(&h);
    harness_submit(&h, harness_generation(0, 5, 50));
    harness_at_gate(&h);
    harness_submit(&h, harness_generation(1, 5, 50));
    harness_pass(&h);
    for (uint64_t id = 2; id < 5; id++)
        harness_submit(&h, harness_generation(id, 5, 50));
    struct generation *g = harness_generation(5, 5, 50);
    ck_assert_int_eq(sched_submit(h.sched, g, &retry, &err), STATUS_QUEUE_FULL);
    ck_assert_uint_ge(retry, 1);
    ck_assert_ptr_nonnull(strstr(err.text, "3 requests"));
    ck_assert_uint_eq(sched_waiting(h.sched), 3);
    /* A place that becomes free can be taken. */
    sched_cancel(h.sched, 3);
    harness_pass(&h);
    ck_assert_uint_eq(sched_waiting(h.sched), 2);
    ck_assert_uint_eq(sched_running(h.sched), 2);
    harness_submit(&h, g);
    harness_open(&h);
    harness_until_ended(&h, 6);
    ck_assert_int_eq(h.streams[3].end.status, STATUS_CANCELLED);
    ck_assert(h.streams[5].done);
    harness_release(&h);
}
END_TEST

START_TEST(what_never_fits_is_refused)
{
    struct error err = {0};
    struct sched_options o = defaults();
    o.context = 1000;
    init(o);
    struct generation *g = harness_generation(1, 900, 101);
    ck_assert_int_eq(sched_submit(h.sched, g, NULL, &err), STATUS_CONTEXT_LENGTH);
    ck_assert_ptr_nonnull(strstr(err.text, "900"));
    ck_assert_ptr_nonnull(strstr(err.text, "101"));
    ck_assert_ptr_nonnull(strstr(err.text, "1000"));
    g->max_tokens = 100;
    harness_submit(&h, g);
    g = harness_generation(2, 1000, SCHED_REST);
    ck_assert_int_eq(sched_submit(h.sched, g, NULL, &err), STATUS_CONTEXT_LENGTH);
    generation_free(g);
    harness_submit(&h, harness_generation(3, 999, SCHED_REST));
    harness_until_ended(&h, 2);
    ck_assert_uint_eq(h.streams[1].n, 100);
    ck_assert_uint_eq(h.streams[3].n, 1);
    ck_assert_int_eq(h.streams[3].end.reason, SCHED_LENGTH);
    harness_release(&h);
}
END_TEST

START_TEST(more_than_the_kv_memory_is_refused)
{
    struct error err = {0};
    /* 4 slabs of 2 MiB in pages of 256 KiB: 32 pages, 1024 positions, less than the context of
     * 2048. */
    harness_init(&h, defaults(), 8 * MIB, 262144, 1);
    struct generation *g = harness_generation(1, 100, 926);
    ck_assert_int_eq(sched_submit(h.sched, g, NULL, &err), STATUS_CONTEXT_LENGTH);
    ck_assert_ptr_nonnull(strstr(err.text, "1024"));
    g->max_tokens = 925;
    harness_submit(&h, g);
    harness_submit(&h, harness_generation(2, 100, SCHED_REST));
    harness_until_ended(&h, 2);
    ck_assert_uint_eq(h.streams[1].n, 925);
    ck_assert_uint_eq(h.streams[2].n, 925); /* the rest is what the memory holds */
    harness_expect_greedy(&h, 2, 100);
    harness_release(&h);
}
END_TEST

static uint64_t pages_used(void)
{
    struct pages_counts counts;
    pages_counts(h.fake.pool, &counts);
    return counts.used;
}

START_TEST(cancel_takes_effect_within_a_step)
{
    struct sched_options o = defaults();
    o.prefill_chunk = 16;
    o.max_running = 2;
    init(o);
    harness_gate(&h);
    harness_submit(&h, harness_generation(1, 5, 1000));
    harness_at_gate(&h);
    harness_submit(&h, harness_generation(2, 1000, 5));
    harness_submit(&h, harness_generation(3, 5, 5)); /* waits */
    harness_pass(&h);
    harness_pass(&h);
    harness_pass(&h);
    harness_collect(&h);
    ck_assert(h.streams[2].started);
    ck_assert(!h.streams[3].started);
    /* While a step is running: one cancel each in prefill, decode, queue. */
    sched_cancel(h.sched, 2);
    sched_cancel(h.sched, 1);
    sched_cancel(h.sched, 3);
    sched_cancel(h.sched, 99); /* unknown: ignored */
    uint32_t steps = h.fake.steps;
    sem_post(&h.fake.permits);
    harness_until_ended(&h, 3);
    ck_assert_uint_eq(h.fake.steps, steps + 1);
    for (uint64_t id = 1; id <= 3; id++)
        ck_assert_int_eq(h.streams[id].end.status, STATUS_CANCELLED);
    ck_assert_uint_eq(pages_used(), 0);
    harness_release(&h);
}
END_TEST

START_TEST(a_paused_stream_waits_and_goes_on)
{
    init(defaults());
    harness_gate(&h);
    harness_submit(&h, harness_generation(1, 5, 40));
    harness_at_gate(&h);
    harness_submit(&h, harness_generation(2, 5, 200));
    harness_pass(&h);
    harness_pass(&h);
    sched_pause(h.sched, 1, true);
    harness_pass(&h);
    harness_collect(&h);
    uint32_t n = h.streams[1].n;
    for (int i = 0; i < 20; i++)
        harness_pass(&h);
    ck_assert_uint_eq(h.fake.last_tokens, 1);
    harness_collect(&h);
    ck_assert_uint_eq(h.streams[1].n, n);
    ck_assert_uint_ge(h.streams[2].n, 20);
    sched_pause(h.sched, 1, false);
    sched_pause(h.sched, 2, true);
    harness_open(&h);
    harness_until_ended(&h, 1);
    ck_assert(h.streams[1].done);
    ck_assert(!h.streams[2].ended);
    sched_pause(h.sched, 2, false);
    harness_until_ended(&h, 2);
    harness_expect_greedy(&h, 1, 5);
    harness_expect_greedy(&h, 2, 5);
    harness_release(&h);
}
END_TEST

START_TEST(who_is_paused_long_gives_its_memory_back)
{
    struct sched_options o = defaults();
    o.pause_limit_ns = 100000000;
    o.no_cache = _i != 0;
    init(o);
    harness_gate(&h);
    harness_submit(&h, harness_generation(1, 100, 300));
    harness_at_gate(&h);
    for (int i = 0; i < 10; i++)
        harness_pass(&h);
    sched_pause(h.sched, 1, true);
    harness_open(&h);
    for (int i = 0; i < 50 && pages_used() > 0; i++)
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    ck_assert_uint_eq(pages_used(), 0);
    ck_assert_uint_eq(stats_value(h.stats, STAT_preemptions_total), 1);
    /* It does not stand in anybody's way. */
    harness_submit(&h, harness_generation(2, 100, 10));
    harness_until_ended(&h, 1);
    ck_assert(h.streams[2].done);
    sched_pause(h.sched, 1, false);
    harness_until_ended(&h, 2);
    ck_assert_uint_eq(h.streams[1].n, 300);
    harness_expect_greedy(&h, 1, 100);
    harness_release(&h);
}
END_TEST

/* Two more whose clients do not read: they run, are paused, and are put back. */
static void put_two_back(uint64_t id, uint64_t preemptions)
{
    harness_gate(&h);
    harness_submit(&h, harness_generation(id, 20, 300));
    harness_at_gate(&h);
    harness_submit(&h, harness_generation(id + 1, 20, 300));
    harness_pass(&h);
    sched_pause(h.sched, id, true);
    sched_pause(h.sched, id + 1, true);
    harness_open(&h);
    for (int i = 0; i < 100 && stats_value(h.stats, STAT_preemptions_total) < preemptions; i++)
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    ck_assert_uint_eq(stats_value(h.stats, STAT_preemptions_total), preemptions);
}

/* Slow readers that were put back take no place in the queue, nor its tokens, until they are as many as
 * may wait and run. (3 s: the scheduler looks for them once a second.) */
START_TEST(who_was_put_back_does_not_fill_the_queue)
{
    struct sched_options o = {
        .max_queue = 2, .max_running = 2, .max_queue_tokens = 100, .pause_limit_ns = 1};
    struct error err = {0};
    unsigned retry = 0;
    init(o);
    put_two_back(0, 2);
    ck_assert_uint_eq(sched_waiting(h.sched), 2);
    ck_assert_int_eq(sched_has_room(h.sched, 1, NULL, &err), STATUS_OK);
    harness_submit(&h, harness_generation(10, 500, 1)); /* nobody waits: any size */
    harness_until_ended(&h, 1);
    harness_gate(&h);
    harness_submit(&h, harness_generation(11, 5, 50));
    harness_at_gate(&h);
    harness_submit(&h, harness_generation(12, 5, 50));
    harness_pass(&h);
    harness_submit(&h, harness_generation(13, 80, 1));
    struct generation *g = harness_generation(14, 30, 1);
    ck_assert_int_eq(sched_submit(h.sched, g, &retry, &err), STATUS_QUEUE_FULL);
    ck_assert_ptr_nonnull(strstr(err.text, "80 tokens"));
    harness_submit(&h, harness_generation(15, 10, 1));
    ck_assert_int_eq(sched_submit(h.sched, g, &retry, &err), STATUS_QUEUE_FULL);
    ck_assert_ptr_nonnull(strstr(err.text, "2 requests"));
    harness_open(&h);
    harness_until_ended(&h, 5);
    put_two_back(2, 4);
    ck_assert_int_eq(sched_submit(h.sched, g, &retry, &err), STATUS_QUEUE_FULL);
    ck_assert_ptr_nonnull(strstr(err.text, "4 answers that were put back"));
    ck_assert_uint_ge(retry, 1);
    /* One that reads again makes room, and goes on with the same tokens. */
    sched_pause(h.sched, 0, false);
    harness_until_ended(&h, 6);
    ck_assert_uint_eq(h.streams[0].n, 300);
    harness_expect_greedy(&h, 0, 20);
    harness_submit(&h, g);
    harness_until_ended(&h, 7);
    ck_assert(h.streams[14].done);
    harness_release(&h);
}
END_TEST

START_TEST(growing_streams_preempt_the_youngest)
{
    struct sched_options o = defaults();
    o.reserve_tokens = 64;
    /* 4096 positions for 8 streams of 2048. */
    harness_init(&h, o, 8 * MIB, BIG_PAGE, 2);
    for (uint64_t id = 0; id < 8; id++)
        harness_submit(&h, harness_generation(id, 50 + (uint32_t)id, SCHED_REST));
    harness_until_ended(&h, 8);
    for (uint64_t id = 0; id < 8; id++) {
        ck_assert(h.streams[id].done);
        ck_assert_uint_eq(h.streams[id].n, FAKE_CONTEXT - 50 - id);
        harness_expect_greedy(&h, id, 50 + (uint32_t)id);
    }
    ck_assert_uint_le(h.streams[0].end_order, 1); /* the oldest was never put back */
    ck_assert_uint_gt(stats_value(h.stats, STAT_preemptions_total), 0);
    harness_release(&h);
}
END_TEST

START_TEST(promised_streams_are_never_preempted)
{
    harness_init(&h, defaults(), 8 * MIB, BIG_PAGE, 2);
    for (uint64_t id = 0; id < 20; id++)
        harness_submit(&h, harness_generation(id, 100, 600));
    harness_until_ended(&h, 20);
    for (uint64_t id = 0; id < 20; id++) {
        ck_assert_uint_eq(h.streams[id].n, 600);
        harness_expect_greedy(&h, id, 100);
    }
    ck_assert_uint_eq(stats_value(h.stats, STAT_preemptions_total), 0);
    ck_assert_uint_gt(h.fake.most_sequences, 3);
    harness_release(&h);
}
END_TEST

START_TEST(a_number_that_is_not_finite_fails_its_own_stream_alone)
{
    init(defaults());
    for (uint64_t id = 0; id < 4; id++) {
        struct generation *g = harness_generation(id, 20, 50);
        if (id == 2)
            g->tokens[19] = FAKE_BAD_TOKEN;
        harness_submit(&h, g);
    }
    harness_until_ended(&h, 4);
    for (uint64_t id = 0; id < 4; id++) {
        ck_assert_int_eq(h.streams[id].end.status, id == 2 ? STATUS_NON_FINITE : STATUS_OK);
        if (id != 2)
            harness_expect_greedy(&h, id, 20);
    }
    ck_assert_uint_eq(h.streams[2].n, 0);
    ck_assert_ptr_nonnull(h.streams[2].end.text);
    harness_release(&h);
}
END_TEST

START_TEST(random_aborts_leave_nothing_behind)
{
    struct sched_options o = defaults();
    o.max_running = 12;
    o.reserve_tokens = 64;
    harness_init(&h, o, 8 * MIB, BIG_PAGE, 2);
    uint32_t seed = 5;
    for (uint64_t id = 0; id < 300; id++) {
        seed = seed * 1664525 + 1013904223;
        struct generation *g =
            harness_generation(id, 1 + (seed >> 9) % 700, (seed >> 20) % 3 == 0 ? SCHED_REST : 200);
        harness_submit(&h, g);
        seed = seed * 1664525 + 1013904223;
        sched_cancel(h.sched, id >= 10 ? id - (seed >> 16) % 10 : id);
        if ((seed >> 8) % 4 == 0)
            sched_pause(h.sched, id, true);
        if ((seed >> 10) % 3 == 0)
            nanosleep(&(struct timespec){0, 200000}, NULL);
        harness_collect(&h);
    }
    for (uint64_t id = 0; id < 300; id++)
        sched_cancel(h.sched, id);
    harness_until_ended(&h, 300);
    ck_assert_uint_eq(pages_used(), 0);
    for (int i = 0; i < 1000 && (sched_running(h.sched) > 0 || sched_waiting(h.sched) > 0); i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    ck_assert_uint_eq(sched_running(h.sched), 0);
    ck_assert_uint_eq(sched_waiting(h.sched), 0);
    ck_assert_uint_eq(stats_value(h.stats, STAT_requests_running), 0);
    ck_assert_uint_eq(stats_value(h.stats, STAT_requests_waiting), 0);
    ck_assert_uint_eq(stats_value(h.stats, STAT_kv_pages_used), 0);
    harness_release(&h);
}
END_TEST

START_TEST(drain_finishes_stop_ends)
{
    struct error err = {0};
    init(defaults());
    harness_gate(&h);
    harness_submit(&h, harness_generation(1, 5, 30));
    harness_submit(&h, harness_generation(2, 5, 30));
    harness_at_gate(&h);
    sched_drain(h.sched);
    struct generation *g = harness_generation(3, 5, 30);
    ck_assert_int_eq(sched_submit(h.sched, g, NULL, &err), STATUS_DRAINING);
    harness_open(&h);
    harness_until_ended(&h, 2);
    ck_assert(h.streams[1].done && h.streams[2].done);
    harness_release(&h);

    init(defaults());
    h.fake.step_ns = 1000000;
    harness_submit(&h, harness_generation(1, 5, 2000));
    harness_submit(&h, harness_generation(2, 5, 2000));
    harness_until(&h, 1, 3);
    sched_stop(h.sched);
    harness_until_ended(&h, 2);
    ck_assert_int_eq(h.streams[1].end.status, STATUS_DRAINING);
    ck_assert_int_eq(h.streams[2].end.status, STATUS_DRAINING);
    ck_assert_int_eq(sched_submit(h.sched, g, NULL, &err), STATUS_DRAINING);
    generation_free(g);
    harness_release(&h);

    /* Freed while sequences live and commands are on their way. */
    init(defaults());
    for (uint64_t id = 0; id < 20; id++)
        harness_submit(&h, harness_generation(id, 50, 1000));
    harness_release(&h);
}
END_TEST

START_TEST(a_late_loop_loses_nothing)
{
    struct sched_options o = {.max_queue = 20, .max_running = 4};
    init(o);
    for (uint64_t id = 0; id < 12; id++)
        harness_submit(&h, harness_generation(id, 5, 500));
    /* The queue of events fills up: steps must stop, not events be lost. */
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    uint32_t steps = h.fake.steps;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    ck_assert_uint_eq(h.fake.steps, steps);
    harness_until_ended(&h, 12);
    for (uint64_t id = 0; id < 12; id++) {
        ck_assert_uint_eq(h.streams[id].n, 500);
        harness_expect_greedy(&h, id, 5);
    }
    harness_release(&h);
}
END_TEST

START_TEST(the_descriptor_is_quiet_when_nothing_happens)
{
    init(defaults());
    struct pollfd p = {.fd = sched_event_fd(h.sched), .events = POLLIN};
    harness_collect(&h);
    ck_assert_int_eq(poll(&p, 1, 20), 0);
    harness_submit(&h, harness_generation(1, 5, 1));
    harness_until_ended(&h, 1);
    harness_collect(&h);
    ck_assert_int_eq(poll(&p, 1, 20), 0);
    harness_release(&h);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sched");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_stream_is_what_the_engine_says);
    tcase_add_test(tc, end_tokens_end);
    tcase_add_loop_test(tc, streams_are_the_same_alone_and_together, 0, 4);
    tcase_add_test(tc, sequences_join_and_leave_at_every_step);
    tcase_add_test(tc, first_come_first_served);
    tcase_add_test(tc, the_queue_has_a_limit);
    tcase_add_test(tc, what_never_fits_is_refused);
    tcase_add_test(tc, more_than_the_kv_memory_is_refused);
    tcase_add_test(tc, cancel_takes_effect_within_a_step);
    tcase_add_test(tc, a_paused_stream_waits_and_goes_on);
    tcase_add_loop_test(tc, who_is_paused_long_gives_its_memory_back, 0, 2);
    tcase_add_test(tc, who_was_put_back_does_not_fill_the_queue);
    tcase_add_test(tc, growing_streams_preempt_the_youngest);
    tcase_add_test(tc, promised_streams_are_never_preempted);
    tcase_add_test(tc, a_number_that_is_not_finite_fails_its_own_stream_alone);
    tcase_add_test(tc, random_aborts_leave_nothing_behind);
    tcase_add_test(tc, drain_finishes_stop_ends);
    tcase_add_test(tc, a_late_loop_loses_nothing);
    tcase_add_test(tc, the_descriptor_is_quiet_when_nothing_happens);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
