/* Lookup drafters and the controller, against texts and machines made up here. */
#include <stdlib.h>
#include <string.h>

#include "core/spec/ngram.h"
#include "core/spec/spec.h"
#include "core/spec/store.h"
#include "tests/check_main.h"

static struct ngram_match find(const char *text)
{
    uint32_t tokens[512] = {0}, n = (uint32_t)strlen(text);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)text[i];
    return ngram_find(tokens, n, NULL, 0);
}

static void expect(const char *text, uint32_t length, uint32_t next, uint32_t other)
{
    struct ngram_match m = find(text);
    ck_assert_msg(m.length == length && m.next == next && m.other == other, "%s: %u, %u, %u", text,
                  m.length, m.next, m.other);
}

START_TEST(the_longest_and_latest_match_counts)
{
    expect("", 0, 0, 0);
    expect("ab", 0, 0, 0);
    expect("abcdefgh", 0, 0, 0);
    expect("xb.ab", 0, 0, 0); /* one token is no match */
    expect("ab-ab", 2, 2, 0);
    expect("ab1ab2ab", 2, 5, 2);        /* the latest; the other place is asked, too */
    expect("cab1 ab2cab", 3, 3, 7);     /* the longest */
    expect("ab0cab1 ab2cab", 3, 6, 10); /* the other place: the latest, not the next longest */
    expect("aaa", 2, 2, 0);
    /* Far back, over many blocks. */
    char far[400];
    memset(far, '.', sizeof(far));
    for (int i = 0; i < 399; i++)
        far[i] = (char)(128 + i % 100);
    memcpy(far + 3, "hello world", 11);
    memcpy(far + 388, "hello world", 11);
    far[399] = '\0';
    expect(far, 11, 14, 0);
}
END_TEST

static struct draft_text text_of(const uint32_t *tokens, uint32_t n, uint32_t most)
{
    return (struct draft_text){.tokens = tokens, .n_tokens = n, .most = most};
}

START_TEST(a_loop_goes_on_in_its_period)
{
    const uint32_t tokens[] = {9, 8, 1, 2, 3, 1, 2, 3, 1, 2};
    const uint32_t expected[] = {3, 1, 2, 3, 1, 2, 3, 1};
    struct draft_text text = text_of(tokens, 10, 8), *texts[] = {&text};
    struct drafter *d = ngram_drafter();
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(text.draft.n, 8);
    ck_assert_mem_eq(text.draft.tokens, expected, sizeof(expected));
    /* The period before says the same; it is five tokens that are equal, then six, ... */
    ck_assert_uint_eq(text.draft.kinds[0], draft_kind_text(5, DRAFT_CONFIRMED));
    ck_assert_uint_eq(text.draft.kinds[1], draft_kind_text(6, DRAFT_CONFIRMED));
    /* What is not wanted or done already is left alone. */
    text.most = 2;
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(text.draft.n, 8);
    text.draft.n = text.most = 0;
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(text.draft.n, 0);
    d->free(d);
}
END_TEST

START_TEST(a_second_place_confirms_or_disputes)
{
    /*                         0  1  2  3  4  5  6  7  8  9 10 11 */
    const uint32_t tokens[] = {5, 6, 1, 2, 3, 5, 6, 1, 2, 4, 5, 6};
    struct draft_text text = text_of(tokens, 12, 4), *texts[] = {&text};
    struct drafter *d = ngram_drafter();
    d->propose(d, texts, 1, NULL);
    const uint32_t expected[] = {1, 2, 4, 5};
    ck_assert_mem_eq(text.draft.tokens, expected, sizeof(expected));
    ck_assert_uint_eq(text.draft.kinds[0], draft_kind_text(2, DRAFT_CONFIRMED));
    ck_assert_uint_eq(text.draft.kinds[1], draft_kind_text(3, DRAFT_CONFIRMED));
    ck_assert_uint_eq(text.draft.kinds[2], draft_kind_text(4, DRAFT_DISPUTED));
    ck_assert_uint_eq(text.draft.kinds[3], draft_kind_text(5, DRAFT_ALONE));
    d->free(d);
}
END_TEST

START_TEST(what_stands_behind_a_guess_is_found)
{
    const uint32_t tokens[] = {7, 8, 9, 1, 2, 7};
    struct draft_text text = text_of(tokens, 6, 5);
    draft_add(&text.draft, 8, DRAFT_MODEL);
    ck_assert(ngram_extend(&text)); /* 7 8 stood there */
    const uint32_t expected[] = {8, 9, 1, 2, 7};
    ck_assert_uint_eq(text.draft.n, 5);
    ck_assert_mem_eq(text.draft.tokens, expected, sizeof(expected));
    ck_assert_uint_eq(text.draft.kinds[0], DRAFT_MODEL);
    ck_assert_uint_eq(text.draft.kinds[1], draft_kind_text(2, DRAFT_ALONE));
    ck_assert(!ngram_extend(&text)); /* full */
    text.draft.n = 0;
    draft_add(&text.draft, 7, DRAFT_MODEL); /* 7 7 never stood there */
    ck_assert(!ngram_extend(&text));
    ck_assert_uint_eq(text.draft.n, 1);
    /* The text's own last token and a guess that equals it go on as a loop. */
    const uint32_t loop[] = {3, 3};
    text = text_of(loop, 2, 3);
    draft_add(&text.draft, 3, DRAFT_MODEL);
    ck_assert(ngram_extend(&text));
    ck_assert_uint_eq(text.draft.tokens[2], 3);
}
END_TEST

START_TEST(recent_answers_are_found_under_their_salt_alone)
{
    struct drafter *d = store_drafter();
    uint32_t answer[40];
    for (uint32_t i = 0; i < 40; i++)
        answer[i] = 1000 + i;
    struct draft_text a = text_of(answer, 40, 4), *texts[] = {&a};
    a.n_prompt = 10;
    a.salt.word[0] = 7;
    d->finish(d, &a);
    struct draft_text b = text_of(answer, 20, 4);
    b.salt.word[0] = 7;
    texts[0] = &b;
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(b.draft.n, 4);
    ck_assert_uint_eq(b.draft.tokens[0], 1020);
    ck_assert_uint_eq(b.draft.tokens[3], 1023);
    ck_assert_uint_eq(b.draft.kinds[0], DRAFT_STORE_10);
    /* The answer's beginning is found from the prompt's end; the prompt itself is not kept. */
    b.draft.n = 0;
    b.n_tokens = 10;
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(b.draft.n, 4);
    ck_assert_uint_eq(b.draft.tokens[0], 1010);
    b.draft.n = 0;
    b.n_tokens = 6;
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(b.draft.n, 0);
    b.n_tokens = 20;
    b.salt.word[1] = 1;
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(b.draft.n, 0);
    d->free(d);
}
END_TEST

START_TEST(the_store_forgets_what_it_overwrites)
{
    struct drafter *d = store_drafter();
    uint32_t n = STORE_TOKENS / 4, *tokens = malloc(n * sizeof(*tokens));
    const uint32_t old[] = {1, 2, 3, 4, 5, 6};
    struct draft_text first = text_of(old, 6, 2), probe = text_of(old, 4, 2), *texts[] = {&probe};
    d->finish(d, &first);
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(probe.draft.n, 2);
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < n; i++)
            tokens[i] = 100 + round * n + i;
        struct draft_text text = text_of(tokens, n, 2);
        d->finish(d, &text);
    }
    probe.draft.n = 0;
    d->propose(d, texts, 1, NULL);
    ck_assert_uint_eq(probe.draft.n, 0);
    free(tokens);
    d->free(d);
}
END_TEST

START_TEST(a_request_outweighs_what_others_met)
{
    struct acceptance all = {0}, mine = {0}, other = {0};
    uint8_t kinds[DRAFT_MAX];
    const enum draft_kind kind = draft_kind_text(3, DRAFT_ALONE);
    memset(kinds, (int)kind, sizeof(kinds));
    for (int i = 0; i < 100; i++)
        acceptance_learn(&all, &other, kinds, 4, 4);
    ck_assert(acceptance_of(&all, &mine, kind, 0) > 0.95);
    for (int i = 0; i < 12; i++)
        acceptance_learn(&all, &mine, kinds, 4, 0);
    ck_assert(acceptance_of(&all, &mine, kind, 0) < 0.3);
    /* Only the first guess was judged: what followed it says nothing. */
    ck_assert(acceptance_of(&all, &mine, kind, 1) > 0.95);
    ck_assert(acceptance_of(&all, &mine, draft_kind_text(10, DRAFT_ALONE), 0) > 0.8);
}
END_TEST

START_TEST(costs_between_what_was_measured_are_on_a_line)
{
    struct cost c = {0};
    ck_assert(cost_of(&c, 1) == 0);
    for (int i = 0; i < 50; i++) {
        cost_learn(&c, 1, 1000);
        cost_learn(&c, 9, 1800);
        cost_learn(&c, 5, 1100);
    }
    ck_assert_double_eq_tol(cost_of(&c, 1), 1000, 30);
    ck_assert_double_eq_tol(cost_of(&c, 5), 1100, 30);
    ck_assert_double_eq_tol(cost_of(&c, 7), 1450, 40);
    ck_assert_double_eq_tol(cost_of(&c, 17), 2600, 80);
    /* One step that took fifty times as long changes little, and is made good. */
    cost_learn(&c, 5, 50000);
    ck_assert(cost_of(&c, 5) < 1500);
    /* All steps slower: the level follows within a few steps. */
    for (int i = 0; i < 20; i++)
        cost_learn(&c, 1, 1900);
    ck_assert(cost_of(&c, 9) > 2800);
}
END_TEST

/* A machine where a step costs 1000 and `row` for every further row, and texts of which each guess
 * is right with a probability. Time per token, relative to no drafts. */
struct world {
    double row;
    double right;
    uint32_t streams;
    uint32_t drafts; /* tokens that a drafter offers */
    double draft_ns;
};

static double random_unit(void)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (double)(state >> 40) / (double)(1 << 24);
}

static double live(const struct world *w, uint32_t steps, struct controller *c, double *drafted)
{
    struct draft_text texts[32], *views[32];
    double spent = 0, made = 0, plain = 1000 + w->row * (w->streams - 1);
    memset(texts, 0, sizeof(texts));
    *drafted = 0;
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t n_drafted = 0, emitted = 0;
        for (uint32_t i = 0; i < w->streams; i++) {
            views[i] = &texts[i];
            texts[i].draft.n = 0;
            for (uint32_t k = 0; k < w->drafts; k++)
                draft_add(&texts[i].draft, 5, draft_kind_text(4, DRAFT_ALONE));
        }
        controller_plan(c, views, w->streams, 64);
        for (uint32_t i = 0; i < w->streams; i++) {
            struct draft *d = &texts[i].draft;
            uint32_t right = 0;
            while (right < d->n && random_unit() < w->right)
                right++;
            acceptance_learn(&c->all, &texts[i].mine, d->kinds, d->n, right);
            n_drafted += d->n;
            emitted += right + 1;
        }
        double ns = plain + w->row * n_drafted;
        controller_settle(c, w->streams, n_drafted, emitted, ns * (0.95 + 0.1 * random_unit()),
                          w->draft_ns, true);
        spent += ns + w->draft_ns;
        made += emitted;
        *drafted += n_drafted;
    }
    return spent / made / (plain / w->streams);
}

START_TEST(drafting_pays_where_guesses_are_right)
{
    struct controller c = {0};
    double drafted;
    struct world w = {.row = 150, .right = 0.9, .streams = 1, .drafts = 16};
    ck_assert(live(&w, 500, &c, &drafted) < 0.45);
    /* Half of them right: a few tokens at a time. */
    c = (struct controller){0};
    w.right = 0.6;
    ck_assert(live(&w, 500, &c, &drafted) < 0.85);
    ck_assert(drafted / 500 > 0.8);
    ck_assert(drafted / 500 < 5);
}
END_TEST

START_TEST(drafting_never_loses_much)
{
    double drafted;
    for (uint32_t streams = 1; streams <= 16; streams *= 4)
        for (int i = 0; i <= 8; i++)
            for (int row = 100; row <= 900; row += 200) {
                struct controller c = {0};
                struct world w = {.row = row, .right = i * 0.05, .streams = streams, .drafts = 16};
                double cost = live(&w, 400, &c, &drafted);
                ck_assert_msg(cost < 1.02, "%u streams, row %d, right %.2f: %.3f", streams, row,
                              i * 0.05, cost);
            }
    /* Guesses that cost time themselves and are always wrong. */
    struct controller c = {0};
    struct world w = {.row = 100, .right = 0, .streams = 1, .drafts = 4};
    ck_assert(live(&w, 400, &c, &drafted) < 1.02);
    ck_assert(drafted < 50);
}
END_TEST

START_TEST(good_guesses_are_found_again)
{
    struct controller c = {0};
    double drafted;
    struct world w = {.row = 150, .right = 0, .streams = 1, .drafts = 8};
    live(&w, 600, &c, &drafted);
    /* The same request would still be wary: this is another one, and what all met was bad. */
    w.right = 0.95;
    live(&w, 400, &c, &drafted);
    ck_assert(live(&w, 300, &c, &drafted) < 0.6);
}
END_TEST

START_TEST(drafts_go_to_whom_they_serve_best)
{
    struct controller c = {0};
    struct draft_text good = {0}, bad = {0}, none = {0}, *texts[] = {&bad, &good, &none};
    for (int i = 0; i < 40; i++) {
        controller_settle(&c, 3, 0, 3, 1000, 0, true);
        cost_learn(&c.step, 4, 1100);
        cost_learn(&c.step, 11, 1800);
    }
    for (int k = 0; k < 8; k++) {
        draft_add(&good.draft, 1, draft_kind_text(10, DRAFT_ALONE));
        draft_add(&bad.draft, 1, draft_kind_text(2, DRAFT_ALONE));
    }
    uint8_t kinds[] = {(uint8_t)draft_kind_text(2, DRAFT_ALONE)};
    for (int i = 0; i < 20; i++)
        acceptance_learn(&c.all, &bad.mine, kinds, 1, 0);
    controller_plan(&c, texts, 3, 64);
    ck_assert_uint_gt(good.draft.n, 2);
    ck_assert_uint_eq(bad.draft.n, 0);
    ck_assert_uint_eq(none.draft.n, 0);
    good.draft.n = 8;
    controller_plan(&c, texts, 3, 2);
    ck_assert_uint_eq(good.draft.n, 2);
    /* More texts than the tables know: no drafts. */
    struct draft_text *many[COST_ROWS];
    for (uint32_t i = 0; i < COST_ROWS; i++)
        many[i] = &good;
    controller_plan(&c, many, COST_ROWS, 64);
    ck_assert_uint_eq(good.draft.n, 0);
}
END_TEST

/* A worker that begins with several prompts has decodes beside prompts before it has any alone. */
START_TEST(nothing_is_reckoned_before_a_step_is_known)
{
    struct controller c = {0}, other = {0};
    for (int i = 0; i < 3; i++)
        controller_settle(&c, 2, 0, 2, 1500, 40, false);
    ck_assert(c.spent == 0 && c.made == 0 && c.account == 0);
    for (int i = 0; i < 3; i++) {
        controller_settle(&c, 2, 0, 2, 1000, 0, true);
        controller_settle(&other, 2, 0, 2, 1000, 0, true);
    }
    ck_assert_double_eq(c.spent, other.spent);
    ck_assert_double_eq(c.made, other.made);
    ck_assert_double_eq(c.account, other.account);
    ck_assert(c.account >= CONTROLLER_START * cost_of(&c.step, 2));
}
END_TEST

CHECK_MAIN("spec", the_longest_and_latest_match_counts, a_loop_goes_on_in_its_period,
           a_second_place_confirms_or_disputes, what_stands_behind_a_guess_is_found,
           recent_answers_are_found_under_their_salt_alone, the_store_forgets_what_it_overwrites,
           a_request_outweighs_what_others_met, costs_between_what_was_measured_are_on_a_line,
           drafting_pays_where_guesses_are_right, drafting_never_loses_much,
           good_guesses_are_found_again, drafts_go_to_whom_they_serve_best,
           nothing_is_reckoned_before_a_step_is_known)
