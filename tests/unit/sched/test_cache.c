/* The scheduler with the prefix cache, over the made-up engine, which fails a position that is fed
 * twice or read before it was fed, and whose tokens depend on the whole text. */
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
    harness_init(&h, options, 8 * MIB, page, 2);
}

/* The prompt of harness_prompt(id), with its first `shared` tokens those of prompt(1000). */
static struct generation *with_prefix(uint64_t id, uint32_t shared, uint32_t n, uint32_t max_tokens)
{
    struct generation *g = harness_generation(id, n, max_tokens);
    uint32_t *common = harness_prompt(1000, shared);
    memcpy(g->tokens, common, shared * sizeof(*common));
    free(common);
    return g;
}

/* The stream of id is what the engine says for that prompt. */
static void expect_greedy(uint64_t id, const struct generation *prompt)
{
    const struct stream *s = &h.streams[id];
    uint32_t n = prompt->n_tokens, *text = malloc((n + s->n) * sizeof(*text));
    memcpy(text, prompt->tokens, n * sizeof(*text));
    for (uint32_t i = 0; i < s->n; i++) {
        float row[FAKE_STRIDE];
        uint32_t best = 0;
        fake_row(text, n + i, row);
        for (uint32_t v = 1; v < FAKE_VOCAB; v++)
            best = row[v] > row[best] ? v : best;
        ck_assert_uint_eq(s->tokens[i], best);
        text[n + i] = best;
    }
    free(text);
}

static void check_prefixed(uint64_t id, uint32_t shared, uint32_t n)
{
    struct generation *g = with_prefix(id, shared, n, 1);
    expect_greedy(id, g);
    generation_free(g);
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

START_TEST(a_common_prefix_is_prefilled_once)
{
    init((struct sched_options){.prefill_chunk = 100}, SMALL_PAGE);
    harness_gate(&h);
    for (uint64_t id = 0; id < 8; id++)
        harness_submit(&h, with_prefix(id, 640, 640 + 10 + (uint32_t)id, 20));
    harness_open(&h);
    harness_until_ended(&h, 8);
    uint32_t suffixes = 0;
    for (uint64_t id = 0; id < 8; id++) {
        suffixes += 10 + (uint32_t)id;
        check_prefixed(id, 640, 650 + (uint32_t)id);
        ck_assert_uint_eq(h.streams[id].end.cached_tokens, id == 0 ? 0 : 640);
    }
    ck_assert_uint_eq(stat(STAT_prefilled_tokens_total), 640 + suffixes);
    ck_assert_uint_eq(stat(STAT_cached_tokens_total), 7 * 640);
    ck_assert_uint_eq(stat(STAT_cache_whole), 7);
    ck_assert_uint_eq(stat(STAT_cache_miss_new), 1);
    harness_release(&h);
}
END_TEST

START_TEST(a_common_prefix_takes_its_pages_once)
{
    init((struct sched_options){.prefill_chunk = 500}, SMALL_PAGE);
    harness_gate(&h);
    for (uint64_t id = 0; id < 8; id++)
        harness_submit(&h, with_prefix(id, 640, 650, 1000));
    harness_at_gate(&h);
    for (int i = 0; i < 100 && h.fake.last_tokens != 8; i++)
        harness_pass(&h);
    ck_assert_uint_eq(h.fake.last_tokens, 8); /* all decode */
    ck_assert_uint_eq(counts().used, 20 + 8);
    for (uint64_t id = 0; id < 8; id++)
        sched_cancel(h.sched, id);
    harness_open(&h);
    harness_until_ended(&h, 8);
    ck_assert_uint_eq(counts().used, 0);
    ck_assert_uint_eq(counts().reserved, 0);
    ck_assert_uint_eq(counts().idle, 20);
    harness_release(&h);
}
END_TEST

START_TEST(one_token_at_least_is_computed)
{
    init((struct sched_options){0}, SMALL_PAGE);
    for (uint64_t id = 0; id < 2; id++) {
        harness_submit(&h, with_prefix(id, 64, 64, 5));
        harness_until_ended(&h, (uint32_t)id + 1);
        check_prefixed(id, 64, 64);
    }
    ck_assert_uint_eq(h.streams[1].end.cached_tokens, 32);
    ck_assert_uint_eq(stat(STAT_prefilled_tokens_total), 64 + 32);
    /* The second's own copy of the second page gave way to the first's. */
    ck_assert_uint_eq(counts().idle, 2);
    harness_release(&h);
}
END_TEST

/* Conversations whose turns go on where the answer ended. */
START_TEST(two_alternating_conversations_both_stay)
{
    static uint32_t text[2][MOST_TOKENS];
    uint32_t n[2] = {100, 130};
    uint64_t id = 0;
    init((struct sched_options){0}, SMALL_PAGE);
    for (int c = 0; c < 2; c++) {
        uint32_t *first = harness_prompt(50 + (uint64_t)c, n[c]);
        memcpy(text[c], first, n[c] * sizeof(*first));
        free(first);
    }
    for (int turn = 0; turn < 5; turn++) {
        for (int c = 0; c < 2; c++, id++) {
            uint32_t *prompt = malloc(n[c] * sizeof(*prompt)), before = n[c];
            memcpy(prompt, text[c], n[c] * sizeof(*prompt));
            struct generation *g = generation_new(id, prompt, n[c]);
            g->max_tokens = 40;
            g->sampling.temperature = 0;
            harness_submit(&h, g);
            harness_until_ended(&h, (uint32_t)id + 1);
            for (uint32_t i = 0; i < 40; i++)
                text[c][n[c]++] = h.streams[id].tokens[i];
            text[c][n[c]++] = 7; /* what the user says */
            /* All full pages of the turn before; the last token made was never fed. */
            if (turn > 0)
                ck_assert_uint_eq(h.streams[id].end.cached_tokens, (before - 2) / 32 * 32);
        }
    }
    harness_release(&h);
}
END_TEST

START_TEST(a_salt_keeps_texts_apart)
{
    init((struct sched_options){0}, SMALL_PAGE);
    static const char *const salts[] = {"a", "b", "a", ""};
    for (uint64_t id = 0; id < 4; id++) {
        struct generation *g = with_prefix(id, 320, 330, 3);
        if (*salts[id] != '\0')
            g->salt = sched_key(h.sched, salts[id], 1);
        harness_submit(&h, g);
        harness_until_ended(&h, (uint32_t)id + 1);
        check_prefixed(id, 320, 330);
        ck_assert_uint_eq(h.streams[id].end.cached_tokens, id == 2 ? 320 : 0);
    }
    harness_release(&h);
}
END_TEST

START_TEST(who_waited_goes_on_when_the_first_is_cancelled)
{
    init((struct sched_options){.prefill_chunk = 64}, SMALL_PAGE);
    harness_gate(&h);
    harness_submit(&h, with_prefix(0, 640, 650, 5));
    harness_at_gate(&h);
    harness_submit(&h, with_prefix(1, 640, 660, 5));
    for (int i = 0; i < 4; i++)
        harness_pass(&h);
    ck_assert_uint_eq(h.fake.last_sequences, 1); /* the second sits out */
    sched_cancel(h.sched, 0);
    harness_open(&h);
    harness_until_ended(&h, 2);
    ck_assert(h.streams[1].done);
    check_prefixed(1, 640, 660);
    ck_assert_uint_eq(h.streams[1].end.cached_tokens, 5 * 64); /* what the first had done */
    ck_assert_uint_eq(stat(STAT_prefilled_tokens_total), 660);
    harness_release(&h);
}
END_TEST

START_TEST(who_waited_goes_on_when_the_first_is_paused)
{
    init((struct sched_options){.prefill_chunk = 64}, SMALL_PAGE);
    harness_gate(&h);
    harness_submit(&h, with_prefix(0, 640, 650, 5));
    harness_at_gate(&h);
    harness_submit(&h, with_prefix(1, 640, 660, 5));
    harness_pass(&h);
    sched_pause(h.sched, 0, true);
    harness_open(&h);
    harness_until_ended(&h, 1);
    ck_assert(h.streams[1].done);
    sched_pause(h.sched, 0, false);
    harness_until_ended(&h, 2);
    check_prefixed(0, 640, 650);
    check_prefixed(1, 640, 660);
    /* The first followed the second over what that had done meanwhile. */
    ck_assert_uint_eq(stat(STAT_prefilled_tokens_total), 640 + 10 + 20);
    harness_release(&h);
}
END_TEST

START_TEST(a_page_that_failed_is_not_kept)
{
    init((struct sched_options){0}, SMALL_PAGE);
    struct generation *g = with_prefix(0, 100, 100, 5);
    g->tokens[70] = FAKE_BAD_TOKEN;
    harness_submit(&h, g);
    harness_until_ended(&h, 1);
    ck_assert_int_eq(h.streams[0].end.status, STATUS_NON_FINITE);
    ck_assert_uint_eq(counts().idle, 0);
    harness_release(&h);
}
END_TEST

START_TEST(cached_pages_make_room)
{
    /* 128 pages; each text leaves 20, and none ever waits for memory. */
    init((struct sched_options){0}, BIG_PAGE);
    for (uint64_t id = 0; id < 40; id++) {
        harness_submit(&h, harness_generation(id, 600, 41));
        harness_until_ended(&h, (uint32_t)id + 1);
        harness_expect_greedy(&h, id, 600);
    }
    ck_assert_uint_gt(stat(STAT_kv_pages_evicted_total), 600);
    /* A big one takes all the memory there is. */
    harness_submit(&h, harness_generation(40, 1000, 1000));
    harness_submit(&h, harness_generation(41, 1000, 1000));
    harness_until_ended(&h, 42);
    harness_expect_greedy(&h, 41, 1000);
    ck_assert_uint_eq(stat(STAT_preemptions_total), 0);
    harness_release(&h);
}
END_TEST

START_TEST(shared_texts_under_little_memory)
{
    /* Streams that grow, share prefixes of many lengths, are preempted, cancelled and paused. */
    struct sched_options o = {.reserve_tokens = 32, .max_running = 12, .prefill_chunk = 50};
    uint32_t seed = 3;
    init(o, BIG_PAGE);
    for (uint64_t id = 0; id < 200; id++) {
        seed = seed * 1664525 + 1013904223;
        uint32_t shared = (seed >> 8) % 700, own = 1 + (seed >> 20) % 60;
        uint32_t most = id % 3 == 0 ? SCHED_REST : 1 + (seed >> 12) % 200;
        harness_submit(&h, with_prefix(id, shared, shared + own, most));
        if (id % 7 == 0)
            sched_pause(h.sched, id, true);
        if (id % 3 == 0) {
            nanosleep(&(struct timespec){0, 3000000}, NULL);
            sched_cancel(h.sched, id);
        }
        if (id % 7 == 0)
            sched_pause(h.sched, id, false);
        harness_collect(&h);
    }
    harness_until_ended(&h, 200);
    seed = 3;
    for (uint64_t id = 0; id < 200; id++) {
        seed = seed * 1664525 + 1013904223;
        uint32_t shared = (seed >> 8) % 700, own = 1 + (seed >> 20) % 60;
        check_prefixed(id, shared, shared + own);
        ck_assert(h.streams[id].done || id % 3 == 0);
    }
    ck_assert_uint_eq(counts().used, 0);
    ck_assert_uint_eq(counts().reserved, 0);
    harness_release(&h);
}
END_TEST

START_TEST(off_is_off)
{
    init((struct sched_options){.no_cache = true}, SMALL_PAGE);
    for (uint64_t id = 0; id < 2; id++) {
        harness_submit(&h, with_prefix(id, 320, 330, 3));
        harness_until_ended(&h, (uint32_t)id + 1);
        ck_assert_uint_eq(h.streams[id].end.cached_tokens, 0);
    }
    ck_assert_uint_eq(counts().idle, 0);
    harness_release(&h);
}
END_TEST

START_TEST(memory_falls_back_after_the_idle_time)
{
    /* Everything goes a second after the last use (looked at every second). */
    init((struct sched_options){.cache_idle_ns = 1000000000}, BIG_PAGE);
    harness_submit(&h, harness_generation(0, 1000, 10));
    harness_until_ended(&h, 1);
    ck_assert_uint_gt(counts().idle, 0);
    for (int i = 0; i < 60 && counts().idle > 0; i++)
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    ck_assert_uint_eq(counts().idle, 0);
    harness_release(&h);
}
END_TEST

/* Who leaves the queue and waits for another one's pages is in no step, so no event tells of it. */
START_TEST(the_loop_is_woken_where_the_queue_has_room_again)
{
    struct sched_options o = {.max_queue = 1, .max_running = 2, .prefill_chunk = 8};
    harness_init(&h, o, 8 * MIB, SMALL_PAGE, 2);
    harness_gate(&h);
    harness_submit(&h, with_prefix(0, 300, 300, 2));
    harness_at_gate(&h);
    harness_pass(&h);
    harness_collect(&h);
    harness_submit(&h, with_prefix(1, 300, 300, 2));
    ck_assert(sched_is_full(h.sched, 1, NULL));
    harness_pass(&h);
    ck_assert(!sched_is_full(h.sched, 1, NULL) && !h.streams[1].started);
    struct pollfd p = {.fd = sched_event_fd(h.sched), .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 2000), 1);
    harness_open(&h);
    harness_until_ended(&h, 2);
    harness_release(&h);
}
END_TEST

CHECK_MAIN("sched cache", a_common_prefix_is_prefilled_once, a_common_prefix_takes_its_pages_once,
           one_token_at_least_is_computed, two_alternating_conversations_both_stay,
           a_salt_keeps_texts_apart, who_waited_goes_on_when_the_first_is_cancelled,
           who_waited_goes_on_when_the_first_is_paused, a_page_that_failed_is_not_kept,
           cached_pages_make_room, shared_texts_under_little_memory, off_is_off,
           the_loop_is_woken_where_the_queue_has_room_again, memory_falls_back_after_the_idle_time)
