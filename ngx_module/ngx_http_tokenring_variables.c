/* $tokenring_*. The numbers come from the worker as X-Tokenring-* headers of HEAD (known when the answer begins) and of
 * the trailer (known when it ends); where both have one, the trailer's counts. Not known is "-" in a log. */
#include "ngx_http_tokenring_channel.h"

/* A client's X-Request-Id up to this long is taken over. */
#define NGX_HTTP_TOKENRING_REQUEST_ID_MAX 128

static ngx_int_t ngx_http_tokenring_request_id_variable(ngx_http_request_t *r,
                                                        ngx_http_variable_value_t *v,
                                                        uintptr_t data);
static ngx_int_t ngx_http_tokenring_result_variable(ngx_http_request_t *r,
                                                    ngx_http_variable_value_t *v, uintptr_t data);

static ngx_str_t ngx_http_tokenring_results[] = {ngx_string("x-tokenring-prompt-tokens"),
                                                 ngx_string("x-tokenring-cached-tokens"),
                                                 ngx_string("x-tokenring-completion-tokens"),
                                                 ngx_string("x-tokenring-queue-ms"),
                                                 ngx_string("x-tokenring-ttft-ms"),
                                                 ngx_string("x-tokenring-finish"),
                                                 ngx_string("x-tokenring-cache"),
                                                 ngx_string("x-tokenring-draft-tokens"),
                                                 ngx_string("x-tokenring-draft-accepted")};

static ngx_http_variable_t ngx_http_tokenring_vars[] = {

    {ngx_string("tokenring_request_id"), NULL, ngx_http_tokenring_request_id_variable, 0, 0, 0},

    {ngx_string("tokenring_prompt_tokens"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[0], NGX_HTTP_VAR_NOCACHEABLE, 0},

    {ngx_string("tokenring_cached_tokens"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[1], NGX_HTTP_VAR_NOCACHEABLE, 0},

    {ngx_string("tokenring_completion_tokens"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[2], NGX_HTTP_VAR_NOCACHEABLE, 0},

    {ngx_string("tokenring_queue_ms"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[3], NGX_HTTP_VAR_NOCACHEABLE, 0},

    {ngx_string("tokenring_ttft_ms"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[4], NGX_HTTP_VAR_NOCACHEABLE, 0},

    {ngx_string("tokenring_finish_reason"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[5], NGX_HTTP_VAR_NOCACHEABLE, 0},

    {ngx_string("tokenring_cache"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[6], NGX_HTTP_VAR_NOCACHEABLE, 0},

    {ngx_string("tokenring_draft_tokens"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[7], NGX_HTTP_VAR_NOCACHEABLE, 0},

    {ngx_string("tokenring_draft_accepted"), NULL, ngx_http_tokenring_result_variable,
     (uintptr_t)&ngx_http_tokenring_results[8], NGX_HTTP_VAR_NOCACHEABLE, 0},

    ngx_http_null_variable};

ngx_int_t ngx_http_tokenring_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t *var, *v;

    for (v = ngx_http_tokenring_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}

ngx_table_elt_t *ngx_http_tokenring_find_header(ngx_list_t *headers, ngx_str_t *name)
{
    ngx_uint_t i;
    ngx_list_part_t *part;
    ngx_table_elt_t *h;

    for (part = &headers->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (h[i].hash && h[i].key.len == name->len &&
                ngx_strncmp(h[i].lowcase_key, name->data, name->len) == 0) {
                return &h[i];
            }
        }
    }

    return NULL;
}

ngx_int_t ngx_http_tokenring_request_id(ngx_http_request_t *r, ngx_str_t *id)
{
    size_t i;
    ngx_uint_t key;
    ngx_table_elt_t *h;
    ngx_http_variable_value_t *v;

    static ngx_str_t header = ngx_string("x-request-id");
    static ngx_str_t variable = ngx_string("request_id");

    h = ngx_http_tokenring_find_header(&r->headers_in.headers, &header);

    if (h && h->value.len && h->value.len <= NGX_HTTP_TOKENRING_REQUEST_ID_MAX) {
        for (i = 0; i < h->value.len; i++) {
            if (h->value.data[i] <= ' ' || h->value.data[i] >= 0x7f) {
                break;
            }
        }

        if (i == h->value.len) {
            *id = h->value;
            return NGX_OK;
        }
    }

    key = ngx_hash_key(variable.data, variable.len);

    v = ngx_http_get_variable(r, &variable, key);

    if (v == NULL || v->not_found) {
        return NGX_ERROR;
    }

    id->len = v->len;
    id->data = v->data;

    return NGX_OK;
}

static ngx_int_t ngx_http_tokenring_request_id_variable(ngx_http_request_t *r,
                                                        ngx_http_variable_value_t *v,
                                                        uintptr_t data)
{
    ngx_str_t id;

    if (ngx_http_tokenring_request_id(r, &id) != NGX_OK) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->len = id.len;
    v->data = id.data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}

static ngx_int_t ngx_http_tokenring_result_variable(ngx_http_request_t *r,
                                                    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t *name = (ngx_str_t *)data;
    ngx_table_elt_t *h;
    ngx_http_upstream_t *u;

    u = r->upstream;
    h = NULL;

    if (u && u->headers_in.trailers.size) {
        h = ngx_http_tokenring_find_header(&u->headers_in.trailers, name);
    }

    if (h == NULL && u && u->headers_in.headers.size) {
        h = ngx_http_tokenring_find_header(&u->headers_in.headers, name);
    }

    if (h == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->len = h->value.len;
    v->data = h->value.data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}
