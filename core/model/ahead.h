/* ahead.h: a thread that has the system read a file before it is needed.
 *
 * Who has the disk read (readahead.h) waits for it and can't compute meanwhile. So one thread does that,
 * and those that repack find the bytes in the system's cache, or wait for no more than the disk. */
#ifndef MODEL_AHEAD_H
#define MODEL_AHEAD_H

#include <stdint.h>

#include "core/gguf/gguf.h"

struct ahead;

/* Starts the thread, with nothing to read. NULL if there is none to be had, which costs only speed. */
struct ahead *ahead_start(const struct gguf *g);
/* Bytes up to `to` are wanted soon; what was asked for before is not asked for again. */
void ahead_want(struct ahead *a, uint64_t to);
/* Ends and joins it. NULL is fine. */
void ahead_stop(struct ahead *a);

#endif
