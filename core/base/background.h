/* background.h: threads that compute for long give way to those that answer. */
#ifndef BASE_BACKGROUND_H
#define BASE_BACKGROUND_H

#include <stdbool.h>

/* The calling thread becomes SCHED_BATCH with that niceness, and asks for turns of
 * BACKGROUND_SLICE_NS on the CPU. False if the system refuses; it costs only smoothness.
 *
 * Long turns are what lets others in: since Linux 6.12 who wakes takes the CPU at once if its turns are
 * shorter (3 ms by default) than those of the thread that runs; else it may have to wait for a tick of
 * the clock, 4 ms at 250 Hz, which is more than a token takes. Older kernels don't look at it. */
#define BACKGROUND_SLICE_NS 20000000
bool background_enter(int nice);

#endif
