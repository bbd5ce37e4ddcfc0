/* channels.h: links: the worker's end of the channels of all nginx workers.
 *
 * A link is an accepted socket and the struct channel over it. It lives from accept to the end of the peer (EOF), a
 * broken protocol, or a handshake that takes too long; its end cancels its streams, and theirs alone.
 *
 *     SHAKING ──hello both ways──▶ READY ──EOF, violation──▶ gone (uv_close, then freed) */
#ifndef WORKER_CHANNELS_H
#define WORKER_CHANNELS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "core/base/list.h"
#include "core/ring/channel.h"

struct worker;

struct link {
    struct worker *worker;
    struct list node;    /* worker->links */
    struct list blocked; /* streams that wait for room in the ring: stream->blocked_node */
    struct channel channel;
    uv_poll_t poll;
    int fd;
    uint64_t number;      /* for the log */
    uint64_t deadline_ns; /* the handshake's */
    bool ready;           /* hello done */
    bool readable;        /* doorbell or end of the socket, not looked at yet */
    bool eof;
    uint64_t suspect_ns;    /* since when a bell is missed; 0: none is */
    uint64_t suspect_bells; /* bells heard by then */
};

/* Begins and ends accepting. */
enum status channels_start(struct worker *w, struct error *err);
void channels_stop(struct worker *w);
/* Drops every link. */
void channels_drop_all(struct worker *w);

/* prepare: publishes all rings; false if one of them has more work (the poll must not wait). */
bool channels_sleep(struct worker *w);
/* check: takes every frame that has come, on every link. */
void channels_take(struct worker *w);
/* tick: handshakes that took too long; accepting again after a pause. */
void channels_tick(struct worker *w, uint64_t now_ns);

#endif
