/* Who comes next: priorities, ageing, tenants, cached prefixes, deadlines and the queue's limit in tokens. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/clock.h"
#include "core/sched/fair.h"
#include "harness.h"
#include "tests/check_main.h"

#define MIB ((size_t)1 << 20)
#define SMALL_PAGE 256u
#define SECOND UINT64_C(1000000000)

static struct harness h;

/* A scheduler whose first step, of stream 0, stands at the gate. */
static void init_busy(struct sched_options options)
{
    options.max_queue = 400;
    harness_init(&h, options, 8 * MIB, SMALL_PAGE, 2);
    harness_gate(&h);
    harness_submit(&h, harness_generation(0, 5, 1));
    harness_at_gate(&h);
}

static struct generation *made(uint64_t id, uint64_t tenant, unsigned priority)
{
    struct generation *g = harness_generation(id, 40, 10);
    g->tenant = tenant;
    g->priority = priority;
    return g;
}

static uint32_t order_of(uint64_t id)
{
    ck_assert(h.streams[id].done);
    return h.streams[id].end_order;
}

START_TEST(high_priority_first)
{
    init_busy((struct sched_options){.max_running = 1});
    for (uint64_t id = 1; id <= 9; id++)
        harness_submit(&h, made(id, 0, (unsigned)(id * 7 % 10)));
    harness_open(&h);
    harness_until_ended(&h, 10);
    for (uint64_t id = 1; id <= 9; id++)
        ck_assert_uint_eq(order_of(id), 10 - id * 7 % 10);
    harness_release(&h);
}
END_TEST

START_TEST(waiting_makes_important)
{
    init_busy((struct sched_options){.max_running = 1});
    const uint64_t now = clock_ns();
    for (uint64_t id = 1; id <= 3; id++) {
        struct generation *g = made(id, 0, id == 3 ? 9 : 4);
        /* 2 is as good as 9 now, and older than 3; 1 is the youngest, for this test may be stopped for minutes */
        g->arrival_ns = id == 2 ? now - 6 * FAIR_AGE_NS : now - id;
        harness_submit(&h, g);
    }
    harness_open(&h);
    harness_until_ended(&h, 4);
    ck_assert_uint_eq(order_of(2), 1);
    ck_assert_uint_eq(order_of(3), 2);
    ck_assert_uint_eq(order_of(1), 3);
    harness_release(&h);
}
END_TEST

/* Tenant 1 sends 30 requests of 600 tokens, then tenant 2 its 10: they take turns. */
START_TEST(tenants_take_turns)
{
    init_busy((struct sched_options){.max_running = 1, .no_cache = true});
    for (uint64_t id = 1; id <= 40; id++) {
        struct generation *g = harness_generation(id, 560, 20);
        g->tenant = id <= 30 ? 1 : 2;
        harness_submit(&h, g);
    }
    harness_open(&h);
    harness_until_ended(&h, 41);
    for (uint64_t id = 31; id <= 40; id++) {
        uint32_t turns = (uint32_t)(id - 30);
        ck_assert_uint_le(order_of(id), 2 * turns + 2);
        ck_assert_uint_ge(order_of(id), 2 * turns - 2);
    }
    for (uint64_t id = 2; id <= 30; id++) /* each tenant's own come in order */
        ck_assert_uint_lt(order_of(id - 1), order_of(id));
    harness_release(&h);
}
END_TEST

/* Who was away gets no more than those who were there. */
START_TEST(nobody_saves_up)
{
    init_busy((struct sched_options){.max_running = 1, .no_cache = true});
    uint64_t id = 1;
    struct generation *g;
    harness_open(&h);
    for (; id <= 20; id++) {
        g = harness_generation(id, 560, 20);
        g->tenant = 1;
        harness_submit(&h, g);
        harness_until_ended(&h, (uint32_t)id + 1);
    }
    harness_gate(&h);
    g = harness_generation(id++, 560, 20);
    g->tenant = 1;
    harness_submit(&h, g);
    harness_at_gate(&h);
    for (; id <= 41; id++) { /* tenant 2 comes for the first time, with 10, and tenant 1 has 10 */
        g = harness_generation(id, 560, 20);
        g->tenant = 1 + id % 2;
        harness_submit(&h, g);
    }
    harness_open(&h);
    harness_until_ended(&h, 42);
    uint32_t early[2] = {0, 0};
    for (id = 22; id <= 41; id++)
        early[id % 2] += order_of(id) <= 31;
    ck_assert_uint_ge(early[0], 4);
    ck_assert_uint_ge(early[1], 4);
    harness_release(&h);
}
END_TEST

/* Many long prompts of one tenant are being computed; another's short one does not wait for them. */
START_TEST(a_prompt_of_another_tenant_comes_between)
{
    init_busy((struct sched_options){.prefill_chunk = 128, .no_cache = true});
    for (uint64_t id = 1; id <= 8; id++) {
        struct generation *g = harness_generation(id, 1500, 2);
        g->tenant = 1;
        harness_submit(&h, g);
    }
    for (int i = 0; i < 8; i++)
        harness_pass(&h);
    struct generation *g = harness_generation(9, 200, 1);
    g->tenant = 2;
    harness_submit(&h, g);
    for (int i = 0; i < 12; i++)
        harness_pass(&h);
    harness_collect(&h);
    ck_assert(h.streams[9].done);
    harness_open(&h);
    harness_until_ended(&h, 10);
    ck_assert_uint_le(order_of(9), 2);
    for (uint64_t id = 1; id <= 8; id++)
        harness_expect_greedy(&h, id, 1500);
    harness_release(&h);
}
END_TEST

START_TEST(what_is_cached_comes_first_but_not_for_ever)
{
    init_busy((struct sched_options){.max_running = 1});
    harness_submit(&h, harness_generation(1, 320, 1));
    harness_open(&h);
    harness_until_ended(&h, 2);
    harness_gate(&h);
    harness_submit(&h, harness_generation(2, 5, 1));
    harness_at_gate(&h);
    harness_submit(&h, harness_generation(3, 320, 1)); /* not cached, and the first */
    for (uint64_t id = 4; id < 14; id++) {             /* all begin like 1 */
        struct generation *g = harness_generation(id, 330, 1);
        uint32_t *common = harness_prompt(1, 320);
        memcpy(g->tokens, common, 320 * sizeof(*common));
        free(common);
        harness_submit(&h, g);
    }
    harness_open(&h);
    harness_until_ended(&h, 14);
    ck_assert_uint_eq(order_of(3), 3 + FAIR_PASSES);
    for (uint64_t id = 5; id < 14; id++)
        ck_assert_uint_lt(order_of(id - 1), order_of(id));
    harness_release(&h);
}
END_TEST

START_TEST(late_ones_are_dropped)
{
    init_busy((struct sched_options){.max_running = 1});
    for (uint64_t id = 1; id <= 3; id++) {
        struct generation *g = made(id, 0, 5);
        g->deadline_ns = id == 2   ? clock_ns() + SECOND / 50
                         : id == 3 ? clock_ns() + 60 * SECOND
                                   : 0;
        harness_submit(&h, g);
    }
    nanosleep(&(struct timespec){0, SECOND / 25}, NULL);
    harness_open(&h);
    harness_until_ended(&h, 4);
    ck_assert_int_eq(h.streams[2].end.status, STATUS_TIMEOUT);
    ck_assert(!h.streams[2].started);
    ck_assert(h.streams[1].done && h.streams[3].done);
    harness_release(&h);
}
END_TEST

START_TEST(the_queue_has_a_limit_in_tokens)
{
    struct error err = {0};
    unsigned retry = 0;
    init_busy((struct sched_options){.max_running = 1, .max_queue_tokens = 100});
    harness_submit(&h, harness_generation(1, 80, 1));
    struct generation *g = harness_generation(2, 30, 1);
    ck_assert_int_eq(sched_submit(h.sched, g, &retry, &err), STATUS_QUEUE_FULL);
    ck_assert_ptr_nonnull(strstr(err.text, "80 tokens"));
    ck_assert_uint_ge(retry, 1);
    harness_submit(&h, harness_generation(3, 20, 1));
    sched_cancel(h.sched, 1);
    harness_open(&h);
    harness_until_ended(&h, 3);
    harness_submit(&h, g);
    harness_until_ended(&h, 4);
    harness_submit(&h, harness_generation(4, 500, 1)); /* nobody waits: any size */
    harness_until_ended(&h, 5);
    harness_release(&h);
}
END_TEST

START_TEST(low_priority_is_preempted_first)
{
    /* 128 pages of 32 for 6 streams of 2048; the older ones are less important. */
    harness_init(&h, (struct sched_options){.max_queue = 9, .reserve_tokens = 64}, 8 * MIB, 65536,
                 2);
    for (uint64_t id = 0; id < 6; id++) {
        struct generation *g = harness_generation(id, 50, SCHED_REST);
        g->priority = id == 5 ? 9 : 1;
        harness_submit(&h, g);
    }
    harness_until_ended(&h, 6);
    ck_assert_uint_gt(stats_value(h.stats, STAT_preemptions_total), 0);
    ck_assert_uint_le(order_of(5), 1); /* beside the first, for which there is memory too */
    for (uint64_t id = 0; id < 6; id++)
        harness_expect_greedy(&h, id, 50);
    harness_release(&h);
}
END_TEST

/* An important one does not wait for its prefix to be computed by an unimportant one, which waits for
 * others; that one then has it from the important one. */
START_TEST(nobody_waits_for_the_less_important)
{
    init_busy((struct sched_options){.prefill_chunk = 64});
    for (uint64_t id = 1; id <= 3; id++) {
        struct generation *g = harness_generation(id, id == 2 ? 1500 : 640, 1);
        g->priority = id == 1 ? 1 : id == 2 ? 5 : 9;
        if (id == 3) {
            uint32_t *common = harness_prompt(1, 639);
            memcpy(g->tokens, common, 639 * sizeof(*common));
            free(common);
        }
        harness_submit(&h, g);
    }
    harness_open(&h);
    harness_until_ended(&h, 4);
    ck_assert_uint_eq(order_of(3), 1);
    ck_assert_uint_eq(order_of(2), 2);
    ck_assert_uint_eq(order_of(1), 3);
    ck_assert_uint_eq(h.streams[1].end.cached_tokens, 608);
    harness_expect_greedy(&h, 1, 640);
    harness_release(&h);
}
END_TEST

CHECK_MAIN("fair", high_priority_first, waiting_makes_important, tenants_take_turns,
           nobody_saves_up, a_prompt_of_another_tenant_comes_between,
           what_is_cached_comes_first_but_not_for_ever, late_ones_are_dropped,
           nobody_waits_for_the_less_important, the_queue_has_a_limit_in_tokens,
           low_priority_is_preempted_first)
