#include "core/worker/echo.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"
#include "core/worker/channels.h"
#include "core/worker/stream.h"
#include "core/worker/worker.h"

struct echo {
    uv_timer_t timer;
    struct stream *stream; /* NULL: freed, the timer is closing */
    uint64_t events, gap_ms, size, delay_ms, status, reset;
    uint64_t made;
    bool due; /* gap_ms is over since the last event */
    bool pumping;
};

static const struct parameter {
    const char *name;
    size_t offset;
    uint64_t min, max;
} parameters[] = {
    {"events", offsetof(struct echo, events), 0, 100000000},
    {"gap_ms", offsetof(struct echo, gap_ms), 0, 3600000},
    {"size", offsetof(struct echo, size), 0, 1 << 20},
    {"delay_ms", offsetof(struct echo, delay_ms), 0, 3600000},
    {"status", offsetof(struct echo, status), 200, 599},
    {"reset", offsetof(struct echo, reset), 0, 1},
};

bool echo_path(struct slice path)
{
    return slice_is(path, "/tokenring/echo");
}

static enum status parse_query(struct echo *e, const struct buffer *query, struct error *err)
{
    e->status = 200;
    for (const char *p = query->len > 0 ? query->ptr : ""; *p != '\0';) {
        size_t len = strcspn(p, "&"), name = strcspn(p, "=&");
        const struct parameter *found = NULL;
        for (size_t i = 0; i < sizeof(parameters) / sizeof(*parameters); i++)
            if (strlen(parameters[i].name) == name && strncmp(parameters[i].name, p, name) == 0)
                found = &parameters[i];
        char *end = NULL;
        unsigned long long value = 0;
        if (found != NULL && name < len && p[name + 1] >= '0' && p[name + 1] <= '9')
            value = strtoull(p + name + 1, &end, 10);
        if (end != p + len || value < found->min || value > found->max)
            return error_set(err, STATUS_INVALID, "echo: bad parameter \"%.*s\"",
                             (int)(len < 64 ? len : 64), p);
        *(uint64_t *)(void *)((char *)e + found->offset) = value;
        p += len + (p[len] == '&');
    }
    return STATUS_OK;
}

static void add_event(struct echo *e)
{
    struct buffer *out = &e->stream->out;
    size_t start = out->len;
    buffer_printf(out, "data: {\"n\":%llu", (unsigned long long)e->made++);
    if (out->len - start + 12 < e->size) {
        buffer_add_text(out, ",\"pad\":\"");
        while (out->len - start + 4 < e->size)
            buffer_add_byte(out, 'x');
        buffer_add_byte(out, '"');
    }
    buffer_add_text(out, "}\n\n");
}

/* Makes what is due while the ring takes it. The stream may be gone afterwards. */
static void pump(struct echo *e)
{
    struct stream *s = e->stream;
    if (e->pumping)
        return;
    e->pumping = true;
    while (e->made < e->events && e->due && stream_pending(s) == 0) {
        add_event(e);
        e->due = e->gap_ms == 0;
        stream_flush(s);
        if (e->stream == NULL || s->cs == NULL)
            return;
    }
    e->pumping = false;
    if (e->made < e->events || s->ended)
        return;
    if (e->reset) {
        if (stream_pending(s) == 0)
            stream_reset(s, RESET_INTERNAL);
        return;
    }
    buffer_add_text(&s->out, "data: [DONE]\n\n");
    stream_end(s);
}

static void begin(struct echo *e)
{
    struct stream *s = e->stream;
    if (e->events == 0) {
        stream_answer(s, (unsigned)e->status, "application/octet-stream", buffer_slice(&s->body));
        return;
    }
    s->sse = true;
    stream_head(s, (unsigned)e->status, "text/event-stream");
    e->due = true;
    pump(e);
}

static void timer_fired(uv_timer_t *timer)
{
    struct echo *e = timer->data;
    struct stream *s = e->stream;
    if (s->http_status == 0) {
        if (e->events > 0 && e->gap_ms > 0)
            uv_timer_start(timer, timer_fired, e->gap_ms, e->gap_ms);
        begin(e);
        return;
    }
    e->due = true;
    pump(e);
}

void echo_start(struct stream *s)
{
    struct error err = {0};
    struct echo *e = xcalloc(1, sizeof(*e));
    if (parse_query(e, &s->query, &err) != STATUS_OK) {
        free(e);
        stream_fail(s, &err);
        return;
    }
    e->stream = s;
    s->echo = e;
    s->phase = STREAM_ECHO;
    uv_timer_init(&s->worker->loop, &e->timer);
    e->timer.data = e;
    uv_timer_start(&e->timer, timer_fired, e->delay_ms, 0);
}

void echo_drained(struct stream *s)
{
    if (!s->ended && s->echo->events > 0 && s->http_status != 0)
        pump(s->echo);
}

static void timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void echo_free(struct stream *s)
{
    s->echo->stream = NULL;
    uv_timer_stop(&s->echo->timer);
    uv_close((uv_handle_t *)&s->echo->timer, timer_closed);
    s->echo = NULL;
}
