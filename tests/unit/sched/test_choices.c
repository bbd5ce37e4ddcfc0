/* Generations of several choices, and prompts that nobody waits for any more, over the made-up engine:
 * it fails a position that is fed twice or read before it was fed, and its tokens depend on the whole
 * text. */
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness.h"
#include "tests/check_main.h"

#define MIB ((size_t)1 << 20)
#define SMALL_PAGE 256u
#define BIG_PAGE 65536u /* 8 MiB hold 128 of them: 4096 positions */

static struct harness h;

static void init(struct sched_options options, size_t page)
{
    options.max_queue = 400;
    options.trace_logits = true;
    harness_init(&h, options, 8 * MIB, page, 2);
}

static uint64_t stat(enum stats_id id)
{
    return stats_value(h.stats, id);
}

static struct pages_counts counts(void)
{
    struct pages_counts c;
    pages_counts(h.fake.pool, &c);
    return c;
}

/* ---- the same bytes ---- */

static const uint32_t prompts[] = {1, 31, 32, 33, 64, 100, 257};
#define N_PROMPTS 7u
#define CHOICES 4u

static struct generation *penalised(uint64_t id, uint32_t n, uint32_t choices)
{
    struct generation *g = harness_choices(id, n, 70, choices, n * 31 + 5);
    g->sampling.presence_penalty = 0.5f;
    g->sampling.frequency_penalty = 0.2f;
    g->n_top = 2;
    return g;
}

/* Each choice of each prompt on its own, under ids from 0 on. */
static void run_alone(struct stream *alone)
{
    init((struct sched_options){.no_cache = true}, SMALL_PAGE);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        for (uint32_t k = 0; k < CHOICES; k++) {
            uint64_t id = p * CHOICES + k;
            struct generation *g = penalised(id, prompts[p], 1);
            free(g->tokens);
            g->tokens = harness_prompt(p * CHOICES, prompts[p]);
            g->sampling.choice = k;
            harness_submit(&h, g);
            harness_until_ended(&h, (uint32_t)id + 1);
            alone[id] = h.streams[id];
        }
    }
    for (uint32_t k = 1; k < CHOICES; k++) /* a choice is not another one's copy */
        ck_assert(memcmp(alone[0].tokens, alone[k].tokens, sizeof(alone[0].tokens)) != 0);
    harness_release(&h);
}

static void expect_same(const struct stream *alone)
{
    for (uint32_t i = 0; i < N_PROMPTS * CHOICES; i++) {
        const struct stream *s = &h.streams[i];
        ck_assert(s->ended && s->done);
        ck_assert_uint_eq(s->n, 70);
        ck_assert_mem_eq(s->tokens, alone[i].tokens, s->n * sizeof(*s->tokens));
        ck_assert_uint_eq(s->end.logits_hash, alone[i].end.logits_hash);
        ck_assert_int_eq(memcmp(&s->last.top, &alone[i].last.top, 2 * sizeof(s->last.top[0])), 0);
    }
}

START_TEST(a_choice_is_what_it_is_alone)
{
    static struct stream alone[N_PROMPTS * CHOICES];
    static const uint32_t chunks[] = {1, 7, 64, 512};
    run_alone(alone);
    for (unsigned c = 0; c < 8; c++) {
        init((struct sched_options){.prefill_chunk = chunks[c % 4], .no_cache = c >= 4},
             SMALL_PAGE);
        for (uint32_t p = 0; p < N_PROMPTS; p++)
            harness_submit(&h, penalised(p * CHOICES, prompts[p], CHOICES));
        harness_until_ended(&h, N_PROMPTS * CHOICES);
        expect_same(alone);
        harness_release(&h);
    }
}
END_TEST

START_TEST(greedy_choices_are_all_the_same)
{
    init((struct sched_options){0}, SMALL_PAGE);
    struct generation *g = harness_generation(0, 50, 200);
    g->n_choices = 5;
    harness_submit(&h, g);
    harness_until_ended(&h, 5);
    harness_expect_greedy(&h, 0, 50);
    for (int k = 1; k < 5; k++)
        ck_assert_mem_eq(h.streams[k].tokens, h.streams[0].tokens, 200 * sizeof(uint32_t));
    harness_release(&h);
}
END_TEST

/* Growing choices of three generations in memory that does not hold them: some are put back, alone,
 * and go on with the same tokens. */
START_TEST(a_choice_may_be_preempted)
{
    static struct stream alone[6];
    struct sched_options o = {.reserve_tokens = 64};
    init((struct sched_options){.no_cache = true}, SMALL_PAGE);
    for (uint64_t id = 0; id < 6; id++) {
        struct generation *g = harness_choices(id, 70, 1200, 1, 9);
        free(g->tokens);
        g->tokens = harness_prompt(id / 2 * 2, 70);
        g->sampling.choice = id % 2;
        harness_submit(&h, g);
    }
    harness_until_ended(&h, 6);
    memcpy(alone, h.streams, sizeof(alone));
    harness_release(&h);
    init(o, BIG_PAGE);
    for (uint64_t id = 0; id < 6; id += 2) {
        struct generation *g = harness_choices(id, 70, 1200, 2, 9);
        g->grows = true;
        harness_submit(&h, g);
    }
    harness_until_ended(&h, 6);
    ck_assert_uint_gt(stat(STAT_preemptions_total), 0);
    for (int i = 0; i < 6; i++) {
        ck_assert_uint_eq(h.streams[i].n, 1200);
        ck_assert_mem_eq(h.streams[i].tokens, alone[i].tokens, 1200 * sizeof(uint32_t));
        ck_assert_uint_eq(h.streams[i].end.logits_hash, alone[i].end.logits_hash);
    }
    harness_release(&h);
}
END_TEST

/* ---- memory ---- */

static void pass_until_decoding(uint32_t n)
{
    harness_at_gate(&h);
    for (int i = 0; i < 100 && h.fake.last_tokens != n; i++)
        harness_pass(&h);
    ck_assert_uint_eq(h.fake.last_tokens, n);
}

START_TEST(the_prompt_is_computed_and_kept_once)
{
    init((struct sched_options){.prefill_chunk = 500, .no_cache = _i == 1}, SMALL_PAGE);
    harness_gate(&h);
    harness_submit(&h, harness_choices(0, 650, 90, 8, 3));
    pass_until_decoding(8);
    ck_assert_uint_eq(stat(STAT_prefilled_tokens_total), 650);
    ck_assert_uint_eq(counts().used, 20 + 8);
    ck_assert_uint_eq(counts().copied, 7); /* the last one has the page to itself */
    ck_assert_uint_eq(stat(STAT_requests_running), 8);
    if (_i == 0) /* 739 positions are 24 pages */
        ck_assert_uint_eq(counts().reserved, 20 + 8 * 4);
    harness_open(&h);
    harness_until_ended(&h, 8);
    ck_assert_uint_eq(counts().used, 0);
    ck_assert_uint_eq(counts().reserved, 0);
    harness_release(&h);
}
END_TEST

START_TEST(a_prompt_of_whole_pages_needs_no_copy)
{
    init((struct sched_options){.no_cache = _i == 1}, SMALL_PAGE);
    harness_submit(&h, harness_choices(0, 64, 40, 4, 3));
    harness_until_ended(&h, 4);
    ck_assert_uint_eq(counts().copied, 0);
    ck_assert_uint_eq(counts().used, 0);
    ck_assert_uint_eq(counts().reserved, 0);
    harness_release(&h);
}
END_TEST

START_TEST(choices_that_never_fit_are_refused)
{
    struct error err = {0};
    init((struct sched_options){.max_running = 8}, BIG_PAGE);
    struct generation *g = harness_choices(0, 100, 10, 9, 3);
    ck_assert_int_eq(sched_submit(h.sched, g, NULL, &err), STATUS_INVALID);
    ck_assert_str_eq(err.param, "n");
    g->n_choices = 4; /* 3 pages, and 4 times 33 more, of 128 */
    g->max_tokens = 1029;
    ck_assert_int_eq(sched_submit(h.sched, g, NULL, &err), STATUS_CONTEXT_LENGTH);
    ck_assert_ptr_nonnull(strstr(err.text, "each of 4 choices"));
    g->max_tokens = 989; /* 31 */
    harness_submit(&h, g);
    harness_until_ended(&h, 4);
    for (int k = 0; k < 4; k++)
        ck_assert_uint_eq(h.streams[k].n, 989);
    /* As many as there is memory for. */
    harness_submit(&h, harness_choices(10, 100, SCHED_REST, 4, 3));
    harness_until_ended(&h, 8);
    for (int k = 10; k < 14; k++)
        ck_assert_uint_eq(h.streams[k].n, 34 * 32 + 1 - 100);
    harness_release(&h);
}
END_TEST

START_TEST(choices_take_their_places_at_once)
{
    init((struct sched_options){.max_running = 10, .prefill_chunk = 8}, SMALL_PAGE);
    for (uint64_t id = 0; id < 64; id += 8) {
        harness_submit(&h, harness_choices(id, 60, 50, id % 16 == 0 ? 7 : 1, 3));
        harness_submit(&h, harness_choices(id + 7, 60, 50, 1, 3));
    }
    harness_until_ended(&h, 4 * 7 + 4 + 8);
    ck_assert_uint_le(h.fake.most_sequences, 10);
    ck_assert_uint_gt(h.fake.most_sequences, 7);
    harness_release(&h);
}
END_TEST

/* ---- ends ---- */

START_TEST(a_choice_is_finished_alone)
{
    init((struct sched_options){0}, SMALL_PAGE);
    h.fake.step_ns = 100000;
    harness_submit(&h, harness_choices(0, 40, 1000, 3, 3));
    harness_until(&h, 1, 5);
    sched_finish(h.sched, 0, 1);
    harness_until_ended(&h, 1);
    ck_assert(h.streams[1].ended && h.streams[1].done);
    ck_assert_int_eq(h.streams[1].end.reason, SCHED_STOP);
    ck_assert(!h.streams[1].end.last && !h.streams[0].ended && !h.streams[2].ended);
    sched_finish(h.sched, 0, 1); /* again: nothing */
    sched_finish(h.sched, 0, 0);
    harness_until_ended(&h, 2);
    ck_assert(h.streams[0].done && !h.streams[0].end.last);
    h.fake.step_ns = 0;
    harness_until_ended(&h, 3);
    ck_assert(h.streams[2].done && h.streams[2].end.last);
    ck_assert_uint_eq(h.streams[2].n, 1000);
    ck_assert_int_eq(h.streams[2].end.reason, SCHED_LENGTH);
    harness_release(&h);
}
END_TEST

START_TEST(cancel_ends_all_choices)
{
    init((struct sched_options){.prefill_chunk = 32}, SMALL_PAGE);
    harness_gate(&h);
    harness_submit(&h, harness_choices(0, 200, 1000, 4, 3)); /* in its prompt */
    harness_at_gate(&h);
    harness_pass(&h);
    sched_cancel(h.sched, 0);
    harness_submit(&h, harness_choices(10, 20, 1000, 4, 3)); /* in its answers */
    harness_pass(&h);
    harness_pass(&h);
    harness_pass(&h);
    harness_collect(&h);
    ck_assert_uint_gt(h.streams[13].n, 0);
    sched_cancel(h.sched, 10);
    harness_open(&h);
    harness_until_ended(&h, 8);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(h.streams[i].end.status, STATUS_CANCELLED);
        ck_assert_int_eq(h.streams[10 + i].end.status, STATUS_CANCELLED);
    }
    ck_assert_uint_eq(counts().used, 0);
    ck_assert_uint_eq(counts().reserved, 0);
    harness_release(&h);
}
END_TEST

START_TEST(pause_stops_all_choices)
{
    init((struct sched_options){0}, SMALL_PAGE);
    h.fake.step_ns = 100000;
    harness_submit(&h, harness_choices(0, 40, 300, 3, 3));
    harness_until(&h, 2, 5);
    sched_pause(h.sched, 0, true);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    harness_collect(&h);
    uint32_t steps = h.fake.steps, n = h.streams[0].n;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    harness_collect(&h);
    ck_assert_uint_eq(h.fake.steps, steps);
    ck_assert_uint_eq(h.streams[0].n, n);
    h.fake.step_ns = 0;
    sched_pause(h.sched, 0, false);
    harness_until_ended(&h, 3);
    for (int k = 0; k < 3; k++)
        ck_assert_uint_eq(h.streams[k].n, 300);
    harness_release(&h);
}
END_TEST

START_TEST(a_prompt_that_is_not_finite_fails_them_all)
{
    init((struct sched_options){0}, SMALL_PAGE);
    struct generation *g = harness_choices(0, 20, 50, 4, 3);
    g->tokens[19] = FAKE_BAD_TOKEN;
    harness_submit(&h, g);
    harness_submit(&h, harness_choices(10, 20, 50, 2, 3));
    harness_until_ended(&h, 6);
    for (int k = 0; k < 4; k++)
        ck_assert_int_eq(h.streams[k].end.status, STATUS_NON_FINITE);
    ck_assert(h.streams[10].done && h.streams[11].done);
    harness_release(&h);
}
END_TEST

START_TEST(random_aborts_leave_nothing_behind)
{
    struct sched_options o = {.max_running = 12, .reserve_tokens = 64, .no_cache = _i == 1};
    init(o, BIG_PAGE);
    uint32_t seed = 5, n = 0;
    for (uint64_t id = 0; id < 500; id += 5) {
        seed = seed * 1664525 + 1013904223;
        struct generation *g = harness_choices(id, 1 + (seed >> 9) % 300, 200, 1 + seed % 5, seed);
        g->grows = (seed >> 20) % 3 == 0;
        n += g->n_choices;
        harness_submit(&h, g);
        seed = seed * 1664525 + 1013904223;
        uint64_t other = id >= 50 ? id - (seed >> 16) % 10 * 5 : id;
        if (seed % 3 == 0)
            sched_finish(h.sched, other, (seed >> 4) % 4);
        else if (seed % 3 == 1)
            sched_cancel(h.sched, other);
        else
            sched_abandon(h.sched, other);
        if ((seed >> 8) % 4 == 0)
            sched_pause(h.sched, id, true);
        if ((seed >> 10) % 3 == 0)
            nanosleep(&(struct timespec){0, 200000}, NULL);
        harness_collect(&h);
    }
    for (uint64_t id = 0; id < 500; id += 5)
        sched_cancel(h.sched, id);
    harness_until_ended(&h, n);
    ck_assert_uint_eq(counts().used, 0);
    ck_assert_uint_eq(counts().reserved, 0);
    harness_release(&h);
}
END_TEST

/* ---- prompts that nobody waits for ---- */

START_TEST(an_abandoned_prompt_goes_into_the_cache)
{
    init((struct sched_options){.prefill_chunk = 32}, SMALL_PAGE);
    harness_gate(&h);
    harness_submit(&h, harness_choices(0, 330, 1000, 4, 3));
    harness_at_gate(&h);
    harness_pass(&h);
    sched_abandon(h.sched, 0);
    harness_submit(&h, harness_generation(20, 100, 10)); /* goes first */
    harness_open(&h);
    harness_until_ended(&h, 5);
    ck_assert_int_eq(h.streams[0].end.status, STATUS_CANCELLED);
    ck_assert_uint_eq(h.streams[0].n, 0);
    ck_assert_uint_lt(h.streams[20].end_order, h.streams[0].end_order);
    ck_assert_uint_eq(counts().used, 0);
    ck_assert_uint_eq(counts().reserved, 0);
    struct generation *again = harness_generation(30, 330, 5);
    free(again->tokens);
    again->tokens = harness_prompt(0, 330);
    harness_submit(&h, again);
    harness_until_ended(&h, 6);
    ck_assert_uint_eq(h.streams[30].end.cached_tokens, 320);
    harness_release(&h);
}
END_TEST

START_TEST(what_waits_or_decodes_is_not_kept_when_abandoned)
{
    init((struct sched_options){.max_running = 1}, SMALL_PAGE);
    harness_gate(&h);
    harness_submit(&h, harness_generation(0, 10, 1000));
    harness_submit(&h, harness_generation(1, 10, 1000));
    harness_at_gate(&h);
    harness_pass(&h);
    harness_pass(&h);
    sched_abandon(h.sched, 0);
    sched_abandon(h.sched, 1);
    harness_open(&h);
    harness_until_ended(&h, 2);
    ck_assert_uint_lt(h.streams[0].n, 10);
    ck_assert_uint_eq(h.streams[1].n, 0);
    ck_assert_uint_le(stat(STAT_prefilled_tokens_total), 10);
    harness_release(&h);
}
END_TEST

/* Choices whose client does not read are put back, so in the end far more of them wait than ever run at
 * a time. (6 s: the scheduler looks for them once a second.) */
START_TEST(many_choices_that_wait_stop_nobody)
{
    enum { GROUPS = 8, CHOICES_EACH = 120 };
    struct sched_options o = {
        .max_queue = 12, .max_running = CHOICES_EACH, .pause_limit_ns = 1, .no_cache = true};
    harness_init(&h, o, 8 * MIB, SMALL_PAGE, 2);
    struct error err = {0};
    bool paused[GROUPS] = {false};
    for (uint64_t id = 0; id < GROUPS; id++) {
        struct generation *g = harness_choices(id, 4, 2000, CHOICES_EACH, id);
        ck_assert_int_eq(sched_submit(h.sched, g, NULL, &err), STATUS_OK);
    }
    for (unsigned n_paused = 0, n_ended = 0; n_ended < GROUPS;) {
        struct pollfd p = {.fd = sched_event_fd(h.sched), .events = POLLIN};
        struct sched_event e;
        ck_assert_msg(poll(&p, 1, 5000) == 1, "no event for 5 s; %u groups paused", n_paused);
        while (sched_next_event(h.sched, &e)) {
            if (e.kind == SCHED_TOKEN && !paused[e.id]) {
                paused[e.id] = true;
                sched_pause(h.sched, e.id, true);
                n_paused++;
                for (uint64_t id = 0; id < GROUPS && n_paused == GROUPS; id++)
                    sched_cancel(h.sched, id);
            }
            n_ended += e.kind == SCHED_FAILED;
        }
    }
    harness_release(&h);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("choices");
    tcase_add_test(tc, a_choice_is_what_it_is_alone);
    tcase_add_test(tc, greedy_choices_are_all_the_same);
    tcase_add_test(tc, a_choice_may_be_preempted);
    tcase_add_loop_test(tc, the_prompt_is_computed_and_kept_once, 0, 2);
    tcase_add_loop_test(tc, a_prompt_of_whole_pages_needs_no_copy, 0, 2);
    tcase_add_test(tc, choices_that_never_fit_are_refused);
    tcase_add_test(tc, choices_take_their_places_at_once);
    tcase_add_test(tc, a_choice_is_finished_alone);
    tcase_add_test(tc, cancel_ends_all_choices);
    tcase_add_test(tc, pause_stops_all_choices);
    tcase_add_test(tc, a_prompt_that_is_not_finite_fails_them_all);
    tcase_add_loop_test(tc, random_aborts_leave_nothing_behind, 0, 2);
    tcase_add_test(tc, an_abandoned_prompt_goes_into_the_cache);
    tcase_add_test(tc, what_waits_or_decodes_is_not_kept_when_abandoned);
    tcase_add_test(tc, many_choices_that_wait_stop_nobody);
    tcase_set_timeout(tc, 60);
    Suite *suite = suite_create("sched choices");
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
