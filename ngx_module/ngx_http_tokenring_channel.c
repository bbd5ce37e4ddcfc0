/* The ring in nginx's event loop: control socket, handshake, dispatch of frames, end of turn, end of life. */
#include "ngx_http_tokenring_channel.h"

#include <sys/socket.h>

static ngx_int_t ngx_http_tokenring_channel_connect(ngx_peer_connection_t *pc,
                                                    ngx_http_tokenring_channel_t **chp);
static void ngx_http_tokenring_channel_event_handler(ngx_event_t *ev);
static void ngx_http_tokenring_channel_handshake(ngx_http_tokenring_channel_t *ch);
static void ngx_http_tokenring_channel_dispatch(ngx_http_tokenring_channel_t *ch);
static void ngx_http_tokenring_channel_turn_handler(ngx_event_t *ev);
static void ngx_http_tokenring_channel_timer_handler(ngx_event_t *ev);
static void ngx_http_tokenring_channel_lose(ngx_http_tokenring_channel_t *ch, const char *reason);
static void ngx_http_tokenring_channel_free(ngx_http_tokenring_channel_t *ch);

/* All channels of this process; `next` is NULL until the first one. */
static ngx_queue_t ngx_http_tokenring_channels;

ngx_int_t ngx_http_tokenring_channel_get(ngx_peer_connection_t *pc,
                                         ngx_http_tokenring_channel_t **chp)
{
    ngx_queue_t *q;
    ngx_http_tokenring_channel_t *ch;

    if (ngx_http_tokenring_channels.next == NULL) {
        ngx_queue_init(&ngx_http_tokenring_channels);
    }

    for (q = ngx_queue_head(&ngx_http_tokenring_channels);
         q != ngx_queue_sentinel(&ngx_http_tokenring_channels); q = ngx_queue_next(q)) {
        ch = ngx_queue_data(q, ngx_http_tokenring_channel_t, queue);

        if (ch->state != NGX_HTTP_TOKENRING_CLOSED &&
            ngx_cmp_sockaddr(&ch->sockaddr.sockaddr, ch->socklen, pc->sockaddr, pc->socklen, 1) ==
                NGX_OK) {
            *chp = ch;
            return NGX_OK;
        }
    }

    return ngx_http_tokenring_channel_connect(pc, chp);
}

/* A socket connected to pc's address, without waiting; -1 and *rc if that failed. */
static ngx_socket_t ngx_http_tokenring_channel_socket(ngx_peer_connection_t *pc, ngx_int_t *rc)
{
    ngx_err_t err;
    ngx_uint_t level;
    ngx_socket_t s;

    *rc = NGX_ERROR;

    s = ngx_socket(AF_UNIX, SOCK_STREAM, 0);

    if (s == (ngx_socket_t)-1) {
        ngx_log_error(NGX_LOG_ALERT, pc->log, ngx_socket_errno, ngx_socket_n " failed");
        return (ngx_socket_t)-1;
    }

    if (ngx_nonblocking(s) == -1) {
        ngx_log_error(NGX_LOG_ALERT, pc->log, ngx_socket_errno, ngx_nonblocking_n " failed");
        goto failed;
    }

    if (connect(s, pc->sockaddr, pc->socklen) == -1) {
        err = ngx_socket_errno;

        /* EAGAIN is a full listen queue */
        level = (err == NGX_ECONNREFUSED || err == NGX_EAGAIN) ? NGX_LOG_ERR : NGX_LOG_CRIT;

        ngx_log_error(level, pc->log, err, "connect() to %V failed", pc->name);

        *rc = NGX_DECLINED;
        goto failed;
    }

    return s;

failed:

    if (ngx_close_socket(s) == -1) {
        ngx_log_error(NGX_LOG_ALERT, pc->log, ngx_socket_errno, ngx_close_socket_n " failed");
    }

    return (ngx_socket_t)-1;
}

static ngx_int_t ngx_http_tokenring_channel_connect(ngx_peer_connection_t *pc,
                                                    ngx_http_tokenring_channel_t **chp)
{
    ngx_int_t rc;
    ngx_socket_t s;
    struct error err;
    ngx_connection_t *c;
    ngx_http_tokenring_channel_t *ch;

    static const struct channel_config config = {.features = FEATURE_GATE};

    /*
     * With a level-triggered method nginx would add and delete the events of
     * virtual connections, which no kernel knows.
     */

    if (!(ngx_event_flags & NGX_USE_CLEAR_EVENT)) {
        ngx_log_error(NGX_LOG_ERR, pc->log, 0,
                      "tokenring needs an edge-triggered event method, such as epoll");
        return NGX_ERROR;
    }

    s = ngx_http_tokenring_channel_socket(pc, &rc);
    if (s == (ngx_socket_t)-1) {
        return rc;
    }

    c = ngx_get_connection(s, pc->log);
    if (c == NULL) {
        if (ngx_close_socket(s) == -1) {
            ngx_log_error(NGX_LOG_ALERT, pc->log, ngx_socket_errno, ngx_close_socket_n " failed");
        }

        return NGX_ERROR;
    }

    ch = ngx_calloc(sizeof(ngx_http_tokenring_channel_t) + pc->name->len, ngx_cycle->log);
    if (ch == NULL) {
        ngx_close_connection(c);
        return NGX_ERROR;
    }

    ch->connection = c;
    ch->socklen = pc->socklen;
    ngx_memcpy(&ch->sockaddr, pc->sockaddr, ngx_min(pc->socklen, sizeof(ngx_sockaddr_t)));
    ch->name.len = pc->name->len;
    ch->name.data = (u_char *)(ch + 1);
    ngx_memcpy(ch->name.data, pc->name->data, pc->name->len);

    ngx_queue_init(&ch->streams);
    ngx_queue_insert_tail(&ngx_http_tokenring_channels, &ch->queue);

    /* the channel outlives the request: nothing in it may point to the client's log */

    c->log = ngx_cycle->log;
    c->data = ch;
    c->log_error = NGX_ERROR_ERR;

    c->read->log = c->log;
    c->read->handler = ngx_http_tokenring_channel_event_handler;
    c->write->log = c->log;
    c->write->handler = ngx_http_tokenring_channel_event_handler;

    ch->turn.data = ch;
    ch->turn.log = c->log;
    ch->turn.handler = ngx_http_tokenring_channel_turn_handler;

    ch->timer.data = ch;
    ch->timer.log = c->log;
    ch->timer.handler = ngx_http_tokenring_channel_timer_handler;
    ch->timer.cancelable = 1;

    if (channel_client_start(&ch->ring, s, &config, &err) != STATUS_OK) {
        ngx_log_error(NGX_LOG_ERR, pc->log, 0, "tokenring: no channel to %V: %s", pc->name,
                      err.text);
        ngx_http_tokenring_channel_free(ch);
        return NGX_ERROR;
    }

    /* reads only: every doorbell that the peer eats would be a write event */

    if (ngx_add_event(c->read, NGX_READ_EVENT, NGX_CLEAR_EVENT) != NGX_OK) {
        ngx_http_tokenring_channel_free(ch);
        return NGX_ERROR;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, pc->log, 0, "http tokenring connect to %V, fd:%d", pc->name,
                   s);

    /* on from an event: whatever the handshake comes to, the caller's stream is in the channel's list by then */

    ngx_post_event(c->read, &ngx_posted_events);

    *chp = ch;

    return NGX_OK;
}

static void ngx_http_tokenring_channel_event_handler(ngx_event_t *ev)
{
    ngx_connection_t *c = ev->data;
    ngx_http_tokenring_channel_t *ch = c->data;

    /* c->close: worker_shutdown_timeout; requests end by themselves, the channel in exit_process */

    switch (ch->state) {

    case NGX_HTTP_TOKENRING_CONNECTING:
        ngx_http_tokenring_channel_handshake(ch);
        break;

    case NGX_HTTP_TOKENRING_READY:
        if (!ev->write) {
            ngx_http_tokenring_channel_dispatch(ch);
        }
        break;

    case NGX_HTTP_TOKENRING_CLOSED:
        break;
    }
}

static void ngx_http_tokenring_channel_handshake(ngx_http_tokenring_channel_t *ch)
{
    ngx_queue_t *q, *next;
    struct error err;
    ngx_connection_t *c;
    enum channel_wait wait;

    c = ch->connection;

    wait = channel_handshake_step(&ch->ring, &err);

    switch (wait) {

    case CHANNEL_WANT_WRITE:
        c->write->ready = 0;
        if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
            ngx_http_tokenring_channel_lose(ch, "the event method failed");
        }
        return;

    case CHANNEL_WANT_READ:
        return;

    case CHANNEL_FAILED:
        ngx_log_error(NGX_LOG_ERR, c->log, 0, "tokenring: no channel to %V: %s", &ch->name,
                      err.text);
        ngx_http_tokenring_channel_lose(ch, "no channel to the worker");
        return;

    case CHANNEL_READY:
        break;
    }

    if (c->write->active && ngx_del_event(c->write, NGX_WRITE_EVENT, 0) != NGX_OK) {
        ngx_http_tokenring_channel_lose(ch, "the event method failed");
        return;
    }

    ngx_log_error(NGX_LOG_INFO, c->log, 0,
                  "tokenring: channel to %V is ready, pid %P (%s), %uD streams", &ch->name,
                  (ngx_pid_t)ch->ring.peer_pid, ch->ring.peer_build, (uint32_t)ch->ring.slots);

    ch->state = NGX_HTTP_TOKENRING_READY;

    for (q = ngx_queue_head(&ch->streams); q != ngx_queue_sentinel(&ch->streams); q = next) {
        next = ngx_queue_next(q);
        ngx_http_tokenring_stream_attach(ngx_queue_data(q, ngx_http_tokenring_stream_t, queue));
    }

    /* the answer to the hello and the first doorbell may be one read event */

    ngx_http_tokenring_channel_dispatch(ch);
}

/* Moves everything that has come to its streams. The ring's head is published at the end of the turn, so this takes at
 * most a ring's worth and then ends, however fast the peer writes. */
static void ngx_http_tokenring_channel_dispatch(ngx_http_tokenring_channel_t *ch)
{
    ngx_uint_t level;
    ngx_queue_t *q;
    struct error err;
    enum channel_life life;
    enum channel_event event;
    struct channel_frame frame;

    channel_awake(&ch->ring);

    /* before the frames: what the peer published before it died is then seen below */

    life = channel_drain(&ch->ring);

    for (;;) {
        event = channel_next(&ch->ring, &frame, &err);

        if (event == CHANNEL_NONE) {
            break;
        }

        if (event == CHANNEL_BROKEN) {
            ngx_log_error(NGX_LOG_ALERT, ch->connection->log, 0,
                          "tokenring: the channel to %V is dropped: %s", &ch->name, err.text);
            ngx_http_tokenring_channel_lose(ch, "the worker broke the protocol");
            return;
        }

        ngx_http_tokenring_stream_frame(frame.stream->user, &frame);
    }

    if (life == CHANNEL_EOF) {
        level = ch->nstreams ? NGX_LOG_ERR : NGX_LOG_INFO;

        ngx_log_error(level, ch->connection->log, 0,
                      "tokenring: the worker at %V closed the channel", &ch->name);
        ngx_http_tokenring_channel_lose(ch, "the worker went away");
        return;
    }

    if (channel_take_room(&ch->ring)) {
        for (q = ngx_queue_head(&ch->streams); q != ngx_queue_sentinel(&ch->streams);
             q = ngx_queue_next(q)) {
            ngx_http_tokenring_stream_writable(
                ngx_queue_data(q, ngx_http_tokenring_stream_t, queue));
        }
    }

    /* behind the events that were posted for the streams */

    ngx_http_tokenring_channel_post(ch);
}

void ngx_http_tokenring_channel_post(ngx_http_tokenring_channel_t *ch)
{
    if (ch->state != NGX_HTTP_TOKENRING_READY) {
        return;
    }

    if (!ch->turn.posted) {
        ngx_post_event(&ch->turn, &ngx_posted_events);
    }
}

/* The end of a turn. What arrived since the dispatch waits for the next turn, so that a fast peer cannot keep nginx
 * from its other connections. */
static void ngx_http_tokenring_channel_turn_handler(ngx_event_t *ev)
{
    ngx_http_tokenring_channel_t *ch = ev->data;

    (void)channel_publish(&ch->ring);

    if (channel_sleep(&ch->ring)) {
        ngx_post_event(ch->connection->read, &ngx_posted_next_events);
    }

    if (ch->nstreams && !ch->timer.timer_set) {
        ngx_add_timer(&ch->timer, NGX_HTTP_TOKENRING_RECHECK);
    }
}

/* Nothing should ever depend on this: it turns a lost doorbell into half a second. The peer may just be between
 * publishing and ringing, so only what has waited for a whole period counts. */
static void ngx_http_tokenring_channel_timer_handler(ngx_event_t *ev)
{
    u_char byte;
    ngx_uint_t overdue;
    ngx_http_tokenring_channel_t *ch = ev->data;

    if (ch->state != NGX_HTTP_TOKENRING_READY) {
        return;
    }

    if (ch->nstreams) {
        ngx_add_timer(ev, NGX_HTTP_TOKENRING_RECHECK);
    }

    if (ch->connection->read->posted || !channel_has_work(&ch->ring) ||
        recv(ch->connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != -1) {
        ch->suspect = 0;
        return;
    }

    overdue = ch->suspect && ch->suspect_frames == ch->ring.counters.frames_in;

    ch->suspect = 1;
    ch->suspect_frames = ch->ring.counters.frames_in;

    if (overdue) {
        ch->suspect = 0;
        ch->defects++;

        ngx_log_error(NGX_LOG_WARN, ev->log, 0,
                      "tokenring: work from %V without a doorbell, %ui times now", &ch->name,
                      ch->defects);

        ngx_http_tokenring_channel_dispatch(ch);
    }
}

/* The end of a channel for its streams and for new requests. The peer sees the end of the socket at once; the socket
 * itself stays open while streams borrow its number. */
static void ngx_http_tokenring_channel_lose(ngx_http_tokenring_channel_t *ch, const char *reason)
{
    ngx_queue_t *q, *next;
    ngx_connection_t *c;

    c = ch->connection;

    ch->state = NGX_HTTP_TOKENRING_CLOSED;

    if (c->read->active) {
        (void)ngx_del_event(c->read, NGX_READ_EVENT, 0);
    }

    if (c->write->active) {
        (void)ngx_del_event(c->write, NGX_WRITE_EVENT, 0);
    }

    if (ch->turn.posted) {
        ngx_delete_posted_event(&ch->turn);
    }

    (void)shutdown(c->fd, SHUT_RDWR);

    for (q = ngx_queue_head(&ch->streams); q != ngx_queue_sentinel(&ch->streams); q = next) {
        next = ngx_queue_next(q);
        ngx_http_tokenring_stream_lose(ngx_queue_data(q, ngx_http_tokenring_stream_t, queue),
                                       reason);
    }

    channel_release(&ch->ring);

    if (ch->nstreams == 0) {
        ngx_http_tokenring_channel_free(ch);
    }
}

void ngx_http_tokenring_channel_leave(ngx_http_tokenring_channel_t *ch)
{
    /* a handshake that nobody waits for any more is one that took too long */

    if (ch->nstreams == 0 && ch->state != NGX_HTTP_TOKENRING_READY) {
        ngx_http_tokenring_channel_free(ch);
    }
}

static void ngx_http_tokenring_channel_free(ngx_http_tokenring_channel_t *ch)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0, "http tokenring close channel fd:%d",
                   ch->connection->fd);

    if (ch->turn.posted) {
        ngx_delete_posted_event(&ch->turn);
    }

    if (ch->timer.timer_set) {
        ngx_del_timer(&ch->timer);
    }

    channel_release(&ch->ring);

    ngx_close_connection(ch->connection);

    ngx_queue_remove(&ch->queue);
    ngx_free(ch);
}

void ngx_http_tokenring_exit_process(ngx_cycle_t *cycle)
{
    ngx_queue_t *q;
    ngx_http_tokenring_channel_t *ch;

    if (ngx_http_tokenring_channels.next == NULL) {
        return;
    }

    /* streams may be left where the process was told to terminate; the peer drops them at the end of the socket */

    while (!ngx_queue_empty(&ngx_http_tokenring_channels)) {
        q = ngx_queue_head(&ngx_http_tokenring_channels);
        ch = ngx_queue_data(q, ngx_http_tokenring_channel_t, queue);
        ngx_http_tokenring_channel_free(ch);
    }
}
