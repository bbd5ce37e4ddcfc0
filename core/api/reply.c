#include "core/api/reply.h"

#include <stdlib.h>

#include "core/api/api.h"
#include "core/api/json_write.h"
#include "core/api/logprobs.h"
#include "core/base/check.h"
#include "core/base/xalloc.h"

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
        .n_choices = req->n_choices,
    };
    check(r->n_choices > 0);
    r->choices = xcalloc(r->n_choices, sizeof(*r->choices));
    for (uint32_t k = 0; k < r->n_choices; k++)
        r->choices[k].index = k;
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
    for (uint32_t k = 0; k < r->n_choices; k++) {
        buffer_release(&r->choices[k].text);
        buffer_release(&r->choices[k].waiting);
    }
    free(r->choices);
    *r = (struct api_reply){0};
}

const char *api_reply_content_type(const struct api_reply *r)
{
    return r->stream ? "text/event-stream" : "application/json";
}

/* A chunk with one choice. text == NULL: chat's empty delta; finish: "null" or a reason in quotes.
 * Leaves the chunk open for further members behind the choices. */
static void open_chunk(const struct api_reply *r, struct api_choice *c, const char *role,
                       const struct slice *text, const char *finish, struct buffer *out)
{
    buffer_add_slice(out, buffer_slice(&r->head));
    buffer_printf(out, ",\"choices\":[{\"index\":%u", c->index);
    if (r->endpoint == API_CHAT) {
        buffer_add_text(out, ",\"delta\":{");
        buffer_add_text(out, role);
        if (text != NULL) {
            buffer_add_text(out, "\"content\":");
            json_add_string(out, *text);
        }
        buffer_add_byte(out, '}');
    } else {
        buffer_add_text(out, ",\"text\":");
        json_add_string(out, text != NULL ? *text : slice_of(""));
    }
    buffer_add_text(out, ",\"logprobs\":");
    if (c->n_waiting > 0)
        logprobs_write(r, c, out);
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

/* The first chunks of a chat stream carry the role and nothing else. */
static void start(struct api_reply *r, struct buffer *out)
{
    struct slice empty = slice_of("");
    if (r->started)
        return;
    r->started = true;
    for (uint32_t k = 0; k < r->n_choices && r->endpoint == API_CHAT; k++) {
        open_chunk(r, &r->choices[k], "\"role\":\"assistant\",", &empty, "null", out);
        close_chunk(r, out);
    }
}

static void add_text(const struct api_reply *r, struct api_choice *c, struct slice text,
                     struct buffer *out)
{
    if (!r->stream) {
        buffer_add_slice(&c->text, text);
    } else if (text.len > 0) {
        open_chunk(r, c, "", &text, "null", out);
        close_chunk(r, out);
    }
}

static struct api_choice *choice_at(struct api_reply *r, uint32_t choice)
{
    check(choice < r->n_choices && !r->choices[choice].ended);
    return &r->choices[choice];
}

void api_reply_token(struct api_reply *r, uint32_t choice, const struct api_token *token,
                     struct slice text, struct buffer *out)
{
    struct api_choice *c = choice_at(r, choice);
    if (r->stream)
        start(r, out);
    logprobs_keep(r, c, token);
    add_text(r, c, text, out);
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
    buffer_add_byte(out, '}');
    if (t->drafts)
        buffer_printf(out,
                      ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%u,"
                      "\"rejected_prediction_tokens\":%u}",
                      t->accepted, t->drafted - t->accepted);
    buffer_add_byte(out, '}');
}

static void add_figure(const char *name, double value, struct buffer *out)
{
    buffer_printf(out, ",\"%s\":", name);
    json_add_fixed(out, value);
}

static void add_hash(uint64_t hash, struct buffer *out)
{
    buffer_printf(out, ",\"logits_hash\":\"%016llx\"", (unsigned long long)hash);
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
    if (t->drafts)
        buffer_printf(out, ",\"draft_n\":%u,\"draft_n_accepted\":%u", t->drafted, t->accepted);
    if (t->has_hash)
        add_hash(t->logits_hash, out);
    buffer_add_byte(out, '}');
}

static const char *reason_name(enum api_finish reason)
{
    return reason == API_FINISH_STOP ? "\"stop\"" : "\"length\"";
}

void api_reply_end(struct api_reply *r, uint32_t choice, enum api_finish reason, struct slice text,
                   const struct api_totals *totals, struct buffer *out)
{
    struct api_choice *c = choice_at(r, choice);
    c->ended = true;
    c->reason = reason;
    c->has_hash = totals->has_hash;
    c->logits_hash = totals->logits_hash;
    if (!r->stream) {
        buffer_add_slice(&c->text, text);
        return;
    }
    start(r, out);
    add_text(r, c, text, out);
    open_chunk(r, c, "", NULL, reason_name(reason), out);
    add_timings(totals, out);
    close_chunk(r, out);
}

static void finish_stream(const struct api_reply *r, const struct api_totals *totals,
                          struct buffer *out)
{
    if (r->include_usage) {
        buffer_add_slice(out, buffer_slice(&r->head));
        buffer_add_text(out, ",\"choices\":[]");
        add_usage(totals, out);
        add_timings(totals, out);
        buffer_add_text(out, "}\n\n");
    }
    buffer_add_text(out, done);
}

static void add_choice(const struct api_reply *r, struct api_choice *c, struct buffer *out)
{
    buffer_printf(out, "{\"index\":%u", c->index);
    if (r->endpoint == API_CHAT) {
        buffer_add_text(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
        json_add_string(out, buffer_slice(&c->text));
        buffer_add_text(out, ",\"refusal\":null}");
    } else {
        buffer_add_text(out, ",\"text\":");
        json_add_string(out, buffer_slice(&c->text));
    }
    buffer_add_text(out, ",\"logprobs\":");
    logprobs_write(r, c, out);
    buffer_printf(out, ",\"finish_reason\":%s", reason_name(c->reason));
    /* of an only choice it is in the timings */
    if (c->has_hash && r->n_choices > 1)
        add_hash(c->logits_hash, out);
    buffer_add_byte(out, '}');
}

static void finish_body(struct api_reply *r, const struct api_totals *totals, struct buffer *out)
{
    buffer_add_slice(out, buffer_slice(&r->head));
    buffer_add_text(out, ",\"choices\":[");
    for (uint32_t k = 0; k < r->n_choices; k++) {
        if (k > 0)
            buffer_add_byte(out, ',');
        add_choice(r, &r->choices[k], out);
    }
    buffer_add_byte(out, ']');
    add_usage(totals, out);
    add_timings(totals, out);
    buffer_add_byte(out, '}');
}

void api_reply_finish(struct api_reply *r, const struct api_totals *totals, struct buffer *out)
{
    for (uint32_t k = 0; k < r->n_choices; k++)
        check(r->choices[k].ended);
    if (r->stream)
        finish_stream(r, totals, out);
    else
        finish_body(r, totals, out);
}

void api_keepalive(struct buffer *out)
{
    buffer_add_text(out, ": keepalive\n\n");
}

void api_reply_keepalive(struct api_reply *r, struct buffer *out)
{
    uint32_t k = 0;
    check(r->stream);
    /* Of a choice that goes on: behind its finish reason nothing comes. */
    while (k + 1 < r->n_choices && r->choices[k].ended)
        k++;
    struct api_choice *c = &r->choices[k];
    if (r->endpoint == API_CHAT && !r->started) {
        start(r, out);
        return;
    }
    /* Log-probabilities wait for text, not for this. */
    uint32_t waiting = c->n_waiting;
    c->n_waiting = 0;
    open_chunk(r, c, "", NULL, "null", out);
    close_chunk(r, out);
    c->n_waiting = waiting;
}
