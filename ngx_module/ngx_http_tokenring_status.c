/* The tokenring_status directive: what workers tell about themselves, out of their stats files.
 *
 * The files are opened and read (never mapped: a file that is cut short must not kill nginx) for each request, and no
 * worker is spoken to; so the answer comes at once, whatever became of the workers. Who reads and writes the figures
 * is core/stats, the same code as in `tokenring stat`. */
#include "ngx_http_tokenring.h"

#include "core/stats/render.h"

typedef enum {
    NGX_HTTP_TOKENRING_STATUS_AUTO, /* by the Accept header, else JSON */
    NGX_HTTP_TOKENRING_STATUS_JSON,
    NGX_HTTP_TOKENRING_STATUS_PROMETHEUS,
    NGX_HTTP_TOKENRING_STATUS_HEALTH,
    NGX_HTTP_TOKENRING_STATUS_WRONG
} ngx_http_tokenring_status_format_e;

typedef struct {
    u_char *name; /* both NUL-terminated */
    u_char *path;
} ngx_http_tokenring_status_file_t;

struct ngx_http_tokenring_status_s {
    ngx_array_t files; /* of ngx_http_tokenring_status_file_t, names all different */
    ngx_http_tokenring_status_format_e format;
};

static ngx_str_t ngx_http_tokenring_status_json = ngx_string("application/json");
static ngx_str_t ngx_http_tokenring_status_text =
    ngx_string("text/plain; version=0.0.4; charset=utf-8");

static ngx_http_tokenring_status_format_e ngx_http_tokenring_status_word(ngx_str_t *word)
{
    if (word->len == 4 && ngx_strncmp(word->data, "json", 4) == 0) {
        return NGX_HTTP_TOKENRING_STATUS_JSON;
    }

    if (word->len == 10 && ngx_strncmp(word->data, "prometheus", 10) == 0) {
        return NGX_HTTP_TOKENRING_STATUS_PROMETHEUS;
    }

    if (word->len == 6 && ngx_strncmp(word->data, "health", 6) == 0) {
        return NGX_HTTP_TOKENRING_STATUS_HEALTH;
    }

    return NGX_HTTP_TOKENRING_STATUS_WRONG;
}

/* The argument `format` decides, then the directive, then what the client accepts. */
static ngx_http_tokenring_status_format_e
ngx_http_tokenring_status_format(ngx_http_request_t *r, ngx_http_tokenring_status_t *conf)
{
    ngx_str_t value;
    ngx_table_elt_t *accept;

    static ngx_str_t name = ngx_string("accept");

    if (ngx_http_arg(r, (u_char *)"format", 6, &value) == NGX_OK) {
        return ngx_http_tokenring_status_word(&value);
    }

    if (conf->format != NGX_HTTP_TOKENRING_STATUS_AUTO) {
        return conf->format;
    }

    accept = ngx_http_tokenring_find_header(&r->headers_in.headers, &name);

    if (accept != NULL &&
        (ngx_strcasestrn(accept->value.data, "version=0.0.4", 13 - 1) ||
         ngx_strcasestrn(accept->value.data, "application/openmetrics-text", 28 - 1))) {
        return NGX_HTTP_TOKENRING_STATUS_PROMETHEUS;
    }

    return NGX_HTTP_TOKENRING_STATUS_JSON;
}

static ngx_int_t ngx_http_tokenring_status_read(ngx_http_request_t *r,
                                                ngx_http_tokenring_status_file_t *file,
                                                struct stats_view *view)
{
    int fd;
    void *buf;
    size_t size;
    uint64_t now;
    ngx_time_t *tp;
    struct error err;

    tp = ngx_timeofday();
    now = (uint64_t)tp->sec * 1000 + tp->msec;

    view->name = (char *)file->name;
    view->path = (char *)file->path;

    if (stats_open(view->path, &fd, &err) != STATUS_OK) {
        stats_view_none(view, &err, now);
        return NGX_OK;
    }

    /* at most STATS_FILE_MAX; 0 if this is no stats file, which the reader finds out once more */
    size = stats_file_bytes(fd);

    buf = ngx_palloc(r->pool, size + sizeof(uint64_t));

    if (buf != NULL) {
        stats_view_read(view, fd, buf, size, now);
    }

    if (close(fd) == -1) {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, ngx_errno, "close() \"%s\" failed",
                      file->path);
    }

    return buf == NULL ? NGX_ERROR : NGX_OK;
}

/* The whole text, written twice: once to learn its size. Sets the status to 503 where no worker is ready. */
static ngx_int_t ngx_http_tokenring_status_render(ngx_http_request_t *r, ngx_buf_t *b,
                                                  ngx_http_tokenring_status_format_e format,
                                                  struct stats_view *views, ngx_uint_t n)
{
    bool ready;
    ngx_uint_t pass;
    struct stats_out out;

    ngx_memzero(&out, sizeof(struct stats_out));
    ready = true;

    for (pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            out.cap = out.len;
            out.len = 0;
            out.data = ngx_pnalloc(r->pool, out.cap);
            if (out.data == NULL) {
                return NGX_ERROR;
            }
        }

        switch (format) {

        case NGX_HTTP_TOKENRING_STATUS_PROMETHEUS:
            stats_render_prometheus(&out, views, n);
            break;

        case NGX_HTTP_TOKENRING_STATUS_HEALTH:
            ready = stats_render_health(&out, views, n);
            break;

        default:
            stats_render_workers(&out, views, n);
        }
    }

    r->headers_out.status = ready ? NGX_HTTP_OK : NGX_HTTP_SERVICE_UNAVAILABLE;

    b->pos = (u_char *)out.data;
    b->last = b->pos + ngx_min(out.len, out.cap);

    return NGX_OK;
}

static ngx_int_t ngx_http_tokenring_status_handler(ngx_http_request_t *r)
{
    ngx_buf_t *b;
    ngx_int_t rc;
    ngx_str_t *type;
    ngx_uint_t i, n;
    ngx_chain_t out;
    struct stats_view *views;
    ngx_http_tokenring_status_t *conf;
    ngx_http_tokenring_loc_conf_t *tlcf;
    ngx_http_tokenring_status_file_t *files;
    ngx_http_tokenring_status_format_e format;

    if (!(r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);
    conf = tlcf->status;

    format = ngx_http_tokenring_status_format(r, conf);

    if (format == NGX_HTTP_TOKENRING_STATUS_WRONG) {
        return NGX_HTTP_BAD_REQUEST;
    }

    n = conf->files.nelts;
    files = conf->files.elts;

    views = ngx_pcalloc(r->pool, n * sizeof(struct stats_view));
    if (views == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    for (i = 0; i < n; i++) {
        if (ngx_http_tokenring_status_read(r, &files[i], &views[i]) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_tokenring_status_render(r, b, format, views, n) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    type = format == NGX_HTTP_TOKENRING_STATUS_PROMETHEUS ? &ngx_http_tokenring_status_text
                                                          : &ngx_http_tokenring_status_json;

    r->headers_out.content_type = *type;
    r->headers_out.content_type_len =
        format == NGX_HTTP_TOKENRING_STATUS_PROMETHEUS ? sizeof("text/plain") - 1 : type->len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.content_length_n = b->last - b->pos;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b->memory = 1;
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}

/* A path has a slash; its file's name without ".stats" is the worker's name. A name stands for the file in the
 * default directory. */
static char *ngx_http_tokenring_status_file(ngx_conf_t *cf, ngx_str_t *value,
                                            ngx_http_tokenring_status_file_t *file)
{
    u_char *p, *last;
    size_t len;
    char path[NGX_MAX_PATH];
    ngx_str_t full;

    if (ngx_strlchr(value->data, value->data + value->len, '/') != NULL) {
        full = *value;

        if (ngx_conf_full_name(cf->cycle, &full, 0) != NGX_OK) {
            return NGX_CONF_ERROR;
        }

    } else {
        if (!stats_path(NULL, (char *)value->data, path, sizeof(path))) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\" cannot be the name of a worker",
                               value);
            return NGX_CONF_ERROR;
        }

        full.len = ngx_strlen(path);
        full.data = ngx_pnalloc(cf->pool, full.len + 1);
        if (full.data == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_memcpy(full.data, path, full.len + 1);
    }

    last = full.data + full.len;

    for (p = last; p > full.data && p[-1] != '/'; p--) { /* void */
    }

    len = last - p;

    if (len > sizeof(STATS_SUFFIX) - 1 &&
        ngx_strcmp(last - (sizeof(STATS_SUFFIX) - 1), STATS_SUFFIX) == 0) {
        len -= sizeof(STATS_SUFFIX) - 1;
    }

    if (len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\" is the path of no file", value);
        return NGX_CONF_ERROR;
    }

    file->path = full.data;
    file->name = ngx_pnalloc(cf->pool, len + 1);
    if (file->name == NULL) {
        return NGX_CONF_ERROR;
    }

    (void)ngx_cpystrn(file->name, p, len + 1);

    return NGX_CONF_OK;
}

char *ngx_http_tokenring_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t *tlcf = conf;

    char *rv;
    ngx_str_t *value, word;
    ngx_uint_t i, n;
    ngx_http_core_loc_conf_t *clcf;
    ngx_http_tokenring_status_t *status;
    ngx_http_tokenring_status_file_t *file, *files;

    if (tlcf->status != NULL) {
        return "is duplicate";
    }

    status = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_status_t));
    if (status == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ngx_array_init(&status->files, cf->pool, 4, sizeof(ngx_http_tokenring_status_file_t)) !=
        NGX_OK) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        if (ngx_strncmp(value[i].data, "format=", 7) == 0) {
            word.len = value[i].len - 7;
            word.data = value[i].data + 7;

            status->format = ngx_http_tokenring_status_word(&word);

            if (status->format == NGX_HTTP_TOKENRING_STATUS_WRONG) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "format is \"json\", \"prometheus\" or \"health\", "
                                   "not \"%V\"",
                                   &word);
                return NGX_CONF_ERROR;
            }

            continue;
        }

        file = ngx_array_push(&status->files);
        if (file == NULL) {
            return NGX_CONF_ERROR;
        }

        rv = ngx_http_tokenring_status_file(cf, &value[i], file);
        if (rv != NGX_CONF_OK) {
            return rv;
        }

        files = status->files.elts;

        for (n = 0; n < status->files.nelts - 1; n++) {
            if (ngx_strcmp(files[n].name, file->name) == 0) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "two workers are named \"%s\"",
                                   file->name);
                return NGX_CONF_ERROR;
            }
        }
    }

    if (status->files.nelts == 0) {
        return "needs the name or the stats file of a worker";
    }

    tlcf->status = status;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_tokenring_status_handler;

    return NGX_CONF_OK;
}

/* An "if" or "limit_except" block inside the location goes on with what the location has. */
void ngx_http_tokenring_merge_status(ngx_conf_t *cf, ngx_http_tokenring_loc_conf_t *prev,
                                     ngx_http_tokenring_loc_conf_t *conf)
{
    ngx_http_core_loc_conf_t *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->noname && conf->status == NULL) {
        conf->status = prev->status;
    }

    if (clcf->lmt_excpt && clcf->handler == NULL && conf->status != NULL) {
        clcf->handler = ngx_http_tokenring_status_handler;
    }
}
