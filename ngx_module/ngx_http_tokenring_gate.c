/* The gate: while the worker says that its queue is full, generations are refused here, with the answer that the worker
 * would give. It costs neither frame nor doorbell, and leaves the worker's CPUs to the requests inside; the worker counts
 * it, and refuses by itself what passes. All that is not a generation, health and models first of all, always passes.
 *
 * The refused stream is one whose response is complete before it has begun: ngx_http_upstream sees a peer that answers
 * 503, so next_upstream, error_page, $upstream_status and keepalive of the client work as they do with the worker's. */
#include "ngx_http_tokenring_channel.h"

/* What the worker would do with this request: POST, and one of the two paths of generations, read as the worker reads
 * paths (core/api/route.h): without query and slashes at the end, with or without "/v1". */
static ngx_uint_t ngx_http_tokenring_is_generation(struct message_request *m)
{
    const char *query;
    struct slice path;

    path = m->target;

    query = memchr(path.ptr, '?', path.len);
    if (query) {
        path.len = query - path.ptr;
    }

    while (path.len && path.ptr[path.len - 1] == '/') {
        path.len--;
    }

    if (slice_starts(path, slice_of("/v1/"))) {
        path.ptr += sizeof("/v1") - 1;
        path.len -= sizeof("/v1") - 1;
    }

    return slice_is(m->method, "POST") &&
           (slice_is(path, "/completions") || slice_is(path, "/chat/completions"));
}

ngx_uint_t ngx_http_tokenring_gate_closed(ngx_http_tokenring_channel_t *ch,
                                          struct message_request *m, struct channel_gate *gate)
{
    *gate = channel_look_at_gate(&ch->ring);

    return gate->retry_after && ngx_http_tokenring_is_generation(m);
}

/* The id that goes back to the client: ours, unless tokenring_set_header put something there that is none. */
static void ngx_http_tokenring_gate_id(struct message_request *m, struct message_head *head)
{
    size_t i;
    struct slice id;

    id = message_find(m->pairs, m->n_pairs, "x-request-id");

    for (i = 0; i < id.len; i++) {
        if ((u_char)id.ptr[i] <= ' ' || (u_char)id.ptr[i] >= 0x7f) {
            return;
        }
    }

    if (id.len && id.len <= 128) {
        (void)message_add_pair(head->pairs, &head->n_pairs, slice_of("x-request-id"), id);
    }
}

ngx_int_t ngx_http_tokenring_gate_refuse(ngx_http_tokenring_stream_t *st, struct channel_gate *gate)
{
    size_t len;
    u_char *p, body[256], retry[NGX_INT_T_LEN], length[NGX_INT_T_LEN];
    struct error err;
    struct message_head head;
    struct channel_frame frame;

    p = ngx_snprintf(body, sizeof(body),
                     "{\"error\":{\"message\":\"the queue is full: %uD requests are waiting\","
                     "\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}",
                     gate->waiting, status_type(STATUS_QUEUE_FULL), status_code(STATUS_QUEUE_FULL));
    len = p - body;

    head.status = status_http(STATUS_QUEUE_FULL);
    head.n_pairs = 0;

    (void)message_add_pair(head.pairs, &head.n_pairs, slice_of("content-type"),
                           slice_of("application/json"));
    ngx_http_tokenring_gate_id(st->message, &head);

    p = ngx_sprintf(length, "%uz", len);
    (void)message_add_pair(head.pairs, &head.n_pairs, slice_of("content-length"),
                           slice_make(length, p - length));

    p = ngx_sprintf(retry, "%uD", gate->retry_after);
    (void)message_add_pair(head.pairs, &head.n_pairs, slice_of("retry-after"),
                           slice_make(retry, p - retry));

    st->head_size = message_head_size(&head);

    st->head = ngx_pnalloc(st->request->pool, st->head_size);
    if (st->head == NULL ||
        message_head_encode(&head, st->head, st->head_size, &st->head_size, &err) != STATUS_OK) {
        return NGX_ERROR;
    }

    st->head_unread = st->head_size;

    ngx_memzero(&frame, sizeof(struct channel_frame));
    frame.type = FRAME_DATA;
    frame.flags = FRAME_FIN;
    frame.payload = body;
    frame.len = len;

    if (ngx_http_tokenring_stream_append(st, &frame) != NGX_OK) {
        return NGX_ERROR;
    }

    st->fin = 1;

    if (st->request->reading_body) {
        /* unbuffered, and not all here: nginx will throw the rest away and close, so the head must not promise more */
        st->request->keepalive = 0;
    }

    channel_turned_away(&st->channel->ring);

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, st->request->connection->log, 0,
                   "http tokenring refused at the gate, retry:%uD", gate->retry_after);

    return NGX_OK;
}
