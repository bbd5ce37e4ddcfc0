/* ring_client.h: a blocking client of tokenringd over the ring, without nginx, for tests.
 *
 *     struct client c; struct call a;
 *     client_open(&c, path)                      connects, shakes hands
 *     client_send(&c, &a, "POST", "/x", body)    opens a stream; its body goes as credit allows
 *     client_wait(&c, &a, 5000)                  turns until the answer is complete (or the time is over)
 *     call_release(&a)
 *
 * Any number of calls may be under way in one client. `stingy` makes a client that gives no credit back until told. */
#ifndef E2E_RING_CLIENT_H
#define E2E_RING_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/list.h"
#include "core/ring/channel.h"

struct client {
    int fd;
    bool dead; /* the worker is gone or broke the protocol */
    bool stingy;
    struct channel channel;
    struct list calls;
    char error[400];
};

struct call {
    struct list node;              /* client->calls */
    struct channel_stream *stream; /* NULL: over */
    struct buffer body;            /* to send */
    size_t body_sent;
    bool body_done;
    bool hold_fin;       /* the body's end is not sent */
    size_t not_consumed; /* credit held back by a stingy client */

    unsigned status;       /* 0: no head yet */
    struct buffer headers; /* "name: value\n" each, those of a trailer behind them */
    struct buffer answer;
    unsigned frames;     /* of DATA */
    unsigned cut_frames; /* DATA frames that end inside an event */
    bool complete;       /* FIN came */
    unsigned reset;      /* enum reset_code, 0: none */
};

/* Connects and shakes hands; false with c->error if that fails within 5 s. */
bool client_open(struct client *c, const char *path);
/* Closes the socket and frees all; calls under way end as they are. */
void client_close(struct client *c);
/* Opens a stream; false if there is no slot or no room. headers: "name: value\n" lines or NULL. */
bool client_send(struct client *c, struct call *a, const char *method, const char *target,
                 const char *headers, struct slice body, bool hold_fin);
/* One turn: publishes, waits up to ms for the worker, handles what came. False when the worker is gone. */
bool client_turn(struct client *c, int ms);
/* Turns until the call is complete or reset, or ms are over; true if complete. */
bool client_wait(struct client *c, struct call *a, int ms);
/* Ends the call: CANCEL goes up if its answer is not complete. */
void client_cancel(struct client *c, struct call *a);
/* Gives back the credit that a stingy client has held. */
void client_feed(struct client *c, struct call *a);
void call_release(struct call *a);
/* Value of a response header, or NULL; valid until the next call of this function. */
const char *call_header(const struct call *a, const char *name);
/* Number of times that text stands in the answer. */
unsigned call_count(const struct call *a, const char *text);

#endif
