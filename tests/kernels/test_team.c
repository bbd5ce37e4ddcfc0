/* test_team.c: stages of the compute team: every item exactly once, in order of stages, also with
 * more threads than CPUs and with threads that are away. */
#define _GNU_SOURCE
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xmmintrin.h>

#include "core/kernels/team.h"
#include "tests/check_main.h"

#define ITEMS 1000u
#define STAGES 7u

struct job {
    uint32_t total, chunk;
    uint32_t *values; /* plain memory: the team must order the accesses */
    _Atomic uint32_t inside, wrong;
    bool sleepy;
};

/* Stage s adds s + 1 to each item, after checking that it holds what the stages before left. */
static void step(void *arg, struct team_member *me)
{
    struct job *job = arg;
    uint32_t begin, end, expect = 0;

    atomic_fetch_add(&job->inside, 1);
    if (job->sleepy && me->index == 1) {
        const struct timespec pause = {0, 3000000};
        nanosleep(&pause, NULL);
    }
    for (uint32_t s = 0; s < STAGES; s++) {
        while (team_next(me, job->total, job->chunk, &begin, &end)) {
            if (end - begin > job->chunk || end > job->total || begin >= end)
                atomic_fetch_add(&job->wrong, 1);
            if (s == 0 && _mm_getcsr() != 0x9fc0)
                atomic_fetch_add(&job->wrong, 1);
            for (uint32_t i = begin; i < end; i++) {
                if (job->values[i] != expect)
                    atomic_fetch_add(&job->wrong, 1);
                job->values[i] += s + 1;
            }
        }
        expect += s + 1;
        while (team_next(me, 0, 1, &begin, &end))
            atomic_fetch_add(&job->wrong, 1);
        /* One item: what a serial piece sees is everybody's work. */
        while (team_next(me, 1, 1, &begin, &end))
            for (uint32_t i = 0; i < job->total; i++)
                if (job->values[i] != expect)
                    atomic_fetch_add(&job->wrong, 1);
    }
    atomic_fetch_sub(&job->inside, 1);
}

static void run_job(struct team *team, uint32_t total, uint32_t chunk, bool sleepy)
{
    struct job job = {.total = total, .chunk = chunk, .sleepy = sleepy};
    job.values = calloc(total, sizeof(*job.values));
    team_run(team, step, &job);
    ck_assert_uint_eq(job.inside, 0);
    ck_assert_uint_eq(job.wrong, 0);
    for (uint32_t i = 0; i < total; i++)
        ck_assert_uint_eq(job.values[i], STAGES * (STAGES + 1) / 2);
    free(job.values);
}

static const uint32_t sizes[] = {1, 2, 3, 8};

START_TEST(every_item_once)
{
    struct team *team;
    struct error err = {0};
    ck_assert_msg(team_create(sizes[_i], 0, &team, &err) == STATUS_OK, "%s", err.text);
    ck_assert_uint_eq(team_size(team), sizes[_i]);
    for (uint32_t round = 0; round < 50; round++) {
        run_job(team, 1 + round * 37 % ITEMS, 1 + round % 9, false);
        run_job(team, 3, 7, false);
    }
    team_free(team);
}
END_TEST

/* A thread that sleeps while the work is handed out walks through the stages and harms nothing. */
START_TEST(late_thread)
{
    struct team *team;
    ck_assert(team_create(3, 5, &team, NULL) == STATUS_OK);
    for (uint32_t round = 0; round < 10; round++)
        run_job(team, 500, 4, true);
    team_free(team);
}
END_TEST

/* Workers that have parked between runs come back. */
START_TEST(parked_workers)
{
    struct team *team;
    const struct timespec pause = {0, 5000000};
    ck_assert(team_create(2, 0, &team, NULL) == STATUS_OK);
    for (uint32_t round = 0; round < 10; round++) {
        nanosleep(&pause, NULL);
        run_job(team, 300, 5, false);
    }
    team_free(team);
    team_free(NULL);
}
END_TEST

struct share {
    _Atomic uint32_t taken[2];
};

static void slow_items(void *arg, struct team_member *me)
{
    struct share *share = arg;
    const struct timespec pause = {0, 1000000};
    uint32_t begin, end;
    while (team_next(me, 20, 1, &begin, &end)) {
        nanosleep(&pause, NULL);
        atomic_fetch_add(&share->taken[me->index], 1);
    }
}

START_TEST(work_is_shared)
{
    struct team *team;
    struct share share = {0};
    ck_assert(team_create(2, 0, &team, NULL) == STATUS_OK);
    team_run(team, slow_items, &share);
    ck_assert_uint_eq(share.taken[0] + share.taken[1], 20);
    ck_assert_uint_gt(share.taken[0], 0);
    ck_assert_uint_gt(share.taken[1], 0);
    team_free(team);
}
END_TEST

struct order {
    uint32_t total;
    bool ascending;
    _Atomic uint32_t wrong;
};

static void ordered_items(void *arg, struct team_member *me)
{
    struct order *order = arg;
    const bool down = me->index == 1 && order->total <= 65535 && !order->ascending;
    uint32_t begin, end, last_begin = 0, last_end = 0;
    me->ascending = order->ascending;
    for (bool first = true; team_next(me, order->total, 3, &begin, &end); first = false) {
        if (!first && (down ? end > last_begin : begin < last_end))
            atomic_fetch_add(&order->wrong, 1);
        last_begin = begin;
        last_end = end;
    }
}

/* Of two threads the second one goes backwards, unless it wants to go forwards or there are too many items. */
START_TEST(both_ends)
{
    static const uint32_t totals[] = {1000, 65535, 65536, 70000};
    struct team *team;
    ck_assert(team_create(2, 0, &team, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t ascending = 0; ascending < 2; ascending++) {
            struct order order = {.total = totals[i], .ascending = ascending};
            team_run(team, ordered_items, &order);
            ck_assert_uint_eq(order.wrong, 0);
        }
    run_job(team, 65535, 7, false);
    run_job(team, 65536, 7, false);
    team_free(team);
}
END_TEST

static void *spin(void *arg)
{
    const _Atomic bool *ends = arg;
    while (!atomic_load_explicit(ends, memory_order_relaxed))
        ;
    return NULL;
}

/* Members move each other where somebody else runs, too (seats.h); whoever called gets its CPUs back. */
START_TEST(caller_keeps_its_cpus)
{
    struct team *team;
    _Atomic bool ends = false;
    pthread_t other;
    cpu_set_t before, after;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    ck_assert(team_create(2, 0, &team, NULL) == STATUS_OK);
    ck_assert_int_eq(pthread_create(&other, NULL, spin, (void *)&ends), 0);
    for (int i = 0; i < 500; i++) {
        run_job(team, ITEMS, 7, false);
        ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
        ck_assert(CPU_EQUAL(&before, &after));
    }
    atomic_store(&ends, true);
    pthread_join(other, NULL);
    team_free(team);
}
END_TEST

START_TEST(bad_sizes)
{
    struct team *team;
    struct error err = {0};
    ck_assert(team_create(0, 0, &team, &err) == STATUS_UNSUPPORTED);
    ck_assert(team_create(257, 0, &team, &err) == STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "257"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("team");
    TCase *tc = tcase_create("team");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, every_item_once, 0, sizeof(sizes) / sizeof(sizes[0]));
    tcase_add_test(tc, late_thread);
    tcase_add_test(tc, parked_workers);
    tcase_add_test(tc, work_is_shared);
    tcase_add_test(tc, both_ends);
    tcase_add_test(tc, caller_keeps_its_cpus);
    tcase_add_test(tc, bad_sizes);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
