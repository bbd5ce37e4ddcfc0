#include "core/worker/incoming.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/api/api.h"
#include "core/base/log.h"
#include "core/stats/writer.h"
#include "core/worker/channels.h"
#include "core/worker/echo.h"
#include "core/worker/front.h"
#include "core/worker/stream.h"
#include "core/worker/terms.h"
#include "core/worker/worker.h"

/* Takes the client's X-Request-Id if it is short and printable, by the module's rule (so that $tokenring_request_id
 * says the same), else makes one. */
static void choose_id(struct stream *s, struct slice given)
{
    bool plain = given.len > 0 && given.len <= STREAM_ID_MAX;
    for (size_t i = 0; plain && i < given.len; i++) {
        unsigned char c = (unsigned char)given.ptr[i];
        plain = c > ' ' && c < 0x7f;
    }
    if (plain)
        snprintf(s->id, sizeof(s->id), "%.*s", (int)given.len, given.ptr);
    else
        snprintf(s->id, sizeof(s->id), "%016" PRIx64 "%08" PRIx64, s->worker->id_key, s->number);
}

/* Method and path for the log, without what could break a line or a terminal. */
static void describe(struct stream *s, struct slice method, struct slice path)
{
    snprintf(s->what, sizeof(s->what), "%.*s %.*s", (int)(method.len < 16 ? method.len : 16),
             method.ptr, (int)(path.len < 70 ? path.len : 70), path.ptr);
    for (char *p = s->what; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f || *p == '"')
            *p = '?';
}

static void fail(struct stream *s, enum status status, const char *text)
{
    struct error err = {0};
    error_set(&err, status, "%s", text);
    stream_fail(s, &err);
}

static void answer_health(struct stream *s)
{
    struct worker *w = s->worker;
    struct api_health health = {
        .state = API_HEALTH_OK, .version = TOKENRING_VERSION, .percent = 100};
    if (w->state == WORKER_LOADING) {
        health.state = API_HEALTH_LOADING;
        health.percent = engine_percent(&w->engine);
    } else if (w->state != WORKER_READY) {
        health.state = API_HEALTH_DRAINING;
    }
    if (w->engine.name[0] != '\0')
        health.model = w->engine.name;
    if (w->engine.sched != NULL) {
        health.running = sched_running(w->engine.sched);
        health.waiting = sched_waiting(w->engine.sched);
    }
    struct buffer body = {0};
    unsigned status = (unsigned)api_health_json(&health, &body);
    if (status == 503)
        s->retry_after = (unsigned)w->options->retry_after;
    stream_answer(s, status, "application/json", buffer_slice(&body));
    buffer_release(&body);
}

static void answer_models(struct stream *s, const struct api_route *route)
{
    struct worker *w = s->worker;
    struct error err = {0};
    struct buffer body = {0};
    enum status status = STATUS_OK;
    if (w->state == WORKER_LOADING)
        status = lifecycle_admits(w, &err);
    else if (w->engine.sched == NULL)
        status = error_set(&err, STATUS_MODEL_NOT_FOUND, "this worker serves no model");
    else if (route->endpoint == API_MODELS)
        api_models_json(&w->engine.context, &body);
    else
        status = api_model_json(&w->engine.context, route->model, &body, &err);
    if (status != STATUS_OK)
        stream_fail(s, &err);
    else
        stream_answer(s, 200, "application/json", buffer_slice(&body));
    buffer_release(&body);
}

/* The body is complete: to work with it. */
static void body_complete(struct stream *s)
{
    struct error err = {0};
    unsigned retry_after = 0;
    if (s->is_echo)
        echo_start(s);
    else if (lifecycle_admits(s->worker, &err) != STATUS_OK)
        stream_fail(s, &err); /* a drain that began while the body came */
    else if (sched_has_room(s->worker->engine.sched, 1, &retry_after, &err) != STATUS_OK)
        stream_fail_later(s, &err, retry_after); /* parsing it would take time from those inside */
    else
        front_start(s);
}

/* Routes a new request; leaves it in STREAM_BODY if its body is wanted. False if it was answered. */
static bool route_request(struct stream *s, const struct message_request *m)
{
    struct worker *w = s->worker;
    struct error err = {0};
    const char *mark = memchr(m->target.ptr, '?', m->target.len);
    size_t path_len = mark != NULL ? (size_t)(mark - m->target.ptr) : m->target.len;
    struct slice path = slice_make(m->target.ptr, path_len);
    choose_id(s, message_find(m->pairs, m->n_pairs, "x-request-id"));
    describe(s, m->method, path);
    terms_read(s, m);
    if (w->n_streams > w->options->max_streams) {
        fail(s, STATUS_QUEUE_FULL, "too many requests are in the worker (--max-streams)");
        return false;
    }
    s->is_echo = w->options->test_echo && echo_path(path);
    if (s->is_echo) {
        if (mark != NULL)
            buffer_add(&s->query, mark + 1, m->target.len - path_len - 1);
    } else {
        struct api_route route = api_route(m->method, path);
        s->endpoint = route.endpoint;
        switch (route.endpoint) {
        case API_HEALTH:
            answer_health(s);
            return false;
        case API_MODELS:
        case API_MODEL:
            answer_models(s, &route);
            return false;
        case API_METHOD:
        case API_NOT_FOUND:
            s->allow = *route.allow != '\0' ? route.allow : NULL;
            api_route_error(&route, m->method, path, &err);
            stream_fail(s, &err);
            return false;
        case API_CHAT:
        case API_COMPLETIONS:
            break;
        }
        if (lifecycle_admits(w, &err) != STATUS_OK) {
            stream_fail(s, &err);
            return false;
        }
    }
    struct slice length = message_find(m->pairs, m->n_pairs, "content-length");
    uint64_t announced = 0;
    for (size_t i = 0;
         i < length.len && length.ptr[i] >= '0' && length.ptr[i] <= '9' && announced <= UINT32_MAX;
         i++)
        announced = announced * 10 + (uint64_t)(length.ptr[i] - '0');
    if (announced > w->options->max_body) {
        error_set(&err, STATUS_TOO_LARGE, "the body has %" PRIu64 " bytes, the limit is %" PRIu64,
                  announced, w->options->max_body);
        stream_fail(s, &err);
        return false;
    }
    return true;
}

static void new_request(struct link *link, const struct channel_frame *frame)
{
    struct worker *w = link->worker;
    struct message_request m;
    struct error err = {0};
    if (message_request_decode(frame->payload, frame->len, &m, &err) != STATUS_OK) {
        channel_fail(&link->channel, err.text);
        return;
    }
    struct stream *s = stream_new(w, link, frame->stream);
    stats_add(w->stats, STATS_CELL_LOOP, STAT_streams_total, 1);
    if (route_request(s, &m) && (frame->flags & FRAME_FIN) != 0)
        body_complete(s);
}

static void body_data(struct stream *s, const struct channel_frame *frame)
{
    struct worker *w = s->worker;
    struct error err = {0};
    channel_consumed(&s->link->channel, s->cs, frame->len);
    if (s->phase != STREAM_BODY || s->ended)
        return; /* answered early: what still comes is not wanted */
    if (s->body.len + frame->len > w->options->max_body) {
        error_set(&err, STATUS_TOO_LARGE, "the body is longer than %" PRIu64 " bytes",
                  w->options->max_body);
        stream_drop_body(s);
        stream_fail(s, &err);
        return;
    }
    if (w->body_bytes + frame->len > w->options->max_body_memory) {
        stream_drop_body(s);
        fail(s, STATUS_NO_MEMORY, "too many bodies are being received (--max-body-memory)");
        return;
    }
    buffer_add(&s->body, frame->payload, frame->len);
    w->body_bytes += frame->len;
    if ((frame->flags & FRAME_FIN) != 0)
        body_complete(s);
}

void incoming_frame(struct link *link, const struct channel_frame *frame)
{
    struct stream *s = frame->stream->user;
    switch (frame->type) {
    case FRAME_REQUEST:
        new_request(link, frame);
        break;
    case FRAME_DATA:
        if (s != NULL)
            body_data(s, frame);
        break;
    case FRAME_CANCEL:
        if (s != NULL) {
            stats_add(link->worker->stats, STATS_CELL_LOOP, STAT_stream_aborts, 1);
            stream_lost(s, true);
        }
        break;
    case FRAME_CREDIT:
        if (s != NULL)
            stream_flush(s);
        break;
    default: /* channel_next lets nothing else through to a server */
        break;
    }
}
