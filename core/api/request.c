#include "core/api/request.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/api/request_priv.h"
#include "core/base/xalloc.h"
#include "core/text/tokenizer.h"

/* Plain numbers of struct api_sampling. */
static const struct {
    const char *name;
    double min, max;
    bool above; /* min itself is not allowed */
    size_t offset;
} numbers[] = {
    {"temperature", 0, 2, false, offsetof(struct api_sampling, temperature)},
    {"top_p", 0, 1, false, offsetof(struct api_sampling, top_p)},
    {"min_p", 0, 1, false, offsetof(struct api_sampling, min_p)},
    {"repeat_penalty", 0, 10, true, offsetof(struct api_sampling, repetition_penalty)},
    {"repetition_penalty", 0, 10, true, offsetof(struct api_sampling, repetition_penalty)},
    {"presence_penalty", -2, 2, false, offsetof(struct api_sampling, presence_penalty)},
    {"frequency_penalty", -2, 2, false, offsetof(struct api_sampling, frequency_penalty)},
};

static enum status parse_model(const struct fields *f, const struct api_context *ctx,
                               struct api_request *out)
{
    out->model = ctx->names[0];
    const struct json_node *model = field_get(f, "model");
    if (model == NULL)
        return STATUS_OK;
    if (model->type != JSON_STRING)
        return field_mismatch(f, "model", "a string", model);
    for (size_t i = 0; i < ctx->n_names; i++) {
        if (json_string_is(f->json, model, ctx->names[i])) {
            out->model = ctx->names[i];
            return STATUS_OK;
        }
    }
    return error_param(f->err, STATUS_MODEL_NOT_FOUND, "model",
                       "the model \"%.*s\" is not served here; this is \"%s\"",
                       (int)(model->len < 120 ? model->len : 120), json_raw(f->json, model).ptr,
                       ctx->names[0]);
}

static int compare_bias(const void *a, const void *b)
{
    const struct api_bias *x = a, *y = b;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* {"1234": -100, ...}: keys are token ids in decimal digits. */
static enum status parse_logit_bias(const struct fields *f, const struct api_context *ctx,
                                    struct api_sampling *out)
{
    const struct json_node *map = NULL;
    enum status status = field_object(f, "logit_bias", &map);
    if (status != STATUS_OK || map == NULL || map->count == 0)
        return status;
    if (map->count > API_BIAS_MAX)
        return error_param(f->err, STATUS_INVALID, "logit_bias",
                           "logit_bias has %u entries, the most is %d", map->count, API_BIAS_MAX);
    uint32_t n_vocab = tokenizer_n_vocab(ctx->tokenizer);
    out->bias = xcalloc(map->count, sizeof(*out->bias));
    const struct json_node *entry = json_child(map);
    for (uint32_t i = 0; i < map->count; i++, entry = json_next(entry)) {
        struct slice key = {f->json->text.ptr + entry->key_start, entry->key_len};
        uint64_t id = 0;
        bool good = key.len >= 1 && key.len <= 10;
        for (size_t k = 0; good && k < key.len; k++) {
            good = key.ptr[k] >= '0' && key.ptr[k] <= '9';
            id = id * 10 + (uint64_t)(key.ptr[k] - '0');
        }
        int shown = (int)(key.len < 40 ? key.len : 40);
        if (!good || id >= n_vocab)
            return error_param(f->err, STATUS_INVALID, "logit_bias",
                               "a key of logit_bias must be a token id from 0 to %u, not \"%.*s\"",
                               n_vocab - 1, shown, key.ptr);
        double bias = entry->type == JSON_NUMBER ? json_double(f->json, entry) : 1000;
        if (!(bias >= -100 && bias <= 100))
            return error_param(f->err, STATUS_INVALID, "logit_bias",
                               "logit_bias of token %.*s must be a number from -100 to 100", shown,
                               key.ptr);
        /* The same id again: the last one wins, as for equal keys. */
        size_t at = 0;
        while (at < out->n_bias && out->bias[at].token != id)
            at++;
        out->n_bias += at == out->n_bias;
        out->bias[at] = (struct api_bias){(uint32_t)id, (float)bias};
    }
    qsort(out->bias, out->n_bias, sizeof(*out->bias), compare_bias);
    return STATUS_OK;
}

static enum status parse_sampling(const struct fields *f, const struct api_context *ctx,
                                  struct api_sampling *out)
{
    *out = (struct api_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]) && status == STATUS_OK; i++)
        status = field_number(f, numbers[i].name, numbers[i].min, numbers[i].above, numbers[i].max,
                              (float *)(void *)((char *)out + numbers[i].offset));
    int64_t top_k = 0, seed = 0;
    if (status == STATUS_OK) /* -1 = off, as other servers have it */
        status = field_integer(f, "top_k", -1, INT32_MAX, &top_k);
    if (status == STATUS_OK)
        status = field_integer(f, "seed", INT64_MIN, INT64_MAX, &seed);
    if (status == STATUS_OK)
        status = parse_logit_bias(f, ctx, out);
    out->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    out->has_seed = field_get(f, "seed") != NULL;
    out->seed = (uint64_t)seed;
    return status;
}

static enum status add_stop(const struct fields *f, const char *param, const struct json_node *node,
                            struct buffer *storage, struct api_request *out)
{
    if (node->type != JSON_STRING || node->len == 0)
        return field_mismatch(f, param, "a string that is not empty", node);
    size_t start = storage->len;
    enum status status = field_text(f, param, node, storage);
    if (status != STATUS_OK)
        return status;
    size_t len = storage->len - start;
    if (len > API_STOP_BYTES)
        return error_param(f->err, STATUS_INVALID, param, "%s has %zu bytes, the most is %d", param,
                           len, API_STOP_BYTES);
    out->stop[out->n_stop++].len = len;
    return STATUS_OK;
}

/* A string, or a list of up to four. */
static enum status parse_stop(const struct fields *f, struct api_request *out)
{
    const struct json_node *stop = field_get(f, "stop");
    if (stop == NULL)
        return STATUS_OK;
    struct buffer storage = {0};
    enum status status = STATUS_OK;
    if (stop->type == JSON_STRING) {
        status = add_stop(f, "stop", stop, &storage, out);
    } else if (stop->type != JSON_ARRAY) {
        status = field_mismatch(f, "stop", "a string or a list of at most 4 strings", stop);
    } else if (stop->count > API_STOP_MAX) {
        status = error_param(f->err, STATUS_INVALID, "stop", "stop has %u strings, the most is %d",
                             stop->count, API_STOP_MAX);
    } else {
        const struct json_node *entry = json_child(stop);
        for (uint32_t i = 0; i < stop->count && status == STATUS_OK;
             i++, entry = json_next(entry)) {
            char param[24];
            snprintf(param, sizeof(param), "stop[%u]", i);
            status = add_stop(f, param, entry, &storage, out);
        }
    }
    const char *text = storage.ptr;
    for (size_t i = 0; i < out->n_stop; i++) {
        out->stop[i].ptr = text;
        text += out->stop[i].len;
    }
    out->storage = storage.ptr;
    return field_of_list(f, "stop", status);
}

static enum status parse_cache_salt(const struct fields *f, struct api_request *out)
{
    const struct json_node *salt = field_get(f, "cache_salt");
    if (salt == NULL)
        return STATUS_OK;
    if (salt->type != JSON_STRING || salt->len == 0)
        return field_mismatch(f, "cache_salt", "a string that is not empty", salt);
    struct buffer text = {0};
    enum status status = field_text(f, "cache_salt", salt, &text);
    if (status == STATUS_OK && text.len > API_SALT_BYTES)
        status = error_param(f->err, STATUS_INVALID, "cache_salt",
                             "cache_salt has %zu bytes, the most is %d", text.len, API_SALT_BYTES);
    out->cache_salt = text.ptr;
    out->cache_salt_len = text.len;
    return status;
}

static enum status parse_logprobs(const struct fields *f, struct api_request *out)
{
    int64_t top = -1;
    out->top_logprobs = -1;
    if (out->endpoint == API_COMPLETIONS) {
        enum status status = field_integer(f, "logprobs", 0, API_TOP_COMPLETIONS, &top);
        out->top_logprobs = (int)top;
        return status;
    }
    bool wanted = false;
    enum status status = field_bool(f, "logprobs", &wanted);
    if (status == STATUS_OK)
        status = field_integer(f, "top_logprobs", 0, API_TOP_CHAT, &top);
    if (status == STATUS_OK && top > 0 && !wanted)
        status = error_param(f->err, STATUS_INVALID, "top_logprobs",
                             "top_logprobs is only allowed when logprobs is true");
    if (wanted)
        out->top_logprobs = top > 0 ? (int)top : 0;
    return status;
}

static enum status parse_stream(const struct fields *f, struct api_request *out)
{
    const struct json_node *options = NULL;
    enum status status = field_bool(f, "stream", &out->stream);
    if (status == STATUS_OK)
        status = field_object(f, "stream_options", &options);
    if (status != STATUS_OK || options == NULL)
        return status;
    if (!out->stream)
        return error_param(f->err, STATUS_INVALID, "stream_options",
                           "stream_options is only allowed when stream is true");
    const struct fields inner = {f->json, options, f->err};
    status = field_bool(&inner, "include_usage", &out->include_usage);
    if (status != STATUS_OK)
        snprintf(f->err->param, sizeof(f->err->param), "stream_options.include_usage");
    return status;
}

/* n, and best_of, which may only say the same: nothing here ranks answers. */
static enum status parse_choices(const struct fields *f, const struct api_context *ctx,
                                 struct api_request *out)
{
    int64_t n = 1, best_of = 0;
    enum status status = field_integer(f, "n", 1, API_CHOICES_MAX, &n);
    if (status == STATUS_OK && out->endpoint == API_COMPLETIONS)
        status = field_integer(f, "best_of", 0, API_CHOICES_MAX, &best_of);
    if (status != STATUS_OK)
        return status;
    if (n > ctx->max_choices)
        return error_param(f->err, STATUS_INVALID, "n",
                           "n is %d; a request may ask for at most %u choices here", (int)n,
                           ctx->max_choices);
    if (best_of > 0 && best_of != n)
        return error_param(f->err, STATUS_UNSUPPORTED, "best_of",
                           "best_of %d with n %d is not supported: they must be equal",
                           (int)best_of, (int)n);
    out->n_choices = (uint32_t)n;
    return STATUS_OK;
}

/* llama-server's name. */
static enum status parse_predict_ms(const struct fields *f, struct api_request *out)
{
    int64_t ms = 0;
    enum status status = field_integer(f, "t_max_predict_ms", 0, INT32_MAX, &ms);
    out->predict_ms = (uint32_t)ms;
    return status;
}

/* max_completion_tokens wins over the older max_tokens. *name: the one that holds; NULL if none. */
static enum status parse_max_tokens(const struct fields *f, struct api_request *out,
                                    const char **name)
{
    int64_t least = out->endpoint == API_CHAT ? 1 : 0, value = -1;
    static const char *const names[] = {"max_tokens", "max_completion_tokens"};
    *name = NULL;
    for (size_t i = 0; i < 2; i++) {
        enum status status = field_integer(f, names[i], least, INT32_MAX, &value);
        if (status != STATUS_OK)
            return status;
        if (field_get(f, names[i]) != NULL)
            *name = names[i];
    }
    out->max_tokens = value < 0 ? 0 : (uint32_t)value;
    return STATUS_OK;
}

/* Prompt and completion must fit the context; fills in the rest of it where no limit was asked for.
 */
static enum status check_length(const struct fields *f, const struct api_context *ctx,
                                const char *max_name, struct api_request *out)
{
    const char *prompt = out->endpoint == API_CHAT ? "messages" : "prompt";
    if (max_name == NULL) {
        if (out->n_tokens >= ctx->context)
            return error_param(
                f->err, STATUS_CONTEXT_LENGTH, prompt,
                "the context is %u tokens; the prompt has %zu and leaves no room for an "
                "answer",
                ctx->context, out->n_tokens);
        out->max_tokens = ctx->context - (uint32_t)out->n_tokens;
        return STATUS_OK;
    }
    if (out->n_tokens + out->max_tokens <= ctx->context)
        return STATUS_OK;
    return error_param(
        f->err, STATUS_CONTEXT_LENGTH, out->n_tokens >= ctx->context ? prompt : max_name,
        "the context is %u tokens; the prompt has %zu and %s asks for %u, together %zu",
        ctx->context, out->n_tokens, max_name, out->max_tokens, out->n_tokens + out->max_tokens);
}

static enum status parse_object(const struct fields *f, const struct api_context *ctx,
                                struct api_request *out)
{
    const char *max_name = NULL;
    enum status status = parse_model(f, ctx, out);
    if (status == STATUS_OK)
        status = parse_stream(f, out);
    if (status == STATUS_OK)
        status = refuse_unsupported(f, out->endpoint);
    if (status == STATUS_OK)
        status = parse_choices(f, ctx, out);
    if (status == STATUS_OK)
        status = parse_sampling(f, ctx, &out->sampling);
    if (status == STATUS_OK)
        status = parse_stop(f, out);
    if (status == STATUS_OK)
        status = field_bool(f, "ignore_eos", &out->ignore_eos);
    if (status == STATUS_OK)
        status = parse_predict_ms(f, out);
    if (status == STATUS_OK)
        status = parse_cache_salt(f, out);
    if (status == STATUS_OK)
        status = parse_logprobs(f, out);
    if (status == STATUS_OK)
        status = parse_max_tokens(f, out, &max_name);
    if (status == STATUS_OK)
        status = parse_prompt(f, ctx, out);
    if (status == STATUS_OK)
        status = check_length(f, ctx, max_name, out);
    return status;
}

enum status api_parse(enum api_endpoint endpoint, struct slice body, const struct api_context *ctx,
                      struct api_request *out, struct error *err)
{
    *out = (struct api_request){.endpoint = endpoint};
    *err = (struct error){0};
    if (body.len > ctx->body_limit)
        return error_set(err, STATUS_TOO_LARGE, "the body has %zu bytes, the most is %zu", body.len,
                         ctx->body_limit);
    struct json json;
    enum status status = json_parse(&json, body, err);
    if (status == STATUS_OK && json_root(&json)->type != JSON_OBJECT)
        status = error_set(err, STATUS_INVALID, "the body must be a JSON object");
    if (status == STATUS_OK) {
        const struct fields f = {&json, json_root(&json), err};
        status = parse_object(&f, ctx, out);
    }
    json_release(&json);
    if (status != STATUS_OK)
        api_request_release(out);
    return status;
}

void api_request_release(struct api_request *req)
{
    free(req->tokens);
    free(req->sampling.bias);
    free(req->cache_salt);
    free(req->storage);
    *req = (struct api_request){0};
}
