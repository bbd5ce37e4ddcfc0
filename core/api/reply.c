#include "core/api/reply.h"

#include "core/api/api.h"
#include "core/api/json_write.h"
#include "core/api/logprobs.h"

static const char *const done = "data: [DONE]\n\n";

void api_reply_init(struct api_reply *r, const struct api_context *ctx,
                    const struct api_request *req, struct slice id, uint64_t created)
{
    bool chat = req->endpoint == API_CHAT;
    *r = (struct api_reply){
        .ctx = ctx,
        .endpoint = req->endpoint,
        .stream = req->stream,
        .include_usage = req->include_usage,
        .top_logprobs = req->top_logprobs,
    };
    const char *object = !chat         ? "text_completion"
                         : req->stream ? "chat.completion.chunk"
                                       : "chat.completion";
    buffer_add_text(&r->head, req->stream ? "data: {\"id\":\"" : "{\"id\":\"");
    buffer_add_text(&r->head, chat ? "chatcmpl-" : "cmpl-");
    json_add_escaped(&r->head, id);
    buffer_add_text(&r->head, "\",\"object\":\"");
    buffer_add_text(&r->head, object);
    buffer_add_text(&r->head, "\",\"created\":");
    json_add_u64(&r->head, created);
    buffer_add_text(&r->head, ",\"model\":");
    json_add_string(&r->head, slice_of(req->model));
    buffer_add_text(&r->head, ",\"system_fingerprint\":");
    json_add_string(&r->head, slice_of(ctx->fingerprint));
}

void api_reply_release(struct api_reply *r)
{
    buffer_release(&r->head);
    buffer_release(&r->text);
    buffer_release(&r->waiting);
}

const char *api_reply_content_type(const struct api_reply *r)
{
    return r->stream ? "text/event-stream" : "application/json";
}

/* A chunk with one choice. text == NULL: chat's empty delta; finish: "null" or a reason in quotes.
 * Leaves the chunk open for further members behind the choices. */
static void open_chunk(struct api_reply *r, const char *role, const struct slice *text,
                       const char *finish, struct buffer *out)
{
    buffer_add_slice(out, buffer_slice(&r->head));
    if (r->endpoint == API_CHAT) {
        buffer_add_text(out, ",\"choices\":[{\"index\":0,\"delta\":{");
        buffer_add_text(out, role);
        if (text != NULL) {
            buffer_add_text(out, "\"content\":");
            json_add_string(out, *text);
        }
        buffer_add_byte(out, '}');
    } else {
        buffer_add_text(out, ",\"choices\":[{\"index\":0,\"text\":");
        json_add_string(out, text != NULL ? *text : slice_of(""));
    }
    buffer_add_text(out, ",\"logprobs\":");
    if (r->n_waiting > 0)
        logprobs_write(r, out);
    else
        buffer_add_text(out, "null");
    buffer_add_text(out, ",\"finish_reason\":");
    buffer_add_text(out, finish);
    buffer_add_text(out, "}]");
}

/* Ends a chunk; chat chunks say that their usage comes later, where usage was asked for. */
static void close_chunk(const struct api_reply *r, struct buffer *out)
{
    if (r->include_usage && r->endpoint == API_CHAT)
        buffer_add_text(out, ",\"usage\":null");
    buffer_add_text(out, "}\n\n");
}

/* The first chunk of a chat stream carries the role and nothing else. */
static void start(struct api_reply *r, struct buffer *out)
{
    if (r->started)
        return;
    r->started = true;
    if (r->endpoint != API_CHAT)
        return;
    struct slice empty = slice_of("");
    open_chunk(r, "\"role\":\"assistant\",", &empty, "null", out);
    close_chunk(r, out);
}

static void add_text(struct api_reply *r, struct slice text, struct buffer *out)
{
    if (!r->stream) {
        buffer_add_slice(&r->text, text);
    } else if (text.len > 0) {
        open_chunk(r, "", &text, "null", out);
        close_chunk(r, out);
    }
}

void api_reply_token(struct api_reply *r, const struct api_token *token, struct slice text,
                     struct buffer *out)
{
    if (r->stream)
        start(r, out);
    logprobs_keep(r, token);
    add_text(r, text, out);
}

static void add_usage(const struct api_totals *t, struct buffer *out)
{
    buffer_add_text(out, ",\"usage\":{\"prompt_tokens\":");
    json_add_u64(out, t->prompt_tokens);
    buffer_add_text(out, ",\"completion_tokens\":");
    json_add_u64(out, t->completion_tokens);
    buffer_add_text(out, ",\"total_tokens\":");
    json_add_u64(out, (uint64_t)t->prompt_tokens + t->completion_tokens);
    buffer_add_text(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    json_add_u64(out, t->cached_tokens);
    buffer_add_text(out, "}}");
}

static void add_figure(const char *name, double value, struct buffer *out)
{
    buffer_printf(out, ",\"%s\":", name);
    json_add_fixed(out, value);
}

/* Names and meanings as llama-server's: prompt_n are the tokens that were computed, not those found
 * in the cache; rates are 0 where nothing was measured. */
static void add_timings(const struct api_totals *t, struct buffer *out)
{
    uint32_t computed = t->prompt_tokens - t->cached_tokens;
    /* n tokens lie n - 1 intervals apart; the first one counts to the prompt. */
    uint32_t intervals = t->completion_tokens > 1 ? t->completion_tokens - 1 : 0;
    buffer_printf(out, ",\"timings\":{\"cache_n\":%u,\"prompt_n\":%u", t->cached_tokens, computed);
    add_figure("queue_ms", t->queue_ms, out);
    add_figure("prompt_ms", t->prompt_ms, out);
    add_figure("prompt_per_second", t->prompt_ms > 0 ? computed * 1e3 / t->prompt_ms : 0, out);
    buffer_printf(out, ",\"predicted_n\":%u", t->completion_tokens);
    add_figure("predicted_ms", t->predicted_ms, out);
    add_figure("predicted_per_second", t->predicted_ms > 0 ? intervals * 1e3 / t->predicted_ms : 0,
               out);
    if (t->has_hash)
        buffer_printf(out, ",\"logits_hash\":\"%016llx\"", (unsigned long long)t->logits_hash);
    buffer_add_byte(out, '}');
}

static void finish_stream(struct api_reply *r, const char *reason, struct slice text,
                          const struct api_totals *totals, struct buffer *out)
{
    start(r, out);
    add_text(r, text, out);
    open_chunk(r, "", NULL, reason, out);
    add_timings(totals, out);
    close_chunk(r, out);
    if (r->include_usage) {
        buffer_add_slice(out, buffer_slice(&r->head));
        buffer_add_text(out, ",\"choices\":[]");
        add_usage(totals, out);
        add_timings(totals, out);
        buffer_add_text(out, "}\n\n");
    }
    buffer_add_text(out, done);
}

static void finish_body(struct api_reply *r, const char *reason, struct slice text,
                        const struct api_totals *totals, struct buffer *out)
{
    buffer_add_slice(&r->text, text);
    buffer_add_slice(out, buffer_slice(&r->head));
    if (r->endpoint == API_CHAT) {
        buffer_add_text(
            out, ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
        json_add_string(out, buffer_slice(&r->text));
        buffer_add_text(out, ",\"refusal\":null}");
    } else {
        buffer_add_text(out, ",\"choices\":[{\"index\":0,\"text\":");
        json_add_string(out, buffer_slice(&r->text));
    }
    buffer_add_text(out, ",\"logprobs\":");
    logprobs_write(r, out);
    buffer_printf(out, ",\"finish_reason\":%s}]", reason);
    add_usage(totals, out);
    add_timings(totals, out);
    buffer_add_byte(out, '}');
}

void api_reply_finish(struct api_reply *r, enum api_finish reason, struct slice text,
                      const struct api_totals *totals, struct buffer *out)
{
    const char *name = reason == API_FINISH_STOP ? "\"stop\"" : "\"length\"";
    if (r->stream)
        finish_stream(r, name, text, totals, out);
    else
        finish_body(r, name, text, totals, out);
}

void api_keepalive(struct buffer *out)
{
    buffer_add_text(out, ": keepalive\n\n");
}
