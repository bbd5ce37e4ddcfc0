/* prompt.c: messages and prompts to token ids. */
#include "core/api/request_priv.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/text/chat.h"
#include "core/text/tokenizer.h"

/* Refuses a text that has more tokens than the context however it is split, before it is tokenized. */
static enum status check_size(const struct fields *f, const char *param, const struct buffer *text,
                              const struct api_context *ctx)
{
    size_t least = tokenizer_least(ctx->tokenizer, text->len);
    if (least <= ctx->context)
        return STATUS_OK;
    return error_param(f->err, STATUS_CONTEXT_LENGTH, param,
                       "the context is %u tokens; the prompt has %zu bytes, which are %zu or more",
                       ctx->context, text->len, least);
}

/* A message while its text is still being collected: where it lies in the text buffer. */
struct draft {
    const char *role;
    size_t start, len;
};

/* One part of a content array: a text is appended, anything else refused. */
static enum status add_part(const struct fields *f, const char *path, const struct json_node *part,
                            struct buffer *text)
{
    char param[112];
    if (part->type != JSON_OBJECT)
        return field_mismatch(f, path, "an object with \"type\" and \"text\"", part);
    const struct json_node *type = json_get(f->json, part, "type");
    snprintf(param, sizeof(param), "%s.type", path);
    if (type == NULL || type->type != JSON_STRING)
        return error_param(f->err, STATUS_INVALID, param, "%s must be \"text\"", param);
    bool refusal = json_string_is(f->json, type, "refusal");
    if (!refusal && !json_string_is(f->json, type, "text"))
        return error_param(f->err, STATUS_UNSUPPORTED, param,
                           "the content type \"%.*s\" is not supported; supported: \"text\"",
                           (int)(type->len < 40 ? type->len : 40), json_raw(f->json, type).ptr);
    snprintf(param, sizeof(param), "%s.%s", path, refusal ? "refusal" : "text");
    const struct json_node *value = json_get(f->json, part, refusal ? "refusal" : "text");
    if (value == NULL)
        return error_param(f->err, STATUS_INVALID, param, "%s is missing", param);
    if (value->type != JSON_STRING)
        return field_mismatch(f, param, "a string", value);
    return field_text(f, param, value, text);
}

/* A message's content, a string or an array of parts; parts are joined by a newline. */
static enum status add_content(const struct fields *f, const char *param,
                               const struct json_node *content, struct buffer *text)
{
    if (content->type == JSON_STRING)
        return field_text(f, param, content, text);
    if (content->type != JSON_ARRAY || content->count == 0)
        return field_mismatch(f, param, "a string or a list of text parts", content);
    const struct json_node *part = json_child(content);
    for (uint32_t i = 0; i < content->count; i++, part = json_next(part)) {
        char path[96];
        snprintf(path, sizeof(path), "%s[%u]", param, i);
        if (i > 0)
            buffer_add_byte(text, '\n');
        enum status status = add_part(f, path, part, text);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* The role as the template prints it; NULL and an error if it is none that can be used. */
static const char *read_role(const struct fields *f, unsigned index,
                             const struct json_node *message)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    char param[64];
    snprintf(param, sizeof(param), "messages[%u].role", index);
    const struct json_node *role = json_get(f->json, message, "role");
    if (role == NULL) {
        error_param(f->err, STATUS_INVALID, param, "%s is missing", param);
        return NULL;
    }
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (json_string_is(f->json, role, roles[i]))
            return roles[i];
    if (json_string_is(f->json, role, "developer"))
        return "system";
    if (json_string_is(f->json, role, "tool") || json_string_is(f->json, role, "function"))
        error_param(
            f->err, STATUS_UNSUPPORTED, param,
            "messages from tools are not supported; supported roles: system, developer, user, "
            "assistant");
    else
        field_mismatch(f, param, "system, developer, user or assistant", role);
    return NULL;
}

static enum status read_message(const struct fields *f, unsigned index,
                                const struct json_node *message, struct draft *draft,
                                struct buffer *text)
{
    char param[64];
    if (message->type != JSON_OBJECT) {
        snprintf(param, sizeof(param), "messages[%u]", index);
        return field_mismatch(f, param, "an object with \"role\" and \"content\"", message);
    }
    draft->role = read_role(f, index, message);
    if (draft->role == NULL)
        return f->err->status;
    const struct fields inner = {f->json, message, f->err};
    static const char *const calls[] = {"tool_calls", "function_call"};
    for (size_t i = 0; i < 2; i++) {
        const struct json_node *call = field_get(&inner, calls[i]);
        if (call == NULL || (call->type == JSON_ARRAY && call->count == 0))
            continue;
        snprintf(param, sizeof(param), "messages[%u].%s", index, calls[i]);
        return error_param(f->err, STATUS_UNSUPPORTED, param, "messages with %s are not supported",
                           calls[i]);
    }
    snprintf(param, sizeof(param), "messages[%u].content", index);
    const struct json_node *content = json_get(f->json, message, "content");
    if (content == NULL)
        return error_param(f->err, STATUS_INVALID, param, "%s is missing", param);
    draft->start = text->len;
    enum status status = add_content(f, param, content, text);
    draft->len = text->len - draft->start;
    return status;
}

static enum status parse_messages(const struct fields *f, const struct api_context *ctx,
                                  struct token_list *out)
{
    const struct json_node *list = field_get(f, "messages");
    if (list == NULL)
        return error_param(f->err, STATUS_INVALID, "messages", "messages is missing");
    if (list->type != JSON_ARRAY || list->count == 0)
        return field_mismatch(f, "messages", "a list of at least one message", list);
    if (list->count > API_MESSAGES_MAX)
        return error_param(f->err, STATUS_INVALID, "messages",
                           "messages has %u entries, the most is %d", list->count,
                           API_MESSAGES_MAX);
    enum status status = chat_supported(ctx->tokenizer, f->err);
    if (status != STATUS_OK)
        return status;
    struct draft *drafts = xcalloc(list->count, sizeof(*drafts));
    struct chat_message *messages = xcalloc(list->count, sizeof(*messages));
    struct buffer text = {0};
    const struct json_node *message = json_child(list);
    for (uint32_t i = 0; i < list->count && status == STATUS_OK; i++, message = json_next(message))
        status = read_message(f, i, message, &drafts[i], &text);
    for (uint32_t i = 0; i < list->count && status == STATUS_OK; i++) {
        messages[i].role = slice_of(drafts[i].role);
        if (drafts[i].len > 0)
            messages[i].content = slice_make(text.ptr + drafts[i].start, drafts[i].len);
    }
    if (status == STATUS_OK)
        status = check_size(f, "messages", &text, ctx);
    if (status == STATUS_OK)
        status = chat_prompt(ctx->tokenizer, messages, list->count, true, out, f->err);
    buffer_release(&text);
    free(messages);
    free(drafts);
    return status;
}

/* A prompt of token ids: used as it is, each id checked. */
static enum status read_ids(const struct fields *f, const char *param, const struct json_node *list,
                            const struct api_context *ctx, struct token_list *out)
{
    int64_t n_vocab = tokenizer_n_vocab(ctx->tokenizer);
    const struct json_node *id = json_child(list);
    for (uint32_t i = 0; i < list->count; i++, id = json_next(id)) {
        int64_t value;
        if (id->type != JSON_NUMBER || !json_int64(f->json, id, &value) || value < 0 ||
            value >= n_vocab) {
            char path[96], what[64];
            snprintf(path, sizeof(path), "%s[%u]", param, i);
            snprintf(what, sizeof(what), "a token id from 0 to %lld", (long long)n_vocab - 1);
            return field_mismatch(f, path, what, id);
        }
        token_list_add(out, (uint32_t)value);
    }
    return STATUS_OK;
}

static enum status read_text(const struct fields *f, const char *param,
                             const struct json_node *node, const struct api_context *ctx,
                             struct token_list *out)
{
    struct buffer text = {0};
    enum status status = field_text(f, param, node, &text);
    if (status == STATUS_OK)
        status = check_size(f, param, &text, ctx);
    if (status == STATUS_OK)
        status = tokenizer_encode(ctx->tokenizer, buffer_slice(&text),
                                  ENCODE_PARSE_SPECIAL | ENCODE_ADD_BOS, out, f->err);
    buffer_release(&text);
    return status;
}

static enum status parse_completion_prompt(const struct fields *f, const struct api_context *ctx,
                                           struct token_list *out)
{
    static const char what[] = "a string, a list of one string, or a list of token ids";
    const struct json_node *prompt = field_get(f, "prompt");
    if (prompt == NULL)
        return error_param(f->err, STATUS_INVALID, "prompt", "prompt is missing");
    if (prompt->type == JSON_STRING)
        return read_text(f, "prompt", prompt, ctx, out);
    if (prompt->type != JSON_ARRAY || prompt->count == 0)
        return field_mismatch(f, "prompt", what, prompt);
    const struct json_node *first = json_child(prompt);
    if (first->type == JSON_NUMBER)
        return read_ids(f, "prompt", prompt, ctx, out);
    if (first->type != JSON_STRING && first->type != JSON_ARRAY)
        return field_mismatch(f, "prompt[0]", "a string, a token id or a list of token ids", first);
    if (prompt->count > 1)
        return error_param(f->err, STATUS_UNSUPPORTED, "prompt",
                           "prompt has %u prompts; one a request is supported", prompt->count);
    if (first->type == JSON_STRING)
        return read_text(f, "prompt[0]", first, ctx, out);
    if (first->count == 0)
        return field_mismatch(f, "prompt[0]", "a list of at least one token id", first);
    return read_ids(f, "prompt[0]", first, ctx, out);
}

enum status parse_prompt(const struct fields *f, const struct api_context *ctx,
                         struct api_request *out)
{
    struct token_list tokens = {0};
    enum status status = out->endpoint == API_CHAT
                             ? parse_messages(f, ctx, &tokens)
                             : field_of_list(f, "prompt", parse_completion_prompt(f, ctx, &tokens));
    if (status == STATUS_OK && tokens.count == 0)
        status = error_param(f->err, STATUS_INVALID, "prompt",
                             "prompt is empty, and this model has no token to begin a text with");
    if (status != STATUS_OK) {
        token_list_release(&tokens);
        return status;
    }
    out->tokens = tokens.ids;
    out->n_tokens = tokens.count;
    return STATUS_OK;
}
