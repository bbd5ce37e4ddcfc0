#include "core/worker/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/xalloc.h"
#include "core/sched/sched.h"
#include "core/stats/writer.h"
#include "core/worker/channels.h"
#include "core/worker/echo.h"
#include "core/worker/glue.h"
#include "core/worker/worker.h"

struct stream *stream_new(struct worker *w, struct link *link, struct channel_stream *cs)
{
    struct stream *s = xcalloc(1, sizeof(*s));
    s->worker = w;
    s->link = link;
    s->cs = cs;
    cs->user = s;
    s->number = ++w->last_number;
    s->arrival_ns = s->last_sent_ns = clock_ns();
    list_init(&s->node);
    list_init(&s->blocked_node);
    list_append(&w->streams, &s->node);
    w->n_streams++;
    map_set(&w->by_number, s->number, s);
    return s;
}

void stream_drop_body(struct stream *s)
{
    s->worker->body_bytes -= s->body.len;
    buffer_release(&s->body);
}

/* One line a request, when its answer ends or is dropped. */
static void log_request(const struct stream *s, unsigned status)
{
    double total = (double)(clock_ns() - s->arrival_ns) / 1e6;
    if (!s->has_reply) {
        log_info("request %s \"%s\" %u %.1fms%s%s", s->id, s->what, status, total,
                 s->finish ? " " : "", s->finish ? s->finish : "");
        return;
    }
    double first = s->first_ns != 0 ? (double)(s->first_ns - s->arrival_ns) / 1e6 : 0;
    log_info(
        "request %s \"%s\" %u %s prompt=%u cached=%u completion=%u draft=%u/%u queue=%.1fms first=%.1fms "
        "total=%.1fms %s",
        s->id, s->what, status, s->sse ? "stream" : "whole", s->totals.prompt_tokens,
        s->totals.cached_tokens, s->totals.completion_tokens, s->totals.accepted, s->totals.drafted,
        s->totals.queue_ms, first, total, s->finish ? s->finish : "unfinished");
}

/* Lets go of the channel's side. */
static void detach(struct stream *s, unsigned logged_status)
{
    log_request(s, logged_status);
    publish_request_ended(s->worker, s, logged_status);
    s->cs->user = NULL;
    s->cs = NULL;
    s->link = NULL;
    list_remove(&s->blocked_node);
    buffer_release(&s->out);
    s->out_sent = 0;
    s->phase = STREAM_FINISHED;
}

void stream_settle(struct stream *s)
{
    struct worker *w = s->worker;
    if (s->cs != NULL || s->in_front || s->in_sched)
        return;
    if (s->echo != NULL)
        echo_free(s);
    glue_release(s);
    stream_drop_body(s);
    buffer_release(&s->query);
    buffer_release(&s->tenant);
    api_request_release(&s->request);
    buffer_release(&s->out);
    list_remove(&s->node);
    map_take(&w->by_number, s->number);
    w->n_streams--;
    free(s);
    lifecycle_check(w);
}

void stream_lost(struct stream *s, bool cancelled)
{
    s->finish = "cancelled";
    detach(s, 499);
    if (s->in_front)
        uv_cancel((uv_req_t *)&s->work); /* fails when it runs: then its end is waited for */
    if (s->in_sched && cancelled && s->keeps_prefill)
        sched_abandon(s->worker->engine.sched, s->number);
    else if (s->in_sched)
        sched_cancel(s->worker->engine.sched, s->number);
    stream_settle(s);
}

void streams_free_all(struct worker *w)
{
    list_each(it, tmp, &w->streams)
    {
        struct stream *s = list_entry(it, struct stream, node);
        s->in_front = s->in_sched = false;
        stream_settle(s);
    }
}

void stream_reset(struct stream *s, enum reset_code code)
{
    s->finish = "reset";
    channel_reset(&s->link->channel, s->cs, code);
    detach(s, s->http_status != 0 ? s->http_status : 500);
    stream_settle(s);
}

void stream_head(struct stream *s, unsigned status, const char *content_type)
{
    s->http_status = status;
    s->content_type = content_type;
}

/* Sends the head; false if the stream has to wait (it is in the blocked list) or is gone. */
static bool send_head(struct stream *s)
{
    struct message_head head = {.status = s->http_status};
    struct error err = {0};
    char length[24], retry[16];
    message_add_pair(head.pairs, &head.n_pairs, slice_of("content-type"),
                     slice_of(s->content_type));
    message_add_pair(head.pairs, &head.n_pairs, slice_of("x-request-id"), slice_of(s->id));
    if (s->sse) {
        message_add_pair(head.pairs, &head.n_pairs, slice_of("cache-control"),
                         slice_of("no-cache"));
    } else if (s->ended) {
        snprintf(length, sizeof(length), "%zu", s->out.len);
        message_add_pair(head.pairs, &head.n_pairs, slice_of("content-length"), slice_of(length));
    }
    if (s->retry_after > 0) {
        snprintf(retry, sizeof(retry), "%u", s->retry_after);
        message_add_pair(head.pairs, &head.n_pairs, slice_of("retry-after"), slice_of(retry));
    }
    if (s->allow != NULL)
        message_add_pair(head.pairs, &head.n_pairs, slice_of("allow"), slice_of(s->allow));
    char figures[GLUE_INFO_PAIRS][32];
    if (s->has_reply)
        glue_info_pairs(s, &head, figures);
    bool empty = s->ended && stream_pending(s) == 0;
    switch (channel_send_head(&s->link->channel, s->cs, &head, empty ? FRAME_FIN : 0, &err)) {
    case SEND_DONE:
        s->head_sent = true;
        if (!empty)
            return true;
        detach(s, s->http_status);
        stream_settle(s);
        return false;
    case SEND_NO_ROOM:
        list_append(&s->link->blocked, &s->blocked_node);
        return false;
    case SEND_NO_CREDIT:
    case SEND_INVALID:
        break;
    }
    log_error("request %s: the head cannot be sent: %s", s->id, err.text);
    channel_reset(&s->link->channel, s->cs, RESET_INTERNAL);
    detach(s, 500);
    stream_settle(s);
    return false;
}

/* How many of the pending bytes should go in the next send: whole events where that is possible. */
static size_t next_cut(const struct stream *s, bool *event_end)
{
    const char *from = s->out.ptr + s->out_sent;
    size_t pending = stream_pending(s), credit = s->cs->send_credit;
    *event_end = s->sse;
    if (!s->sse || pending <= credit)
        return pending;
    for (size_t n = credit; n >= 2; n--)
        if (from[n - 1] == '\n' && from[n - 2] == '\n')
            return n;
    /* The first event is larger than the credit. Wait for more, unless no credit could ever hold it. */
    const char *end = memmem(from, pending, "\n\n", 2);
    size_t event = end != NULL ? (size_t)(end - from) + 2 : pending;
    *event_end = false;
    return event <= s->link->channel.send_window / 2 ? 0 : credit;
}

/* Whether figures follow the answer: they are known only after it, where the head went with the first token. */
static bool has_trailer(const struct stream *s)
{
    return s->sse && s->has_reply;
}

/* Ends a stream whose last byte went without FIN; false if it is gone, as it should be. */
static bool send_end(struct stream *s)
{
    struct message_head head = {.status = s->http_status};
    struct error err = {0};
    char figures[GLUE_INFO_PAIRS][32];
    size_t taken;
    enum channel_send result;
    if (has_trailer(s)) {
        glue_info_pairs(s, &head, figures);
        result = channel_send_trailer(&s->link->channel, s->cs, &head, &err);
    } else {
        result = channel_send_data(&s->link->channel, s->cs, NULL, 0, FRAME_FIN, &taken);
    }
    if (result == SEND_NO_ROOM) {
        list_append(&s->link->blocked, &s->blocked_node);
        return true;
    }
    if (result != SEND_DONE) {
        log_error("request %s: the end cannot be sent: %s", s->id, err.text);
        channel_reset(&s->link->channel, s->cs, RESET_INTERNAL);
    }
    detach(s, s->http_status);
    return false;
}

/* Sends pending bytes; false if the stream is gone. */
static bool send_out(struct stream *s)
{
    while (stream_pending(s) > 0) {
        bool event_end;
        size_t n = next_cut(s, &event_end), taken = 0;
        if (n == 0) {
            stats_add(s->worker->stats, STATS_CELL_LOOP, STAT_credit_waits, 1);
            return true;
        }
        bool last = s->ended && n == stream_pending(s) && !has_trailer(s);
        unsigned flags = (last ? FRAME_FIN : 0) | (event_end ? FRAME_EVENT_END : 0);
        enum channel_send result =
            channel_send_data(&s->link->channel, s->cs, s->out.ptr + s->out_sent, n, flags, &taken);
        s->out_sent += taken;
        if (taken > 0)
            s->last_sent_ns = clock_ns();
        if (result == SEND_INVALID) {
            log_error("request %s: the answer cannot be sent", s->id);
            channel_reset(&s->link->channel, s->cs, RESET_INTERNAL);
        }
        if (result == SEND_INVALID || (result == SEND_DONE && last)) {
            detach(s, s->http_status);
            return false;
        }
        if (result == SEND_NO_CREDIT)
            stats_add(s->worker->stats, STATS_CELL_LOOP, STAT_credit_waits, 1);
        if (result == SEND_NO_ROOM)
            list_append(&s->link->blocked, &s->blocked_node);
        if (result != SEND_DONE)
            return true;
    }
    buffer_clear(&s->out);
    s->out_sent = 0;
    return !s->ended || send_end(s);
}

void stream_flush(struct stream *s)
{
    if (s->cs == NULL || s->http_status == 0)
        return;
    list_remove(&s->blocked_node);
    if (!s->head_sent && !send_head(s))
        return;
    if (!send_out(s)) {
        stream_settle(s);
        return;
    }
    /* sent bytes are cut off in runs, so that a large body isn't moved for every frame */
    if (s->out_sent > 65536 && s->out_sent >= stream_pending(s)) {
        buffer_consume(&s->out, s->out_sent);
        s->out_sent = 0;
    }
    bool full = stream_pending(s) > 0;
    if (s->in_sched && s->sse && full != s->paused) {
        s->paused = full;
        sched_pause(s->worker->engine.sched, s->number, full);
    }
    if (!full && s->echo != NULL)
        echo_drained(s);
}

void stream_end(struct stream *s)
{
    check(!s->ended);
    s->ended = true;
    if (s->phase != STREAM_FRONT)
        s->phase = STREAM_FINISHED;
    stream_flush(s);
}

void stream_answer(struct stream *s, unsigned status, const char *content_type, struct slice body)
{
    stream_head(s, status, content_type);
    buffer_add_slice(&s->out, body);
    stream_end(s);
}

void stream_fail_later(struct stream *s, const struct error *err, unsigned retry_after)
{
    s->finish = status_code(err->status);
    s->failure = err->status;
    if (s->http_status == 0) {
        unsigned http = (unsigned)status_http(err->status);
        s->sse = false;
        s->retry_after = http == 503 ? retry_after : 0;
        stream_head(s, http, "application/json");
        api_error_json(err, &s->out);
    } else {
        api_error_event(err, &s->out);
    }
    stream_end(s);
}

void stream_fail(struct stream *s, const struct error *err)
{
    stream_fail_later(s, err, (unsigned)s->worker->options->retry_after);
}

/* The body has not come, or the answer is not made, by the time limit. A stream in the front pool is looked at when it
 * comes back. */
static bool is_late(const struct stream *s, uint64_t now_ns)
{
    return s->stop_by_ns != 0 && now_ns >= s->stop_by_ns && s->cs != NULL && !s->ended &&
           (s->phase == STREAM_BODY || s->phase == STREAM_SCHED);
}

void streams_tick(struct worker *w, uint64_t now_ns)
{
    list_each(it, tmp, &w->streams)
    {
        struct stream *s = list_entry(it, struct stream, node);
        if (is_late(s, now_ns)) {
            glue_time_is_up(s);
            continue;
        }
        if (s->cs == NULL || !s->sse || s->phase != STREAM_SCHED || stream_pending(s) > 0 ||
            s->keepalive_ns == 0 || now_ns - s->last_sent_ns < s->keepalive_ns)
            continue;
        if (s->http_status == 0)
            stream_head(s, 200, api_reply_content_type(&s->reply));
        if (s->keepalive_data)
            api_reply_keepalive(&s->reply, &s->out);
        else
            api_keepalive(&s->out);
        s->last_sent_ns = now_ns;
        stream_flush(s);
    }
}
