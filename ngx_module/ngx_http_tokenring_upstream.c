/* Between the balancer and ngx_http_upstream: our peer.get asks the balancer for an address and answers with a stream
 * instead of a socket; our peer.free takes the stream away before anybody could close it as a socket. */
#include "ngx_http_tokenring_channel.h"

typedef struct {
    ngx_http_request_t *request;
    ngx_http_tokenring_stream_t *stream; /* of the current try */

    /* the balancer's own */
    void *data;
    ngx_event_get_peer_pt get;
    ngx_event_free_peer_pt free;
    ngx_event_notify_peer_pt notify;
} ngx_http_tokenring_peer_t;

static ngx_int_t ngx_http_tokenring_get_peer(ngx_peer_connection_t *pc, void *data);
static void ngx_http_tokenring_free_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t state);
static void ngx_http_tokenring_notify_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t type);

ngx_int_t ngx_http_tokenring_init_peer(ngx_http_request_t *r, ngx_http_upstream_srv_conf_t *us)
{
    ngx_int_t rc;
    ngx_http_upstream_t *u;
    ngx_http_tokenring_peer_t *peer;
    ngx_http_tokenring_shadow_t *shadow;

    shadow = (ngx_http_tokenring_shadow_t *)us;
    u = r->upstream;

    peer = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_peer_t));
    if (peer == NULL) {
        return NGX_ERROR;
    }

    if (shadow->original) {
        rc = shadow->original->peer.init(r, shadow->original);
    } else {
        rc = ngx_http_upstream_create_round_robin_peer(r, shadow->address);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    peer->request = r;
    peer->data = u->peer.data;
    peer->get = u->peer.get;
    peer->free = u->peer.free;
    peer->notify = u->peer.notify;

    /* set_session and save_session are called for TLS connections only */

    u->peer.data = peer;
    u->peer.get = ngx_http_tokenring_get_peer;
    u->peer.free = ngx_http_tokenring_free_peer;

    if (peer->notify) {
        u->peer.notify = ngx_http_tokenring_notify_peer;
    }

    return NGX_OK;
}

/* NGX_DONE: pc->connection may be written to. NGX_AGAIN: not before its write event, which tokenring_connect_timeout
 * guards. NGX_DECLINED: this peer failed, next_upstream. NGX_ERROR: 500. */
static ngx_int_t ngx_http_tokenring_get_peer(ngx_peer_connection_t *pc, void *data)
{
    ngx_http_tokenring_peer_t *peer = data;

    ngx_int_t rc;
    ngx_http_tokenring_channel_t *ch;

    rc = peer->get(pc, peer->data);

    if (rc == NGX_DONE && pc->connection) {

        /*
         * A keepalive module below us has a cached connection: of
         * proxy_pass to the same upstream, so of another protocol.
         */

        if (pc->connection->pool) {
            ngx_destroy_pool(pc->connection->pool);
        }

        ngx_close_connection(pc->connection);

        pc->connection = NULL;
        pc->cached = 0;

        rc = NGX_OK;
    }

    if (rc != NGX_OK) {
        return rc;
    }

    if (pc->sockaddr->sa_family != AF_UNIX) {
        ngx_log_error(NGX_LOG_ERR, pc->log, 0, "tokenring peer %V is not a unix socket", pc->name);
        return NGX_DECLINED;
    }

    rc = ngx_http_tokenring_channel_get(pc, &ch);
    if (rc != NGX_OK) {
        return rc;
    }

    peer->stream = ngx_http_tokenring_stream_open(peer->request, ch);
    if (peer->stream == NULL) {
        ngx_http_tokenring_channel_leave(ch);
        return NGX_DECLINED;
    }

    pc->connection = &peer->stream->connection;
    pc->cached = 0;

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, pc->log, 0, "http tokenring peer %V, channel:%p s:%d",
                   pc->name, ch, (int)peer->stream->state);

    return peer->stream->state == NGX_HTTP_TOKENRING_ATTACHED ? NGX_DONE : NGX_AGAIN;
}

static void ngx_http_tokenring_free_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t state)
{
    ngx_http_tokenring_peer_t *peer = data;

    if (peer->stream) {

        /* before the balancer's free: keepalive would keep it, upstream would close it */

        pc->connection = NULL;

        ngx_http_tokenring_stream_close(peer->stream);
        peer->stream = NULL;
    }

    peer->free(pc, peer->data, state);
}

static void ngx_http_tokenring_notify_peer(ngx_peer_connection_t *pc, void *data, ngx_uint_t type)
{
    ngx_http_tokenring_peer_t *peer = data;

    peer->notify(pc, peer->data, type);
}
