/* Drafts in the scheduler's steps, with the fake engine: ends, limits, pauses, cancels and failures come where
 * they come without drafts. */
#include <stdlib.h>
#include <string.h>

#include "core/spec/spec.h"
#include "harness.h"
#include "tests/check_main.h"

#define PAGE 4096u

/* Knows what the engine will say; one guess in `wrong_every` is another token, or `bad` where that is set. */
struct seer {
    struct drafter drafter;
    uint32_t wrong_every, n_asked, bad;
};

static void see(struct drafter *d, struct draft_text **texts, uint32_t n, struct controller *c)
{
    struct seer *seer = (struct seer *)d;
    (void)c;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_text *t = texts[i];
        uint32_t *text = malloc((t->n_tokens + DRAFT_MAX) * sizeof(*text));
        memcpy(text, t->tokens, t->n_tokens * sizeof(*text));
        for (uint32_t k = 0; k < t->most; k++) {
            float row[FAKE_STRIDE];
            uint32_t best = 0;
            fake_row(text, t->n_tokens + k, row);
            for (uint32_t v = 1; v < FAKE_VOCAB; v++)
                best = row[v] > row[best] ? v : best;
            text[t->n_tokens + k] = best;
            bool wrong = ++seer->n_asked % seer->wrong_every == 0;
            uint32_t other = seer->bad != 0 ? seer->bad : (best + 1) % FAKE_VOCAB;
            draft_add(&t->draft, wrong ? other : best, draft_kind_text(4, DRAFT_ALONE));
        }
        free(text);
    }
}

static void free_seer(struct drafter *d)
{
    free(d);
}

static struct spec *make_spec(uint32_t wrong_every, uint32_t bad)
{
    struct spec *spec = spec_create();
    struct seer *seer = calloc(1, sizeof(*seer));
    *seer = (struct seer){.drafter = {.name = "seer", .propose = see, .free = free_seer},
                          .wrong_every = wrong_every,
                          .bad = bad};
    spec->controller.always = DRAFT_MAX;
    spec_add(spec, &seer->drafter);
    return spec;
}

static void begin(struct harness *h, struct spec *spec, uint32_t eog, size_t page)
{
    struct sched_options o = {
        .max_queue = 64, .spec = spec, .eog = &eog, .n_eog = 1, .reserve_tokens = 16};
    harness_init(h, o, page == PAGE ? 64 << 20 : 8 << 20, page, 2);
    h->fake.rewrites = true;
}

static void finish(struct harness *h, struct spec *spec)
{
    harness_release(h);
    spec_free(spec);
}

static uint64_t stat(const struct harness *h, enum stats_id id)
{
    return stats_value(h->stats, id);
}

START_TEST(right_guesses_save_steps_to_the_last_token)
{
    for (uint32_t n = 1; n <= 40; n += 3) {
        static struct harness h;
        struct spec *spec = make_spec(1000000, 0);
        begin(&h, spec, FAKE_VOCAB, PAGE);
        harness_submit(&h, harness_generation(1, 20, n));
        harness_until_ended(&h, 1);
        ck_assert_uint_eq(h.streams[1].n, n);
        ck_assert_int_eq(h.streams[1].end.reason, SCHED_LENGTH);
        harness_expect_greedy(&h, 1, 20);
        /* The prompt's step makes the first token, each further step up to 17. */
        ck_assert_uint_eq(h.fake.steps, 1 + (n - 1 + DRAFT_MAX) / (DRAFT_MAX + 1));
        ck_assert_uint_eq(h.streams[1].end.accepted_tokens, h.streams[1].end.drafted_tokens);
        finish(&h, spec);
    }
}
END_TEST

START_TEST(wrong_guesses_change_nothing)
{
    static struct harness h;
    struct spec *spec = make_spec(3, 0);
    begin(&h, spec, FAKE_VOCAB, PAGE);
    for (uint64_t id = 0; id < 12; id++)
        harness_submit(&h, harness_generation(id, 5 + 17 * (uint32_t)id, 150));
    harness_until_ended(&h, 12);
    for (uint64_t id = 0; id < 12; id++) {
        ck_assert_uint_eq(h.streams[id].n, 150);
        harness_expect_greedy(&h, id, 5 + 17 * (uint32_t)id);
    }
    ck_assert_uint_gt(stat(&h, STAT_draft_accepted_total), 0);
    ck_assert_uint_gt(stat(&h, STAT_draft_tokens_total), stat(&h, STAT_draft_accepted_total));
    /* What was kept of them is found by others: a prompt made of a text that was guessed. */
    uint32_t *text = harness_prompt(3, 5 + 17 * 3);
    text = realloc(text, (56 + 150) * sizeof(*text));
    memcpy(text + 56, h.streams[3].tokens, 150 * sizeof(*text));
    struct generation *g = generation_new(20, text, 56 + 140);
    g->max_tokens = 10;
    g->sampling.temperature = 0;
    harness_submit(&h, g);
    harness_until_ended(&h, 13);
    ck_assert_uint_eq(h.streams[20].end.cached_tokens, 192);
    ck_assert_mem_eq(h.streams[20].tokens, h.streams[3].tokens + 140, 10 * sizeof(uint32_t));
    finish(&h, spec);
}
END_TEST

START_TEST(an_end_token_among_the_guesses_ends)
{
    static struct harness h;
    struct spec *spec = make_spec(1000000, 0);
    begin(&h, spec, FAKE_VOCAB, PAGE);
    harness_submit(&h, harness_generation(1, 20, 60));
    harness_until_ended(&h, 1);
    uint32_t at = 20, end = h.streams[1].tokens[at];
    for (uint32_t i = 0; i < at; i++)
        if (h.streams[1].tokens[i] == end)
            at = i;
    finish(&h, spec);
    spec = make_spec(1000000, 0);
    begin(&h, spec, end, PAGE);
    harness_submit(&h, harness_generation(1, 20, 60));
    harness_until_ended(&h, 1);
    ck_assert_uint_eq(h.streams[1].n, at);
    ck_assert_int_eq(h.streams[1].end.reason, SCHED_STOP);
    finish(&h, spec);
}
END_TEST

START_TEST(a_guess_that_breaks_the_numbers_is_undone)
{
    static struct harness h;
    struct spec *spec = make_spec(5, 60);
    begin(&h, spec, FAKE_VOCAB, PAGE);
    h.fake.poison = 60; /* never in these prompts; drawn, it would end the stream */
    harness_submit(&h, harness_generation(1, 20, 12));
    harness_until_ended(&h, 1);
    ck_assert(h.streams[1].done);
    harness_expect_greedy(&h, 1, 20);
    ck_assert_uint_eq(stat(&h, STAT_non_finite_total), 0);
    ck_assert_uint_eq(stat(&h, STAT_preemptions_total), 1);
    finish(&h, spec);
}
END_TEST

START_TEST(a_pause_and_a_cancel_hold_at_the_next_step)
{
    static struct harness h;
    struct spec *spec = make_spec(4, 0);
    begin(&h, spec, FAKE_VOCAB, PAGE);
    harness_gate(&h);
    harness_submit(&h, harness_generation(1, 20, 400));
    harness_submit(&h, harness_generation(2, 20, 400));
    harness_at_gate(&h);
    for (int i = 0; i < 4; i++)
        harness_pass(&h);
    sched_pause(h.sched, 1, true);
    harness_pass(&h);
    harness_pass(&h);
    harness_collect(&h);
    uint32_t n = h.streams[1].n, other = h.streams[2].n;
    for (int i = 0; i < 5; i++)
        harness_pass(&h);
    harness_collect(&h);
    ck_assert_uint_eq(h.streams[1].n, n);
    ck_assert_uint_gt(h.streams[2].n, other);
    sched_pause(h.sched, 1, false);
    sched_cancel(h.sched, 2);
    harness_open(&h);
    harness_until_ended(&h, 2);
    ck_assert_uint_eq(h.streams[1].n, 400);
    ck_assert_int_eq(h.streams[2].end.status, STATUS_CANCELLED);
    harness_expect_greedy(&h, 1, 20);
    finish(&h, spec);
}
END_TEST

START_TEST(little_memory_makes_drafts_short_not_wrong)
{
    static struct harness h;
    struct spec *spec = make_spec(4, 0);
    begin(&h, spec, FAKE_VOCAB, 256 << 10);
    for (uint64_t id = 0; id < 6; id++) {
        struct generation *g = harness_generation(id, 30, 300);
        g->grows = true;
        harness_submit(&h, g);
    }
    harness_until_ended(&h, 6);
    for (uint64_t id = 0; id < 6; id++) {
        ck_assert_uint_eq(h.streams[id].n, 300);
        harness_expect_greedy(&h, id, 30);
    }
    ck_assert_uint_gt(stat(&h, STAT_preemptions_total), 0);
    finish(&h, spec);
}
END_TEST

/* As many as a step has tokens run; for the last alone, which begins when all others decode, is anything
 * guessed. */
START_TEST(guesses_find_room_beside_all_that_decode)
{
    static struct harness h;
    uint32_t none = FAKE_VOCAB;
    struct spec *spec = make_spec(1000000, 0);
    struct sched_options o = {.max_queue = FAKE_MAX_TOKENS,
                              .max_running = FAKE_MAX_TOKENS,
                              .itl_target = 1000,
                              .spec = spec,
                              .eog = &none,
                              .n_eog = 1};
    harness_init(&h, o, 64 << 20, 256, 2);
    h.fake.rewrites = true;
    harness_gate(&h);
    for (uint64_t id = 0; id < FAKE_MAX_TOKENS; id++) {
        struct generation *g = harness_generation(id, 1, 200);
        g->no_drafts = id + 1 < FAKE_MAX_TOKENS;
        harness_submit(&h, g);
    }
    harness_open(&h);
    harness_until_ended(&h, FAKE_MAX_TOKENS);
    ck_assert_uint_eq(h.fake.most_sequences, FAKE_MAX_TOKENS);
    for (uint64_t id = 0; id < FAKE_MAX_TOKENS; id++)
        ck_assert_uint_eq(h.streams[id].n, 200);
    harness_expect_greedy(&h, FAKE_MAX_TOKENS - 1, 1);
    finish(&h, spec);
}
END_TEST

START_TEST(a_stream_is_guessed_beside_a_prompt)
{
    static struct harness h;
    struct spec *spec = make_spec(1000000, 0);
    begin(&h, spec, FAKE_VOCAB, PAGE);
    /* The pace gets to know steps of a decode alone, and beside a prompt. */
    h.fake.step_ns = 1000000;
    struct generation *alone = harness_generation(1, 10, 40);
    alone->no_drafts = true;
    harness_submit(&h, alone);
    harness_until(&h, 1, 8);
    struct generation *prompt = harness_generation(2, 300, 1);
    prompt->no_drafts = true;
    harness_submit(&h, prompt);
    harness_until_ended(&h, 2);
    harness_submit(&h, harness_generation(3, 10, 1500));
    harness_until(&h, 3, 100);
    harness_gate(&h);
    harness_at_gate(&h);
    harness_submit(&h, harness_generation(4, 1900, 1));
    harness_pass(&h); /* the step that was planned before */
    harness_collect(&h);
    uint32_t before = h.streams[3].n;
    for (int i = 0; i < 3; i++)
        harness_pass(&h);
    harness_collect(&h);
    ck_assert_uint_gt(h.streams[3].n, before + 3); /* more than a token a step */
    ck_assert_uint_le(h.streams[3].n, before + 3 * 5);
    ck_assert(h.streams[4].started);
    ck_assert_uint_eq(h.streams[4].n, 0); /* its prompt is still computed */
    harness_open(&h);
    harness_until_ended(&h, 4);
    harness_expect_greedy(&h, 3, 10);
    harness_expect_greedy(&h, 4, 1900);
    finish(&h, spec);
}
END_TEST

CHECK_MAIN("drafts", a_stream_is_guessed_beside_a_prompt,
           right_guesses_save_steps_to_the_last_token, wrong_guesses_change_nothing,
           an_end_token_among_the_guesses_ends, a_guess_that_breaks_the_numbers_is_undone,
           a_pause_and_a_cancel_hold_at_the_next_step, little_memory_makes_drafts_short_not_wrong,
           guesses_find_room_beside_all_that_decode)
