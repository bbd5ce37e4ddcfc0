#define _GNU_SOURCE
#include "core/kernels/seats.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/xalloc.h"

/* A thread whose CPU time has not grown meanwhile does not run. */
#define LOOK_NS 5000u
#define NOWHERE -1

enum moved {
    MOVED_NOT,
    MOVED_BEGUN, /* somebody is at it */
    MOVED_DONE,
};

struct seat {
    _Alignas(64) _Atomic int cpu; /* where the thread came to its last stage; NOWHERE: not known */
    _Atomic bool holds;
    _Atomic uint32_t moved; /* enum moved */
    pid_t tid;              /* 0: not taken yet */
    clockid_t clock;
    cpu_set_t own; /* its affinity before it was moved */
};

struct seats {
    uint32_t n;
    bool apart; /* there is a CPU for each member */
    _Atomic uint64_t pulls, pushes;
    struct seat seat[];
};

struct seats *seats_new(uint32_t n)
{
    struct seats *s = xaligned(sizeof(*s) + n * sizeof(s->seat[0]));
    cpu_set_t set;
    s->n = n;
    s->apart = sched_getaffinity(0, sizeof(set), &set) == 0 && (uint32_t)CPU_COUNT(&set) >= n;
    for (uint32_t i = 0; i < n; i++)
        atomic_init(&s->seat[i].cpu, NOWHERE);
    return s;
}

void seats_free(struct seats *s)
{
    free(s);
}

void seats_take(struct seats *s, uint32_t index)
{
    struct seat *seat = &s->seat[index];
    const pid_t tid = gettid();
    if (seat->tid == tid)
        return;
    seat->tid = pthread_getcpuclockid(pthread_self(), &seat->clock) == 0 ? tid : 0;
}

void seats_hold(struct seats *s, uint32_t index, bool holds)
{
    atomic_store_explicit(&s->seat[index].holds, holds, memory_order_release);
}

/* Leaves a member's thread the CPUs of its own affinity that are in `some`, if there are any. */
static bool move(struct seat *seat, const cpu_set_t *some)
{
    uint32_t not = MOVED_NOT;
    cpu_set_t left;
    if (!atomic_compare_exchange_strong(&seat->moved, &not, MOVED_BEGUN))
        return false;
    bool moved = sched_getaffinity(seat->tid, sizeof(seat->own), &seat->own) == 0;
    if (moved) {
        CPU_AND(&left, &seat->own, some);
        moved = CPU_COUNT(&left) > 0 && sched_setaffinity(seat->tid, sizeof(left), &left) == 0;
    }
    atomic_store(&seat->moved, moved ? MOVED_DONE : MOVED_NOT);
    return moved;
}

/* Off the CPUs on which members sit; or at least off `cpu`, if those are all that it may use. */
static void push(struct seats *s, struct seat *other, int cpu)
{
    cpu_set_t free, rest;
    CPU_ZERO(&rest);
    for (int i = 0; i < CPU_SETSIZE; i++)
        CPU_SET(i, &rest);
    CPU_CLR(cpu, &rest);
    free = rest;
    for (uint32_t i = 0; i < s->n; i++) {
        int taken = atomic_load(&s->seat[i].cpu);
        if (taken >= 0 && taken < CPU_SETSIZE)
            CPU_CLR(taken, &free);
    }
    atomic_store(&other->cpu, NOWHERE);
    if (move(other, &free) || move(other, &rest))
        atomic_fetch_add(&s->pushes, 1);
}

void seats_restore(struct seats *s, uint32_t index)
{
    struct seat *seat = &s->seat[index];
    if (atomic_load_explicit(&seat->moved, memory_order_acquire) == MOVED_DONE) {
        (void)sched_setaffinity(0, sizeof(seat->own), &seat->own);
        atomic_store(&seat->moved, MOVED_NOT);
    }
}

void seats_settle(struct seats *s, uint32_t index, uint32_t stage)
{
    struct seat *seat = &s->seat[index];
    seats_restore(s, index);
    const int cpu = sched_getcpu();
    if (cpu != atomic_load_explicit(&seat->cpu, memory_order_relaxed))
        atomic_store(&seat->cpu, cpu);
    if (!s->apart || cpu < 0 || cpu >= CPU_SETSIZE)
        return;
    /* One of the others at each stage, so that it costs the same in a large team. */
    struct seat *other = &s->seat[(index + 1 + stage % (s->n - 1)) % s->n];
    if (atomic_load_explicit(&other->cpu, memory_order_acquire) == cpu)
        push(s, other, cpu);
}

static uint64_t time_of(const struct seat *seat)
{
    struct timespec t;
    if (clock_gettime(seat->clock, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool runs(const struct seat *seat)
{
    const uint64_t before = time_of(seat), start = clock_ns();
    while (clock_ns() - start < LOOK_NS)
        __builtin_ia32_pause();
    return time_of(seat) != before;
}

void seats_pull(struct seats *s, uint32_t index)
{
    const int cpu = sched_getcpu();
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return;
    for (uint32_t i = 0; i < s->n; i++) {
        struct seat *other = &s->seat[i];
        /* What its thread has set is there once it holds something. */
        if (i == index || !atomic_load_explicit(&other->holds, memory_order_acquire) ||
            other->tid == 0 || runs(other))
            continue;
        cpu_set_t here;
        CPU_ZERO(&here);
        CPU_SET(cpu, &here);
        if (move(other, &here)) {
            atomic_fetch_add(&s->pulls, 1);
            return;
        }
    }
}

void seats_counts(const struct seats *s, uint64_t *pulls, uint64_t *pushes)
{
    *pulls = atomic_load(&s->pulls);
    *pushes = atomic_load(&s->pushes);
}
