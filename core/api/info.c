#include "core/api/info.h"

#include "core/api/api.h"
#include "core/api/json_write.h"

void api_error_json(const struct error *err, struct buffer *out)
{
    const char *text = err->text[0] != '\0' ? err->text : status_text(err->status);
    buffer_add_text(out, "{\"error\":{\"message\":");
    json_add_string(out, slice_of(text));
    buffer_add_text(out, ",\"type\":");
    json_add_string(out, slice_of(status_type(err->status)));
    buffer_add_text(out, ",\"param\":");
    if (err->param[0] != '\0')
        json_add_string(out, slice_of(err->param));
    else
        buffer_add_text(out, "null");
    buffer_add_text(out, ",\"code\":");
    json_add_string(out, slice_of(status_code(err->status)));
    buffer_add_text(out, "}}");
}

void api_error_event(const struct error *err, struct buffer *out)
{
    buffer_add_text(out, "data: ");
    api_error_json(err, out);
    buffer_add_text(out, "\n\ndata: [DONE]\n\n");
}

static void add_model(const struct api_context *ctx, const char *name, struct buffer *out)
{
    buffer_add_text(out, "{\"id\":");
    json_add_string(out, slice_of(name));
    buffer_add_text(out, ",\"object\":\"model\",\"created\":");
    json_add_u64(out, ctx->created);
    buffer_add_text(out, ",\"owned_by\":\"tokenring\",\"max_model_len\":");
    json_add_u64(out, ctx->context);
    buffer_add_byte(out, '}');
}

void api_models_json(const struct api_context *ctx, struct buffer *out)
{
    buffer_add_text(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < ctx->n_names; i++) {
        if (i > 0)
            buffer_add_byte(out, ',');
        add_model(ctx, ctx->names[i], out);
    }
    buffer_add_text(out, "]}");
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Appends text with %XX resolved; a '%' that begins no such thing stands for itself. */
static void percent_decode(struct slice text, struct buffer *out)
{
    for (size_t i = 0; i < text.len; i++) {
        int high = -1, low = -1;
        if (text.ptr[i] == '%' && text.len - i > 2) {
            high = hex_digit(text.ptr[i + 1]);
            low = hex_digit(text.ptr[i + 2]);
        }
        if (high >= 0 && low >= 0) {
            buffer_add_byte(out, (char)(high * 16 + low));
            i += 2;
        } else {
            buffer_add_byte(out, text.ptr[i]);
        }
    }
}

enum status api_model_json(const struct api_context *ctx, struct slice id, struct buffer *out,
                           struct error *err)
{
    struct buffer name = {0};
    enum status status = STATUS_MODEL_NOT_FOUND;
    percent_decode(id, &name);
    for (size_t i = 0; i < ctx->n_names && status != STATUS_OK; i++) {
        if (slice_is(id, ctx->names[i]) || slice_is(buffer_slice(&name), ctx->names[i])) {
            add_model(ctx, ctx->names[i], out);
            status = STATUS_OK;
        }
    }
    if (status != STATUS_OK)
        error_param(err, status, "model", "the model \"%.*s\" is not served here; this is \"%s\"",
                    (int)(name.len < 120 ? name.len : 120), name.len > 0 ? name.ptr : "",
                    ctx->names[0]);
    buffer_release(&name);
    return status;
}

static void add_member(const char *name, const char *value, struct buffer *out)
{
    if (value == NULL)
        return;
    buffer_printf(out, ",\"%s\":", name);
    json_add_string(out, slice_of(value));
}

int api_health_json(const struct api_health *health, struct buffer *out)
{
    static const char *const states[] = {"ok", "loading", "draining", "error"};
    buffer_printf(out, "{\"status\":\"%s\"", states[health->state]);
    if (health->state == API_HEALTH_LOADING)
        buffer_printf(out, ",\"progress\":%d", health->percent);
    add_member("model", health->model, out);
    add_member("version", health->version, out);
    add_member("error", health->error, out);
    buffer_printf(out, ",\"requests_running\":%u,\"requests_waiting\":%u}", health->running,
                  health->waiting);
    return health->state == API_HEALTH_OK ? 200 : 503;
}
