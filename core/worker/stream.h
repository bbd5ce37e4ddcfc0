/* stream.h: one request from its REQUEST frame to the last byte of its answer, and all that goes down to nginx.
 *
 *     BODY ──last byte──▶ FRONT ──tokens──▶ SCHED ──last event──▶ FINISHED ──last byte sent──▶ gone
 *       │                   │                 │
 *       └──▶ ECHO (test)    └── error ────────┴── error ─▶ FINISHED
 *
 * A stream has two holders: the channel (cs, until FIN went down or CANCEL came up) and the work on it (in_front, or
 * in_sched until the scheduler's last event). It is freed when both have let go, so a CANCEL at any phase drops the
 * channel's hold at once, tells the worker on it to stop, and the rest follows.
 *
 * The answer: bytes are appended to `out` at any time; stream_flush sends what credit and room allow. The head goes
 * before the first byte, once stream_head was called; until then an error is a real HTTP status. What cannot go stays
 * in `out`, and while it does the scheduler makes no more tokens for this stream.
 *
 * An answer of SSE events (`sse`) is cut at the ends of events wherever an event is smaller than half the window. */
#ifndef WORKER_STREAM_H
#define WORKER_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "core/api/api.h"
#include "core/base/buffer.h"
#include "core/base/list.h"
#include "core/ring/channel.h"

struct worker;
struct link;
struct echo;
struct answer;

enum stream_phase { STREAM_BODY, STREAM_FRONT, STREAM_SCHED, STREAM_ECHO, STREAM_FINISHED };

#define STREAM_ID_MAX 128

struct stream {
    struct worker *worker;
    struct link *link;         /* NULL with cs */
    struct channel_stream *cs; /* NULL: nobody reads the answer any more */
    struct list node;          /* worker->streams */
    struct list blocked_node;  /* link->blocked: waits for room in the ring */
    uint64_t number;           /* the scheduler's name for it */
    enum stream_phase phase;
    bool in_front, in_sched;
    bool admitted; /* was accepted by the scheduler (or needed none) */

    /* the request */
    enum api_endpoint endpoint;
    bool is_echo;
    char id[STREAM_ID_MAX + 1]; /* X-Request-Id */
    char what[96];              /* method and path, for the log */
    struct buffer body;
    struct buffer query;  /* echo: what stood behind '?' */
    struct buffer tenant; /* what nginx says (terms.h) ... */
    unsigned priority;
    uint32_t max_tokens;       /* 0: no cap */
    uint64_t keepalive_ns;     /* 0: none */
    uint64_t queue_timeout_ns; /* 0: none */
    bool keepalive_data;       /* keepalives are chunks, not comments */
    bool keeps_prefill;        /* a prompt that is being computed survives its client */
    uint64_t stop_by_ns;       /* when it ends with what it has; 0: never */
    struct api_request request;
    uv_work_t work; /* in_front: body, request, error and status belong to the pool's thread */
    enum status status;
    struct error error;

    /* the answer */
    unsigned http_status;     /* 0: the head is not due yet */
    const char *content_type; /* static */
    const char *allow;        /* static, or NULL */
    unsigned retry_after;     /* seconds; 0: none */
    bool sse;
    bool head_sent;
    bool ended; /* nothing will be appended any more */
    bool paused;
    struct buffer out;
    size_t out_sent; /* bytes of out that are gone */
    uint64_t last_sent_ns;
    struct echo *echo;

    /* generation */
    struct api_reply reply;
    bool has_reply;
    struct answer *answers; /* one a choice */
    uint32_t n_answers, n_ended;
    struct api_totals totals; /* of all choices together */
    bool timed_out;
    enum status failure; /* STATUS_OK, or what the answer is an error for */
    const char *cache;   /* how the prefix cache was met (SCHED_STARTED), or NULL; static */
    const char
        *finish; /* for the log: "stop" (all choices), "length", "timeout", or an error's name */

    uint64_t arrival_ns, first_ns, last_ns; /* request, first token, latest token */
};

/* A stream for a REQUEST frame; belongs to the link's channel and to the worker's list. */
struct stream *stream_new(struct worker *w, struct link *link, struct channel_stream *cs);
/* The channel is gone, or (cancelled) lost interest in this stream: the answer is dropped, the work is told to stop. */
void stream_lost(struct stream *s, bool cancelled);
/* Frees the stream if nobody holds it any more. Call last. */
void stream_settle(struct stream *s);

/* Ends the stream without an end of its answer. It may be gone afterwards. */
void stream_reset(struct stream *s, enum reset_code code);
/* The head: from now on stream_flush may send. content_type is static. */
void stream_head(struct stream *s, unsigned status, const char *content_type);
/* Bytes appended to out that are not in the ring. */
static inline size_t stream_pending(const struct stream *s)
{
    return s->out.len - s->out_sent;
}
/* Sends what can be sent now; pauses or resumes the scheduler; ends the stream after its last byte. The stream may be
 * gone afterwards if it had `ended`. */
void stream_flush(struct stream *s);
/* The answer is complete: nothing follows. Flushes; the stream may be gone afterwards. */
void stream_end(struct stream *s);
/* Ends with a body that is ready. */
void stream_answer(struct stream *s, unsigned status, const char *content_type, struct slice body);
/* Ends with an error: an HTTP status and a JSON body, or, where the head is out, an error event and [DONE]. */
void stream_fail(struct stream *s, const struct error *err);
/* As stream_fail, with a Retry-After of that many seconds. */
void stream_fail_later(struct stream *s, const struct error *err, unsigned retry_after);
/* Gives up the body's memory. */
void stream_drop_body(struct stream *s);
/* The end: frees what is left. No link, no front pool and no scheduler holds any stream now. */
void streams_free_all(struct worker *w);
/* tick: keepalives, and time limits that have passed. */
void streams_tick(struct worker *w, uint64_t now_ns);

#endif
