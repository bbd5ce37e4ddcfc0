/* team.h: the compute threads.
 *
 * A team is n threads: the caller of team_run and n − 1 workers. A run is one function that all of
 * them execute as a series of stages; each stage is a number of items handed out in chunks and ends
 * when every item is done:
 *
 *     static void step(void *arg, struct team_member *me)
 *     {
 *         uint32_t begin, end;
 *         while (team_next(me, panels, 4, &begin, &end))     stage 1: chunks of 4 panels
 *             product(begin, end);
 *         while (team_next(me, tokens, 1, &begin, &end))     stage 2: starts when 1 is done
 *             norm(begin, end);
 *     }
 *
 * A stage waits for its items, not for the threads: a thread that was not running when the work was
 * handed out (preempted, or still asleep) is not waited for; it finds the stage over and goes on to
 * the current one. Hence the rule: touch shared data only inside a chunk. All members must go
 * through the same stages with the same totals; what decides them must not change during the run.
 *
 * One half of the threads takes items from the front of a stage, the other one from its back. Where the stages of a run
 * number their items alike (by tokens), a thread finds most of what it reads in its own caches: on CPUs with several
 * third-level caches what another thread has written comes from far away.
 *
 * Waiting: within a run ~50 µs of spinning, then a futex; between runs ~2 ms, then a futex. On a shared
 * machine a thread that waits in vain has the last chunk's holder, if that lost its CPU, go on in its own place (seats.h).
 */
#ifndef KERNELS_TEAM_H
#define KERNELS_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/status.h"

struct team;

/* One thread's place in a run; handed to the function, valid while it runs. */
struct team_member {
    struct team *team;
    uint32_t index; /* 0 = the caller, else 1 … size − 1: for per-thread scratch */
    uint32_t stage;
    uint32_t held; /* items of the chunk being worked on */
    /* May be set by the function: this thread takes items from the front, whichever half it is of. */
    bool ascending;
};

typedef void team_fn(void *arg, struct team_member *me);

/* Starts threads − 1 workers (1 ≤ threads ≤ 256). nice > 0: workers run as SCHED_BATCH with that
 * niceness. */
enum status team_create(uint32_t threads, int nice, struct team **team, struct error *err);
/* Ends and joins the workers. NULL is fine. */
void team_free(struct team *team);
uint32_t team_size(const struct team *team);

/* Runs fn(arg, member) on the team and returns when all its stages are done and no thread is inside
 * fn. One run at a time; callers must not nest. Sets the calling thread's MXCSR
 * (kernels_enter_thread). */
void team_run(struct team *team, team_fn *fn, void *arg);

/* Takes a chunk [begin, end) of at most `chunk` (≥ 1) of the stage's `total` items; false
 * when the stage is over, with everything that any member wrote in it visible. total 0: false at
 * once, a stage all the same. */
bool team_next(struct team_member *me, uint32_t total, uint32_t chunk, uint32_t *begin,
               uint32_t *end);

#endif
