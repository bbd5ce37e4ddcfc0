/* refuse.c: fields of OpenAI's and of other servers' APIs that change the answer and are not
 * supported. Ignoring one would give a wrong answer with status 200, so they are refused by name,
 * unless they hold the value that asks for nothing. */
#include "core/api/request_priv.h"

enum rule {
    ZERO,     /* whole number; only 0 */
    OFF,      /* boolean; only false */
    EMPTY,    /* array; only empty */
    NO_TEXT,  /* string; only "" */
    NEVER,    /* only null */
    CHOICE,   /* tool_choice, function_call: "none" or "auto" */
    TEXT_ONLY /* response_format: {"type":"text"}; modalities: ["text"] */
};

enum { CHAT = 1, COMPLETIONS = 2, BOTH = 3 };

static const struct {
    const char *name;
    enum rule rule;
    int endpoints;
    int max; /* ZERO */
    const char *what;
} table[] = {
    {"echo", OFF, COMPLETIONS, 0, "the answer without the prompt"},
    {"suffix", NO_TEXT, COMPLETIONS, 0, "completion at the end"},
    {"tools", EMPTY, CHAT, 0, "plain text answers, no tool calls"},
    {"functions", EMPTY, CHAT, 0, "plain text answers, no function calls"},
    {"tool_choice", CHOICE, CHAT, 0, "\"none\" and \"auto\""},
    {"function_call", CHOICE, CHAT, 0, "\"none\" and \"auto\""},
    {"response_format", TEXT_ONLY, BOTH, 0, "the type \"text\""},
    {"modalities", TEXT_ONLY, CHAT, 0, "[\"text\"]"},
    {"audio", NEVER, CHAT, 0, "text"},
    {"web_search_options", NEVER, CHAT, 0, "answers from the model alone"},
    {"grammar", NO_TEXT, BOTH, 0, "unconstrained text"},
    {"json_schema", NEVER, BOTH, 0, "unconstrained text"},
    {"structured_outputs", NEVER, BOTH, 0, "unconstrained text"},
    {"guided_json", NEVER, BOTH, 0, "unconstrained text"},
    {"guided_regex", NEVER, BOTH, 0, "unconstrained text"},
    {"guided_choice", NEVER, BOTH, 0, "unconstrained text"},
    {"guided_grammar", NEVER, BOTH, 0, "unconstrained text"},
    {"use_beam_search", OFF, BOTH, 0, "sampling one sequence"},
    {"min_tokens", ZERO, BOTH, 1 << 30, "no least length"},
    {"stop_token_ids", EMPTY, BOTH, 0, "stop strings (\"stop\")"},
};

/* Whether the only thing asked for is text. */
static bool text_only(const struct fields *f, const struct json_node *node)
{
    if (node->type == JSON_ARRAY)
        return node->count == 1 && json_string_is(f->json, json_child(node), "text");
    const struct json_node *type = json_get(f->json, node, "type");
    return type != NULL && json_string_is(f->json, type, "text");
}

/* STATUS_OK and *harmless, or a wrong type or range. */
static enum status judge(const struct fields *f, size_t i, const struct json_node *node,
                         bool *harmless)
{
    const char *name = table[i].name;
    bool off = false;
    int64_t number = 0;
    enum status status = STATUS_OK;
    *harmless = false;
    switch (table[i].rule) {
    case ZERO:
        status = field_integer(f, name, 0, table[i].max, &number);
        *harmless = number == 0;
        break;
    case OFF:
        status = field_bool(f, name, &off);
        *harmless = !off;
        break;
    case EMPTY:
        if (node->type != JSON_ARRAY)
            return field_mismatch(f, name, "an array", node);
        *harmless = node->count == 0;
        break;
    case NO_TEXT:
        if (node->type != JSON_STRING)
            return field_mismatch(f, name, "a string", node);
        *harmless = node->len == 0;
        break;
    case CHOICE:
        *harmless = json_string_is(f->json, node, "none") || json_string_is(f->json, node, "auto");
        break;
    case TEXT_ONLY:
        if (node->type != (strcmp(name, "modalities") == 0 ? JSON_ARRAY : JSON_OBJECT))
            return field_mismatch(
                f, name, node->type == JSON_ARRAY ? "an object" : "a list or object", node);
        *harmless = text_only(f, node);
        break;
    case NEVER:
        break;
    }
    return status;
}

enum status refuse_unsupported(const struct fields *f, enum api_endpoint endpoint)
{
    int bit = endpoint == API_CHAT ? CHAT : COMPLETIONS;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const struct json_node *node = field_get(f, table[i].name);
        if (node == NULL || (table[i].endpoints & bit) == 0)
            continue;
        bool harmless;
        enum status status = judge(f, i, node, &harmless);
        if (status != STATUS_OK)
            return status;
        if (!harmless)
            return error_param(f->err, STATUS_UNSUPPORTED, table[i].name,
                               "this use of %s is not supported; supported: %s", table[i].name,
                               table[i].what);
    }
    return STATUS_OK;
}
