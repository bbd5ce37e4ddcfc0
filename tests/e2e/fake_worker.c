/* fake_worker.c: the other end of the ring for tests of the nginx module. No model: what it does is in the path.
 *
 *     fake_worker [-s unix-socket] [-v version] [-S slots] [-w window] [-q] [-g]
 *         -v announces another ring version; -q accepts and never says hello; -g knows no gate
 *
 *     /health                     200, JSON
 *     /pairs                      the request line and pairs as text
 *     /echo                       the body, when it has all come;  /sum  its length and FNV-1a 64
 *     /early                      413 at once; the body is left alone (no credit goes back)
 *     /status?code=503&retry=7    that status, with Retry-After; sse=1 gives it an event stream
 *     /blob?n=bytes&len=1         n bytes of text, as fast as credit allows; len=1 with content-length
 *     /sse?n=10&gap=20&size=8&delay=0   delay ms, then n events, gap ms between them, then [DONE]; mark=1 sends a trailer
 *     /event?size=300000          one event of that size in many frames, EVENT_END on the last alone, then [DONE]
 *     /bits?size=40000            one event, a few bytes per frame
 *     /hang                       nothing, ever
 *     /stall?n=3                  n events, then nothing
 *     /die?n=3&half=1             n events (and half of one more), then the process ends by SIGKILL; head=0: dies before HEAD
 *     /blobdie?n=bytes            a plain body, then death
 *     /reset?n=3&half=1&code=1    as /die, but RESET
 *     /pads?n=5                   n pairs in the head; size= makes each that long; bad=1 sends a bad payload
 *     /gate?word=n                sets the gate word as it is; tells how many were turned away since the last time
 *     /garbage?kind=n             frames and indices that break the protocol; noise of seed n from 10 on
 *
 * Every line on stdout tells one thing: REQUEST method path, CANCEL path, END path, EOF, CHANNEL, BROKEN why. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/list.h"
#include "core/base/xalloc.h"
#include "core/ring/channel.h"

struct peer {
    struct list node;
    struct list answers;
    struct channel ring;
    int fd;
    bool ready, dead;
};

enum kind { KIND_PLAIN, KIND_BODY, KIND_EVENTS, KIND_BLOB };

struct answer {
    struct list node;
    struct peer *peer;
    struct channel_stream *stream;
    char *path; /* without the query */
    char *query;
    enum kind kind;
    bool head_sent, request_done, keep_credit;
    int status;
    const char *type;
    struct buffer pairs; /* for /pairs */
    struct buffer body;  /* of the request */
    struct buffer out;   /* to be sent */
    size_t sent;
    unsigned out_flags; /* with the last byte of out */
    uint64_t due;       /* ms; next event */
    long n, i, gap, size, blob_left;
    bool length, finished, trailer;
    const char *then; /* what to do after the last event: "fin", "stall", "die", "reset" */
};

static struct list peers;
static struct channel_config config = {.features = FEATURE_GATE};
static bool mute;

static uint64_t now_ms(void)
{
    return clock_ns() / 1000000;
}

static void say(const char *what, const char *path)
{
    printf("%s %s\n", what, path);
    fflush(stdout);
}

static long number(const struct answer *a, const char *name, long otherwise)
{
    size_t len = strlen(name);
    for (const char *p = a->query; p != NULL && *p != '\0'; p = strchr(p, '&')) {
        if (*p == '&')
            p++;
        if (strncmp(p, name, len) == 0 && p[len] == '=')
            return strtol(p + len + 1, NULL, 10);
    }
    return otherwise;
}

static void answer_free(struct answer *a)
{
    list_remove(&a->node);
    free(a->path);
    free(a->query);
    buffer_release(&a->pairs);
    buffer_release(&a->body);
    buffer_release(&a->out);
    free(a);
}

static bool path_is(const struct answer *a, const char *path)
{
    return strcmp(a->path, path) == 0;
}

/* Plausible and less plausible headers in front of random bytes, all over the ring. */
static void noise(struct ring_writer *w, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15ull;
    for (uint64_t i = 0; i < w->size; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        w->data[i] = (uint8_t)x;
        if (i % FRAME_ALIGN != 0 || i + sizeof(struct frame_header) > w->size)
            continue;
        struct frame_header h = {.len = (uint32_t)(x >> 40) % (seed % 3 ? 64 : 70000),
                                 .type = (uint8_t)((x >> 8) % 10)};
        h.flags = (x >> 16) % 4 ? (uint8_t)((x >> 18) & 6) : 0;
        h.id = (x >> 20) % 4 ? stream_id(0, (uint32_t)(x >> 22) % 4) : (uint32_t)x;
        h.aux = h.type == FRAME_CREDIT || h.type == FRAME_RESET ? (uint32_t)(x >> 50) % 8 : 0;
        memcpy(w->data + i, &h, sizeof(h));
        i += sizeof(h) - 1;
    }
    w->tail += x % w->size & ~(uint64_t)(FRAME_ALIGN - 1);
}

/* Breaks the protocol in one of many ways, behind the back of the channel's own checks. */
static void garbage(struct answer *a, long kind)
{
    struct channel *c = &a->peer->ring;
    struct ring_writer *w = &c->writer;
    uint32_t id = a->stream->id;
    uint8_t *out = ring_writer_reserve(w, 64, false);
    if (out == NULL)
        return;
    memset(out, 0xa5, 64);
    switch (kind) {
    case 0: /* a type that is not */
        ring_writer_commit(w, 77, 0, id, 0, 64);
        break;
    case 1: /* DATA before HEAD */
        ring_writer_commit(w, FRAME_DATA, 0, id, 0, 64);
        break;
    case 2: /* a slot beyond the table */
        ring_writer_commit(w, FRAME_DATA, 0, id | 0xfff, 0, 64);
        break;
    case 3: /* only a client may CANCEL */
        ring_writer_commit(w, FRAME_CANCEL, 0, id, 0, 0);
        break;
    case 4: /* a payload longer than the limit */
        ring_writer_commit(w, FRAME_HEAD, 0, id, 0, 64);
        ((struct frame_header *)(void *)(out - FRAME_ALIGN))->len = 0x7fffffff;
        break;
    case 5: /* a tail that is far ahead */
        ring_writer_commit(w, FRAME_HEAD, 0, id, 0, 64);
        w->tail += 1ull << 40;
        break;
    case 6: /* credit without end */
        ring_writer_commit(w, FRAME_CREDIT, 0, id, 0x7fffffff, 0);
        break;
    case 7: /* a head of noise: costs the stream, not the channel */
        ring_writer_commit(w, FRAME_HEAD, FRAME_FIN, id, 0, 64);
        break;
    case 8: /* a head of our index that was never written: the client may not believe in room */
        ring_writer_commit(w, FRAME_HEAD, 0, id, 0, 64);
        atomic_store(&c->own->head, 12345);
        break;
    case 9: /* unaligned tail */
        ring_writer_commit(w, FRAME_HEAD, 0, id, 0, 64);
        w->tail += 8;
        break;
    default:
        noise(w, (uint64_t)kind);
        break;
    }
}

static void plan_events(struct answer *a, long n, const char *then)
{
    a->kind = KIND_EVENTS;
    a->type = "text/event-stream; charset=utf-8";
    a->n = number(a, "n", n);
    a->gap = number(a, "gap", 20);
    a->size = number(a, "size", 8);
    a->due = now_ms() + (uint64_t)number(a, "delay", 0);
    a->then = then;
}

/* What the request's line asks for; the body may still be coming. */
static void answer_plan(struct answer *a)
{
    a->status = (int)number(a, "code", 200);
    a->type = "application/json";
    a->then = "fin";
    if (path_is(a, "/echo") || path_is(a, "/sum")) {
        a->kind = KIND_BODY;
    } else if (path_is(a, "/early")) {
        a->status = 413;
        a->keep_credit = true;
        buffer_add_text(&a->out, "{\"error\":\"too large\"}");
    } else if (path_is(a, "/sse")) {
        plan_events(a, 10, "fin");
    } else if (path_is(a, "/stall")) {
        plan_events(a, 3, "stall");
    } else if (path_is(a, "/hang")) {
        plan_events(a, 0, "stall");
        a->due = UINT64_MAX;
    } else if (path_is(a, "/die")) {
        plan_events(a, 3, "die");
    } else if (path_is(a, "/reset")) {
        plan_events(a, 3, "reset");
        a->status = 200;
    } else if (path_is(a, "/event") || path_is(a, "/bits")) {
        plan_events(a, 1, "fin");
        a->size = number(a, "size", 40000);
    } else if (path_is(a, "/blob") || path_is(a, "/blobdie")) {
        a->kind = KIND_BLOB;
        a->type = "text/plain";
        a->blob_left = a->n = number(a, "n", 1000);
        a->length = number(a, "len", 0) != 0;
        a->then = path_is(a, "/blobdie") ? "die" : "fin";
    } else if (path_is(a, "/pairs")) {
        a->type = "text/plain";
        buffer_add_slice(&a->out, buffer_slice(&a->pairs));
    } else if (path_is(a, "/status")) {
        if (number(a, "sse", 0))
            a->type = "text/event-stream";
        buffer_printf(&a->out, "{\"status\":%d}", a->status);
    } else if (path_is(a, "/gate")) {
        atomic_store(&a->peer->ring.own->gate, (uint64_t)number(a, "word", 0));
        buffer_printf(&a->out, "%llu",
                      (unsigned long long)channel_take_turned_away(&a->peer->ring));
    } else if (path_is(a, "/garbage")) {
        plan_events(a, 0, "stall");
        a->due = UINT64_MAX;
        garbage(a, number(a, "kind", 0));
    } else if (path_is(a, "/health") || path_is(a, "/pads")) {
        buffer_add_text(&a->out, "{\"status\":\"ok\"}");
    } else {
        a->status = 404;
        buffer_printf(&a->out, "{\"error\":\"no %s here\"}", a->path);
    }
}

/* True if the head is out. */
static bool send_head(struct answer *a)
{
    struct message_head head = {.status = (uint32_t)a->status};
    struct error err;
    char length[32], retry[32], names[MESSAGE_PAIRS_MAX][16], *filler = NULL;
    if (a->head_sent)
        return true;
    message_add_pair(head.pairs, &head.n_pairs, slice_of("content-type"), slice_of(a->type));
    message_add_pair(head.pairs, &head.n_pairs, slice_of("x-worker"), slice_of("fake"));
    message_add_pair(head.pairs, &head.n_pairs, slice_of("x-tokenring-prompt-tokens"),
                     slice_of("12"));
    message_add_pair(head.pairs, &head.n_pairs, slice_of("x-tokenring-cached-tokens"),
                     slice_of("4"));
    if (a->length || a->kind == KIND_PLAIN) {
        snprintf(length, sizeof(length), "%ld", a->kind == KIND_BLOB ? a->n : (long)a->out.len);
        message_add_pair(head.pairs, &head.n_pairs, slice_of("content-length"), slice_of(length));
    }
    if (number(a, "retry", 0)) {
        snprintf(retry, sizeof(retry), "%ld", number(a, "retry", 0));
        message_add_pair(head.pairs, &head.n_pairs, slice_of("retry-after"), slice_of(retry));
    }
    if (path_is(a, "/pads")) {
        size_t size = (size_t)number(a, "size", 8);
        filler = xmalloc(size);
        memset(filler, 'p', size);
        for (long i = 0; i < number(a, "n", 5) && i < 50; i++) {
            snprintf(names[i], sizeof(names[i]), "x-pad-%ld", i);
            message_add_pair(head.pairs, &head.n_pairs, slice_of(names[i]),
                             slice_make(filler, size));
        }
    }
    enum channel_send rc = channel_send_head(&a->peer->ring, a->stream, &head, 0, &err);
    free(filler);
    if (rc == SEND_INVALID) {
        say("INVALID", err.text);
        channel_reset(&a->peer->ring, a->stream, RESET_INTERNAL);
        a->finished = true;
        return false;
    }
    a->head_sent = rc == SEND_DONE;
    return a->head_sent;
}

/* Sends from a->out; true if all of it is out. */
static bool send_out(struct answer *a)
{
    size_t taken;
    if (a->sent == a->out.len && a->out_flags == 0)
        return true;
    enum channel_send rc = channel_send_data(&a->peer->ring, a->stream, a->out.ptr + a->sent,
                                             a->out.len - a->sent, a->out_flags, &taken);
    a->sent += taken;
    if (rc != SEND_DONE)
        return false;
    a->finished = (a->out_flags & FRAME_FIN) != 0;
    a->out_flags = 0;
    a->sent = 0;
    buffer_clear(&a->out);
    return true;
}

static void send_trailer(struct answer *a)
{
    struct message_head m = {.status = 200};
    struct error err;
    message_add_pair(m.pairs, &m.n_pairs, slice_of("x-tokenring-completion-tokens"),
                     slice_of("77"));
    message_add_pair(m.pairs, &m.n_pairs, slice_of("x-tokenring-finish"), slice_of("length"));
    a->finished = channel_send_trailer(&a->peer->ring, a->stream, &m, &err) == SEND_DONE;
}

static void finish(struct answer *a)
{
    if (strcmp(a->then, "die") == 0) {
        if (number(a, "half", 0)) {
            size_t taken;
            (void)!channel_send_data(&a->peer->ring, a->stream, "data: {\"half", 12, 0, &taken);
        }
        channel_publish(&a->peer->ring);
        kill(getpid(), SIGKILL);
    } else if (strcmp(a->then, "reset") == 0) {
        if (number(a, "half", 0)) {
            size_t taken;
            (void)!channel_send_data(&a->peer->ring, a->stream, "data: {\"half", 12, 0, &taken);
        }
        channel_reset(&a->peer->ring, a->stream,
                      (enum reset_code)number(a, "code", RESET_INTERNAL));
        a->finished = true;
    } else if (strcmp(a->then, "stall") == 0) {
        a->due = UINT64_MAX;
    } else {
        if (a->kind == KIND_EVENTS)
            buffer_add_text(&a->out, "data: [DONE]\n\n");
        a->trailer = number(a, "mark", 0) != 0;
        if (a->trailer)
            a->out_flags = FRAME_EVENT_END;
        else
            a->out_flags = FRAME_FIN | (a->kind == KIND_EVENTS ? FRAME_EVENT_END : 0u);
    }
}

/* The next event into a->out. */
static void make_event(struct answer *a)
{
    buffer_printf(&a->out, "data: {\"i\":%ld,\"pad\":\"", a->i);
    for (long k = 0; k < a->size; k++)
        buffer_add_byte(&a->out, (char)('a' + k % 26));
    buffer_add_text(&a->out, "\"}\n\n");
    a->out_flags = FRAME_EVENT_END;
    a->i++;
    a->due = now_ms() + (uint64_t)a->gap;
}

static void make_blob(struct answer *a)
{
    static char text[8192];
    if (text[0] == '\0')
        memset(text, 'x', sizeof(text));
    size_t n = a->blob_left < (long)sizeof(text) ? (size_t)a->blob_left : sizeof(text);
    buffer_add(&a->out, text, n);
    a->blob_left -= (long)n;
    if (a->blob_left == 0 && strcmp(a->then, "fin") == 0)
        a->out_flags = FRAME_FIN;
}

/* Sends /bits: a few bytes a frame. */
static bool send_bits(struct answer *a)
{
    size_t taken;
    while (a->out.len - a->sent > 7) {
        if (channel_send_data(&a->peer->ring, a->stream, a->out.ptr + a->sent, 7, 0, &taken) !=
            SEND_DONE)
            return false;
        a->sent += taken;
    }
    return true;
}

static void body_complete(struct answer *a)
{
    if (path_is(a, "/echo")) {
        a->length = false;
        a->type = "application/octet-stream";
        buffer_add_slice(&a->out, buffer_slice(&a->body));
    } else {
        uint64_t h = 0xcbf29ce484222325ull;
        for (size_t i = 0; i < a->body.len; i++)
            h = (h ^ (uint8_t)a->body.ptr[i]) * 0x100000001b3ull;
        buffer_printf(&a->out, "%zu %016llx", a->body.len, (unsigned long long)h);
    }
    buffer_clear(&a->body);
    a->kind = KIND_PLAIN;
    a->out_flags = FRAME_FIN;
}

/* Goes on with an answer as far as room, credit and time allow. */
static void answer_go(struct answer *a)
{
    if (a->finished || (a->kind == KIND_BODY && !a->request_done))
        return;
    if (a->kind == KIND_BODY)
        body_complete(a);
    if (a->kind == KIND_PLAIN && !a->head_sent)
        a->out_flags = FRAME_FIN;
    for (;;) {
        if (a->kind == KIND_EVENTS && a->i == 0 && a->out.len == 0 && a->due > now_ms())
            return;
        if (strcmp(a->then, "die") == 0 && number(a, "head", 1) == 0)
            finish(a);
        if (!send_head(a))
            return;
        if (path_is(a, "/bits") && a->i == 1 && !send_bits(a))
            return;
        if (!send_out(a) || a->finished)
            return;
        if (a->trailer) {
            send_trailer(a);
            return;
        }
        if (a->kind == KIND_EVENTS) {
            if (a->due > now_ms())
                return;
            if (a->i < a->n)
                make_event(a);
            else
                finish(a);
        } else if (a->kind == KIND_BLOB) {
            if (a->blob_left > 0)
                make_blob(a);
            else
                finish(a);
        } else {
            return;
        }
        if (a->finished || a->due == UINT64_MAX)
            return;
    }
}

static void take_request(struct peer *p, struct channel_frame *f)
{
    static struct message_request m;
    struct error err;
    if (message_request_decode(f->payload, f->len, &m, &err) != STATUS_OK) {
        say("BROKEN", err.text);
        channel_reset(&p->ring, f->stream, RESET_PROTOCOL);
        return;
    }
    struct answer *a = xcalloc(1, sizeof(*a));
    a->peer = p;
    a->stream = f->stream;
    f->stream->user = a;
    const char *question = memchr(m.target.ptr, '?', m.target.len);
    size_t path = question != NULL ? (size_t)(question - m.target.ptr) : m.target.len;
    a->path = xmemdup(m.target.ptr, path);
    a->query = question != NULL ? xmemdup(question + 1, m.target.len - path - 1) : xmemdup("", 0);
    buffer_printf(&a->pairs, "%.*s %.*s\n", (int)m.method.len, m.method.ptr, (int)m.target.len,
                  m.target.ptr);
    for (uint32_t i = 0; i < m.n_pairs; i++)
        buffer_printf(&a->pairs, "%.*s: %.*s\n", (int)m.pairs[i].name.len, m.pairs[i].name.ptr,
                      (int)m.pairs[i].value.len, m.pairs[i].value.ptr);
    a->request_done = (f->flags & FRAME_FIN) != 0;
    list_append(&p->answers, &a->node);
    printf("REQUEST %.*s %.*s\n", (int)m.method.len, m.method.ptr, (int)m.target.len, m.target.ptr);
    fflush(stdout);
    answer_plan(a);
}

static void take_frame(struct peer *p, struct channel_frame *f)
{
    struct answer *a = f->stream->user;
    switch (f->type) {
    case FRAME_REQUEST:
        take_request(p, f);
        break;
    case FRAME_DATA:
        if (a->kind == KIND_BODY)
            buffer_add(&a->body, f->payload, f->len);
        if (!a->keep_credit)
            channel_consumed(&p->ring, f->stream, f->len);
        if (f->flags & FRAME_FIN)
            a->request_done = true;
        break;
    case FRAME_CANCEL:
        say("CANCEL", a->path);
        answer_free(a);
        break;
    default:
        break;
    }
}

/* One turn: read everything, go on with everything, publish. False: the channel is over. */
static bool peer_turn(struct peer *p)
{
    struct channel_frame f;
    struct error err;
    channel_awake(&p->ring);
    bool over = channel_drain(&p->ring) == CHANNEL_EOF;
    for (;;) {
        enum channel_event event = channel_next(&p->ring, &f, &err);
        if (event == CHANNEL_NONE)
            break;
        if (event == CHANNEL_BROKEN) {
            say("BROKEN", err.text);
            return false;
        }
        take_frame(p, &f);
    }
    if (over) {
        say("EOF", "");
        return false;
    }
    channel_take_room(&p->ring);
    list_each(node, tmp, &p->answers)
    {
        struct answer *a = list_entry(node, struct answer, node);
        answer_go(a);
        if (a->finished) {
            say("END", a->path);
            answer_free(a);
        }
    }
    channel_publish(&p->ring);
    return true;
}

static void peer_free(struct peer *p)
{
    list_each(node, tmp, &p->answers) answer_free(list_entry(node, struct answer, node));
    channel_release(&p->ring);
    close(p->fd);
    list_remove(&p->node);
    free(p);
}

static void peer_accept(int listener)
{
    struct error err;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct peer *p = xcalloc(1, sizeof(*p));
    p->fd = fd;
    list_init(&p->answers);
    list_append(&peers, &p->node);
    if (!mute && channel_server_start(&p->ring, fd, &config, &err) != STATUS_OK) {
        say("BROKEN", err.text);
        p->dead = true;
    }
}

/* The channel's part of one turn of the loop; false: it is over. */
static bool peer_step(struct peer *p)
{
    struct error err;
    char byte;
    if (mute)
        return recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
    if (!p->ready) {
        switch (channel_handshake_step(&p->ring, &err)) {
        case CHANNEL_READY:
            p->ready = true;
            say("CHANNEL", p->ring.peer_build);
            break;
        case CHANNEL_FAILED:
            say("BROKEN", err.text);
            return false;
        default:
            return true;
        }
    }
    return peer_turn(p);
}

/* How long poll may wait: to the next event of any answer, and not at all if a ring has work. */
static int wait_time(void)
{
    uint64_t now = now_ms(), due = now + 1000;
    list_each(node, tmp, &peers)
    {
        struct peer *p = list_entry(node, struct peer, node);
        if (!p->ready)
            continue;
        list_each(inner, tmp2, &p->answers)
        {
            struct answer *a = list_entry(inner, struct answer, node);
            bool waits = a->kind == KIND_EVENTS && a->out_flags == 0 && a->due < due;
            due = waits ? (a->due > now ? a->due : now) : due;
        }
        if (channel_sleep(&p->ring))
            due = now;
    }
    return (int)(due - now);
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    unlink(path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(fd, 64) != 0 || chmod(path, 0666) != 0) {
        fprintf(stderr, "fake_worker: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    return fd;
}

int main(int argc, char **argv)
{
    const char *path = "fake.sock";
    int option;
    while ((option = getopt(argc, argv, "s:v:S:w:qg")) != -1) {
        switch (option) {
        case 's':
            path = optarg;
            break;
        case 'v':
            config.version = (uint32_t)atoi(optarg);
            break;
        case 'S':
            config.slots = (uint32_t)atoi(optarg);
            break;
        case 'w':
            config.down_window = (uint32_t)atoi(optarg);
            break;
        case 'q':
            mute = true;
            break;
        case 'g':
            config.features = 0;
            break;
        default:
            return 2;
        }
    }
    list_init(&peers);
    int listener = listen_at(path);
    say("LISTEN", path);
    for (;;) {
        static struct pollfd fds[256];
        nfds_t n = 1;
        fds[0] = (struct pollfd){listener, POLLIN, 0};
        list_each(node, tmp, &peers)
        {
            if (n < sizeof(fds) / sizeof(fds[0]))
                fds[n++] = (struct pollfd){list_entry(node, struct peer, node)->fd, POLLIN, 0};
        }
        if (poll(fds, n, wait_time()) < 0 && errno != EINTR)
            return 1;
        if (fds[0].revents)
            peer_accept(listener);
        list_each(node, tmp, &peers)
        {
            struct peer *p = list_entry(node, struct peer, node);
            if (p->dead || !peer_step(p))
                peer_free(p);
        }
    }
}
