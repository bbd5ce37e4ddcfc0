/* background.h: threads that compute for long give way to those that answer. */
#ifndef BASE_BACKGROUND_H
#define BASE_BACKGROUND_H

#include <stdbool.h>

/* The calling thread becomes SCHED_BATCH with that niceness, and takes the CPU in turns of
 * BACKGROUND_SLICE_NS (Linux 6.12 and later; by default a turn takes milliseconds, for which
 * whoever wakes may have to wait). False if the system refuses; it costs only smoothness. */
#define BACKGROUND_SLICE_NS 100000
bool background_enter(int nice);

#endif
