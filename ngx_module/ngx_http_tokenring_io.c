/* The virtual connection's recv and send: what ngx_http_upstream takes for a socket.
 *
 * The rules that it lives by, and why:
 *  - read.active = write.active = 1 for life: with an edge-triggered method nginx then never hands these events to the
 *    kernel, and its timers are armed exactly when `active && !ready`.
 *  - c->fd is the channel's control socket: ngx_http_upstream asks it for SO_ERROR.
 *  - read.ready stays 1 while data, the end or an error is still to be told; upstream sleeps otherwise.
 *  - The end and errors are told by a call that returns no data. The end is 0 with read.eof, for a response that its
 *    worker completed; all else is NGX_ERROR with read.error, so that a body without length never looks whole.
 *  - write.ready = 0 whenever send_chain did not take everything; a busy loop in ngx_chain_writer otherwise. */
#include "ngx_http_tokenring_channel.h"

/* Ends an event stream whose worker was lost; constant, so that nothing has to be parsed or escaped. */
static ngx_str_t ngx_http_tokenring_epilogue =
    ngx_string("data: {\"error\":{\"message\":\"The inference worker stopped before the answer was "
               "complete.\",\"type\":\"server_error\",\"param\":null,\"code\":\"worker_lost\"}}\n\n"
               "data: [DONE]\n\n");

/* Bytes that may be given out now: of an event stream whole events only, unless one is too long for that. */
static size_t ngx_http_tokenring_stream_available(ngx_http_tokenring_stream_t *st)
{
    if (!st->sse || st->taken > st->event_end ||
        (st->loose && st->state != NGX_HTTP_TOKENRING_LOST)) {
        return st->received - st->taken;
    }

    return st->event_end - st->taken;
}

ssize_t ngx_http_tokenring_stream_recv(ngx_connection_t *c, u_char *buf, size_t size)
{
    size_t n;
    ngx_event_t *rev;
    ngx_http_tokenring_stream_t *st;

    st = (ngx_http_tokenring_stream_t *)c;
    rev = &st->read;

    if (st->head_unread) {
        /* a head without its body's end, from a worker that is gone: the client has seen nothing, so let another try */
        if (st->state == NGX_HTTP_TOKENRING_LOST && !st->fin) {
            goto failed;
        }

        n = ngx_min(size, st->head_unread);
        ngx_memcpy(buf, st->head + st->head_size - st->head_unread, n);
        st->head_unread -= n;

        return n;
    }

    n = ngx_min(size, ngx_http_tokenring_stream_available(st));

    if (n) {
        ngx_memcpy(buf, st->buffer + st->pos, n);

        st->pos += n;
        st->taken += n;

        if (st->taken <= st->event_end) {
            st->loose = 0;
        }

        if (st->slot) {
            channel_consumed(&st->channel->ring, st->slot, ngx_min(n, st->owed));
            ngx_http_tokenring_channel_post(st->channel);
        }

        st->owed -= ngx_min(n, st->owed);

        return n;
    }

    if (st->fin) {
        if (st->trailer) {
            ngx_http_tokenring_process_trailer(st->request, st->trailer, st->trailer_size);
            st->trailer = NULL;
        }

        rev->ready = 0;
        rev->eof = 1;
        return 0;
    }

    if (st->state != NGX_HTTP_TOKENRING_LOST) {
        rev->ready = 0;
        return NGX_AGAIN;
    }

    if (st->sse && st->taken <= st->event_end && !st->epilogued) {
        /* the rest of an unfinished event was never given out, so the stream can still end as it should */

        ngx_log_error(NGX_LOG_ERR, c->log, 0, "%s, the event stream ends with an error event",
                      st->reason);

        st->epilogued = 1;
        st->epilogue = ngx_http_tokenring_epilogue;
    }

    if (st->epilogued) {
        n = ngx_min(size, st->epilogue.len);

        if (n == 0) {
            rev->ready = 0;
            rev->eof = 1;
            return 0;
        }

        ngx_memcpy(buf, st->epilogue.data, n);
        st->epilogue.data += n;
        st->epilogue.len -= n;

        return n;
    }

failed:

    ngx_log_error(NGX_LOG_ERR, c->log, 0, "%s", st->reason);

    rev->ready = 0;
    rev->error = 1;

    return NGX_ERROR;
}

ngx_uint_t ngx_http_tokenring_stream_pending(ngx_http_tokenring_stream_t *st)
{
    return st->head_unread || st->epilogue.len || ngx_http_tokenring_stream_available(st);
}

ssize_t ngx_http_tokenring_stream_recv_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit)
{
    u_char *last;
    ssize_t n, total;
    ngx_http_tokenring_stream_t *st;

    st = (ngx_http_tokenring_stream_t *)c;
    total = 0;

    for (/* void */; in; in = in->next) {

        for (last = in->buf->last; last < in->buf->end; last += n) {

            n = in->buf->end - last;

            if (limit) {
                if (total >= limit) {
                    return total;
                }

                n = ngx_min(n, limit - total);
            }

            if (total && !ngx_http_tokenring_stream_pending(st)) {
                /* the end or an error is told by the next call */
                return total;
            }

            n = ngx_http_tokenring_stream_recv(c, last, n);

            if (n <= 0) {
                return total ? total : n;
            }

            total += n;
        }
    }

    return total;
}

ssize_t ngx_http_tokenring_stream_send(ngx_connection_t *c, u_char *buf, size_t size)
{
    /* ngx_http_upstream sends by it only after 101 Switching Protocols, which no HEAD can say */
    c->write->error = 1;

    return NGX_ERROR;
}

/* Sends the request head of the stream: its encoded size is what upstream thinks is written. */
static enum channel_send ngx_http_tokenring_stream_send_head(ngx_http_tokenring_stream_t *st)
{
    unsigned flags;
    struct error err;
    enum channel_send rc;

    flags = st->body_unsent ? 0 : FRAME_FIN;

    rc = channel_send_request(&st->channel->ring, st->slot, st->message, flags, &err);

    if (rc == SEND_INVALID) {
        ngx_log_error(NGX_LOG_ERR, st->connection.log, 0, "tokenring: request not sent: %s",
                      err.text);
    }

    return rc;
}

ngx_chain_t *ngx_http_tokenring_stream_send_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit)
{
    size_t size, taken;
    unsigned flags;
    ngx_buf_t *b;
    enum channel_send rc;
    ngx_http_tokenring_stream_t *st;

    st = (ngx_http_tokenring_stream_t *)c;

    if (st->state == NGX_HTTP_TOKENRING_LOST) {
        if (!st->read.error) {
            ngx_log_error(NGX_LOG_ERR, c->log, 0, "%s", st->reason);
        }

        c->write->error = 1;
        return NGX_CHAIN_ERROR;
    }

    if (st->state == NGX_HTTP_TOKENRING_WAITING) {
        c->write->ready = 0;
        return in;
    }

    for (/* void */; in; in = in->next) {
        b = in->buf;
        size = ngx_buf_in_memory(b) ? (size_t)(b->last - b->pos) : 0;

        if (size == 0) {
            continue;
        }

        if (st->fin) {
            /* answered before it was asked to the end: nobody reads the rest */
            b->pos = b->last;
            continue;
        }

        if (st->head_unsent) {
            taken = 0;
            rc = ngx_http_tokenring_stream_send_head(st);

            if (rc == SEND_DONE) {
                taken = st->head_unsent;
                st->head_unsent = 0;
            }

        } else {
            if ((off_t)size > st->body_unsent) {
                ngx_log_error(NGX_LOG_ALERT, c->log, 0,
                              "tokenring: request body is longer than announced");
                c->write->error = 1;
                return NGX_CHAIN_ERROR;
            }

            flags = (off_t)size == st->body_unsent ? FRAME_FIN : 0;

            rc = channel_send_data(&st->channel->ring, st->slot, b->pos, size, flags, &taken);

            st->body_unsent -= taken;
        }

        if (rc == SEND_INVALID) {
            c->write->error = 1;
            return NGX_CHAIN_ERROR;
        }

        b->pos += taken;
        c->sent += taken;

        ngx_http_tokenring_channel_post(st->channel);

        if (rc != SEND_DONE) {
            c->write->ready = 0;
            return in;
        }
    }

    return NULL;
}
