/* Directives of the module, their defaults and inheritance, and the module itself. */
#include "ngx_http_tokenring.h"
#include "ngx_http_tokenring_channel.h"

static void *ngx_http_tokenring_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_tokenring_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_tokenring_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child);
static ngx_int_t ngx_http_tokenring_postconfiguration(ngx_conf_t *cf);
static char *ngx_http_tokenring_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *ngx_http_tokenring_set_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *ngx_http_tokenring_lowat_check(ngx_conf_t *cf, void *post, void *data);

static ngx_conf_post_t ngx_http_tokenring_buffer_size_post = {ngx_http_tokenring_lowat_check};

static ngx_conf_bitmask_t ngx_http_tokenring_next_upstream_masks[] = {
    {ngx_string("error"), NGX_HTTP_UPSTREAM_FT_ERROR},
    {ngx_string("timeout"), NGX_HTTP_UPSTREAM_FT_TIMEOUT},
    {ngx_string("invalid_header"), NGX_HTTP_UPSTREAM_FT_INVALID_HEADER},
    {ngx_string("non_idempotent"), NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT},
    {ngx_string("http_500"), NGX_HTTP_UPSTREAM_FT_HTTP_500},
    {ngx_string("http_502"), NGX_HTTP_UPSTREAM_FT_HTTP_502},
    {ngx_string("http_503"), NGX_HTTP_UPSTREAM_FT_HTTP_503},
    {ngx_string("http_504"), NGX_HTTP_UPSTREAM_FT_HTTP_504},
    {ngx_string("http_403"), NGX_HTTP_UPSTREAM_FT_HTTP_403},
    {ngx_string("http_404"), NGX_HTTP_UPSTREAM_FT_HTTP_404},
    {ngx_string("http_429"), NGX_HTTP_UPSTREAM_FT_HTTP_429},
    {ngx_string("off"), NGX_HTTP_UPSTREAM_FT_OFF},
    {ngx_null_string, 0}};

static ngx_conf_enum_t ngx_http_tokenring_keepalives[] = {
    {ngx_string("comment"), 0}, {ngx_string("data"), 1}, {ngx_null_string, 0}};

static ngx_conf_enum_t ngx_http_tokenring_on_disconnects[] = {
    {ngx_string("stop"), 0}, {ngx_string("prefill"), 1}, {ngx_null_string, 0}};

/* Not sent to the client unless tokenring_pass_header says so. The X-Tokenring-* ones carry $tokenring_*. */
static ngx_str_t ngx_http_tokenring_hide_headers[] = {ngx_string("Date"),
                                                      ngx_string("Server"),
                                                      ngx_string("X-Accel-Expires"),
                                                      ngx_string("X-Accel-Redirect"),
                                                      ngx_string("X-Accel-Limit-Rate"),
                                                      ngx_string("X-Accel-Buffering"),
                                                      ngx_string("X-Accel-Charset"),
                                                      ngx_string("X-Tokenring-Prompt-Tokens"),
                                                      ngx_string("X-Tokenring-Cached-Tokens"),
                                                      ngx_string("X-Tokenring-Completion-Tokens"),
                                                      ngx_string("X-Tokenring-Queue-Ms"),
                                                      ngx_string("X-Tokenring-Ttft-Ms"),
                                                      ngx_string("X-Tokenring-Finish"),
                                                      ngx_string("X-Tokenring-Cache"),
                                                      ngx_null_string};

#define NGX_HTTP_TOKENRING_ANY (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF)
#define NGX_HTTP_TOKENRING_UPSTREAM(field) offsetof(ngx_http_tokenring_loc_conf_t, upstream.field)

static ngx_command_t ngx_http_tokenring_commands[] = {

    {ngx_string("tokenring_pass"),
     NGX_HTTP_LOC_CONF | NGX_HTTP_LIF_CONF | NGX_HTTP_LMT_CONF | NGX_CONF_TAKE1,
     ngx_http_tokenring_pass, NGX_HTTP_LOC_CONF_OFFSET, 0, NULL},

    {ngx_string("tokenring_connect_timeout"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_msec_slot, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_TOKENRING_UPSTREAM(connect_timeout),
     NULL},

    {ngx_string("tokenring_send_timeout"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_msec_slot, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_TOKENRING_UPSTREAM(send_timeout),
     NULL},

    {ngx_string("tokenring_read_timeout"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_msec_slot, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_TOKENRING_UPSTREAM(read_timeout),
     NULL},

    {ngx_string("tokenring_next_upstream"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_1MORE,
     ngx_conf_set_bitmask_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(next_upstream), &ngx_http_tokenring_next_upstream_masks},

    {ngx_string("tokenring_next_upstream_tries"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_num_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(next_upstream_tries), NULL},

    {ngx_string("tokenring_next_upstream_timeout"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_msec_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(next_upstream_timeout), NULL},

    {ngx_string("tokenring_buffering"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_TOKENRING_UPSTREAM(buffering),
     NULL},

    {ngx_string("tokenring_request_buffering"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(request_buffering), NULL},

    {ngx_string("tokenring_ignore_client_abort"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(ignore_client_abort), NULL},

    {ngx_string("tokenring_buffer_size"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_size_slot, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_TOKENRING_UPSTREAM(buffer_size),
     &ngx_http_tokenring_buffer_size_post},

    {ngx_string("tokenring_buffers"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE2,
     ngx_conf_set_bufs_slot, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_TOKENRING_UPSTREAM(bufs), NULL},

    {ngx_string("tokenring_busy_buffers_size"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_size_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(busy_buffers_size_conf), NULL},

    {ngx_string("tokenring_intercept_errors"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_FLAG,
     ngx_conf_set_flag_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(intercept_errors), NULL},

    {ngx_string("tokenring_hide_header"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_str_array_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(hide_headers), NULL},

    {ngx_string("tokenring_pass_header"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_str_array_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(pass_headers), NULL},

    {ngx_string("tokenring_ignore_headers"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_1MORE,
     ngx_conf_set_bitmask_slot, NGX_HTTP_LOC_CONF_OFFSET,
     NGX_HTTP_TOKENRING_UPSTREAM(ignore_headers), &ngx_http_upstream_ignore_headers_masks},

    {ngx_string("tokenring_set_header"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE2,
     ngx_http_tokenring_set_header, NGX_HTTP_LOC_CONF_OFFSET, 0, NULL},

    {ngx_string("tokenring_tenant"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_http_set_complex_value_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(ngx_http_tokenring_loc_conf_t, tenant), NULL},

    {ngx_string("tokenring_priority"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_http_set_complex_value_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(ngx_http_tokenring_loc_conf_t, priority), NULL},

    {ngx_string("tokenring_max_tokens"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_http_set_complex_value_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(ngx_http_tokenring_loc_conf_t, max_tokens), NULL},

    {ngx_string("tokenring_keepalive_interval"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_msec_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(ngx_http_tokenring_loc_conf_t, keepalive_interval), NULL},

    {ngx_string("tokenring_queue_timeout"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_msec_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(ngx_http_tokenring_loc_conf_t, queue_timeout), NULL},

    {ngx_string("tokenring_request_timeout"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_msec_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(ngx_http_tokenring_loc_conf_t, request_timeout), NULL},

    {ngx_string("tokenring_keepalive"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_enum_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(ngx_http_tokenring_loc_conf_t, keepalive), ngx_http_tokenring_keepalives},

    {ngx_string("tokenring_on_disconnect"), NGX_HTTP_TOKENRING_ANY | NGX_CONF_TAKE1,
     ngx_conf_set_enum_slot, NGX_HTTP_LOC_CONF_OFFSET,
     offsetof(ngx_http_tokenring_loc_conf_t, on_disconnect), ngx_http_tokenring_on_disconnects},

    {ngx_string("tokenring_status"),
     NGX_HTTP_LOC_CONF | NGX_HTTP_LIF_CONF | NGX_HTTP_LMT_CONF | NGX_CONF_1MORE,
     ngx_http_tokenring_status, NGX_HTTP_LOC_CONF_OFFSET, 0, NULL},

    ngx_null_command};

static ngx_http_module_t ngx_http_tokenring_module_ctx = {
    ngx_http_tokenring_add_variables,     /* preconfiguration */
    ngx_http_tokenring_postconfiguration, /* postconfiguration */

    ngx_http_tokenring_create_main_conf, /* create main configuration */
    NULL,                                /* init main configuration */

    NULL, /* create server configuration */
    NULL, /* merge server configuration */

    ngx_http_tokenring_create_loc_conf, /* create location configuration */
    ngx_http_tokenring_merge_loc_conf   /* merge location configuration */
};

ngx_module_t ngx_http_tokenring_module = {NGX_MODULE_V1,
                                          &ngx_http_tokenring_module_ctx,
                                          ngx_http_tokenring_commands,
                                          NGX_HTTP_MODULE,
                                          NULL, /* init master */
                                          NULL, /* init module */
                                          NULL, /* init process */
                                          NULL, /* init thread */
                                          NULL, /* exit thread */
                                          ngx_http_tokenring_exit_process,
                                          NULL, /* exit master */
                                          NGX_MODULE_V1_PADDING};

static void *ngx_http_tokenring_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_tokenring_main_conf_t *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_main_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&conf->shadows, cf->pool, 4, sizeof(ngx_http_tokenring_shadow_t *)) !=
        NGX_OK) {
        return NULL;
    }

    return conf;
}

static void *ngx_http_tokenring_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_tokenring_loc_conf_t *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->upstream.connect_timeout = NGX_CONF_UNSET_MSEC;
    conf->upstream.send_timeout = NGX_CONF_UNSET_MSEC;
    conf->upstream.read_timeout = NGX_CONF_UNSET_MSEC;
    conf->upstream.next_upstream_timeout = NGX_CONF_UNSET_MSEC;
    conf->upstream.next_upstream_tries = NGX_CONF_UNSET_UINT;

    conf->upstream.buffering = NGX_CONF_UNSET;
    conf->upstream.request_buffering = NGX_CONF_UNSET;
    conf->upstream.ignore_client_abort = NGX_CONF_UNSET;
    conf->upstream.intercept_errors = NGX_CONF_UNSET;

    conf->upstream.buffer_size = NGX_CONF_UNSET_SIZE;
    conf->upstream.busy_buffers_size_conf = NGX_CONF_UNSET_SIZE;

    conf->upstream.hide_headers = NGX_CONF_UNSET_PTR;
    conf->upstream.pass_headers = NGX_CONF_UNSET_PTR;

    conf->set_headers = NGX_CONF_UNSET_PTR;

    conf->keepalive_interval = NGX_CONF_UNSET_MSEC;
    conf->queue_timeout = NGX_CONF_UNSET_MSEC;
    conf->request_timeout = NGX_CONF_UNSET_MSEC;
    conf->keepalive = NGX_CONF_UNSET_UINT;
    conf->on_disconnect = NGX_CONF_UNSET_UINT;

    /* hardcoded; what is not named here is 0 by ngx_pcalloc: no cache, no store, no temporary files, no bind */
    conf->upstream.pass_request_headers = 1;
    conf->upstream.pass_request_body = 1;
    conf->upstream.change_buffering = 1;

    ngx_str_set(&conf->upstream.module, "tokenring");

    return conf;
}

static char *ngx_http_tokenring_merge_buffers(ngx_conf_t *cf, ngx_http_upstream_conf_t *conf,
                                              ngx_http_upstream_conf_t *prev)
{
    size_t size;

    ngx_conf_merge_size_value(conf->buffer_size, prev->buffer_size, 2 * (size_t)ngx_pagesize);
    ngx_conf_merge_bufs_value(conf->bufs, prev->bufs, 8, ngx_pagesize);

    if (conf->bufs.num < 2) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "there must be at least 2 \"tokenring_buffers\"");
        return NGX_CONF_ERROR;
    }

    size = ngx_max(conf->buffer_size, conf->bufs.size);

    ngx_conf_merge_size_value(conf->busy_buffers_size_conf, prev->busy_buffers_size_conf,
                              NGX_CONF_UNSET_SIZE);

    if (conf->busy_buffers_size_conf == NGX_CONF_UNSET_SIZE) {
        conf->busy_buffers_size = 2 * size;
    } else {
        conf->busy_buffers_size = conf->busy_buffers_size_conf;
    }

    if (conf->busy_buffers_size < size) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"tokenring_busy_buffers_size\" must be equal to or greater "
                           "than the maximum of the value of \"tokenring_buffer_size\" and "
                           "one of the \"tokenring_buffers\"");
        return NGX_CONF_ERROR;
    }

    if (conf->busy_buffers_size > (conf->bufs.num - 1) * conf->bufs.size) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"tokenring_busy_buffers_size\" must be less than "
                           "the size of all \"tokenring_buffers\" minus one buffer");
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}

static char *ngx_http_tokenring_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_tokenring_loc_conf_t *prev = parent;
    ngx_http_tokenring_loc_conf_t *conf = child;

    char *rv;
    ngx_hash_init_t hash;
    ngx_http_core_loc_conf_t *clcf;

    ngx_conf_merge_msec_value(conf->upstream.connect_timeout, prev->upstream.connect_timeout,
                              60000);
    ngx_conf_merge_msec_value(conf->upstream.send_timeout, prev->upstream.send_timeout, 60000);
    ngx_conf_merge_msec_value(conf->upstream.read_timeout, prev->upstream.read_timeout, 600000);
    ngx_conf_merge_msec_value(conf->upstream.next_upstream_timeout,
                              prev->upstream.next_upstream_timeout, 0);
    ngx_conf_merge_uint_value(conf->upstream.next_upstream_tries,
                              prev->upstream.next_upstream_tries, 0);

    ngx_conf_merge_value(conf->upstream.buffering, prev->upstream.buffering, 0);
    ngx_conf_merge_value(conf->upstream.request_buffering, prev->upstream.request_buffering, 1);
    ngx_conf_merge_value(conf->upstream.ignore_client_abort, prev->upstream.ignore_client_abort, 0);
    ngx_conf_merge_value(conf->upstream.intercept_errors, prev->upstream.intercept_errors, 0);

    rv = ngx_http_tokenring_merge_buffers(cf, &conf->upstream, &prev->upstream);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    ngx_conf_merge_bitmask_value(conf->upstream.ignore_headers, prev->upstream.ignore_headers,
                                 NGX_CONF_BITMASK_SET);

    /* generation changes nothing on the other side, so a POST may go to the next peer */
    ngx_conf_merge_bitmask_value(conf->upstream.next_upstream, prev->upstream.next_upstream,
                                 (NGX_CONF_BITMASK_SET | NGX_HTTP_UPSTREAM_FT_ERROR |
                                  NGX_HTTP_UPSTREAM_FT_TIMEOUT |
                                  NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT));

    if (conf->upstream.next_upstream & NGX_HTTP_UPSTREAM_FT_OFF) {
        conf->upstream.next_upstream = NGX_CONF_BITMASK_SET | NGX_HTTP_UPSTREAM_FT_OFF;
    }

    hash.max_size = 512;
    hash.bucket_size = ngx_align(64, ngx_cacheline_size);
    hash.name = "tokenring_hide_headers_hash";

    if (ngx_http_upstream_hide_headers_hash(cf, &conf->upstream, &prev->upstream,
                                            ngx_http_tokenring_hide_headers, &hash) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_conf_merge_ptr_value(conf->set_headers, prev->set_headers, NULL);

    if (conf->tenant == NULL) {
        conf->tenant = prev->tenant;
    }

    if (conf->priority == NULL) {
        conf->priority = prev->priority;
    }

    if (conf->max_tokens == NULL) {
        conf->max_tokens = prev->max_tokens;
    }

    ngx_conf_merge_msec_value(conf->keepalive_interval, prev->keepalive_interval,
                              NGX_CONF_UNSET_MSEC);
    ngx_conf_merge_msec_value(conf->queue_timeout, prev->queue_timeout, NGX_CONF_UNSET_MSEC);
    ngx_conf_merge_msec_value(conf->request_timeout, prev->request_timeout, NGX_CONF_UNSET_MSEC);
    ngx_conf_merge_uint_value(conf->keepalive, prev->keepalive, 0);
    ngx_conf_merge_uint_value(conf->on_disconnect, prev->on_disconnect, 0);

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->noname && conf->upstream.upstream == NULL && conf->pass == NULL) {
        conf->upstream.upstream = prev->upstream.upstream;
        conf->pass = prev->pass;
        conf->uri = prev->uri;
        conf->location = prev->location;
    }

    if (clcf->lmt_excpt && clcf->handler == NULL && (conf->upstream.upstream || conf->pass)) {
        clcf->handler = ngx_http_tokenring_handler;
    }

    ngx_http_tokenring_merge_status(cf, prev, conf);

    return NGX_CONF_OK;
}

/* The smallest buffer that holds a response head of any use. */
static char *ngx_http_tokenring_lowat_check(ngx_conf_t *cf, void *post, void *data)
{
    size_t *size = data;

    if (*size < 1024) {
        return "must be at least 1k";
    }

    return NGX_CONF_OK;
}

static char *ngx_http_tokenring_set_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t *tlcf = conf;

    ngx_str_t *value;
    ngx_http_tokenring_header_t *h;
    ngx_http_compile_complex_value_t ccv;

    if (tlcf->set_headers == NGX_CONF_UNSET_PTR) {
        tlcf->set_headers = ngx_array_create(cf->pool, 4, sizeof(ngx_http_tokenring_header_t));
        if (tlcf->set_headers == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "has an empty header name";
    }

    h = ngx_array_push(tlcf->set_headers);
    if (h == NULL) {
        return NGX_CONF_ERROR;
    }

    h->name.len = value[1].len;
    h->name.data = ngx_pnalloc(cf->pool, value[1].len);
    if (h->name.data == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_strlow(h->name.data, value[1].data, value[1].len);

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = &value[2];
    ccv.complex_value = &h->value;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}

static char *ngx_http_tokenring_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t *tlcf = conf;

    ngx_url_t u;
    ngx_str_t *value;
    ngx_http_core_loc_conf_t *clcf;
    ngx_http_tokenring_shadow_t *shadow, **shadowp;
    ngx_http_tokenring_main_conf_t *tmcf;
    ngx_http_compile_complex_value_t ccv;

    if (tlcf->upstream.upstream || tlcf->pass) {
        return "is duplicate";
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    clcf->handler = ngx_http_tokenring_handler;

    if (clcf->name.len && clcf->name.data[clcf->name.len - 1] == '/') {
        clcf->auto_redirect = 1;
    }

    value = cf->args->elts;

    if (ngx_http_script_variables_count(&value[1])) {
        tlcf->pass = ngx_pcalloc(cf->pool, sizeof(ngx_http_complex_value_t));
        if (tlcf->pass == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

        ccv.cf = cf;
        ccv.value = &value[1];
        ccv.complex_value = tlcf->pass;

        if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
            return NGX_CONF_ERROR;
        }

        return NGX_CONF_OK;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = value[1];
    u.uri_part = 1;
    u.no_resolve = 1;

    shadow = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_shadow_t));
    if (shadow == NULL) {
        return NGX_CONF_ERROR;
    }

    shadow->original = ngx_http_upstream_add(cf, &u, 0);
    if (shadow->original == NULL) {
        return NGX_CONF_ERROR;
    }

    if (u.family != AF_UNIX && (!u.no_port || u.naddrs)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"tokenring_pass\" needs a \"unix:\" socket or the name "
                           "of an upstream, not \"%V\"",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    shadowp = ngx_array_push(&tmcf->shadows);
    if (shadowp == NULL) {
        return NGX_CONF_ERROR;
    }

    *shadowp = shadow;

    tlcf->upstream.upstream = &shadow->us;
    tlcf->uri = u.uri;
    tlcf->location = clcf->name;

    if (clcf->named
#if (NGX_PCRE)
        || clcf->regex
#endif
        || clcf->noname) {
        if (u.uri.len) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"tokenring_pass\" cannot have URI part in "
                               "location given by regular expression, "
                               "or inside named location, "
                               "or inside \"if\" statement, "
                               "or inside \"limit_except\" block");
            return NGX_CONF_ERROR;
        }

        tlcf->location.len = 0;
    }

    return NGX_CONF_OK;
}

/* Every address of an upstream block must be a unix socket: the rings live in memory shared on this host. */
static ngx_int_t ngx_http_tokenring_check_servers(ngx_conf_t *cf, ngx_http_upstream_srv_conf_t *us)
{
    ngx_uint_t i, n;
    ngx_http_upstream_server_t *server;

    if (us->servers == NULL) {
        return NGX_OK;
    }

    server = us->servers->elts;

    for (i = 0; i < us->servers->nelts; i++) {
        for (n = 0; n < server[i].naddrs; n++) {
            if (server[i].addrs[n].sockaddr->sa_family != AF_UNIX) {
                ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                              "server \"%V\" of upstream \"%V\" is not a unix socket, "
                              "as \"tokenring_pass\" needs, in %s:%ui",
                              &server[i].addrs[n].name, &us->host, us->file_name, us->line);
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}

/* The upstream modules set peer.init while the http block is completed (keepalive last, in init_main_conf), so the
 * copies can be made only now. */
static ngx_int_t ngx_http_tokenring_postconfiguration(ngx_conf_t *cf)
{
    ngx_uint_t i;
    ngx_http_tokenring_shadow_t **shadow;
    ngx_http_tokenring_main_conf_t *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    shadow = tmcf->shadows.elts;

    for (i = 0; i < tmcf->shadows.nelts; i++) {
        if (ngx_http_tokenring_check_servers(cf, shadow[i]->original) != NGX_OK) {
            return NGX_ERROR;
        }

        shadow[i]->us = *shadow[i]->original;
        shadow[i]->us.peer.init = ngx_http_tokenring_init_peer;
    }

    return NGX_OK;
}
