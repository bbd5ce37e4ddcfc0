/* worker.h: the worker's loop and what its files share. One thread, libuv's, runs all of it.
 *
 *     main.c       options, -t, exit codes
 *     worker.c     sets the loop up, takes a turn, tears it down
 *     engine.c     the model: loaded in the background, then constant
 *     lifecycle.c  signals, states, drain, heartbeat
 *     channels.c   links: one ring pair per nginx worker          listener.c  their socket
 *     stream.c     streams: one request each; all that goes down  incoming.c  what comes up: requests, bodies
 *     front.c      parse and tokenize in the front pool
 *     glue.c       scheduler events to text to replies
 *     answer.c     tokens of a choice to its text
 *     echo.c       the test endpoint
 *     publish.c    counters and gauges to the stats file
 *
 * One turn of the loop:
 *
 *     timers ─▶ prepare: publish every ring, arm its wake word, look once more ─▶ poll: sockets, scheduler events
 *       ▲                                                                           │
 *       └────────────────── check: take every frame that has come ◀─────────────────┘
 *
 * So whatever a turn wrote is published once, with at most one doorbell a channel; and nobody sleeps on work. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "core/base/list.h"
#include "core/base/map.h"
#include "core/base/status.h"
#include "core/worker/engine.h"
#include "core/worker/listener.h"
#include "core/worker/options.h"
#include "core/worker/publish.h"

struct stats_writer;

/* CONTRACTS: the version of the numeric contracts that outputs compare within. */
#define WORKER_CONTRACT_VERSION 2

enum worker_state {
    WORKER_LOADING,  /* the model is being loaded: 503 */
    WORKER_READY,    /* serving */
    WORKER_DRAINING, /* after TERM: 503 to new requests, running ones go on */
    WORKER_STOPPING, /* after INT or a second TERM: streams are being ended */
};

struct worker {
    const struct options *options;
    enum worker_state state;
    int exit_status;

    bool loop_open, closing;
    uv_loop_t loop;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t busy;     /* active: the next poll must not wait */
    uv_timer_t recheck; /* looks at the rings without a doorbell */
    uv_timer_t tick;    /* keepalives, timeouts, heartbeat, figures */
    uv_signal_t signals[3];
    bool polled; /* a descriptor woke this turn (else it was a timer) */

    struct listener listener;
    struct peer_rule rule;
    uv_poll_t listen_poll;
    bool accept_paused; /* out of descriptors: the next tick tries again */
    struct list links;
    unsigned n_links;
    uint64_t last_link; /* number of the newest one */

    struct list streams; /* every struct stream that exists */
    unsigned n_streams;
    struct map by_number; /* stream->number to struct stream, for scheduler events */
    uint64_t last_number;
    uint64_t body_bytes; /* held in bodies of all streams */
    uint64_t id_key;     /* makes request ids unlike those of another start */

    struct engine engine; /* see engine.h for who may touch what when */
    bool loading;         /* engine_load runs; status and error are its own until it ends */
    enum status load_status;
    struct error load_error;
    uv_work_t load;
    bool shows_progress;  /* a bar on the terminal */
    uv_poll_t sched_poll; /* the scheduler's event descriptor; active from READY on */
    uint64_t stop_by_ns;  /* WORKER_STOPPING, or a drain with a limit: end at the latest */

    struct stats_writer *stats;
    struct publish publish;
    struct error error; /* why exit_status is not 0 */
};

/* Everything that can fail before the loop runs: runtime directory, log, stats file, socket. */
enum status worker_open(struct worker *w, const struct options *options, struct error *err);
/* Runs until it is over; returns the exit status of the process. */
int worker_run(struct worker *w);
/* Takes everything down; for a worker that was opened or not. */
void worker_close(struct worker *w);

/* lifecycle.c */
/* TERM, INT and USR1 are handled from here on. */
void lifecycle_watch_signals(struct worker *w);
/* Timers and the load; the state is WORKER_LOADING, or WORKER_READY where there is no model to load. */
void lifecycle_start(struct worker *w);
/* The model is there (or not: err). Runs on the loop. */
void lifecycle_loaded(struct worker *w, enum status status, const struct error *err);
/* TERM: drain; when draining already: stop. */
void lifecycle_drain(struct worker *w);
/* Ends every stream at once, then the loop. */
void lifecycle_stop(struct worker *w);
/* Leaves the loop if nothing is left to do in this state. */
void lifecycle_check(struct worker *w);
/* STATUS_OK, or why a new request is turned away now (LOADING, DRAINING) with the sentence in err. */
enum status lifecycle_admits(const struct worker *w, struct error *err);

/* Looks at the rings now and then also without a doorbell, while there are links. */
void worker_start_recheck(struct worker *w);
/* Makes the coming poll return at once. */
void worker_wake(struct worker *w);

#endif
