/* The sampler: Philox against published vectors, filters against brute force, draws against the
 * softmax they come from. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/kernels/select.h"
#include "core/model/math64.h"
#include "core/model/sample.h"
#include "core/model/sample_loops.h"
#include "tests/check_main.h"

static struct kernels kernels;

static void select_best_tier(void)
{
    struct error err = {0};
    kernels_enter_thread();
    ck_assert_int_eq(kernels_select(NULL, &kernels, &err), STATUS_OK);
}

/* A small generator for test rows only. */
static uint64_t state = 1;

static uint32_t next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static float normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)next() * 0x1p-32f;
    return sum - 6;
}

static void fill(float *row, uint32_t n, float spread)
{
    for (uint32_t i = 0; i < n; i++)
        row[i] = normal() * spread;
}

/* The known-answer vectors of Random123's kat_vectors for philox4x32-10. */
START_TEST(philox_vectors)
{
    uint32_t word;
    sample_loops_base.philox(0, 0, 0, 0, &word, 1);
    ck_assert_uint_eq(word, 0x6627e8d5);
    sample_loops_base.philox(UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX, &word, 1);
    ck_assert_uint_eq(word, 0x408f276d);
    sample_loops_base.philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x13198a2e, 0x03707344, &word,
                             1);
    ck_assert_uint_eq(word, 0xd16cfe09);
}
END_TEST

START_TEST(loops_agree)
{
    const struct sample_loops *tiers[] = {
        &sample_loops_base, kernels_tier_present("avx2") ? &sample_loops_avx2 : NULL,
        kernels_tier_present("avx512") ? &sample_loops_avx512 : NULL};
    float row[1003];
    uint32_t words[3][1003];
    double sums[3];
    uint32_t largest[3];
    fill(row, 1003, 5);
    for (int t = 0; t < 3; t++) {
        if (tiers[t] == NULL)
            continue;
        largest[t] = tiers[t]->philox(77, 12345678901, 40, 3, words[t], 1003);
        sums[t] = tiers[t]->exp_sum(row, 1003, 0.7, 30);
        ck_assert(memcmp(words[t], words[0], sizeof words[0]) == 0);
        ck_assert(memcmp(&sums[t], &sums[0], sizeof sums[0]) == 0);
        ck_assert(largest[t] == largest[0]);
    }
    /* The sum of one number is its exponential: the lanes and the scalar code agree to the bit. */
    for (int i = 0; i + 8 <= 1003; i += 8) {
        float one[8];
        for (int j = 0; j < 8; j++)
            one[j] = j == 0 ? row[i] * 30 : -1e30f;
        double want = math64_exp((double)one[0] * 0.7 - 30), least = math64_exp(-1e30);
        ck_assert(sample_loops_base.exp_sum(one, 8, 0.7, 30) == want + least);
    }
    for (int i = 0; i < 1003; i++) {
        uint32_t word;
        sample_loops_base.philox(77, 12345678901, 40 + (uint32_t)i, 3, &word, 1);
        ck_assert_uint_eq(word, words[0][i]);
        ck_assert_uint_ge(largest[0], word);
    }
}
END_TEST

START_TEST(math)
{
    for (double x = -699; x < 700; x += 0.37)
        ck_assert_double_le(fabs(math64_exp(x) / exp(x) - 1), 1e-15 * 8);
    ck_assert(math64_exp(0) == 1);
    ck_assert(math64_exp(-1e300) == math64_exp(-700));
    for (double x = 1e-300; x < 1e300; x *= 1.37)
        ck_assert_double_le(fabs(math64_ln(x) - log(x)), 1e-15 * fmax(1, fabs(log(x))));
    for (double x = 1 - 1e-9; x < 1 + 1e-9; x += 1.1e-11)
        ck_assert_double_le(fabs(math64_ln(x) - log(x)), 1e-15 * fabs(log(x)) + 1e-300);
    for (double x = 0; x < 2e5; x += 0.7313) {
        double s, c;
        math64_sincos(x, &s, &c);
        ck_assert_double_le(fabs(s - sin(x)), 1e-14);
        ck_assert_double_le(fabs(c - cos(x)), 1e-14);
    }
    for (double x = 1e6; x < 1e8; x *= 1.0137) {
        double s, c;
        math64_sincos(x, &s, &c);
        ck_assert_double_le(fabs(s - sin(x)), 1e-8);
        ck_assert_double_le(fabs(c - cos(x)), 1e-8);
    }
}
END_TEST

/* ---- filters: a plain sorted implementation, slow and obvious ---- */

struct entry {
    float logit;
    uint32_t id;
    double p;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

static uint32_t slow_draw(const struct sample_params *p, const float *logits, uint32_t n,
                          uint64_t position)
{
    struct entry *e = xreallocarray(NULL, n, sizeof *e);
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct entry){logits[i], i, 0};
    qsort(e, n, sizeof *e, by_logit);
    uint32_t kept = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    double sum = 0, mass = 0, t = (double)p->temperature;
    for (uint32_t i = 0; i < kept; i++)
        sum += e[i].p = exp(((double)e[i].logit - (double)e[0].logit) / t);
    if (p->top_p < 1)
        for (uint32_t i = 0; i < kept; i++) {
            mass += e[i].p;
            if (mass >= (double)p->top_p * sum)
                kept = i + 1;
        }
    double best = -DBL_MAX;
    uint32_t token = 0;
    for (uint32_t i = 0; i < kept; i++) {
        if (e[i].p < (double)p->min_p)
            continue;
        uint32_t word;
        sample_loops_base.philox(p->seed, position, e[i].id, p->choice, &word, 1);
        double value = (double)e[i].logit / t - log(-log(((double)word + 0.5) * 0x1p-32));
        if (value > best) {
            best = value;
            token = e[i].id;
        }
    }
    free(e);
    return token;
}

START_TEST(filters_against_brute_force)
{
    enum { N = 997 };
    float row[N];
    struct sampler *s = sampler_create(&kernels, N);
    for (uint32_t round = 0; round < 3000; round++) {
        struct sample_params p = sample_params_default();
        fill(row, N, 0.5f + (float)(round % 7));
        if (round % 5 == 0) /* ties */
            for (uint32_t i = 0; i < N; i++)
                row[i] = roundf(row[i]);
        p.seed = round * 0x9e3779b97f4a7c15u;
        p.choice = round % 3;
        p.temperature = 0.1f + (float)(next() % 200) / 100;
        if (next() % 2)
            p.top_k = 1 + next() % (next() % 2 ? 20 : 1200);
        if (next() % 2)
            p.top_p = (float)(1 + next() % 1000) / 1000;
        if (next() % 2)
            p.min_p = (float)(next() % 300) / 1000;
        ck_assert_uint_eq(sampler_draw(s, &p, NULL, NULL, row, round),
                          slow_draw(&p, row, N, round));
    }
    sampler_free(s);
}
END_TEST

START_TEST(extreme_temperatures)
{
    enum { N = 500 };
    float row[N];
    struct sampler *s = sampler_create(&kernels, N);
    for (uint32_t round = 0; round < 300; round++) {
        struct sample_params p = sample_params_default();
        fill(row, N, 20);
        p.temperature = (float[]){1e-6f, 1e-3f, 0.01f, 100, 1e6f}[round % 5];
        p.seed = round;
        ck_assert_uint_eq(sampler_draw(s, &p, NULL, NULL, row, 5), slow_draw(&p, row, N, 5));
    }
    sampler_free(s);
}
END_TEST

/* χ² of draws over the positions of one seed against the softmax; 15 degrees of freedom at most. A
 * sound sampler passes 60 with probability 1 − 2e-7. */
static double chi_square(struct sampler *s, const struct sample_params *p,
                         const struct sample_state *past, const uint64_t *allowed, const float *row,
                         const double *want, uint32_t n)
{
    enum { DRAWS = 100000 };
    uint32_t *count = xcalloc(n, sizeof *count);
    for (uint32_t i = 0; i < DRAWS; i++)
        count[sampler_draw(s, p, past, allowed, row, i)]++;
    double chi = 0;
    for (uint32_t i = 0; i < n; i++) {
        double expected = want[i] * DRAWS;
        if (expected == 0)
            ck_assert_uint_eq(count[i], 0);
        else
            chi += (count[i] - expected) * (count[i] - expected) / expected;
    }
    free(count);
    return chi;
}

/* Scales the kept numbers to a sum of 1 and returns the largest. */
static double normalise(double *p, uint32_t n)
{
    double sum = 0, max = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += p[i];
    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, p[i] /= sum);
    return max;
}

/* Keeps the largest of p, in falling order, until `most` are kept or their sum reaches `mass`. */
static void keep_largest(double *p, uint32_t n, uint32_t most, double mass)
{
    double sum = 0;
    bool kept[64] = {false};
    for (uint32_t k = 0; k < most && sum < mass; k++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (!kept[i] && (best == n || p[i] > p[best]))
                best = i;
        kept[best] = true;
        sum += p[best];
    }
    for (uint32_t i = 0; i < n; i++)
        if (!kept[i])
            p[i] = 0;
}

/* Every combination of top_k, top_p, min_p, mask, and bias with penalties: _i names it by its bits. */
START_TEST(draws_follow_the_filtered_softmax)
{
    enum { N = 16 };
    const struct logit_bias bias[] = {{3, 1.5f}, {7, -2}};
    const uint64_t allowed = 0xdfbe;
    float row[N];
    double want[N];
    struct sampler *s = sampler_create(&kernels, N);
    struct sample_params p = sample_params_default();
    struct sample_state past = {0};
    bool masked = _i & 8, penalised = _i & 16;
    fill(row, N, 1);
    p.seed = 20260101 + (uint64_t)_i;
    p.temperature = 0.8f;
    p.top_k = _i & 1 ? 9 : 0;
    p.top_p = _i & 2 ? 0.85f : 1;
    p.min_p = _i & 4 ? 0.15f : 0;
    for (uint32_t i = 0; i < N; i++)
        want[i] = (double)row[i];
    if (penalised) {
        p.bias = bias;
        p.n_bias = 2;
        p.repetition_penalty = 1.3f;
        p.presence_penalty = 0.4f;
        p.frequency_penalty = 0.3f;
        sample_state_add(&past, &p, 2, false);
        sample_state_add(&past, &p, 5, true);
        sample_state_add(&past, &p, 5, true);
        want[3] += 1.5;
        want[7] -= 2;
        want[2] = want[2] > 0 ? want[2] / (double)p.repetition_penalty
                              : want[2] * (double)p.repetition_penalty;
        want[5] = want[5] > 0 ? want[5] / (double)p.repetition_penalty
                              : want[5] * (double)p.repetition_penalty;
        want[5] -= 0.4 + 2 * 0.3;
    }
    for (uint32_t i = 0; i < N; i++)
        want[i] = masked && !(allowed >> i & 1) ? 0 : exp(want[i] / (double)p.temperature);
    normalise(want, N);
    if (p.top_k > 0)
        keep_largest(want, N, p.top_k, 2);
    normalise(want, N);
    if (p.top_p < 1)
        keep_largest(want, N, N, (double)p.top_p);
    double max = normalise(want, N);
    for (uint32_t i = 0; i < N; i++)
        want[i] = want[i] >= (double)p.min_p * max ? want[i] : 0;
    normalise(want, N);
    ck_assert_double_le(
        chi_square(s, &p, penalised ? &past : NULL, masked ? &allowed : NULL, row, want, N), 60);
    sample_state_release(&past);
    sampler_free(s);
}
END_TEST

START_TEST(greedy_and_mask)
{
    enum { N = 130 };
    float row[N];
    struct sampler *s = sampler_create(&kernels, N);
    struct sample_params p = sample_params_default();
    uint64_t allowed[3] = {0, 0, 0};
    for (uint32_t i = 0; i < N; i++)
        row[i] = i == 17 || i == 99 ? 5 : 1;
    p.temperature = 0;
    ck_assert_uint_eq(sampler_draw(s, &p, NULL, NULL, row, 0), 17);
    allowed[1] = 1ull << (99 - 64) | 1ull << (70 - 64);
    ck_assert_uint_eq(sampler_draw(s, &p, NULL, allowed, row, 0), 99);
    uint32_t banned[] = {99, 4000000000u};
    p.banned = banned;
    p.n_banned = 2;
    ck_assert_uint_eq(sampler_draw(s, &p, NULL, allowed, row, 0), 70);
    p.temperature = 1;
    for (uint64_t position = 0; position < 200; position++) {
        p.top_p = position % 2 ? 0.9f : 1;
        p.top_k = position % 3 ? 0 : 5;
        ck_assert_uint_eq(sampler_draw(s, &p, NULL, allowed, row, position), 70);
    }
    p.n_banned = 0;
    struct logit_bias bias[] = {{3, 100}, {5000, 100}};
    p.bias = bias;
    p.n_bias = 2;
    ck_assert_uint_eq(sampler_draw(s, &p, NULL, NULL, row, 0), 3);
    sampler_free(s);
}
END_TEST

START_TEST(penalties)
{
    enum { N = 40 };
    float row[N];
    struct sampler *s = sampler_create(&kernels, N);
    struct sample_params p = sample_params_default();
    struct sample_state seen = {0};
    p.temperature = 0;
    for (uint32_t i = 0; i < N; i++)
        row[i] = -10;
    row[7] = 4;
    row[8] = 3.5f;
    row[9] = -1;
    ck_assert(!sample_needs_state(&p));
    p.repetition_penalty = 1.2f;
    p.last_n = 3;
    ck_assert(sample_needs_state(&p));
    sample_state_add(&seen, &p, 7, false);
    ck_assert_uint_eq(sampler_draw(s, &p, &seen, NULL, row, 0), 8); /* 4 / 1.2 < 3.5 */
    sample_state_add(&seen, &p, 1, false);
    sample_state_add(&seen, &p, 2, false);
    sample_state_add(&seen, &p, 3, false);
    ck_assert_uint_eq(sampler_draw(s, &p, &seen, NULL, row, 0), 7); /* out of the window */
    sample_state_release(&seen);

    /* Presence and frequency look at the answer alone. */
    p.repetition_penalty = 1;
    p.last_n = 0;
    p.frequency_penalty = 0.3f;
    for (int i = 0; i < 5; i++)
        sample_state_add(&seen, &p, 7, false);
    ck_assert_uint_eq(sampler_draw(s, &p, &seen, NULL, row, 0), 7);
    sample_state_add(&seen, &p, 7, true);
    ck_assert_uint_eq(sampler_draw(s, &p, &seen, NULL, row, 0), 7);
    sample_state_add(&seen, &p, 7, true);
    ck_assert_uint_eq(sampler_draw(s, &p, &seen, NULL, row, 0), 8);
    p.frequency_penalty = 0;
    p.presence_penalty = 0.6f;
    ck_assert_uint_eq(sampler_draw(s, &p, &seen, NULL, row, 0), 8);
    p.presence_penalty = -2;
    ck_assert_uint_eq(sampler_draw(s, &p, &seen, NULL, row, 0), 7);
    for (uint32_t i = 0; i < 3000; i++)
        sample_state_add(&seen, &p, i % 700, true);
    ck_assert_uint_eq(seen.used, 700);
    sample_state_release(&seen);
    sampler_free(s);
}
END_TEST

START_TEST(logprobs)
{
    enum { N = 1000 };
    float row[N];
    struct sample_logprob top[SAMPLE_TOP_MAX];
    struct sampler *s = sampler_create(&kernels, N);
    fill(row, N, 3);
    row[500] = row[20]; /* a tie */
    double sum = 0;
    for (uint32_t i = 0; i < N; i++)
        sum += exp((double)row[i]);
    double log_sum = sampler_log_sum(s, row);
    ck_assert_double_le(fabs(log_sum - log(sum)), 1e-12);
    ck_assert_uint_eq(sampler_top(s, row, log_sum, 20, top), 20);
    struct entry e[N];
    for (uint32_t i = 0; i < N; i++)
        e[i] = (struct entry){row[i], i, 0};
    qsort(e, N, sizeof *e, by_logit);
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert_uint_eq(top[i].token, e[i].id);
        ck_assert_double_le(fabs((double)top[i].logprob - ((double)e[i].logit - log(sum))), 1e-5);
    }
    sampler_free(s);
    struct sampler *few = sampler_create(&kernels, 3);
    ck_assert_uint_eq(sampler_top(few, row, 0, 20, top), 3);
    sampler_free(few);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sample");
    TCase *c = tcase_create("sample");
    tcase_add_unchecked_fixture(c, select_best_tier, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, philox_vectors);
    tcase_add_test(c, loops_agree);
    tcase_add_test(c, math);
    tcase_add_test(c, filters_against_brute_force);
    tcase_add_test(c, extreme_temperatures);
    tcase_add_loop_test(c, draws_follow_the_filtered_softmax, 0, 32);
    tcase_add_test(c, greedy_and_mask);
    tcase_add_test(c, penalties);
    tcase_add_test(c, logprobs);
    suite_add_tcase(suite, c);
    return check_run(suite);
}
