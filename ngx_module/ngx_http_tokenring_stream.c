/* Streams: their life from peer.get to peer.free, and the frames that come for them. */
#include "ngx_http_tokenring_channel.h"

static void ngx_http_tokenring_stream_hold(ngx_http_tokenring_stream_t *st);
static void ngx_http_tokenring_stream_event_handler(ngx_event_t *ev);
static void ngx_http_tokenring_stream_read_handler(ngx_event_t *ev);

ngx_http_tokenring_stream_t *ngx_http_tokenring_stream_open(ngx_http_request_t *r,
                                                            ngx_http_tokenring_channel_t *ch)
{
    ngx_uint_t refused;
    ngx_connection_t *c;
    struct channel_gate gate;
    ngx_http_tokenring_ctx_t *ctx;
    ngx_http_tokenring_stream_t *st;

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    st = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_stream_t));
    if (st == NULL) {
        return NULL;
    }

    refused = 0;

    if (ch->state == NGX_HTTP_TOKENRING_READY) {
        refused = ngx_http_tokenring_gate_closed(ch, ctx->message, &gate);

        st->slot = refused ? NULL : channel_open(&ch->ring, st);
        if (st->slot == NULL && !refused) {
            ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                          "all %uD streams of the channel to %V are in use",
                          (uint32_t)ch->ring.slots, &ch->name);
            return NULL;
        }

        st->state = NGX_HTTP_TOKENRING_ATTACHED;
    }

    st->request = r;
    st->channel = ch;
    st->message = ctx->message;
    st->head_unsent = ctx->head;
    st->body_unsent = ctx->length;

    st->connection.log = r->connection->log;

    if (refused && ngx_http_tokenring_gate_refuse(st, &gate) != NGX_OK) {
        return NULL;
    }

    ngx_queue_insert_tail(&ch->streams, &st->queue);
    ch->nstreams++;

    c = &st->connection;

    c->fd = ch->connection->fd;
    c->read = &st->read;
    c->write = &st->write;
    c->recv = ngx_http_tokenring_stream_recv;
    c->send = ngx_http_tokenring_stream_send;
    c->recv_chain = ngx_http_tokenring_stream_recv_chain;
    c->send_chain = ngx_http_tokenring_stream_send_chain;

    c->type = SOCK_STREAM;
    c->log_error = NGX_ERROR_ERR;
    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;
    c->tcp_nodelay = NGX_TCP_NODELAY_DISABLED;
    c->tcp_nopush = NGX_TCP_NOPUSH_DISABLED;

    /* not from the cycle's connections: never to be pushed on their free list */
    c->shared = 1;

    st->read.data = c;
    st->read.log = c->log;
    st->read.index = NGX_INVALID_INDEX;
    st->read.handler = ngx_http_tokenring_stream_event_handler;
    st->read.active = 1;

    st->write.data = c;
    st->write.log = c->log;
    st->write.index = NGX_INVALID_INDEX;
    st->write.handler = ngx_http_tokenring_stream_event_handler;
    st->write.active = 1;
    st->write.write = 1;
    st->write.ready = (st->state == NGX_HTTP_TOKENRING_ATTACHED);

    if (refused) {
        /* upstream looks at it when the request is sent; the event is for one whose body is still coming */

        st->read.ready = 1;
        ngx_post_event(&st->read, &ngx_posted_events);
    }

    ctx->stream = st;

    return st;
}

void ngx_http_tokenring_stream_close(ngx_http_tokenring_stream_t *st)
{
    ngx_connection_t *c;
    ngx_http_tokenring_ctx_t *ctx;
    ngx_http_tokenring_channel_t *ch;

    c = &st->connection;
    ch = st->channel;

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, c->log, 0, "http tokenring stream close: s:%d t:%uL r:%uL",
                   (int)st->state, st->taken, st->received);

    if (st->slot) {
        channel_close(&ch->ring, st->slot);
        st->slot = NULL;
        ngx_http_tokenring_channel_post(ch);
    }

    ctx = ngx_http_get_module_ctx(st->request, ngx_http_tokenring_module);
    if (ctx && ctx->stream == st) {
        ctx->stream = NULL;
    }

    if (st->read.timer_set) {
        ngx_del_timer(&st->read);
    }

    if (st->write.timer_set) {
        ngx_del_timer(&st->write);
    }

    if (st->read.posted) {
        ngx_delete_posted_event(&st->read);
    }

    if (st->write.posted) {
        ngx_delete_posted_event(&st->write);
    }

    if (st->buffer) {
        ngx_free(st->buffer);
        st->buffer = NULL;
    }

    if (c->pool) {
        ngx_destroy_pool(c->pool);
        c->pool = NULL;
    }

    c->data = NULL;
    c->fd = (ngx_socket_t)-1;

    ngx_queue_remove(&st->queue);
    ch->nstreams--;

    ngx_http_tokenring_channel_leave(ch);
}

void ngx_http_tokenring_stream_attach(ngx_http_tokenring_stream_t *st)
{
    ngx_http_tokenring_channel_t *ch = st->channel;

    st->slot = channel_open(&ch->ring, st);
    if (st->slot == NULL) {
        ngx_http_tokenring_stream_lose(st, "all streams of the channel are in use");
        return;
    }

    st->state = NGX_HTTP_TOKENRING_ATTACHED;

    ngx_http_tokenring_stream_writable(st);
}

void ngx_http_tokenring_stream_lose(ngx_http_tokenring_stream_t *st, const char *reason)
{
    if (st->slot) {
        channel_close(&st->channel->ring, st->slot);
        st->slot = NULL;
        ngx_http_tokenring_channel_post(st->channel);
    }

    if (st->state == NGX_HTTP_TOKENRING_LOST) {
        return;
    }

    st->state = NGX_HTTP_TOKENRING_LOST;
    st->reason = reason;

    st->read.ready = 1;
    ngx_post_event(&st->read, &ngx_posted_events);

    ngx_http_tokenring_stream_writable(st);
}

void ngx_http_tokenring_stream_writable(ngx_http_tokenring_stream_t *st)
{
    if (!st->write.ready) {
        st->write.ready = 1;
        ngx_post_event(&st->write, &ngx_posted_events);
    }
}

void ngx_http_tokenring_stream_frame(ngx_http_tokenring_stream_t *st, struct channel_frame *frame)
{
    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, st->connection.log, 0,
                   "http tokenring frame t:%d f:%xd a:%uD l:%uD", (int)frame->type,
                   (int)frame->flags, frame->aux, frame->len);

    switch (frame->type) {

    case FRAME_HEAD:
        st->head = ngx_pnalloc(st->request->pool, frame->len);
        if (st->head == NULL) {
            ngx_http_tokenring_stream_lose(st, "no memory for the response");
            return;
        }

        ngx_memcpy(st->head, frame->payload, frame->len);
        st->head_size = frame->len;
        st->head_unread = frame->len;
        break;

    case FRAME_DATA:
        if (ngx_http_tokenring_stream_append(st, frame) != NGX_OK) {
            ngx_http_tokenring_stream_lose(st, "no memory for the response");
            return;
        }
        break;

    case FRAME_TRAILER:
        st->trailer = ngx_pnalloc(st->request->pool, frame->len);
        if (st->trailer) {
            ngx_memcpy(st->trailer, frame->payload, frame->len);
            st->trailer_size = frame->len;
        }

        st->event_end = st->received;
        break;

    case FRAME_RESET:
        ngx_http_tokenring_stream_lose(st, "the worker gave the request up");
        return;

    case FRAME_CREDIT:
        ngx_http_tokenring_stream_writable(st);
        return;
    }

    if (frame->flags & FRAME_FIN) {
        st->fin = 1;
    }

    st->read.ready = 1;
    ngx_post_event(&st->read, &ngx_posted_events);
}

ngx_int_t ngx_http_tokenring_stream_append(ngx_http_tokenring_stream_t *st,
                                           struct channel_frame *frame)
{
    size_t have, capacity;
    u_char *p;

    have = st->received - st->taken;

    if (have == 0) {
        st->pos = 0;
    }

    if (frame->len == 0) {
        /* FIN or EVENT_END alone */
        st->event_end = st->received;
        return NGX_OK;
    }

    if (st->pos + have + frame->len > st->capacity) {

        if (have + frame->len <= st->capacity) {
            ngx_memmove(st->buffer, st->buffer + st->pos, have);

        } else {
            capacity = ngx_max(st->capacity * 2, 4096);

            while (capacity < have + frame->len) {
                capacity *= 2;
            }

            p = ngx_alloc(capacity, st->connection.log);
            if (p == NULL) {
                return NGX_ERROR;
            }

            if (st->buffer) {
                ngx_memcpy(p, st->buffer + st->pos, have);
                ngx_free(st->buffer);
            }

            st->buffer = p;
            st->capacity = capacity;
        }

        st->pos = 0;
    }

    ngx_memcpy(st->buffer + st->pos + have, frame->payload, frame->len);

    st->received += frame->len;
    st->owed += frame->len;

    if (frame->flags & (FRAME_EVENT_END | FRAME_FIN)) {
        st->event_end = st->received;

    } else if (st->sse) {
        ngx_http_tokenring_stream_hold(st);
    }

    return NGX_OK;
}

/* An unfinished event is at the end of the buffer of an event stream. */
static void ngx_http_tokenring_stream_hold(ngx_http_tokenring_stream_t *st)
{
    if (st->received - st->taken > NGX_HTTP_TOKENRING_EVENT_MAX) {
        /* too long to be taken back: it goes on as it comes, and as fast as the client takes it */
        st->loose = 1;
    }

    /* with nothing else to read, an event longer than the window would wait for credit that waits for it */

    if (!st->loose && st->event_end <= st->taken && st->slot) {
        channel_consumed(&st->channel->ring, st->slot, st->owed);
        ngx_http_tokenring_channel_post(st->channel);
        st->owed = 0;
    }
}

/* Until upstream puts its own handlers in place, there is nothing to tell. */
static void ngx_http_tokenring_stream_event_handler(ngx_event_t *ev)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ev->log, 0, "http tokenring early event, write:%d",
                   ev->write);
}

void ngx_http_tokenring_stream_set_sse(ngx_http_tokenring_stream_t *st)
{
    st->sse = 1;

    if (st->received > st->event_end) {
        ngx_http_tokenring_stream_hold(st);
    }

    st->read_handler = st->read.handler;
    st->read.handler = ngx_http_tokenring_stream_read_handler;
}

/* Before upstream's handler: a worker that is silent for tokenring_read_timeout in the middle of an event stream is as
 * good as lost, and the client gets the same end of stream. */
static void ngx_http_tokenring_stream_read_handler(ngx_event_t *ev)
{
    ngx_connection_t *c = ev->data;
    ngx_http_tokenring_stream_t *st;

    st = (ngx_http_tokenring_stream_t *)c;

    if (ev->timedout && !st->fin && st->state != NGX_HTTP_TOKENRING_LOST) {
        ev->timedout = 0;

        ngx_http_tokenring_stream_lose(st, "upstream timed out");
    }

    st->read_handler(ev);
}
