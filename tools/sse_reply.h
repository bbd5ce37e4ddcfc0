/* sse_reply.h: an HTTP/1.1 response with server-sent events, taken apart as its bytes come, in whatever pieces.
 *
 *     bytes ─▶ head ─▶ body (chunked, of a known length, or up to the end of the connection) ─▶ lines ─▶ events
 *
 * For load clients: it knows no sockets and no JSON. Bodies that are no event stream are kept, cut, for messages. */
#ifndef TOOLS_SSE_REPLY_H
#define TOOLS_SSE_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/status.h"

#define SSE_HEAD_MAX 65536u
#define SSE_EVENT_MAX (16u << 20)
#define SSE_TEXT_MAX 2048u /* kept of a body that is no event stream */

enum sse_part {
    SSE_HEAD,
    SSE_CHUNK_SIZE,
    SSE_CHUNK,
    SSE_CHUNK_END,
    SSE_TRAILER,
    SSE_LENGTH,
    SSE_CLOSE,
    SSE_COMPLETE
};

struct sse_reply {
    enum sse_part part;
    unsigned status; /* 0 until the head is there */
    bool events;     /* Content-Type: text/event-stream */
    bool chunked;
    bool close;          /* the connection ends with the response */
    uint64_t left;       /* of the chunk or the body; UINT64_MAX: not known */
    struct buffer frame; /* a line of the head or between chunks, so far */
    struct buffer line;  /* a line of the event stream, so far */
    struct buffer data;  /* the event's data lines so far */
    struct buffer text;  /* of a body that is no event stream */
    /* Called for each event with its data lines, joined by '\n'. */
    void (*event)(void *arg, struct slice data);
    void *arg;
};

void sse_reply_init(struct sse_reply *r, void (*event)(void *arg, struct slice data), void *arg);
void sse_reply_release(struct sse_reply *r);
/* Takes the next bytes. STATUS_CORRUPT: this is no such response; err says why. Bytes past its end are dropped. */
enum status sse_reply_feed(struct sse_reply *r, const char *bytes, size_t n, struct error *err);
/* The connection has ended: is the response whole? */
bool sse_reply_end(struct sse_reply *r);

#endif
