/* fuzz_json.c: request bodies through api_parse, both endpoints, and what was accepted through a reply.
 * The first byte of an input chooses the endpoint and the context; the rest is the body.
 *
 * sources: core/api/fields.c core/api/info.c core/api/json_read.c core/api/json_write.c core/api/logprobs.c core/api/prompt.c core/api/refuse.c core/api/reply.c core/api/request.c core/base/buffer.c core/base/check.c core/base/status.c core/base/xalloc.c core/text/utf8.c tests/unit/api/fake_tokenizer.c
 * covers: core/api/request.c core/api/prompt.c core/api/refuse.c core/api/fields.c core/api/json_read.c
 */
#include "core/api/json_read.h"
#include "core/base/check.h"
#include "tests/unit/api/fake_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What api_parse promises of an accepted request. */
static void examine(const struct api_request *req, const struct api_context *ctx)
{
    check(req->n_tokens >= 1 && req->n_tokens + req->max_tokens <= ctx->context);
    for (size_t i = 0; i < req->n_tokens; i++)
        check(req->tokens[i] < FAKE_N_VOCAB);
    const struct api_sampling *s = &req->sampling;
    check(s->temperature >= 0 && s->temperature <= 2 && s->top_p >= 0 && s->top_p <= 1);
    check(s->min_p >= 0 && s->min_p <= 1 && s->repetition_penalty > 0);
    check(s->presence_penalty >= -2 && s->presence_penalty <= 2);
    check(s->frequency_penalty >= -2 && s->frequency_penalty <= 2);
    for (size_t i = 0; i < s->n_bias; i++) {
        check(s->bias[i].token < FAKE_N_VOCAB && s->bias[i].bias >= -100 && s->bias[i].bias <= 100);
        check(i == 0 || s->bias[i - 1].token < s->bias[i].token);
    }
    check(req->n_stop <= API_STOP_MAX);
    for (size_t i = 0; i < req->n_stop; i++)
        check(req->stop[i].len >= 1 && memchr(req->stop[i].ptr, 0, req->stop[i].len) == NULL);
    check(req->n_choices >= 1 && req->n_choices <= 8);
    check(req->top_logprobs >= -1 && req->top_logprobs <= API_TOP_CHAT);
}

/* The prompt comes back as the answer; the writer must give valid JSON. */
static void answer(const struct api_request *req, const struct api_context *ctx)
{
    struct api_reply reply;
    struct buffer out = {0};
    struct api_totals totals = {.prompt_tokens = (uint32_t)req->n_tokens};
    api_reply_init(&reply, ctx, req, slice_of("id"), 1);
    for (size_t i = 0; i < req->n_tokens && i < 20; i++) {
        uint32_t k = (uint32_t)i % req->n_choices;
        struct api_top top = {req->tokens[i], -1};
        struct api_token token = {req->tokens[i], -1, &top, 1};
        api_reply_token(&reply, k, &token, tokenizer_piece(ctx->tokenizer, req->tokens[i]), &out);
    }
    for (uint32_t k = 0; k < req->n_choices; k++)
        api_reply_end(&reply, k, API_FINISH_STOP, slice_of(""), &totals, &out);
    api_reply_finish(&reply, &totals, &out);
    if (!req->stream) {
        struct json json;
        struct error err;
        check(json_parse(&json, buffer_slice(&out), &err) == STATUS_OK);
        json_release(&json);
    }
    api_reply_release(&reply);
    buffer_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct api_context ctx = fake_context;
    if (data[0] & 2)
        ctx.context = 16;
    if (data[0] & 4)
        ctx.tokenizer = &fake_without_bos;
    if (data[0] & 8)
        ctx.tokenizer = &fake_without_chat;
    ctx.body_limit = 8000;
    struct api_request request;
    struct error err;
    enum status status = api_parse(data[0] & 1 ? API_CHAT : API_COMPLETIONS,
                                   slice_make(data + 1, size - 1), &ctx, &request, &err);
    if (status == STATUS_OK) {
        examine(&request, &ctx);
        answer(&request, &ctx);
    } else {
        struct buffer out = {0};
        check(request.tokens == NULL && err.status == status && err.text[0] != '\0');
        check(status_http(status) >= 400 && status_http(status) < 500);
        api_error_event(&err, &out);
        buffer_release(&out);
    }
    api_request_release(&request);
    return 0;
}
