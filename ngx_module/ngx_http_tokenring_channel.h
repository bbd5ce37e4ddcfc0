/* ngx_http_tokenring_channel.h: channels and streams.
 *
 * A channel is this nginx worker process's ring pair with one backend address. It is made by the first request that
 * needs it and kept until the peer goes away or the process ends. A stream is one try of one request: a virtual
 * ngx_connection_t which ngx_http_upstream takes for a socket, in r->pool. A stream outlives its channel:
 *
 *                    hello done            channel lost, reset, timeout
 *     (new) WAITING ───────────▶ ATTACHED ─────────────────────────────▶ LOST
 *              └───────────────────────────────────────────────────────────┘
 *
 * and in every state ends by ngx_http_tokenring_stream_close, which peer.free calls.
 *
 * One turn of nginx's loop, per channel:
 *     doorbell      the control socket is readable: eat the bytes, move all frames to their streams' buffers, post the
 *                   streams' read and write events, post `turn`
 *     events        ngx_http_upstream runs: reads buffers, writes to clients, writes requests (frames, unpublished)
 *     turn          publish both indices once, ring the peer's doorbell at most once, and declare to be asleep
 *
 * Memory: a stream's buffer is bounded by the credit window (or NGX_HTTP_TOKENRING_EVENT_MAX while one large event is
 * held back); a channel has one region of its own, the peer's mapped read-only, and core/ring's slot table. */
#ifndef NGX_HTTP_TOKENRING_CHANNEL_H
#define NGX_HTTP_TOKENRING_CHANNEL_H

#include "ngx_http_tokenring.h"

#include "core/ring/channel.h"

/* How long a lost doorbell can go unnoticed, in ms: twice this. */
#define NGX_HTTP_TOKENRING_RECHECK 250

/* An SSE event up to this size can be taken back when the rest of it never comes. */
#define NGX_HTTP_TOKENRING_EVENT_MAX (256 * 1024)

typedef enum {
    NGX_HTTP_TOKENRING_CONNECTING = 0,
    NGX_HTTP_TOKENRING_READY,
    NGX_HTTP_TOKENRING_CLOSED /* no longer found by new requests; waits for its last stream */
} ngx_http_tokenring_channel_state_e;

typedef struct {
    ngx_queue_t queue; /* in the process's list of channels */
    ngx_http_tokenring_channel_state_e state;

    struct channel ring;
    /* control socket; open until the last stream has gone, which borrows its fd */
    ngx_connection_t *connection;

    ngx_queue_t streams; /* all that are not closed */
    ngx_uint_t nstreams;

    ngx_event_t turn;   /* posted: publish, ring, sleep */
    ngx_event_t timer;  /* slow re-check while streams are open */
    ngx_uint_t defects; /* work that the timer found and no doorbell told of */
    uint64_t suspect_frames;
    unsigned suspect : 1; /* the timer saw work last time, when frames_in was suspect_frames */

    socklen_t socklen;
    ngx_str_t name; /* "unix:/path", as the balancer's peer is called */
    ngx_sockaddr_t sockaddr;
} ngx_http_tokenring_channel_t;

typedef enum {
    NGX_HTTP_TOKENRING_WAITING = 0,
    NGX_HTTP_TOKENRING_ATTACHED,
    NGX_HTTP_TOKENRING_LOST
} ngx_http_tokenring_stream_state_e;

struct ngx_http_tokenring_stream_s {
    ngx_connection_t connection; /* first: upstream's pointer to it is the pointer to us */
    ngx_event_t read;
    ngx_event_t write;

    ngx_http_request_t *request;
    ngx_http_tokenring_channel_t *channel;
    struct channel_stream *slot; /* NULL unless ATTACHED, and if refused at the gate */
    ngx_queue_t queue;           /* in channel->streams */
    ngx_http_tokenring_stream_state_e state;
    const char *reason; /* LOST: why, for the log */

    /* request: what of it still has to go into the ring */
    struct message_request *message;
    size_t head_unsent;
    off_t body_unsent;

    /* response head: a private copy of the HEAD payload */
    u_char *head;
    size_t head_size;
    size_t head_unread; /* not yet given to upstream */

    /* private copy of the TRAILER payload, or NULL */
    u_char *trailer;
    size_t trailer_size;

    /* response body: bytes [taken, received) of it are in buffer at offset pos */
    u_char *buffer;
    size_t pos;
    size_t capacity;
    uint64_t taken;
    uint64_t received;
    uint64_t event_end; /* bytes up to the end of the last whole event */
    size_t owed;        /* received, but not yet returned as credit */

    ngx_str_t epilogue;                /* what is left of the error event */
    ngx_event_handler_pt read_handler; /* upstream's, where ours stands before it */

    unsigned fin : 1;       /* the response is complete in buffer */
    unsigned sse : 1;       /* text/event-stream: only whole events are given out */
    unsigned loose : 1;     /* the unfinished event in buffer is too long to be held back */
    unsigned epilogued : 1; /* the error event was begun */
};

/* The channel to pc's address, connecting if there is none: NGX_OK (*chp may be CONNECTING), NGX_DECLINED (the peer
 * cannot be reached now), NGX_ERROR (our own resources). */
ngx_int_t ngx_http_tokenring_channel_get(ngx_peer_connection_t *pc,
                                         ngx_http_tokenring_channel_t **chp);

/* There is something to publish: post the end-of-turn event, once. */
void ngx_http_tokenring_channel_post(ngx_http_tokenring_channel_t *ch);

/* The stream has left the channel's list: closes a channel that nobody waits for. */
void ngx_http_tokenring_channel_leave(ngx_http_tokenring_channel_t *ch);

/* Closes all channels of this process. */
void ngx_http_tokenring_exit_process(ngx_cycle_t *cycle);

/* A stream for one try of r on ch, WAITING or ATTACHED; NULL if slots or memory are used up (logged). */
ngx_http_tokenring_stream_t *ngx_http_tokenring_stream_open(ngx_http_request_t *r,
                                                            ngx_http_tokenring_channel_t *ch);

/* Adds a DATA frame to the response: NGX_OK, or NGX_ERROR without memory. */
ngx_int_t ngx_http_tokenring_stream_append(ngx_http_tokenring_stream_t *st,
                                           struct channel_frame *frame);

/* Does the worker refuse such a request without looking at it now? Then *gate says how. */
ngx_uint_t ngx_http_tokenring_gate_closed(ngx_http_tokenring_channel_t *ch,
                                          struct message_request *m, struct channel_gate *gate);

/* Gives the stream, which has no slot, the refusal as its whole response. NGX_ERROR: no memory. */
ngx_int_t ngx_http_tokenring_gate_refuse(ngx_http_tokenring_stream_t *st,
                                         struct channel_gate *gate);

/* Ends the stream in any state; CANCEL goes out if the peer still works on it. */
void ngx_http_tokenring_stream_close(ngx_http_tokenring_stream_t *st);

/* The channel is ready: takes a slot for a WAITING stream and lets upstream write. */
void ngx_http_tokenring_stream_attach(ngx_http_tokenring_stream_t *st);

/* The stream gets nothing more from the worker. What was received stays readable. */
void ngx_http_tokenring_stream_lose(ngx_http_tokenring_stream_t *st, const char *reason);

/* A frame for the stream, which core/ring has checked: HEAD, DATA, TRAILER, RESET or CREDIT. */
void ngx_http_tokenring_stream_frame(ngx_http_tokenring_stream_t *st, struct channel_frame *frame);

/* There may be room in the ring or credit again: wakes a stream that waits to write. */
void ngx_http_tokenring_stream_writable(ngx_http_tokenring_stream_t *st);

/* Response bytes into buf: as the recv of a connection. A call gives either (the rest of) the head's payload, as HEAD
 * has it, or body bytes. */
ssize_t ngx_http_tokenring_stream_recv(ngx_connection_t *c, u_char *buf, size_t size);

/* The rest of what ngx_http_upstream calls in a connection. */
ssize_t ngx_http_tokenring_stream_recv_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit);
ssize_t ngx_http_tokenring_stream_send(ngx_connection_t *c, u_char *buf, size_t size);
ngx_chain_t *ngx_http_tokenring_stream_send_chain(ngx_connection_t *c, ngx_chain_t *in,
                                                  off_t limit);

/* Would recv give bytes out now? */
ngx_uint_t ngx_http_tokenring_stream_pending(ngx_http_tokenring_stream_t *st);

/* The response is an event stream: hold back unfinished events, end with an error event if the worker is lost. */
void ngx_http_tokenring_stream_set_sse(ngx_http_tokenring_stream_t *st);

#endif
