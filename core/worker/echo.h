/* echo.h: POST /tokenring/echo, behind --test-echo: the ring, nginx and clients tested without a model.
 *
 *     no query             the body comes back
 *     events=N             N SSE events {"n":0}, {"n":1}, ... and [DONE] instead
 *     gap_ms=M             so long between two events (default 0: as fast as the client takes them)
 *     size=B               events padded to about B bytes
 *     delay_ms=M           so long before the head
 *     status=S             this status, 200 to 599 (default 200)
 *     reset=1              the stream is reset after its events, as if the worker had failed in mid-stream
 *
 * Numbers out of range are refused with 400. */
#ifndef WORKER_ECHO_H
#define WORKER_ECHO_H

#include <stdbool.h>

#include "core/base/slice.h"

struct stream;

bool echo_path(struct slice path);
/* The request and its body are complete. */
void echo_start(struct stream *s);
/* What was sent has left: go on. */
void echo_drained(struct stream *s);
/* Frees s->echo. */
void echo_free(struct stream *s);

#endif
