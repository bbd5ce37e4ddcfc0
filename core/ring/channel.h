/* channel.h: one side's view of a channel: handshake, streams, credits, doorbell. Both sides use it.
 *
 * The client (nginx) opens streams, sends REQUEST and DATA, takes HEAD and DATA. The server (tokenringd) gets
 * REQUEST and DATA, sends HEAD and DATA. A channel does no waiting: it works on a non-blocking socket that its
 * owner watches (epoll in nginx, uv_poll in the worker; readable = call, writable only during the handshake).
 *
 *     socket connected / accepted
 *        channel_client_start | channel_server_start
 *        channel_handshake_step on every event until CHANNEL_READY (or CHANNEL_FAILED: err says why)
 *     each turn of the owner's loop in which the socket was readable, the timer ran or there is something to send:
 *        channel_awake             we look anyway: no doorbells, please
 *        channel_drain             eat doorbell bytes; CHANNEL_EOF: the peer is dead (still read what it left)
 *        channel_next ...          handle frames until CHANNEL_NONE (at most a ring's worth: head is not published)
 *        channel_send_* ...
 *        channel_publish           once: control frames that had to wait, both indices, at most one doorbell
 *     before sleeping:
 *        channel_sleep             true: something came meanwhile, take another turn instead
 *     end:
 *        channel_each for what is still open, channel_release; the socket is the owner's to close
 *
 * Streams. A stream is a slot of the table and a generation; `struct channel_stream *` is valid until the slot is
 * given to the next stream. Client: channel_open ... channel_close. Server: channel_next opens it with REQUEST;
 * it ends with the frame that carries FIN down, channel_reset, or the CANCEL that channel_next reports; after
 * that the server must not use the pointer again. What still comes for an ended stream is dropped here by its
 * generation and never reaches the owner.
 *
 * Credits. DATA is bounded per stream and direction by a window: channel_send_data takes what credit allows, the
 * receiver's owner calls channel_consumed when bytes have left its own buffers, and a CREDIT frame goes out at half
 * a window. A peer that sends past its window broke the protocol.
 *
 * Gate. A server that can take no more generations says so in a word of its region (FEATURE_GATE), and the client answers
 * those that come by itself: a refusal then costs neither frame nor doorbell, and the server's CPUs are left to those
 * inside. The word is a hint, which a lying server can use only against itself.
 *
 * Control frames (CANCEL, CREDIT, RESET) have reserved room, and where even that is full they wait in the table,
 * keep their slot, and go first at the next publish: they are never lost and never fail.
 *
 * Nothing read from the peer is trusted: every violation makes channel_next return CHANNEL_BROKEN with a sentence,
 * for good; the owner drops the channel. Compiled into nginx: no check(), no globals; malloc with errors returned. */
#ifndef RING_CHANNEL_H
#define RING_CHANNEL_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/base/status.h"
#include "core/ring/layout.h"
#include "core/ring/message.h"
#include "core/ring/ring.h"

enum channel_role { CHANNEL_CLIENT, CHANNEL_SERVER };

/* What a side offers (client) or accepts at most (server). Zero fields mean the defaults of layout.h. */
struct channel_config {
    const char *build;  /* LAYOUT_BUILD */
    uint32_t version;   /* LAYOUT_VERSION; another value is for tests */
    uint32_t layout;    /* LAYOUT_WORD; likewise */
    uint64_t features;  /* FEATURE_*; zero means none */
    uint32_t slots;     /* streams at a time; final: the smaller of both */
    uint32_t up_size;   /* the client's word counts, it makes that region */
    uint32_t down_size; /* final: the smaller of both */
    uint32_t up_window; /* final: the smaller of both */
    uint32_t down_window;
};

struct channel_stream {
    void *user; /* the owner's; NULL when the stream opens */
    uint32_t id;
    uint32_t send_credit; /* bytes of DATA that may be sent now */
    /* private from here */
    uint32_t receive_left; /* bytes of DATA that the peer may still send */
    uint32_t consumed;     /* not yet given back as CREDIT */
    uint32_t reset_code;
    uint32_t next; /* slot number + 1 in the free list or the waiting list */
    uint16_t bits;
};

struct channel_counters {
    uint64_t frames_in, frames_out;
    uint64_t bytes_in, bytes_out; /* payload */
    uint64_t doorbells_sent, doorbells_received;
    uint64_t late;    /* frames dropped because their stream had ended */
    uint64_t waited;  /* control frames that had to wait for room */
    uint64_t no_room; /* sends refused for lack of room */
};

struct channel {
    int fd; /* the owner's */
    enum channel_role role;
    uint32_t slots;
    uint32_t open;     /* streams open now */
    uint64_t features; /* what both have */
    uint32_t send_window, receive_window;
    pid_t peer_pid; /* as the hello says: for people */
    char peer_build[64];
    struct channel_counters counters;

    /* private from here */
    struct channel_config config;
    struct ring_writer writer;
    struct ring_reader reader;
    struct region *own;
    const struct region *peer;
    size_t own_bytes, peer_bytes;
    struct channel_stream *streams; /* slots */
    uint32_t free_head, free_tail;  /* slot + 1; first in, first out, so that generations last */
    uint32_t wait_head, wait_tail;  /* slots with a control frame that waits for room */
    uint32_t n_waiting;
    uint64_t sleeps, rung; /* our count of sleeps; the peer's wake word that was rung for */
    bool wants_room;       /* a send was refused: sleep with WAKE_ROOM */
    bool room_came;        /* for channel_take_room */
    bool broken;
    bool eof;
    int state; /* of the handshake */
    int peer_fd, own_fd;
    size_t done; /* bytes of the hello under way */
    struct hello in, out;
    uint64_t gate;      /* server: as it stands in the region; client: requests turned away */
    uint64_t seen;      /* server: of the client's count, as it was last looked at */
    struct error error; /* of a broken channel */
    uint8_t *scratch;   /* FRAME_PAYLOAD_MAX: private copy of the payload that channel_next shows */
};

/* ---- handshake ------------------------------------------------------------------------------------------ */

enum channel_wait { CHANNEL_WANT_READ, CHANNEL_WANT_WRITE, CHANNEL_READY, CHANNEL_FAILED };

/* Begins over a connected, non-blocking unix stream socket. config may be NULL. Allocates the own region
 * (client) and the tables. On an error nothing is kept; the socket stays the caller's. */
enum status channel_client_start(struct channel *c, int fd, const struct channel_config *config,
                                 struct error *err);
enum status channel_server_start(struct channel *c, int fd, const struct channel_config *config,
                                 struct error *err);
/* Goes as far as it can without waiting. CHANNEL_WANT_*: call again when the socket is so. CHANNEL_FAILED: err
 * tells why (STATUS_VERSION with both versions named for unlike builds, STATUS_PEER, STATUS_IO); call
 * channel_release and close the socket. After CHANNEL_READY, never call it again. Timeouts are the caller's. */
enum channel_wait channel_handshake_step(struct channel *c, struct error *err);
/* Tells a client that has just connected why there is no channel for it; the caller closes the socket. */
void channel_turn_away(int fd, const char *why);
/* Unmaps and frees everything but the socket. Any state, also twice, also a zeroed struct. */
void channel_release(struct channel *c);

/* ---- the loop ------------------------------------------------------------------------------------------- */

enum channel_event { CHANNEL_NONE, CHANNEL_FRAME, CHANNEL_BROKEN };

struct channel_frame {
    uint8_t type;  /* never PAD */
    uint8_t flags; /* FRAME_FIN, FRAME_EVENT_END */
    uint32_t aux;  /* CREDIT: bytes; RESET: enum reset_code */
    struct channel_stream *stream;
    const uint8_t *payload; /* private copy, valid until the next call on this channel */
    uint32_t len;
};

/* The next frame for a live stream, consumed. CREDIT is already counted when it is reported (try to send again).
 * REQUEST (server): stream is new, give it its user. CANCEL (server), RESET (client): the stream is over; the
 * client still calls channel_close. CHANNEL_BROKEN: the peer broke the protocol, err tells how. */
enum channel_event channel_next(struct channel *c, struct channel_frame *out, struct error *err);

/* Once per turn: lets waiting control frames go, publishes what was sent and what was consumed, and rings if the
 * peer sleeps on either. True if a doorbell was sent. Never blocks. */
bool channel_publish(struct channel *c);
/* Before the owner waits. True: frames, or room that a send lacked, arrived meanwhile; do not sleep. Publish first. */
bool channel_sleep(struct channel *c);
/* After waiting: the peer need not ring. Harmless at any time. */
void channel_awake(struct channel *c);
/* Is there something that a sleeping owner should have been rung for? For the slow timer: true there, with no
 * doorbell byte waiting, is a defect to count. Changes nothing. */
bool channel_has_work(struct channel *c);
/* A send was refused for lack of room and the peer has consumed since: true once; try the refused sends again. */
bool channel_take_room(struct channel *c);

enum channel_life { CHANNEL_ALIVE, CHANNEL_EOF };

/* Reads doorbell bytes until there are none. CHANNEL_EOF: the peer is gone (stays so); frames that it published
 * before can still be read. */
enum channel_life channel_drain(struct channel *c);

/* ---- streams -------------------------------------------------------------------------------------------- */

/* Client: a new stream, or NULL if all slots are in use. Sends nothing yet. */
struct channel_stream *channel_open(struct channel *c, void *user);
/* Client: ends our use of the stream. Sends CANCEL if a REQUEST went out and neither FIN nor RESET came back. */
void channel_close(struct channel *c, struct channel_stream *s);
/* Server: ends the stream with RESET. */
void channel_reset(struct channel *c, struct channel_stream *s, enum reset_code code);
/* Is it still ours to use? (Client: opened and not closed; server: open in the sense of the head comment.) */
bool channel_is_open(const struct channel_stream *s);
/* Walks the open streams: start with *i = 0; NULL at the end. The current one may be closed. */
struct channel_stream *channel_each(struct channel *c, uint32_t *i);
/* The open stream with this id, or NULL. */
struct channel_stream *channel_find(struct channel *c, uint32_t id);

enum channel_send {
    SEND_DONE,      /* all of it */
    SEND_NO_ROOM,   /* the ring is full: try again when channel_take_room says so */
    SEND_NO_CREDIT, /* the stream's window is used up: try again after its next CREDIT */
    SEND_INVALID /* nothing sent, and never will be: err tells why (too large, bad bytes, wrong state) */
};

/* Client: opens the stream at the server. flags: FRAME_FIN if there is no body. All or nothing. */
enum channel_send channel_send_request(struct channel *c, struct channel_stream *s,
                                       const struct message_request *m, unsigned flags,
                                       struct error *err) __attribute__((warn_unused_result));
/* Server: status and headers, once. flags: FRAME_FIN if there is no body: then the stream ends here. All or
 * nothing. */
enum channel_send channel_send_head(struct channel *c, struct channel_stream *s,
                                    const struct message_head *m, unsigned flags, struct error *err)
    __attribute__((warn_unused_result));
/* Both: body bytes, in as many frames as it takes; flags (FRAME_FIN, FRAME_EVENT_END) go on the last one only.
 * *taken gets the bytes that were accepted, also when not all were: keep the rest and send it, with the flags,
 * later. len 0 with FRAME_FIN ends the direction. Server: FRAME_FIN ends the stream. */
enum channel_send channel_send_data(struct channel *c, struct channel_stream *s, const void *data,
                                    size_t len, unsigned flags, size_t *taken)
    __attribute__((warn_unused_result));
/* Server: ends the response like an empty DATA frame with FIN, and tells what was not known at its head (token
 * counts, finish reason); never sent to the client. m->status is the head's. All or nothing; the stream ends. */
enum channel_send channel_send_trailer(struct channel *c, struct channel_stream *s,
                                       const struct message_head *m, struct error *err)
    __attribute__((warn_unused_result));
/* Server: an opaque JOURNAL frame (len <= FRAME_PAYLOAD_MAX); SEND_INVALID if the client lacks the feature. */
enum channel_send channel_send_journal(struct channel *c, struct channel_stream *s,
                                       const void *data, size_t len)
    __attribute__((warn_unused_result));
/* Both: n bytes of received DATA have left the owner's buffers: the peer may send as many again. */
void channel_consumed(struct channel *c, struct channel_stream *s, size_t n);

/* ---- the gate ------------------------------------------------------------------------------------------- */

/* What a closed gate says; retry_after 0: it is open. */
struct channel_gate {
    uint32_t retry_after; /* seconds, at most GATE_RETRY_MAX */
    uint32_t waiting;     /* requests that wait */
};

#define GATE_RETRY_MAX 3600u

/* Server: sets the gate; writes only where that changes something. */
void channel_set_gate(struct channel *c, const struct channel_gate *gate);
/* Client: what the gate says now, brought within its limits; open where the peer has no gate. */
struct channel_gate channel_look_at_gate(const struct channel *c);
/* Client: a request was turned away at the gate; the server will count it. */
void channel_turned_away(struct channel *c);
/* Server: how many were turned away since the last call. A count that no honest client can have is 0. */
uint64_t channel_take_turned_away(struct channel *c);

/* Gives up on the channel for a fault that the owner found (a payload that does not decode): from now on
 * channel_next says CHANNEL_BROKEN with this text. Returns STATUS_PEER. */
enum status channel_fail(struct channel *c, const char *text);

#endif
