/* test_seats.c: a member that holds a chunk and does not run goes on where another one waits; one of two members on a CPU
 * leaves it; and each gets its own affinity back. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/kernels/seats.h"
#include "tests/check_main.h"

/* Member 1, which sleeps where the test wants it to. */
struct member {
    struct seats *seats;
    pthread_t thread;
    pid_t tid;
    bool holds;
    int cpu; /* where it comes to its first stage; −1: anywhere */
    cpu_set_t own, after;
    sem_t asleep, go;
};

static cpu_set_t affinity(pid_t tid)
{
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(tid, sizeof(set), &set), 0);
    return set;
}

static void sit(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(set), &set), 0);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    m->tid = gettid();
    m->own = affinity(0);
    seats_take(m->seats, 1);
    if (m->cpu >= 0)
        sit(m->cpu);
    seats_settle(m->seats, 1, 0);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(m->own), &m->own), 0);
    seats_hold(m->seats, 1, m->holds);
    sem_post(&m->asleep);
    sem_wait(&m->go);
    seats_hold(m->seats, 1, false);
    seats_settle(m->seats, 1, 1);
    m->after = affinity(0);
    return NULL;
}

static void begin(struct member *m, bool holds, int cpu)
{
    *m = (struct member){.seats = seats_new(2), .holds = holds, .cpu = cpu};
    sem_init(&m->asleep, 0, 0);
    sem_init(&m->go, 0, 0);
    seats_take(m->seats, 0);
    ck_assert_int_eq(pthread_create(&m->thread, NULL, member_main, m), 0);
    sem_wait(&m->asleep);
}

/* Lets it go on; it has its own affinity again. */
static void end(struct member *m)
{
    sem_post(&m->go);
    pthread_join(m->thread, NULL);
    ck_assert(CPU_EQUAL(&m->own, &m->after));
    seats_free(m->seats);
}

static void expect_counts(const struct member *m, uint64_t pulls, uint64_t pushes)
{
    uint64_t got[2];
    seats_counts(m->seats, &got[0], &got[1]);
    ck_assert_uint_eq(got[0], pulls);
    ck_assert_uint_eq(got[1], pushes);
}

START_TEST(holder_is_pulled)
{
    struct member m;
    cpu_set_t before = affinity(0);
    begin(&m, true, -1);
    int cpu = sched_getcpu();
    sit(cpu);
    /* It says that it sleeps a moment before it does. */
    for (uint64_t pulls = 0, pushes; pulls == 0; seats_counts(m.seats, &pulls, &pushes))
        seats_pull(m.seats, 0);
    cpu_set_t there = affinity(m.tid);
    ck_assert_int_eq(CPU_COUNT(&there), 1);
    ck_assert(CPU_ISSET(cpu, &there));
    seats_pull(m.seats, 0);
    expect_counts(&m, 1, 0);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(before), &before), 0);
    end(&m);
}
END_TEST

START_TEST(idle_member_is_left)
{
    struct member m;
    begin(&m, false, -1);
    for (int i = 0; i < 20; i++)
        seats_pull(m.seats, 0);
    expect_counts(&m, 0, 0);
    end(&m);
}
END_TEST

START_TEST(neighbour_is_pushed)
{
    struct member m;
    cpu_set_t before = affinity(0);
    int cpu = sched_getcpu();
    begin(&m, false, cpu);
    sit(cpu);
    seats_settle(m.seats, 0, 0);
    /* With one CPU there is no other place. */
    bool apart = CPU_COUNT(&before) > 1;
    cpu_set_t there = affinity(m.tid);
    ck_assert_int_eq(CPU_ISSET(cpu, &there), !apart);
    expect_counts(&m, 0, apart);
    seats_settle(m.seats, 0, 1);
    expect_counts(&m, 0, apart);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(before), &before), 0);
    end(&m);
}
END_TEST

START_TEST(member_elsewhere_is_left)
{
    struct member m;
    cpu_set_t before = affinity(0);
    int cpus[2] = {-1, -1};
    for (int i = 0, n = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &before))
            cpus[n++] = i;
    if (cpus[1] < 0)
        return;
    begin(&m, false, cpus[1]);
    sit(cpus[0]);
    seats_settle(m.seats, 0, 0);
    expect_counts(&m, 0, 0);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(before), &before), 0);
    end(&m);
}
END_TEST

CHECK_MAIN("seats", holder_is_pulled, idle_member_is_left, neighbour_is_pushed,
           member_elsewhere_is_left)
