/* The response head: pairs of a HEAD frame into what ngx_http_upstream works with. No HTTP text is parsed here; names
 * and values were checked by message_head_decode, so that none can break out of its header line. */
#include "ngx_http_tokenring_channel.h"

static ngx_table_elt_t *ngx_http_tokenring_push(ngx_http_request_t *r, ngx_list_t *list,
                                                struct message_pair *pair);
static ngx_int_t ngx_http_tokenring_add_header(ngx_http_request_t *r, struct message_pair *pair);
static ngx_uint_t ngx_http_tokenring_is_sse(ngx_http_upstream_t *u);

/* Upstream has read into u->buffer, by the stream's recv, (a part of) the HEAD payload; the stream has it whole. */
ngx_int_t ngx_http_tokenring_process_header(ngx_http_request_t *r)
{
    ssize_t n;
    uint32_t i;
    ngx_int_t rc;
    struct error err;
    ngx_http_upstream_t *u;
    struct message_head head;
    ngx_http_tokenring_ctx_t *ctx;
    ngx_http_tokenring_stream_t *st;

    u = r->upstream;
    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);
    st = ctx->stream;

    if (st->head_unread) {
        return NGX_AGAIN;
    }

    if (message_head_decode(st->head, st->head_size, &head, &err) != STATUS_OK) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "upstream sent invalid header: %s",
                      err.text);
        return NGX_HTTP_UPSTREAM_INVALID_HEADER;
    }

    for (i = 0; i < head.n_pairs; i++) {
        rc = ngx_http_tokenring_add_header(r, &head.pairs[i]);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    u->headers_in.status_n = head.status;

    if (u->state && u->state->status == 0) {
        u->state->status = head.status;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "http tokenring status:%ui pairs:%uD",
                   u->headers_in.status_n, head.n_pairs);

    /* status_line stays empty: nginx writes its own text for the code */

    if (ngx_http_tokenring_is_sse(u)) {
        ngx_http_tokenring_stream_set_sse(st);
    }

    u->buffer.pos = u->buffer.last;

    /* the first token goes to the client in one write with the head */

    if (u->buffer.last < u->buffer.end && ngx_http_tokenring_stream_pending(st)) {
        n = ngx_http_tokenring_stream_recv(&st->connection, u->buffer.last,
                                           u->buffer.end - u->buffer.last);
        u->buffer.last += n;
        u->state->bytes_received += n;
    }

    return NGX_OK;
}

/* A pair as an element of the list, copied to r->pool; NULL if there is no memory. */
static ngx_table_elt_t *ngx_http_tokenring_push(ngx_http_request_t *r, ngx_list_t *list,
                                                struct message_pair *pair)
{
    u_char *p;
    ngx_table_elt_t *h;

    h = ngx_list_push(list);
    if (h == NULL) {
        return NULL;
    }

    h->hash = 0;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    p = ngx_pnalloc(r->pool, pair->name.len + 1 + pair->value.len + 1);
    if (p == NULL) {
        return NULL;
    }

    /* names come in lower case: the key is its own lowcase_key */

    h->key.len = pair->name.len;
    h->key.data = p;
    h->lowcase_key = p;

    p = ngx_cpymem(p, pair->name.ptr, pair->name.len);
    *p++ = '\0';

    h->value.len = pair->value.len;
    h->value.data = p;

    p = ngx_cpymem(p, pair->value.ptr, pair->value.len);
    *p = '\0';

    h->hash = ngx_hash_key(h->key.data, h->key.len);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0, "http tokenring header: \"%V: %V\"",
                   &h->key, &h->value);

    return h;
}

static ngx_int_t ngx_http_tokenring_add_header(ngx_http_request_t *r, struct message_pair *pair)
{
    ngx_table_elt_t *h;
    ngx_http_upstream_t *u;
    ngx_http_upstream_header_t *hh;
    ngx_http_upstream_main_conf_t *umcf;

    u = r->upstream;
    umcf = ngx_http_get_module_main_conf(r, ngx_http_upstream_module);

    h = ngx_http_tokenring_push(r, &u->headers_in.headers, pair);
    if (h == NULL) {
        return NGX_ERROR;
    }

    hh = ngx_hash_find(&umcf->headers_in_hash, h->hash, h->lowcase_key, h->key.len);

    return hh ? hh->handler(r, h, hh->offset) : NGX_OK;
}

void ngx_http_tokenring_process_trailer(ngx_http_request_t *r, u_char *payload, size_t size)
{
    uint32_t i;
    struct error err;
    struct message_head trailer;

    if (message_head_decode(payload, size, &trailer, &err) != STATUS_OK) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "upstream sent invalid trailer: %s",
                      err.text);
        return;
    }

    for (i = 0; i < trailer.n_pairs; i++) {
        if (ngx_http_tokenring_push(r, &r->upstream->headers_in.trailers, &trailer.pairs[i]) ==
            NULL) {
            return;
        }
    }
}

static ngx_uint_t ngx_http_tokenring_is_sse(ngx_http_upstream_t *u)
{
    ngx_str_t *type;

    static ngx_str_t sse = ngx_string("text/event-stream");

    if (u->headers_in.content_type == NULL) {
        return 0;
    }

    type = &u->headers_in.content_type->value;

    return type->len >= sse.len && ngx_strncasecmp(type->data, sse.data, sse.len) == 0 &&
           (type->len == sse.len || type->data[sse.len] == ';' || type->data[sse.len] == ' ');
}

ngx_int_t ngx_http_tokenring_input_filter_init(void *data)
{
    ngx_http_request_t *r = data;
    ngx_http_upstream_t *u;

    u = r->upstream;

    if (u->headers_in.status_n == NGX_HTTP_NO_CONTENT ||
        u->headers_in.status_n == NGX_HTTP_NOT_MODIFIED) {
        u->pipe->length = 0;
        u->length = 0;

    } else if (r->method == NGX_HTTP_HEAD) {
        u->pipe->length = -1;
        u->length = -1;

    } else {
        u->pipe->length = u->headers_in.content_length_n;
        u->length = u->headers_in.content_length_n;
    }

    return NGX_OK;
}
