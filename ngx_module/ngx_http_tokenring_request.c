/* The content handler: what goes to the worker as REQUEST and DATA. */
#include "ngx_http_tokenring_channel.h"

static ngx_int_t ngx_http_tokenring_eval(ngx_http_request_t *r, ngx_http_tokenring_ctx_t *ctx,
                                         ngx_http_tokenring_loc_conf_t *tlcf);
static ngx_int_t ngx_http_tokenring_target(ngx_http_request_t *r, ngx_http_tokenring_ctx_t *ctx,
                                           ngx_http_tokenring_loc_conf_t *tlcf);
static ngx_int_t ngx_http_tokenring_headers(ngx_http_request_t *r, ngx_http_tokenring_ctx_t *ctx,
                                            ngx_http_tokenring_loc_conf_t *tlcf);
static ngx_int_t ngx_http_tokenring_terms(ngx_http_request_t *r, struct message_request *m,
                                          ngx_http_tokenring_loc_conf_t *tlcf);
static ngx_int_t ngx_http_tokenring_check(ngx_http_request_t *r, ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_create_request(ngx_http_request_t *r);
static ngx_int_t ngx_http_tokenring_reinit_request(ngx_http_request_t *r);
static void ngx_http_tokenring_abort_request(ngx_http_request_t *r);
static void ngx_http_tokenring_finalize_request(ngx_http_request_t *r, ngx_int_t rc);

/* Bytes of the content-length pair, which is added when the body is known. */
#define NGX_HTTP_TOKENRING_LENGTH_ROOM 64

/* The request headers that go to the worker, besides x-request-id and content-length, which are always made here, and
 * those of tokenring_set_header. */
static ngx_str_t ngx_http_tokenring_allowed[] = {
    ngx_string("host"),         ngx_string("content-type"),
    ngx_string("accept"),       ngx_string("authorization"),
    ngx_string("user-agent"),   ngx_string("traceparent"),
    ngx_string("x-session-id"), ngx_null_string};

ngx_int_t ngx_http_tokenring_handler(ngx_http_request_t *r)
{
    ngx_int_t rc;
    ngx_http_upstream_t *u;
    ngx_http_tokenring_ctx_t *ctx;
    ngx_http_tokenring_loc_conf_t *tlcf;

    if (ngx_http_upstream_create(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_ctx_t));
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_set_ctx(r, ctx, ngx_http_tokenring_module);

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    u = r->upstream;

    ngx_str_set(&u->schema, "tokenring://");
    u->output.tag = (ngx_buf_tag_t)&ngx_http_tokenring_module;

    u->conf = &tlcf->upstream;
    ctx->uri = tlcf->uri;

    if (tlcf->pass && ngx_http_tokenring_eval(r, ctx, tlcf) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_tokenring_headers(r, ctx, tlcf);
    if (rc != NGX_OK) {
        return rc;
    }

    rc = ngx_http_tokenring_check(r, ctx);
    if (rc != NGX_OK) {
        return rc;
    }

    u->create_request = ngx_http_tokenring_create_request;
    u->reinit_request = ngx_http_tokenring_reinit_request;
    u->process_header = ngx_http_tokenring_process_header;
    u->abort_request = ngx_http_tokenring_abort_request;
    u->finalize_request = ngx_http_tokenring_finalize_request;

    u->buffering = tlcf->upstream.buffering;

    u->pipe = ngx_pcalloc(r->pool, sizeof(ngx_event_pipe_t));
    if (u->pipe == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    u->pipe->input_filter = ngx_event_pipe_copy_input_filter;
    u->pipe->input_ctx = r;

    u->input_filter_init = ngx_http_tokenring_input_filter_init;
    u->input_filter = ngx_http_upstream_non_buffered_filter;
    u->input_filter_ctx = r;

    u->accel = 1;

    /* the end of the body has to be known from its length */

    if (!tlcf->upstream.request_buffering && r->headers_in.content_length_n >= 0 &&
        !r->headers_in.chunked) {
        r->request_body_no_buffering = 1;
    }

    rc = ngx_http_read_client_request_body(r, ngx_http_upstream_init);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    return NGX_DONE;
}

/* tokenring_pass with variables. u->resolved stays NULL: ngx_http_upstream would go round peer.init for a literal
 * address. Instead this request gets its own copy of the configuration, with its own shadow in it. */
static ngx_int_t ngx_http_tokenring_eval(ngx_http_request_t *r, ngx_http_tokenring_ctx_t *ctx,
                                         ngx_http_tokenring_loc_conf_t *tlcf)
{
    ngx_url_t url;
    ngx_uint_t i;
    ngx_http_upstream_conf_t *conf;
    ngx_http_tokenring_shadow_t *shadow;
    ngx_http_upstream_srv_conf_t **uscfp;
    ngx_http_upstream_main_conf_t *umcf;

    ngx_memzero(&url, sizeof(ngx_url_t));

    if (ngx_http_complex_value(r, tlcf->pass, &url.url) != NGX_OK) {
        return NGX_ERROR;
    }

    url.uri_part = 1;
    url.no_resolve = 1;

    if (ngx_parse_url(r->pool, &url) != NGX_OK) {
        if (url.err) {
            ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "%s in upstream \"%V\"", url.err,
                          &url.url);
        }

        return NGX_ERROR;
    }

    ctx->uri = url.uri;

    conf = ngx_palloc(r->pool, sizeof(ngx_http_upstream_conf_t));
    if (conf == NULL) {
        return NGX_ERROR;
    }

    shadow = ngx_pcalloc(r->pool, sizeof(ngx_http_tokenring_shadow_t));
    if (shadow == NULL) {
        return NGX_ERROR;
    }

    *conf = tlcf->upstream;
    conf->upstream = &shadow->us;
    r->upstream->conf = conf;

    umcf = ngx_http_get_module_main_conf(r, ngx_http_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {
        if (uscfp[i]->host.len == url.host.len &&
            ((uscfp[i]->port == 0 && url.no_port) || uscfp[i]->port == url.port) &&
            ngx_strncasecmp(uscfp[i]->host.data, url.host.data, url.host.len) == 0) {
            shadow->original = uscfp[i];
            shadow->us = *uscfp[i];
            shadow->us.peer.init = ngx_http_tokenring_init_peer;
            return NGX_OK;
        }
    }

    if (url.family != AF_UNIX) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "\"%V\" is neither a \"unix:\" socket nor the name of an upstream", &url.url);
        return NGX_ERROR;
    }

    shadow->address = ngx_pcalloc(r->pool, sizeof(ngx_http_upstream_resolved_t));
    if (shadow->address == NULL) {
        return NGX_ERROR;
    }

    shadow->address->sockaddr = url.addrs[0].sockaddr;
    shadow->address->socklen = url.addrs[0].socklen;
    shadow->address->name = url.addrs[0].name;
    shadow->address->naddrs = 1;
    shadow->address->host = url.host;
    shadow->address->no_port = 1;

    shadow->us.host = url.host;
    shadow->us.no_port = 1;
    shadow->us.peer.init = ngx_http_tokenring_init_peer;

    return NGX_OK;
}

static struct slice ngx_http_tokenring_slice(ngx_str_t *s)
{
    return slice_make(s->data, s->len);
}

/* Path and query for the worker, by proxy_pass's rules: the URI part of tokenring_pass replaces the location's prefix;
 * without one the client's own target goes on; with variables the URI part is all. */
static ngx_int_t ngx_http_tokenring_target(ngx_http_request_t *r, ngx_http_tokenring_ctx_t *ctx,
                                           ngx_http_tokenring_loc_conf_t *tlcf)
{
    u_char *p;
    size_t len, loc_len;
    ngx_str_t target;
    uintptr_t escape;

    if (tlcf->pass && ctx->uri.len) {
        target = ctx->uri;

    } else if (ctx->uri.len == 0 && r->valid_unparsed_uri) {
        target = r->unparsed_uri;

    } else {
        loc_len = (r->valid_location && ctx->uri.len) ? tlcf->location.len : 0;

        escape = 0;

        if (r->quoted_uri || r->internal) {
            escape = 2 * ngx_escape_uri(NULL, r->uri.data + loc_len, r->uri.len - loc_len,
                                        NGX_ESCAPE_URI);
        }

        len = ctx->uri.len + r->uri.len - loc_len + escape + sizeof("?") - 1 + r->args.len;

        p = ngx_pnalloc(r->pool, len);
        if (p == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        target.data = p;

        if (r->valid_location) {
            p = ngx_copy(p, ctx->uri.data, ctx->uri.len);
        }

        if (escape) {
            ngx_escape_uri(p, r->uri.data + loc_len, r->uri.len - loc_len, NGX_ESCAPE_URI);
            p += r->uri.len - loc_len + escape;

        } else {
            p = ngx_copy(p, r->uri.data + loc_len, r->uri.len - loc_len);
        }

        if (r->args.len > 0) {
            *p++ = '?';
            p = ngx_copy(p, r->args.data, r->args.len);
        }

        target.len = p - target.data;
    }

    if (target.len == 0 || target.data[0] != '/') {

        /* "/" was replaced by "?x", or by nothing */

        p = ngx_pnalloc(r->pool, target.len + 1);
        if (p == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        *p = '/';
        ngx_memcpy(p + 1, target.data, target.len);

        target.data = p;
        target.len++;
    }

    r->upstream->uri = target;
    ctx->message->target = ngx_http_tokenring_slice(&target);

    return NGX_OK;
}

static ngx_int_t ngx_http_tokenring_add_pair(struct message_request *m, ngx_str_t *name,
                                             ngx_str_t *value)
{
    return message_add_pair(m->pairs, &m->n_pairs, ngx_http_tokenring_slice(name),
                            ngx_http_tokenring_slice(value))
               ? NGX_OK
               : NGX_ERROR;
}

/* Is the name given by tokenring_set_header? */
static ngx_uint_t ngx_http_tokenring_is_set(ngx_http_tokenring_loc_conf_t *tlcf, ngx_str_t *name)
{
    ngx_uint_t i;
    ngx_http_tokenring_header_t *h;

    if (tlcf->set_headers == NULL) {
        return 0;
    }

    h = tlcf->set_headers->elts;

    for (i = 0; i < tlcf->set_headers->nelts; i++) {
        if (h[i].name.len == name->len && ngx_strncmp(h[i].name.data, name->data, name->len) == 0) {
            return 1;
        }
    }

    return 0;
}

/* What the configuration says of how the worker is to serve the request. A client cannot: its headers of these names
 * are not among those allowed. */
static ngx_int_t ngx_http_tokenring_terms(ngx_http_request_t *r, struct message_request *m,
                                          ngx_http_tokenring_loc_conf_t *tlcf)
{
    ngx_str_t value;
    ngx_uint_t i;

    static ngx_str_t names[] = {ngx_string("x-tokenring-tenant"),
                                ngx_string("x-tokenring-priority"),
                                ngx_string("x-tokenring-max-tokens")};
    static ngx_str_t times[] = {ngx_string("x-tokenring-keepalive-interval"),
                                ngx_string("x-tokenring-queue-timeout"),
                                ngx_string("x-tokenring-request-timeout")};
    static ngx_str_t keepalive = ngx_string("x-tokenring-keepalive"), data = ngx_string("data");
    static ngx_str_t on_disconnect = ngx_string("x-tokenring-on-disconnect");
    static ngx_str_t prefill = ngx_string("prefill");

    ngx_http_complex_value_t *values[] = {tlcf->tenant, tlcf->priority, tlcf->max_tokens};
    ngx_msec_t msec[] = {tlcf->keepalive_interval, tlcf->queue_timeout, tlcf->request_timeout};

    for (i = 0; i < 3; i++) {
        if (values[i] == NULL) {
            continue;
        }

        if (ngx_http_complex_value(r, values[i], &value) != NGX_OK) {
            return NGX_ERROR;
        }

        if (value.len) {
            (void)ngx_http_tokenring_add_pair(m, &names[i], &value);
        }
    }

    for (i = 0; i < 3; i++) {
        if (msec[i] == NGX_CONF_UNSET_MSEC) {
            continue;
        }

        value.data = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
        if (value.data == NULL) {
            return NGX_ERROR;
        }

        value.len = ngx_sprintf(value.data, "%M", msec[i]) - value.data;

        (void)ngx_http_tokenring_add_pair(m, &times[i], &value);
    }

    if (tlcf->keepalive) {
        (void)ngx_http_tokenring_add_pair(m, &keepalive, &data);
    }

    if (tlcf->on_disconnect) {
        (void)ngx_http_tokenring_add_pair(m, &on_disconnect, &prefill);
    }

    return NGX_OK;
}

/* Fills ctx->message but for content-length. Returns NGX_OK or the HTTP status of a request that cannot be sent. */
static ngx_int_t ngx_http_tokenring_headers(ngx_http_request_t *r, ngx_http_tokenring_ctx_t *ctx,
                                            ngx_http_tokenring_loc_conf_t *tlcf)
{
    ngx_int_t rc;
    ngx_str_t value, *name;
    ngx_uint_t i;
    ngx_table_elt_t *h;
    struct message_request *m;
    ngx_http_tokenring_header_t *set;

    static ngx_str_t request_id = ngx_string("x-request-id");

    m = ngx_pcalloc(r->pool, sizeof(struct message_request));
    if (m == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->message = m;
    m->method = ngx_http_tokenring_slice(&r->method_name);

    rc = ngx_http_tokenring_target(r, ctx, tlcf);
    if (rc != NGX_OK) {
        return rc;
    }

    if (!ngx_http_tokenring_is_set(tlcf, &request_id)) {
        if (ngx_http_tokenring_request_id(r, &value) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        (void)ngx_http_tokenring_add_pair(m, &request_id, &value);
    }

    for (name = ngx_http_tokenring_allowed; name->len; name++) {
        if (ngx_http_tokenring_is_set(tlcf, name)) {
            continue;
        }

        h = ngx_http_tokenring_find_header(&r->headers_in.headers, name);
        if (h) {
            (void)ngx_http_tokenring_add_pair(m, name, &h->value);
        }
    }

    if (ngx_http_tokenring_terms(r, m, tlcf) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (tlcf->set_headers) {
        set = tlcf->set_headers->elts;

        for (i = 0; i < tlcf->set_headers->nelts; i++) {
            if (ngx_http_complex_value(r, &set[i].value, &value) != NGX_OK) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }

            if (value.len == 0) {
                continue;
            }

            if (ngx_http_tokenring_add_pair(m, &set[i].name, &value) != NGX_OK) {
                ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                              "too many headers by \"tokenring_set_header\"");
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }
        }
    }

    return NGX_OK;
}

/* Can the message be sent at all? Asked before the body is read, while the answer can still be a plain status. */
static ngx_int_t ngx_http_tokenring_check(ngx_http_request_t *r, ngx_http_tokenring_ctx_t *ctx)
{
    size_t len;
    u_char *p;
    struct error err;
    enum status status;

    len = message_request_size(ctx->message);

    if (len + NGX_HTTP_TOKENRING_LENGTH_ROOM > FRAME_PAYLOAD_MAX) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "client sent too long URI and headers to pass on: %uz bytes", len);
        return NGX_HTTP_REQUEST_HEADER_TOO_LARGE;
    }

    p = ngx_pnalloc(r->pool, len);
    if (p == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    status = message_request_encode(ctx->message, p, len, &len, &err);

    if (status != STATUS_OK) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "client sent a request that cannot be passed on: %s", err.text);
        return NGX_HTTP_BAD_REQUEST;
    }

    return NGX_OK;
}

/* Called when the body was read (or, without buffering, begun), once for all tries. */
static ngx_int_t ngx_http_tokenring_create_request(ngx_http_request_t *r)
{
    u_char *p;
    ngx_buf_t *b;
    ngx_str_t value;
    ngx_chain_t *cl, *body, **ll;
    ngx_http_upstream_t *u;
    ngx_http_tokenring_ctx_t *ctx;

    static ngx_str_t content_length = ngx_string("content-length");

    u = r->upstream;
    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    body = r->request_body_no_buffering ? NULL : u->request_bufs;
    ctx->length = 0;

    if (r->request_body_no_buffering) {
        ctx->length = r->headers_in.content_length_n;

    } else {
        for (cl = body; cl; cl = cl->next) {
            ctx->length += ngx_buf_size(cl->buf);
        }
    }

    if (ctx->length) {
        p = ngx_pnalloc(r->pool, NGX_OFF_T_LEN);
        if (p == NULL) {
            return NGX_ERROR;
        }

        value.data = p;
        value.len = ngx_sprintf(p, "%O", ctx->length) - p;

        (void)ngx_http_tokenring_add_pair(ctx->message, &content_length, &value);
    }

    /*
     * The buffer in front of the body stands for the REQUEST frame, so that
     * upstream accounts and resends it. Its bytes are never looked at: the
     * stream encodes the message into the ring.
     */

    ctx->head = message_request_size(ctx->message);

    b = ngx_create_temp_buf(r->pool, ctx->head);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->last = b->end;

    cl = ngx_alloc_chain_link(r->pool);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    cl->buf = b;

    u->request_bufs = cl;
    ll = &cl->next;

    /* copies, so that the body is still whole for an error_page that passes it elsewhere */

    for (/* void */; body; body = body->next) {
        cl = ngx_alloc_chain_link(r->pool);
        b = ngx_alloc_buf(r->pool);

        if (cl == NULL || b == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(b, body->buf, sizeof(ngx_buf_t));

        cl->buf = b;
        *ll = cl;
        ll = &cl->next;
    }

    *ll = NULL;

    return NGX_OK;
}

/* The next try: upstream has rewound the buffers, and the next stream starts from ctx. */
static ngx_int_t ngx_http_tokenring_reinit_request(ngx_http_request_t *r)
{
    r->state = 0;

    return NGX_OK;
}

static void ngx_http_tokenring_abort_request(ngx_http_request_t *r)
{
    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "abort http tokenring request");
}

static void ngx_http_tokenring_finalize_request(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "finalize http tokenring request: %i",
                   rc);
}
