#include "tests/e2e/ring_client.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/clock.h"

static bool fail(struct client *c, const char *text)
{
    snprintf(c->error, sizeof(c->error), "%s", text);
    c->dead = true;
    return false;
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool client_open(struct client *c, const char *path)
{
    struct error err = {0};
    memset(c, 0, sizeof(*c));
    list_init(&c->calls);
    c->fd = connect_to(path);
    if (c->fd < 0)
        return fail(c, strerror(errno));
    if (channel_client_start(&c->channel, c->fd, NULL, &err) != STATUS_OK)
        return fail(c, err.text);
    uint64_t end = clock_ns() + 5000000000u;
    for (;;) {
        enum channel_wait wait = channel_handshake_step(&c->channel, &err);
        if (wait == CHANNEL_READY)
            return true;
        if (wait == CHANNEL_FAILED)
            return fail(c, err.text);
        if (clock_ns() > end)
            return fail(c, "the handshake takes too long");
        struct pollfd p = {c->fd, wait == CHANNEL_WANT_READ ? POLLIN : POLLOUT, 0};
        poll(&p, 1, 100);
    }
}

static void over(struct call *a)
{
    a->stream = NULL;
    list_remove(&a->node);
}

void client_close(struct client *c)
{
    list_each(it, tmp, &c->calls) over(list_entry(it, struct call, node));
    channel_release(&c->channel);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static void parse_headers(const char *text, struct message_request *m)
{
    while (text != NULL && *text != '\0') {
        const char *colon = strchr(text, ':'), *end = strchr(text, '\n');
        if (colon == NULL || end == NULL || colon > end)
            return;
        message_add_pair(m->pairs, &m->n_pairs, slice_make(text, (size_t)(colon - text)),
                         slice_make(colon + 2, (size_t)(end - colon - 2)));
        text = end + 1;
    }
}

static void send_body(struct client *c, struct call *a)
{
    size_t taken = 0;
    if (a->stream == NULL || a->body_done || (a->hold_fin && a->body_sent == a->body.len))
        return;
    enum channel_send result =
        channel_send_data(&c->channel, a->stream, a->body.ptr + a->body_sent,
                          a->body.len - a->body_sent, a->hold_fin ? 0 : FRAME_FIN, &taken);
    a->body_sent += taken;
    a->body_done = result == SEND_DONE && !a->hold_fin;
}

bool client_send(struct client *c, struct call *a, const char *method, const char *target,
                 const char *headers, struct slice body, bool hold_fin)
{
    struct error err = {0};
    struct message_request m = {.method = slice_of(method), .target = slice_of(target)};
    memset(a, 0, sizeof(*a));
    list_init(&a->node);
    a->stream = channel_open(&c->channel, a);
    if (a->stream == NULL)
        return false;
    parse_headers(headers, &m);
    a->hold_fin = hold_fin;
    buffer_add_slice(&a->body, body);
    bool no_body = body.len == 0 && !hold_fin;
    if (channel_send_request(&c->channel, a->stream, &m, no_body ? FRAME_FIN : 0, &err) !=
        SEND_DONE) {
        channel_close(&c->channel, a->stream);
        a->stream = NULL;
        buffer_release(&a->body);
        snprintf(c->error, sizeof(c->error), "%s", err.text);
        return false;
    }
    a->body_done = no_body;
    list_append(&c->calls, &a->node);
    send_body(c, a);
    return true;
}

static void handle(struct client *c, const struct channel_frame *f)
{
    struct call *a = f->stream->user;
    struct message_head head;
    struct error err = {0};
    switch (f->type) {
    case FRAME_HEAD:
    case FRAME_TRAILER:
        if (message_head_decode(f->payload, f->len, &head, &err) != STATUS_OK) {
            fail(c, err.text);
            return;
        }
        a->status = head.status;
        for (uint32_t i = 0; i < head.n_pairs; i++)
            buffer_printf(&a->headers, "%.*s: %.*s\n", (int)head.pairs[i].name.len,
                          head.pairs[i].name.ptr, (int)head.pairs[i].value.len,
                          head.pairs[i].value.ptr);
        break;
    case FRAME_DATA:
        buffer_add(&a->answer, f->payload, f->len);
        a->frames++;
        a->cut_frames += (f->flags & FRAME_EVENT_END) == 0;
        if (c->stingy)
            a->not_consumed += f->len;
        else
            channel_consumed(&c->channel, a->stream, f->len);
        break;
    case FRAME_CREDIT:
        send_body(c, a);
        break;
    case FRAME_RESET:
        a->reset = f->aux;
        break;
    }
    a->complete = (f->flags & FRAME_FIN) != 0;
    if (a->complete || a->reset != 0) {
        channel_close(&c->channel, f->stream);
        over(a);
    }
}

bool client_turn(struct client *c, int ms)
{
    struct error err = {0};
    struct channel_frame frame;
    if (c->dead)
        return false;
    channel_publish(&c->channel);
    if (!channel_sleep(&c->channel)) {
        struct pollfd p = {c->fd, POLLIN, 0};
        poll(&p, 1, ms);
    }
    channel_awake(&c->channel);
    enum channel_life life = channel_drain(&c->channel);
    enum channel_event event;
    while ((event = channel_next(&c->channel, &frame, &err)) == CHANNEL_FRAME)
        handle(c, &frame);
    if (event == CHANNEL_BROKEN)
        return fail(c, err.text);
    if (channel_take_room(&c->channel))
        list_each(it, tmp, &c->calls) send_body(c, list_entry(it, struct call, node));
    if (life == CHANNEL_EOF)
        return fail(c, "the worker is gone");
    return true;
}

bool client_wait(struct client *c, struct call *a, int ms)
{
    uint64_t end = clock_ns() + (uint64_t)ms * 1000000u;
    while (a->stream != NULL && clock_ns() < end && client_turn(c, 20))
        ;
    if (!c->dead)
        channel_publish(&c->channel);
    return a->complete;
}

void client_cancel(struct client *c, struct call *a)
{
    if (a->stream == NULL)
        return;
    channel_close(&c->channel, a->stream);
    over(a);
    channel_publish(&c->channel);
}

void client_feed(struct client *c, struct call *a)
{
    if (a->stream != NULL && a->not_consumed > 0)
        channel_consumed(&c->channel, a->stream, a->not_consumed);
    a->not_consumed = 0;
}

void call_release(struct call *a)
{
    buffer_release(&a->body);
    buffer_release(&a->headers);
    buffer_release(&a->answer);
}

const char *call_header(const struct call *a, const char *name)
{
    static char value[512];
    char start[128];
    snprintf(start, sizeof(start), "%s: ", name);
    const char *p = a->headers.ptr != NULL ? strstr(a->headers.ptr, start) : NULL;
    if (p == NULL || (p != a->headers.ptr && p[-1] != '\n'))
        return NULL;
    p += strlen(start);
    snprintf(value, sizeof(value), "%.*s", (int)strcspn(p, "\n"), p);
    return value;
}

unsigned call_count(const struct call *a, const char *text)
{
    unsigned n = 0;
    const char *p = a->answer.ptr;
    while (p != NULL && (p = strstr(p, text)) != NULL) {
        n++;
        p += strlen(text);
    }
    return n;
}
