/* channel.c: streams and frames of a channel: who may send what when, credits, and what an honest peer never sends. */
#include "core/ring/channel.h"

#include <stdlib.h>
#include <string.h>

#include "core/ring/channel_priv.h"

enum status channel_begin(struct channel *c, const struct hello *agreed, struct error *err)
{
    bool client = c->role == CHANNEL_CLIENT;
    c->slots = agreed->slots;
    c->features = agreed->features;
    c->send_window = client ? agreed->up_window : agreed->down_window;
    c->receive_window = client ? agreed->down_window : agreed->up_window;
    c->streams = calloc(c->slots, sizeof(*c->streams));
    c->scratch = malloc(FRAME_PAYLOAD_MAX);
    if (c->streams == NULL || c->scratch == NULL)
        return error_set(err, STATUS_NO_MEMORY,
                         "no memory for the tables of a channel of %u streams", c->slots);
    for (uint32_t i = 0; i < c->slots; i++) {
        c->streams[i].id = stream_id(i, 0);
        c->streams[i].next = client && i + 1 < c->slots ? i + 2 : 0;
    }
    c->free_head = client ? 1 : 0;
    c->free_tail = client ? c->slots : 0;
    uint64_t control = (uint64_t)c->slots * CONTROL_ROOM_PER_SLOT;
    ring_writer_init(&c->writer, c->own, c->peer, client ? agreed->up_size : agreed->down_size,
                     control);
    ring_reader_init(&c->reader, c->own, c->peer, client ? agreed->down_size : agreed->up_size);
    return STATUS_OK;
}

/* ---- streams and control frames ------------------------------------------------------------------------- */

static uint32_t number(const struct channel *c, const struct channel_stream *s)
{
    return (uint32_t)(s - c->streams) + 1;
}

static void free_slot(struct channel *c, struct channel_stream *s)
{
    s->next = 0;
    if (c->free_tail != 0)
        c->streams[c->free_tail - 1].next = number(c, s);
    else
        c->free_head = number(c, s);
    c->free_tail = number(c, s);
}

/* The stream is over for the owner. A client's slot is free now, or when its waiting CANCEL has gone out. */
static void end_stream(struct channel *c, struct channel_stream *s)
{
    s->bits &= (uint16_t) ~(STREAM_OPEN | STREAM_WAIT_CREDIT);
    c->open--;
    if (c->role == CHANNEL_CLIENT && !(s->bits & STREAM_QUEUED))
        free_slot(c, s);
}

static bool send_control(struct channel *c, uint8_t type, uint32_t id, uint32_t aux)
{
    if (ring_writer_reserve(&c->writer, 0, true) == NULL) {
        c->wants_room = true;
        return false;
    }
    ring_writer_commit(&c->writer, type, 0, id, aux, 0);
    c->counters.frames_out++;
    return true;
}

static void wait_for_room(struct channel *c, struct channel_stream *s, unsigned what)
{
    s->bits |= (uint16_t)what;
    c->counters.waited++;
    if (s->bits & STREAM_QUEUED)
        return;
    s->bits |= STREAM_QUEUED;
    s->next = 0;
    if (c->wait_tail != 0)
        c->streams[c->wait_tail - 1].next = number(c, s);
    else
        c->wait_head = number(c, s);
    c->wait_tail = number(c, s);
    c->n_waiting++;
}

static bool send_end(struct channel *c, struct channel_stream *s)
{
    return c->role == CHANNEL_CLIENT ? send_control(c, FRAME_CANCEL, s->id, 0)
                                     : send_control(c, FRAME_RESET, s->id, s->reset_code);
}

static bool send_credit(struct channel *c, struct channel_stream *s)
{
    if (!send_control(c, FRAME_CREDIT, s->id, s->consumed))
        return false;
    s->receive_left += s->consumed;
    s->consumed = 0;
    return true;
}

void channel_send_waiting(struct channel *c)
{
    while (c->wait_head != 0) {
        struct channel_stream *s = &c->streams[c->wait_head - 1];
        if ((s->bits & STREAM_WAIT_END) && !send_end(c, s))
            return;
        if ((s->bits & STREAM_WAIT_CREDIT) && !send_credit(c, s))
            return;
        s->bits &= (uint16_t) ~(STREAM_WAIT_END | STREAM_WAIT_CREDIT | STREAM_QUEUED);
        c->wait_head = s->next;
        if (c->wait_head == 0)
            c->wait_tail = 0;
        c->n_waiting--;
        if (c->role == CHANNEL_CLIENT && !(s->bits & STREAM_OPEN))
            free_slot(c, s);
    }
}

static void stream_begin(struct channel *c, struct channel_stream *s, uint32_t id, void *user)
{
    s->id = id;
    s->user = user;
    s->send_credit = c->send_window;
    s->receive_left = c->receive_window;
    s->consumed = 0;
    s->reset_code = 0;
    s->bits = (uint16_t)((s->bits & STREAM_QUEUED) | STREAM_OPEN | STREAM_USED);
    c->open++;
}

struct channel_stream *channel_open(struct channel *c, void *user)
{
    if (c->free_head == 0 || c->broken || c->eof)
        return NULL;
    uint32_t slot = c->free_head - 1;
    struct channel_stream *s = &c->streams[slot];
    c->free_head = s->next;
    if (c->free_head == 0)
        c->free_tail = 0;
    s->next = 0;
    stream_begin(c, s, stream_id(slot, stream_generation(s->id) + 1), user);
    return s;
}

void channel_close(struct channel *c, struct channel_stream *s)
{
    if (!(s->bits & STREAM_OPEN))
        return;
    bool cancel =
        (s->bits & STREAM_REQUESTED) && !(s->bits & STREAM_REMOTE_FIN) && !c->broken && !c->eof;
    if (cancel && !send_end(c, s))
        wait_for_room(c, s, STREAM_WAIT_END);
    end_stream(c, s);
}

void channel_reset(struct channel *c, struct channel_stream *s, enum reset_code code)
{
    if (!(s->bits & STREAM_OPEN))
        return;
    s->reset_code = code;
    if (!c->broken && !c->eof && !send_end(c, s))
        wait_for_room(c, s, STREAM_WAIT_END);
    end_stream(c, s);
}

void channel_consumed(struct channel *c, struct channel_stream *s, size_t n)
{
    if (!(s->bits & STREAM_OPEN) || (s->bits & STREAM_REMOTE_FIN))
        return;
    uint32_t most = c->receive_window - s->receive_left - s->consumed;
    s->consumed += n < most ? (uint32_t)n : most;
    if (s->consumed < c->receive_window / 2 || (s->bits & STREAM_WAIT_CREDIT) || c->broken ||
        c->eof)
        return;
    if (!send_credit(c, s))
        wait_for_room(c, s, STREAM_WAIT_CREDIT);
}

bool channel_is_open(const struct channel_stream *s)
{
    return (s->bits & STREAM_OPEN) != 0;
}

struct channel_stream *channel_each(struct channel *c, uint32_t *i)
{
    while (c->streams != NULL && *i < c->slots) {
        struct channel_stream *s = &c->streams[(*i)++];
        if (s->bits & STREAM_OPEN)
            return s;
    }
    return NULL;
}

struct channel_stream *channel_find(struct channel *c, uint32_t id)
{
    uint32_t slot = stream_slot(id);
    if (slot >= c->slots || c->streams[slot].id != id || !(c->streams[slot].bits & STREAM_OPEN))
        return NULL;
    return &c->streams[slot];
}

/* ---- sending -------------------------------------------------------------------------------------------- */

static enum channel_send no_room(struct channel *c)
{
    c->wants_room = true;
    c->counters.no_room++;
    return SEND_NO_ROOM;
}

static uint8_t *reserve(struct channel *c, size_t len)
{
    return c->broken || c->eof ? NULL : ring_writer_reserve(&c->writer, (uint32_t)len, false);
}

static void commit(struct channel *c, uint8_t type, unsigned flags, uint32_t id, size_t len)
{
    ring_writer_commit(&c->writer, type, (uint8_t)flags, id, 0, (uint32_t)len);
    c->counters.frames_out++;
    c->counters.bytes_out += len;
}

static enum channel_send invalid(struct error *err, const char *what)
{
    error_set(err, STATUS_INTERNAL, "%s", what);
    return SEND_INVALID;
}

enum channel_send channel_send_request(struct channel *c, struct channel_stream *s,
                                       const struct message_request *m, unsigned flags,
                                       struct error *err)
{
    if (c->role != CHANNEL_CLIENT || !(s->bits & STREAM_OPEN) || (s->bits & STREAM_REQUESTED) ||
        (flags & ~FRAME_FIN) != 0)
        return invalid(err, "a request can be sent once, by the client, on an open stream");
    size_t len = message_request_size(m);
    if (len > FRAME_PAYLOAD_MAX) {
        error_set(err, STATUS_TOO_LARGE,
                  "the request's header is %zu bytes long, at most %u are carried", len,
                  FRAME_PAYLOAD_MAX);
        return SEND_INVALID;
    }
    uint8_t *out = reserve(c, len);
    if (out == NULL)
        return no_room(c);
    if (message_request_encode(m, out, len, &len, err) != STATUS_OK)
        return SEND_INVALID;
    commit(c, FRAME_REQUEST, flags | FRAME_OPEN, s->id, len);
    s->bits |= STREAM_REQUESTED | (flags & FRAME_FIN ? STREAM_LOCAL_FIN : 0);
    return SEND_DONE;
}

/* HEAD and TRAILER: the same payload. */
static enum channel_send send_pairs(struct channel *c, struct channel_stream *s,
                                    enum frame_type type, const struct message_head *m,
                                    unsigned flags, struct error *err)
{
    size_t len = message_head_size(m);
    if (len > FRAME_PAYLOAD_MAX) {
        error_set(err, STATUS_TOO_LARGE,
                  "the response's header is %zu bytes long, at most %u are carried", len,
                  FRAME_PAYLOAD_MAX);
        return SEND_INVALID;
    }
    uint8_t *out = reserve(c, len);
    if (out == NULL)
        return no_room(c);
    if (message_head_encode(m, out, len, &len, err) != STATUS_OK)
        return SEND_INVALID;
    commit(c, (uint8_t)type, flags, s->id, len);
    s->bits |= STREAM_HEAD;
    if (flags & FRAME_FIN)
        end_stream(c, s);
    return SEND_DONE;
}

enum channel_send channel_send_head(struct channel *c, struct channel_stream *s,
                                    const struct message_head *m, unsigned flags, struct error *err)
{
    if (c->role != CHANNEL_SERVER || !(s->bits & STREAM_OPEN) || (s->bits & STREAM_HEAD) ||
        (flags & ~FRAME_FIN) != 0)
        return invalid(err, "a head can be sent once, by the server, on an open stream");
    return send_pairs(c, s, FRAME_HEAD, m, flags, err);
}

enum channel_send channel_send_trailer(struct channel *c, struct channel_stream *s,
                                       const struct message_head *m, struct error *err)
{
    if (c->role != CHANNEL_SERVER || !(s->bits & STREAM_OPEN) || !(s->bits & STREAM_HEAD))
        return invalid(err,
                       "a trailer can be sent by the server, behind the head, on an open stream");
    return send_pairs(c, s, FRAME_TRAILER, m, FRAME_FIN, err);
}

enum channel_send channel_send_data(struct channel *c, struct channel_stream *s, const void *data,
                                    size_t len, unsigned flags, size_t *taken)
{
    bool server = c->role == CHANNEL_SERVER;
    unsigned begun = server ? STREAM_HEAD : STREAM_REQUESTED;
    unsigned allowed = server ? FRAME_FIN | FRAME_EVENT_END : FRAME_FIN;
    *taken = 0;
    if (!(s->bits & STREAM_OPEN) || !(s->bits & begun) || (s->bits & STREAM_LOCAL_FIN) ||
        (flags & ~allowed) != 0)
        return SEND_INVALID;
    if (len == 0 && flags == 0)
        return SEND_DONE;
    do {
        size_t n = len - *taken;
        if (n > FRAME_PAYLOAD_MAX)
            n = FRAME_PAYLOAD_MAX;
        if (n > s->send_credit)
            n = s->send_credit;
        if (n == 0 && len != 0)
            return SEND_NO_CREDIT;
        uint8_t *out = reserve(c, n);
        if (out == NULL)
            return no_room(c);
        if (n != 0)
            memcpy(out, (const uint8_t *)data + *taken, n);
        *taken += n;
        s->send_credit -= (uint32_t)n;
        commit(c, FRAME_DATA, *taken == len ? flags : 0, s->id, n);
    } while (*taken < len);
    if (flags & FRAME_FIN) {
        s->bits |= STREAM_LOCAL_FIN;
        if (server)
            end_stream(c, s);
    }
    return SEND_DONE;
}

enum channel_send channel_send_journal(struct channel *c, struct channel_stream *s,
                                       const void *data, size_t len)
{
    if (c->role != CHANNEL_SERVER || !(c->features & FEATURE_JOURNAL) || !(s->bits & STREAM_OPEN) ||
        len > FRAME_PAYLOAD_MAX)
        return SEND_INVALID;
    uint8_t *out = reserve(c, len);
    if (out == NULL)
        return no_room(c);
    if (len != 0)
        memcpy(out, data, len);
    commit(c, FRAME_JOURNAL, 0, s->id, len);
    return SEND_DONE;
}

/* ---- receiving ------------------------------------------------------------------------------------------ */

static enum channel_event broken(struct channel *c, struct error *err, const char *what)
{
    if (!c->broken) {
        c->broken = true;
        error_set(&c->error, STATUS_PEER, "%s", what);
    }
    if (err != NULL)
        *err = c->error;
    return CHANNEL_BROKEN;
}

enum status channel_fail(struct channel *c, const char *text)
{
    broken(c, NULL, text);
    return STATUS_PEER;
}

/* What no frame of this type may look like, whatever its stream; NULL if it is all right. */
static const char *header_fault(const struct channel *c, const struct frame_header *h)
{
    static const struct {
        uint8_t client, server; /* may come to this role */
        uint8_t flags;          /* that may be set */
        uint8_t payload, aux;   /* may be there */
    } rules[FRAME_TYPES] = {
        [FRAME_REQUEST] = {0, 1, FRAME_OPEN | FRAME_FIN, 1, 0},
        [FRAME_DATA] = {1, 1, FRAME_FIN | FRAME_EVENT_END, 1, 0},
        [FRAME_HEAD] = {1, 0, FRAME_FIN, 1, 0},
        [FRAME_CANCEL] = {0, 1, 0, 0, 0},
        [FRAME_CREDIT] = {1, 1, 0, 0, 1},
        [FRAME_RESET] = {1, 0, 0, 0, 1},
        [FRAME_JOURNAL] = {1, 0, 0, 1, 0},
        [FRAME_TRAILER] = {1, 0, FRAME_FIN, 1, 0},
    };
    bool client = c->role == CHANNEL_CLIENT;
    if (!(client ? rules[h->type].client : rules[h->type].server))
        return "the peer sent a frame type that only we may send";
    if (h->type == FRAME_JOURNAL && !(c->features & FEATURE_JOURNAL))
        return "the peer sent a JOURNAL frame without the feature";
    if ((h->flags & ~rules[h->type].flags) != 0 || (!client && (h->flags & FRAME_EVENT_END)))
        return "the peer set a flag that its frame type does not have";
    if ((h->len != 0 && !rules[h->type].payload) || ((h->aux != 0) != (rules[h->type].aux != 0)))
        return "the peer sent a control frame with a wrong payload or aux field";
    if (stream_slot(h->id) >= c->slots)
        return "the peer named a slot beyond the table";
    if (h->type == FRAME_RESET && h->aux >= RESET_CODES)
        return "the peer sent an unknown reset code";
    return NULL;
}

/* A REQUEST opens its slot. */
static const char *accept_request(struct channel *c, struct channel_stream *s,
                                  const struct frame_header *h)
{
    if (!(h->flags & FRAME_OPEN))
        return "the peer sent a REQUEST without the OPEN flag";
    if (s->bits & STREAM_OPEN)
        return "the peer opened a slot that is in use";
    if ((s->bits & STREAM_USED) && s->id == h->id)
        return "the peer opened a slot with its last generation";
    /* a waiting RESET of the last user is moot: the client let go of it */
    stream_begin(c, s, h->id, NULL);
    if (h->flags & FRAME_FIN)
        s->bits |= STREAM_REMOTE_FIN;
    return NULL;
}

/* Any other frame, for its live stream. */
static const char *accept_frame(struct channel *c, struct channel_stream *s,
                                const struct frame_header *h)
{
    bool client = c->role == CHANNEL_CLIENT;
    if (client && !(s->bits & STREAM_REQUESTED))
        return "the peer answered a stream that was not requested";
    bool answers = h->type != FRAME_CREDIT && h->type != FRAME_CANCEL;
    if (answers && (s->bits & STREAM_REMOTE_FIN))
        return "the peer sent a frame behind its last one";
    switch (h->type) {
    case FRAME_DATA:
        if (client && !(s->bits & STREAM_HEAD))
            return "the peer sent DATA before HEAD";
        if (h->len > s->receive_left)
            return "the peer sent more DATA than its credit";
        if (h->len == 0 && h->flags == 0)
            return "the peer sent an empty DATA frame";
        s->receive_left -= h->len;
        break;
    case FRAME_HEAD:
        if (s->bits & STREAM_HEAD)
            return "the peer sent a second HEAD";
        s->bits |= STREAM_HEAD;
        break;
    case FRAME_TRAILER:
        if (!(s->bits & STREAM_HEAD) || !(h->flags & FRAME_FIN))
            return "the peer sent a TRAILER before HEAD or without the FIN flag";
        break;
    case FRAME_CREDIT:
        if (h->aux > c->send_window - s->send_credit)
            return "the peer gave more credit than its window";
        s->send_credit += h->aux;
        break;
    case FRAME_RESET:
        s->bits |= STREAM_REMOTE_FIN;
        break;
    case FRAME_CANCEL:
        end_stream(c, s);
        break;
    default:
        break;
    }
    if (h->flags & FRAME_FIN)
        s->bits |= STREAM_REMOTE_FIN;
    return NULL;
}

enum channel_event channel_next(struct channel *c, struct channel_frame *out, struct error *err)
{
    struct ring_frame f;
    if (c->broken)
        return broken(c, err, "");
    if (c->writer.broken)
        return broken(c, err, "the peer's ring index makes no sense");
    for (;;) {
        switch (ring_reader_peek(&c->reader, &f)) {
        case RING_EMPTY:
            return CHANNEL_NONE;
        case RING_BROKEN:
            return broken(c, err, "the peer's ring holds a frame or an index that makes no sense");
        case RING_FRAME:
            break;
        }
        const struct frame_header *h = &f.header;
        const char *fault = header_fault(c, h);
        if (fault != NULL)
            return broken(c, err, fault);
        c->counters.frames_in++;
        c->counters.bytes_in += h->len;
        struct channel_stream *s = &c->streams[stream_slot(h->id)];
        if (h->type == FRAME_REQUEST) {
            fault = accept_request(c, s, h);
        } else if (!(s->bits & STREAM_OPEN) || s->id != h->id) {
            c->counters.late++;
            ring_reader_consume(&c->reader);
            continue;
        } else {
            fault = accept_frame(c, s, h);
        }
        if (fault != NULL)
            return broken(c, err, fault);
        memcpy(c->scratch, f.payload, h->len);
        ring_reader_consume(&c->reader);
        *out = (struct channel_frame){
            h->type, h->flags & (uint8_t)~FRAME_OPEN, h->aux, s, c->scratch, h->len};
        return CHANNEL_FRAME;
    }
}
