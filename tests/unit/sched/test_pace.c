/* How many prompt tokens a step may have beside decodes, on made machines whose costs are known. */
#include <math.h>

#include "core/sched/pace.h"
#include "tests/check_main.h"

#define PROMPT 1500u

/* A decode step: 8 ms and as much more as its tokens are far, 2 ms at 1,024; each prompt token
 * 0.5 ms, at 1,024 1 ms. slower: than that. */
static double machine_ms(const struct pace_work *w)
{
    double far = w->decodes > 0 ? w->decode_positions / w->decodes / 1024 : 0;
    return (w->decodes > 0 ? 8 + 2 * far : 0) + 0.5 * w->prefill +
           0.5 * w->prefill_positions / 1024;
}

static struct pace_work work(uint32_t decodes, double position, uint32_t prefill, double begin)
{
    return (struct pace_work){.decodes = decodes,
                              .decode_positions = decodes * position,
                              .prefill = prefill,
                              .prefill_positions = prefill * (begin + (prefill - 1) / 2.0)};
}

static void run(struct pace *p, struct pace_work w, double slower)
{
    pace_learn(p, &w, (uint64_t)(machine_ms(&w) * slower * 1e6));
}

/* Prompt tokens of a step beside n decodes, and learns from it. */
static uint32_t mixed(struct pace *p, uint32_t decodes, double position, uint32_t begin,
                      double slower)
{
    struct pace_work w = work(decodes, position, 0, 0);
    struct pace_room room = pace_room(p, &w, 512);
    uint32_t n = pace_fit(p, &room, begin, PROMPT - begin, PROMPT);
    run(p, work(decodes, position, n, begin), slower);
    return n;
}

static void know(struct pace *p, double target)
{
    pace_init(p, target);
    for (uint32_t i = 0; i < 2000; i++) {
        run(p, work(0, 0, 128, i % 12 * 128), 1);
        run(p, work(1, i % 1500, 0, 0), 1);
    }
}

static uint32_t fit(const struct pace *p, uint32_t decodes, uint32_t most, uint32_t position)
{
    struct pace_work w = work(decodes, 0, 0, 0);
    struct pace_room room = pace_room(p, &w, most);
    return pace_fit(p, &room, position, UINT32_MAX, PROMPT);
}

START_TEST(nobody_decodes)
{
    struct pace p;
    pace_init(&p, 3);
    ck_assert_uint_eq(fit(&p, 0, 512, 0), 512);
    know(&p, 3);
    ck_assert_uint_eq(fit(&p, 0, 512, 1400), 512);
}
END_TEST

/* Many prompts beside few decodes get what a margin for the worst would keep from them. */
START_TEST(a_crowd_waits_for_less_caution)
{
    struct pace p;
    know(&p, 3);
    p.margin = PACE_MARGIN_MAX;
    static const struct {
        uint32_t decodes, prompts;
        bool crowd;
    } cases[] = {{1, 1, false}, {1, 2, true},  {8, 1, false}, {8, 2, true},
                 {9, 2, false}, {16, 4, true}, {16, 3, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pace_work w = work(cases[i].decodes, 0, 0, 0);
        w.prompts = cases[i].prompts;
        p.decodes[0] = p.decodes[1] = p.decodes[2] = p.decodes[3] = p.decodes[4] =
            (struct pace_line){8e6, 0};
        struct pace_room room = pace_room(&p, &w, 512);
        double margin = cases[i].crowd         ? PACE_MARGIN_CROWD
                        : cases[i].prompts > 1 ? PACE_MARGIN_SEVERAL
                                               : PACE_MARGIN_MAX;
        ck_assert_double_eq_tol(room.margin, margin, 1e-9);
    }
}
END_TEST

START_TEST(nothing_is_measured)
{
    struct pace p;
    pace_init(&p, 3);
    ck_assert_uint_eq(fit(&p, 1, 512, 0), PACE_CHUNK_FIRST);
    ck_assert_uint_eq(fit(&p, 1, 7, 0), 7);
}
END_TEST

/* Prompt after prompt: nearly all steps keep to three times a decode's time, and use most of it. */
START_TEST(steps_keep_the_target)
{
    struct pace p;
    know(&p, 3);
    uint32_t steps = 0, late = 0, probes = 0;
    double used = 0;
    for (int prompt = 0; prompt < 20; prompt++)
        for (uint32_t begin = 0; begin < PROMPT; steps++) {
            double noise = 1 + 0.05 * (steps * 7919 % 11 / 10.0);
            uint32_t n = mixed(&p, 1, 200, begin, noise);
            struct pace_work alone = work(1, 200, 0, 0), w = work(1, 200, n, begin);
            double ratio = machine_ms(&w) * noise / machine_ms(&alone);
            probes += n == 0;
            late += ratio > 3;
            used += ratio;
            begin += n;
        }
    ck_assert_uint_le(late, steps / 15);
    ck_assert_double_gt(used / steps, 2.3);
    ck_assert_uint_ge(probes, steps / 40);
    ck_assert_uint_le(probes, steps / 20);
}
END_TEST

/* Steps that miss their forecast often make plans aim lower, but a prompt still comes through in
 * PACE_PROMPTS times its time alone and a little. */
START_TEST(prompts_come_through)
{
    struct pace p;
    know(&p, 3);
    double noisy = 0, even = 0, alone = 0;
    uint32_t n = 0;
    for (uint32_t begin = 0; begin < PROMPT; begin += 100) {
        struct pace_work w = work(0, 0, 100, begin);
        alone += machine_ms(&w);
    }
    for (int prompt = 0; prompt < 40; prompt++)
        for (uint32_t begin = 0, took; begin < PROMPT; begin += took) {
            took = mixed(&p, 1, 0, begin, n++ % 10 == 0 ? 1.6 : 1);
            struct pace_work w = work(1, 0, took, begin);
            noisy += prompt >= 30 ? machine_ms(&w) : 0;
        }
    ck_assert_double_gt(p.margin, 1.35);
    ck_assert_double_le(noisy / 10, 2.0 * alone);
    ck_assert_double_ge(noisy / 10, 1.6 * alone);
    for (int prompt = 0; prompt < 40; prompt++)
        for (uint32_t begin = 0, took; begin < PROMPT; begin += took) {
            took = mixed(&p, 1, 0, begin, 1);
            struct pace_work w = work(1, 0, took, begin);
            even += prompt >= 30 ? machine_ms(&w) : 0;
        }
    ck_assert_double_lt(p.margin, 1.25);
    ck_assert_double_lt(even, noisy);
}
END_TEST

/* A machine that works in tiles of 8 rows, each for 1.5 ms more: a ninth row is not worth it. */
START_TEST(tiles_are_filled)
{
    struct pace p;
    pace_init(&p, 3);
    uint32_t steps = 0, over = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        struct pace_work w = work(1, 0, 0, 0);
        struct pace_room room = pace_room(&p, &w, 512);
        uint32_t n = i < 50 ? 0 : pace_fit(&p, &room, 0, 512, PROMPT);
        w = work(1, 0, n, 0);
        double ms = 4 + 0.5 * n + (n + 1 > 8 ? 1.5 * (n / 8) : 0);
        pace_learn(&p, &w, (uint64_t)(ms * 1e6));
        if (i >= 1000 && n > 0) {
            steps++;
            over += n > 7 && n < 11;
            ck_assert_uint_ge(n, 6);
        }
    }
    ck_assert_uint_le(over, steps / 10);
}
END_TEST

/* Far in a prompt fewer tokens fit than at its beginning. */
START_TEST(position_counts)
{
    struct pace p;
    know(&p, 3);
    uint32_t near = fit(&p, 1, 512, 0), far = fit(&p, 1, 512, 1400);
    ck_assert_uint_ge(near, 16);
    ck_assert_uint_le(near, 26);
    ck_assert_uint_ge(far, 6);
    ck_assert_uint_le(far, 13);
}
END_TEST

START_TEST(target_and_limits)
{
    struct pace p;
    know(&p, 3);
    uint32_t three = fit(&p, 1, 512, 0);
    ck_assert_uint_eq(fit(&p, 1, 7, 0), 7);
    p.target = 5;
    ck_assert_uint_gt(fit(&p, 1, 512, 0), three * 17 / 10);
    p.target = 1;
    ck_assert_uint_eq(fit(&p, 1, 512, 0), PACE_CHUNK_MIN);
}
END_TEST

/* A number of decodes never seen: as from fewer and the prompt tokens' cost, then it is measured. */
START_TEST(more_decodes)
{
    struct pace p;
    know(&p, 3);
    ck_assert_uint_ge(fit(&p, 64, 512, 0), 2 * fit(&p, 1, 512, 0));
    uint32_t steps = 0;
    while (mixed(&p, 64, 0, 0, 1) > 0)
        steps++;
    ck_assert_uint_eq(steps, PACE_PROBE_FIRST);
    struct pace_work w = work(64, 0, 0, 0);
    for (int i = 0; i < 100; i++)
        run(&p, w, 10);
    ck_assert_uint_ge(fit(&p, 64, 512, 0), 8 * fit(&p, 1, 512, 0));
    ck_assert_uint_ge(fit(&p, 50, 512, 0), 8 * fit(&p, 1, 512, 0)); /* of one size */
}
END_TEST

/* The room is shared by the prompts of a step. */
START_TEST(room_is_shared)
{
    struct pace p;
    know(&p, 3);
    struct pace_work w = work(1, 0, 0, 0);
    struct pace_room room = pace_room(&p, &w, 512);
    uint32_t all = fit(&p, 1, 512, 0), first = pace_fit(&p, &room, 0, 10, PROMPT);
    ck_assert_uint_eq(first, 10);
    uint32_t second = pace_fit(&p, &room, 0, 500, PROMPT);
    ck_assert_uint_ge(first + second + 1, all);
    ck_assert_uint_le(first + second, all + 1);
    ck_assert_uint_eq(pace_fit(&p, &room, 0, 500, PROMPT), 0);
    /* Prompts that wait for one another get more. */
    w.prompts = 2;
    room = pace_room(&p, &w, 512);
    first = pace_fit(&p, &room, 0, 500, PROMPT);
    ck_assert_uint_gt(first, all + 3);
    ck_assert_double_le(8 + 0.5 * first, 8 * 3 / PACE_MARGIN_CROWD + 1);
}
END_TEST

/* Drafts in the step leave that much less for prompts. */
START_TEST(drafts_take_room)
{
    struct pace p;
    know(&p, 3);
    struct pace_work w = work(1, 0, 0, 0);
    struct pace_room room = pace_room(&p, &w, 512);
    uint32_t all = fit(&p, 1, 512, 0);
    pace_charge(&p, &room, 0, 10);
    uint32_t rest = pace_fit(&p, &room, 0, 500, PROMPT);
    ck_assert_uint_ge(rest + 12, all);
    ck_assert_uint_le(rest + 9, all);
    room = pace_room(&p, &w, 512);
    pace_charge(&p, &room, 0, 1000);
    ck_assert_uint_eq(pace_fit(&p, &room, 0, 500, PROMPT), PACE_CHUNK_MIN);
}
END_TEST

START_TEST(outliers_count_little)
{
    struct pace p;
    know(&p, 3);
    for (int i = 0; i < 200; i++)
        mixed(&p, 1, 0, 0, 1);
    uint32_t before = fit(&p, 1, 512, 0);
    mixed(&p, 1, 0, 0, 100);
    ck_assert_uint_ge(fit(&p, 1, 512, 0), before / 2);
    /* A slow prompt still gets something. */
    for (int i = 0; i < 300; i++)
        run(&p, work(1, 0, 16, 0), 100);
    run(&p, work(1, 0, 0, 0), 1);
    ck_assert_uint_eq(fit(&p, 1, 512, 0), PACE_CHUNK_MIN);
}
END_TEST

CHECK_MAIN("pace", nobody_decodes, nothing_is_measured, a_crowd_waits_for_less_caution,
           steps_keep_the_target, prompts_come_through, tiles_are_filled, position_counts,
           target_and_limits, more_decodes, room_is_shared, drafts_take_room, outliers_count_little)
