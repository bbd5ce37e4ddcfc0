/* test_kernels.c: every (operation, tier) pair against the scalar reference, the reference against
 * doubles.
 *
 *     test_kernels [--tier T] [--only PREFIX]      checks (Check forks a child per pair)
 *     test_kernels --bench [--tier T] [--only P]   timings of one thread
 *     test_kernels --list                          the pairs of this CPU
 *
 * REQUIRE_TIERS=avx2,avx512 turns a tier that this CPU lacks into a failure. KERNEL_SEED changes
 * the random inputs. */
#define _GNU_SOURCE
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "pairs.h"
#include "tests/check_main.h"

#define MAX_TIERS 16

static struct pair pairs[MAX_PAIRS];
static size_t pair_count;
/* Tier t has the pairs first[t] … first[t + 1]. */
static size_t first[MAX_TIERS + 1], tier_count;
static const char *names[MAX_TIERS];
static struct kernels scalar;

START_TEST(variant_matches_scalar)
{
    kernels_enter_thread();
    pairs[_i].op->verify(&pairs[_i]);
}
END_TEST

START_TEST(scalar_matches_doubles)
{
    kernels_enter_thread();
    const struct op *op = op_at((size_t)_i);
    if (op->oracle)
        op->oracle(op, &scalar);
}
END_TEST

/* Takes the tier's pairs that are wanted: of only_tier (NULL: all) and of ops whose name begins with prefix. */
static void add_tier(const char *tier, const struct pair *found, size_t n, const char *only_tier,
                     const char *prefix)
{
    for (size_t i = 0; i < n; i++)
        if ((!only_tier || strcmp(only_tier, tier) == 0) &&
            strncmp(found[i].op->name, prefix, strlen(prefix)) == 0) {
            check(pair_count < MAX_PAIRS);
            pairs[pair_count++] = found[i];
        }
    check(tier_count < MAX_TIERS);
    names[tier_count++] = tier;
    first[tier_count] = pair_count;
}

/* The tier's products in two and four streams, where it has any. */
static void add_streamed(const struct kernels *k, const char *const names[2], const char *only_tier,
                         const char *prefix)
{
    struct pair *found = xcalloc(MAX_PAIRS, sizeof(*found));
    for (uint32_t i = 0; i < 2; i++)
        add_tier(names[i], found, pairs_streamed(k, 2 + 2 * i, names[i], found), only_tier, prefix);
    free(found);
}

/* The AVX-VNNI tier as CPUs with AVX-512 VNNI can run it. */
static void add_evex(const char *only_tier, const char *prefix)
{
    struct kernels avx2, evex;
    if (!evex_fill(&evex)) {
        printf("SKIP: tier " EVEX_TIER ": not on this CPU\n");
        return;
    }
    struct pair *found = xcalloc(MAX_PAIRS, sizeof(*found));
    check(kernels_select("avx2", &avx2, NULL) == STATUS_OK);
    add_tier(evex.tier, found, pairs_between(&avx2, &evex, found), only_tier, prefix);
    free(found);
    add_streamed(&evex, (const char *const[2]){EVEX_TIER "-streams2", EVEX_TIER "-streams4"},
                 only_tier, prefix);
}

static bool listed(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    return false;
}

/* Says which tiers are skipped; false if one of them is required. */
static bool report_missing(const char *required)
{
    bool ok = true;
    for (size_t i = 0; kernels_tier_name(i); i++)
        if (!kernels_tier_present(kernels_tier_name(i))) {
            printf("SKIP: tier %s: not on this CPU\n", kernels_tier_name(i));
            ok &= !listed(required, kernels_tier_name(i));
        }
    if (!ok)
        printf("FAIL: a tier of REQUIRE_TIERS=%s is missing\n", required);
    return ok;
}

static void bench(void)
{
    const char *tier = "";
    struct machine m = {0};
    for (size_t i = 0; i < pair_count; i++) {
        if (strcmp(tier, pairs[i].kernels.tier) != 0) {
            tier = pairs[i].kernels.tier;
            m = machine_measure(tier);
            printf("-- %s: memory %.1f GB/s, integer products %.0f Gop/s (one thread)\n", tier,
                   m.read_gbs, m.peak_gops);
        }
        if (pairs[i].op->bench)
            pairs[i].op->bench(&pairs[i], &m);
    }
}

int main(int argc, char **argv)
{
    const char *only_tier = NULL, *prefix = "";
    bool run_bench = false, list = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            run_bench = true;
        else if (strcmp(argv[i], "--list") == 0)
            list = true;
        else if (strcmp(argv[i], "--tier") == 0 && i + 1 < argc)
            only_tier = argv[++i];
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            prefix = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--bench|--list] [--tier T] [--only PREFIX]\n", argv[0]);
            return 2;
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    kernels_enter_thread();
    check(kernels_select("scalar", &scalar, NULL) == STATUS_OK);

    const char *below = NULL;
    for (size_t t = 0; kernels_tier_name(t); t++) {
        const char *tier = kernels_tier_name(t);
        if (!kernels_tier_present(tier))
            continue;
        struct pair *found = xcalloc(MAX_PAIRS, sizeof(*found));
        add_tier(tier, found, pairs_collect(tier, below ? below : tier, found), only_tier, prefix);
        free(found);
        below = tier;
    }
    static const char *const streamed[][3] = {{"avx2", "avx2-streams2", "avx2-streams4"},
                                              {"avxvnni", "avxvnni-streams2", "avxvnni-streams4"},
                                              {"avx512", "avx512-streams2", "avx512-streams4"}};
    for (size_t i = 0; i < sizeof(streamed) / sizeof(streamed[0]); i++) {
        struct kernels k;
        if (kernels_select(streamed[i][0], &k, NULL) == STATUS_OK)
            add_streamed(&k, streamed[i] + 1, only_tier, prefix);
    }
    add_evex(only_tier, prefix);
    if (list || run_bench) {
        for (size_t i = 0; list && i < pair_count; i++)
            printf("%s/%s\n", pairs[i].op->name, pairs[i].kernels.tier);
        if (run_bench)
            bench();
        return 0;
    }
    Suite *suite = suite_create("kernels");
    for (size_t t = 0; t < tier_count; t++) {
        TCase *tc = tcase_create(names[t]);
        tcase_set_timeout(tc, 60);
        tcase_add_loop_test(tc, variant_matches_scalar, (int)first[t], (int)first[t + 1]);
        suite_add_tcase(suite, tc);
    }
    TCase *oracle = tcase_create("oracle");
    int op_count = 0;
    while (op_at((size_t)op_count))
        op_count++;
    tcase_set_timeout(oracle, 60);
    tcase_add_loop_test(oracle, scalar_matches_doubles, 0, op_count);
    suite_add_tcase(suite, oracle);

    const char *required = getenv("REQUIRE_TIERS");
    const bool complete = report_missing(required ? required : "");
    return check_run(suite) != 0 || !complete;
}
