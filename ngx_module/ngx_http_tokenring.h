/* ngx_http_tokenring.h: what the module's files share.
 *
 * The module is a content handler under the stock ngx_http_upstream, as scgi or memcached are. What differs is what
 * stands where the others have a socket:
 *
 *     request ── ngx_http_upstream ── stream ──┐
 *     request ── ngx_http_upstream ── stream ──┼── channel ══ rings ══ tokenringd
 *     request ── ngx_http_upstream ── stream ──┘      └─ control socket: hello, doorbells, end of life
 *
 *     module.c     directives, merge, the tokenring_pass directive
 *     request.c    content handler: method, target, headers and body for the worker
 *     response.c   HEAD of the worker into ngx_http_upstream's headers
 *     upstream.c   peer.init/get/free around the balancer's own; hands a stream to ngx_http_upstream
 *     stream.c     the virtual connection: from get to free, and the frames that come for it
 *     gate.c       refusals while the worker says that its queue is full
 *     io.c         its recv, recv_chain and send_chain
 *     channel.c    one ring pair per nginx worker process and backend address, in nginx's event loop
 *     variables.c  $tokenring_*
 *     status.c     the tokenring_status directive: stats files as JSON, for Prometheus, for health checks
 *
 * Everything here runs in one thread, the worker's event loop. The core/ring files are plain C without nginx; they
 * are compiled into the module, and hidden by the linker's version script. */
#ifndef NGX_HTTP_TOKENRING_H
#define NGX_HTTP_TOKENRING_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ring/message.h"

/* One upstream as tokenring_pass sees it: a copy of the real one whose peer.init is ours. So the balancer that the
 * configuration chose stays what it is for everybody else (proxy_pass may name the same upstream). `us` is first:
 * ngx_http_upstream gets a pointer to it and hands it back to peer.init. */
typedef struct {
    ngx_http_upstream_srv_conf_t us;
    ngx_http_upstream_srv_conf_t *original; /* NULL: address is set */
    /* a socket named by a variable: no upstream block knows it */
    ngx_http_upstream_resolved_t *address;
} ngx_http_tokenring_shadow_t;

typedef struct {
    /* of ngx_http_tokenring_shadow_t *: filled after all upstream blocks are complete */
    ngx_array_t shadows;
} ngx_http_tokenring_main_conf_t;

/* tokenring_set_header. An empty value at run time drops the header. */
typedef struct {
    ngx_str_t name; /* lower case */
    ngx_http_complex_value_t value;
} ngx_http_tokenring_header_t;

typedef struct ngx_http_tokenring_status_s ngx_http_tokenring_status_t;

typedef struct {
    ngx_http_upstream_conf_t upstream;

    ngx_str_t uri;      /* URI part of tokenring_pass, "" if none */
    ngx_str_t location; /* prefix which the URI part replaces */

    ngx_http_complex_value_t *pass; /* tokenring_pass with variables, or NULL */
    ngx_array_t *set_headers;       /* of ngx_http_tokenring_header_t, or NULL */

    /* the terms on which the worker serves the request, sent as x-tokenring-* */
    ngx_http_complex_value_t *tenant; /* NULL: not said, as the next two */
    ngx_http_complex_value_t *priority;
    ngx_http_complex_value_t *max_tokens;
    ngx_msec_t keepalive_interval; /* NGX_CONF_UNSET_MSEC: not said */
    ngx_msec_t queue_timeout;
    ngx_msec_t request_timeout;
    ngx_uint_t keepalive;     /* 0: comment, 1: data */
    ngx_uint_t on_disconnect; /* 0: stop, 1: prefill */

    ngx_http_tokenring_status_t *status; /* tokenring_status, or NULL */
} ngx_http_tokenring_loc_conf_t;

typedef struct ngx_http_tokenring_stream_s ngx_http_tokenring_stream_t;

/* The request's context; gone after an internal redirect, as every module's. */
typedef struct {
    ngx_http_tokenring_stream_t *stream; /* current try's, NULL between tries */
    struct message_request *message;     /* method, target and headers; slices into r->pool */
    ngx_str_t uri;                       /* URI part of this request's tokenring_pass */
    size_t head;                         /* bytes of the encoded message in front of the body */
    off_t length;                        /* bytes of the body */
} ngx_http_tokenring_ctx_t;

extern ngx_module_t ngx_http_tokenring_module;

/* Content handler that tokenring_pass installs. */
ngx_int_t ngx_http_tokenring_handler(ngx_http_request_t *r);

/* u->process_header: HEAD into u->headers_in. */
ngx_int_t ngx_http_tokenring_process_header(ngx_http_request_t *r);

/* TRAILER into u->headers_in.trailers, where $tokenring_* and $upstream_trailer_* find it. */
void ngx_http_tokenring_process_trailer(ngx_http_request_t *r, u_char *payload, size_t size);

/* u->input_filter_init: how long the body is. */
ngx_int_t ngx_http_tokenring_input_filter_init(void *data);

/* peer.init of every shadow: lets the balancer set up its peers, then puts our get and free around them. */
ngx_int_t ngx_http_tokenring_init_peer(ngx_http_request_t *r, ngx_http_upstream_srv_conf_t *us);

/* Registers $tokenring_*; at preconfiguration. */
ngx_int_t ngx_http_tokenring_add_variables(ngx_conf_t *cf);

/* The tokenring_status directive, and its inheritance. */
char *ngx_http_tokenring_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
void ngx_http_tokenring_merge_status(ngx_conf_t *cf, ngx_http_tokenring_loc_conf_t *prev,
                                     ngx_http_tokenring_loc_conf_t *conf);

/* The client's X-Request-Id if it is clean, else $request_id. */
ngx_int_t ngx_http_tokenring_request_id(ngx_http_request_t *r, ngx_str_t *id);

/* The first header of that lower-case name in a list of ngx_table_elt_t, or NULL. */
ngx_table_elt_t *ngx_http_tokenring_find_header(ngx_list_t *headers, ngx_str_t *name);

#endif
