/* seats.h: on which CPU each compute thread sits.
 *
 * The system's scheduler knows nothing of stages (team.h). On a machine where other processes run, too, two things cost a
 * stage a whole turn on the CPU, some milliseconds, which is a step's time:
 *
 *     a member loses its CPU while it holds a chunk     the others finish the stage but for that chunk and sleep:
 *                                                       the first that waits in vain pulls it onto its own CPU
 *     two members share a CPU, after such a move        the one that runs pushes the other one off
 *
 * Both are done by narrowing the other thread's affinity. It takes back the one that it had, whatever that was, as soon
 * as it comes to its next stage, the caller of a run at its end. Until then nobody moves it a second time. What the
 * system refuses is left as it is.
 *
 * Owner: the team. Each seat is its thread's own, but for what is atomic. */
#ifndef KERNELS_SEATS_H
#define KERNELS_SEATS_H

#include <stdbool.h>
#include <stdint.h>

struct seats;

struct seats *seats_new(uint32_t n);
void seats_free(struct seats *s);

/* The calling thread is member `index` from now on. */
void seats_take(struct seats *s, uint32_t index);
/* Whether it holds a chunk. */
void seats_hold(struct seats *s, uint32_t index, bool holds);
/* To be called by a member when it comes to a stage: its affinity is its own again, and a member that sits on its CPU,
 * too, is pushed off. */
void seats_settle(struct seats *s, uint32_t index, uint32_t stage);
/* The calling thread's affinity is its own again. */
void seats_restore(struct seats *s, uint32_t index);
/* To be called by a member that has waited for long and is about to sleep: a member that holds a chunk and does not run
 * goes on here. */
void seats_pull(struct seats *s, uint32_t index);

/* For tests: how often a member was pulled and pushed. */
void seats_counts(const struct seats *s, uint64_t *pulls, uint64_t *pushes);

#endif
