/* team.c: compute threads; stages by tickets (team.h has the rules).
 *
 * ticket = stage number (high half) | items taken (low half): from the front and, in its upper 16 bits, from the back;
 * of more than 65,535 items all are taken from the front. A chunk is taken by raising one of them, which succeeds only
 * while the stage is still the member's own. `done` counts finished items; whoever finishes the last one resets it and
 * publishes the next stage, in one store. So a thread that was away finds a ticket of a later stage and walks through
 * the stages that it missed without touching anything.
 *
 * gate = run number | open bit | threads inside. Workers enter only while it is open; the caller
 * closes it when its own function has returned, and waits for those inside to leave. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/background.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/kernels/kernels.h"
#include "core/kernels/seats.h"
#include "core/kernels/team.h"

#define SPIN_STAGE_NS 50000u
#define SPIN_RUN_NS 2000000u
/* How long a member that waits for a stage sleeps before it looks again who holds it up. */
#define SLEEP_STAGE_NS 300000u
#define GATE_OPEN 0x8000u
#define GATE_INSIDE 0x7fffu
#define BOTH_ENDS 0xffffu

struct team {
    uint32_t size;
    int nice;
    pthread_t *threads;  /* size − 1 */
    struct seats *seats; /* NULL: a team of one */

    /* Written by the caller while the gate is closed. */
    team_fn *fn;
    void *arg;
    uint32_t first_stage;

    _Alignas(64) _Atomic uint32_t run; /* bumped when a run opens, and to end the workers */
    _Atomic uint32_t run_sleepers;
    _Atomic bool quit;
    _Alignas(64) _Atomic uint32_t gate;
    _Atomic uint32_t gate_sleepers;
    _Alignas(64) _Atomic uint64_t ticket;
    _Atomic uint32_t ticket_sleepers;
    _Alignas(64) _Atomic uint32_t done;
};

/* ns 0: for as long as it takes. */
static void futex_wait(const void *word, uint32_t value, uint64_t ns)
{
    const struct timespec limit = {.tv_nsec = (long)ns};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, ns > 0 ? &limit : NULL, NULL, 0);
}

static void futex_wake_all(const void *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* The half of the ticket that holds the stage (little endian), for futex calls. */
static const void *ticket_stage_word(const struct team *t)
{
    return (const char *)&t->ticket + 4;
}

static void pause_cpu(void)
{
    __builtin_ia32_pause();
}

/* Waits until *word differs from value: spins for spin_ns, then sleeps. */
static void wait_change(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers,
                        uint64_t spin_ns)
{
    const uint64_t start = clock_ns();
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return;
            pause_cpu();
        }
    } while (clock_ns() - start < spin_ns);
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == value)
        futex_wait(word, value, 0);
    atomic_fetch_sub(sleepers, 1);
}

static bool stage_over(const struct team *t, uint32_t stage)
{
    return (uint32_t)(atomic_load(&t->ticket) >> 32) != stage;
}

static void wait_stage(struct team *t, uint32_t stage, uint32_t index)
{
    const uint64_t start = clock_ns();
    do {
        for (int i = 0; i < 64; i++) {
            if (stage_over(t, stage))
                return;
            pause_cpu();
        }
    } while (clock_ns() - start < SPIN_STAGE_NS);
    atomic_fetch_add(&t->ticket_sleepers, 1);
    while (!stage_over(t, stage)) {
        if (t->seats != NULL)
            seats_pull(t->seats, index);
        futex_wait(ticket_stage_word(t), stage, SLEEP_STAGE_NS);
    }
    atomic_fetch_sub(&t->ticket_sleepers, 1);
}

static void publish_stage(struct team *t)
{
    if (atomic_load(&t->ticket_sleepers) > 0)
        futex_wake_all(ticket_stage_word(t));
}

/* Items to take of `left`: chunks shrink to a quarter towards the end of a stage, so that its last ones end together. */
static uint32_t share(uint32_t left, uint32_t chunk, uint32_t threads)
{
    uint32_t take = left / (2 * threads), least = (chunk + 3) / 4;
    take = take < least ? least : take;
    take = take < chunk ? take : chunk;
    return take < left ? take : left;
}

static bool takes_back(const struct team_member *me, uint32_t total)
{
    return total <= BOTH_ENDS && !me->ascending && me->index >= (me->team->size + 1) / 2;
}

static void hold(const struct team_member *me, bool holds)
{
    if (me->team->seats != NULL)
        seats_hold(me->team->seats, me->index, holds);
}

bool team_next(struct team_member *me, uint32_t total, uint32_t chunk, uint32_t *begin,
               uint32_t *end)
{
    struct team *t = me->team;
    const uint64_t next_stage = (uint64_t)(me->stage + 1) << 32;

    check(chunk > 0);
    if (me->held > 0) {
        uint32_t done = atomic_fetch_add(&t->done, me->held) + me->held;
        hold(me, false);
        me->held = 0;
        if (done == total) {
            atomic_store_explicit(&t->done, 0, memory_order_relaxed);
            atomic_store(&t->ticket, next_stage);
            publish_stage(t);
        }
    }
    uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_acquire);
    while ((uint32_t)(ticket >> 32) == me->stage) {
        const uint32_t taken = (uint32_t)ticket;
        const uint32_t front = total <= BOTH_ENDS ? taken & BOTH_ENDS : taken;
        const uint32_t back = total <= BOTH_ENDS ? taken >> 16 : 0;
        if (total == 0) {
            if (atomic_compare_exchange_weak(&t->ticket, &ticket, next_stage)) {
                publish_stage(t);
                break;
            }
        } else if (front + back == total) {
            wait_stage(t, me->stage, me->index);
            break;
        } else {
            const bool behind = takes_back(me, total);
            const uint32_t take = share(total - front - back, chunk, t->size);
            if (atomic_compare_exchange_weak(&t->ticket, &ticket,
                                             ticket + (behind ? take << 16 : take))) {
                *begin = behind ? total - back - take : front;
                *end = *begin + take;
                me->held = take;
                hold(me, true);
                return true;
            }
        }
    }
    me->stage++;
    if (t->seats != NULL)
        seats_settle(t->seats, me->index, me->stage);
    return false;
}

static void member_run(struct team *t, uint32_t index)
{
    struct team_member me = {.team = t, .index = index, .stage = t->first_stage};
    if (t->seats != NULL)
        seats_settle(t->seats, index, me.stage);
    t->fn(t->arg, &me);
    check(me.held == 0);
}

/* Joins the current run if it is still open. */
static bool gate_enter(struct team *t)
{
    uint32_t gate = atomic_load(&t->gate);
    while (gate & GATE_OPEN)
        if (atomic_compare_exchange_weak(&t->gate, &gate, gate + 1))
            return true;
    return false;
}

static void gate_leave(struct team *t)
{
    uint32_t gate = atomic_fetch_sub(&t->gate, 1) - 1;
    if (!(gate & GATE_OPEN) && atomic_load(&t->gate_sleepers) > 0)
        futex_wake_all(&t->gate);
}

struct start {
    struct team *team;
    uint32_t index;
};

static void *worker_main(void *arg)
{
    struct start start = *(struct start *)arg;
    struct team *t = start.team;
    uint32_t last = 0;

    free(arg);
    pthread_setname_np(pthread_self(), "compute");
    if (t->nice > 0)
        (void)background_enter(t->nice);
    kernels_enter_thread();
    seats_take(t->seats, start.index);
    for (;;) {
        wait_change(&t->run, last, &t->run_sleepers, SPIN_RUN_NS);
        last = atomic_load(&t->run);
        if (atomic_load(&t->quit))
            return NULL;
        if (gate_enter(t)) {
            member_run(t, start.index);
            gate_leave(t);
        }
    }
}

static void stop_workers(struct team *t, uint32_t started)
{
    atomic_store(&t->quit, true);
    atomic_fetch_add(&t->run, 1);
    futex_wake_all(&t->run);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(t->threads[i], NULL);
    free(t->threads);
    seats_free(t->seats);
    free(t);
}

enum status team_create(uint32_t threads, int nice, struct team **team, struct error *err)
{
    if (threads < 1 || threads > 256)
        return error_set(err, STATUS_UNSUPPORTED, "%u compute threads: 1 to 256 are possible",
                         threads);
    struct team *t = xaligned(sizeof(*t));
    t->size = threads;
    t->nice = nice;
    t->threads = xcalloc(threads, sizeof(*t->threads));
    t->seats = threads > 1 ? seats_new(threads) : NULL;

    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = 0;
    uint32_t started = 0;
    while (started + 1 < threads && failure == 0) {
        struct start *start = xmalloc(sizeof(*start));
        *start = (struct start){t, started + 1};
        failure = pthread_create(&t->threads[started], NULL, worker_main, start);
        if (failure)
            free(start);
        else
            started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure) {
        stop_workers(t, started);
        return error_set(err, STATUS_NO_MEMORY, "cannot start compute thread %u: %s", started + 1,
                         strerror(failure));
    }
    *team = t;
    return STATUS_OK;
}

void team_free(struct team *team)
{
    if (team)
        stop_workers(team, team->size - 1);
}

uint32_t team_size(const struct team *team)
{
    return team->size;
}

void team_run(struct team *team, team_fn *fn, void *arg)
{
    kernels_enter_thread();
    team->fn = fn;
    team->arg = arg;
    team->first_stage = (uint32_t)(atomic_load(&team->ticket) >> 32);
    if (team->size > 1) {
        seats_take(team->seats, 0);
        atomic_store(&team->gate, GATE_OPEN);
        atomic_fetch_add(&team->run, 1);
        if (atomic_load(&team->run_sleepers) > 0)
            futex_wake_all(&team->run);
    }
    member_run(team, 0);
    if (team->size > 1) {
        uint32_t gate = atomic_fetch_and(&team->gate, ~GATE_OPEN) & GATE_INSIDE;
        while (gate > 0) {
            wait_change(&team->gate, gate, &team->gate_sleepers, SPIN_STAGE_NS);
            gate = atomic_load(&team->gate);
        }
        seats_restore(team->seats, 0); /* nobody is left inside who could move it */
    }
}
