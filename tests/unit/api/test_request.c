/* api_parse: what good requests become, and which field each bad one names. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/api/fake_tokenizer.h"
#include "tests/check_main.h"

static struct api_request request;
static struct error err;
static struct api_context context;

static void setup(void)
{
    context = fake_context;
}

static void teardown(void)
{
    api_request_release(&request);
}

static enum status parse(enum api_endpoint endpoint, const char *body)
{
    api_request_release(&request);
    return api_parse(endpoint, slice_of(body), &context, &request, &err);
}

/* A completion request with these further members. */
static enum status with(const char *members)
{
    char body[4096];
    snprintf(body, sizeof(body), "{\"prompt\":\"hi\"%s%s}", members[0] != '\0' ? "," : "", members);
    return parse(API_COMPLETIONS, body);
}

static enum status chat_with(const char *members)
{
    char body[4096];
    snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
             members[0] != '\0' ? "," : "", members);
    return parse(API_CHAT, body);
}

/* The prompt's ids, as "258 104 105". */
static const char *ids(void)
{
    static char text[1024];
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < request.n_tokens; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%u", i > 0 ? " " : "",
                                 request.tokens[i]);
    return text;
}

START_TEST(defaults)
{
    ck_assert_int_eq(with(""), STATUS_OK);
    ck_assert_str_eq(request.model, "fake");
    ck_assert_str_eq(ids(), "258 104 105");
    ck_assert_uint_eq(request.max_tokens, 509);
    ck_assert(!request.stream && !request.include_usage && !request.ignore_eos);
    ck_assert_ptr_null(request.cache_salt);
    ck_assert_int_eq(request.top_logprobs, -1);
    ck_assert_uint_eq(request.n_stop, 0);
    const struct api_sampling *s = &request.sampling;
    ck_assert_float_eq(s->temperature, 1);
    ck_assert_float_eq(s->top_p, 1);
    ck_assert_float_eq(s->min_p, 0);
    ck_assert_float_eq(s->repetition_penalty, 1);
    ck_assert_float_eq(s->presence_penalty, 0);
    ck_assert_float_eq(s->frequency_penalty, 0);
    ck_assert_uint_eq(s->top_k, 0);
    ck_assert(!s->has_seed);
    ck_assert_uint_eq(s->n_bias, 0);
    ck_assert_int_eq(chat_with(""), STATUS_OK);
    ck_assert_uint_eq(request.max_tokens, 512 - request.n_tokens);
}
END_TEST

START_TEST(every_field)
{
    ck_assert_int_eq(
        with(
            "\"model\":\"org/"
            "fake-1\",\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":40,"
            "\"repetition_penalty\":1.5,\"presence_penalty\":-2,\"frequency_penalty\":2,\"seed\":-"
            "1,"
            "\"stop\":[\"\\n\\n\",\"\\u00e9nd\"],\"logprobs\":5,\"stream\":true,"
            "\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,\"cache_salt\":\"x\\u00e9\",\"max_tokens\":7,"
            "\"logit_bias\":{\"100\":-100,\"5\":1.5,\"100\":50}"),
        STATUS_OK);
    const struct api_sampling *s = &request.sampling;
    ck_assert_str_eq(request.model, "org/fake-1");
    ck_assert_float_eq(s->temperature, 0.5f);
    ck_assert_float_eq(s->top_p, 0.25f);
    ck_assert_float_eq(s->min_p, 0.125f);
    ck_assert_uint_eq(s->top_k, 40);
    ck_assert_float_eq(s->repetition_penalty, 1.5f);
    ck_assert_float_eq(s->presence_penalty, -2);
    ck_assert_float_eq(s->frequency_penalty, 2);
    ck_assert(s->has_seed && s->seed == UINT64_MAX);
    ck_assert_uint_eq(request.n_stop, 2);
    ck_assert(slice_is(request.stop[0], "\n\n"));
    ck_assert(slice_is(request.stop[1], "\xc3\xa9nd"));
    ck_assert_int_eq(request.top_logprobs, 5);
    ck_assert(request.stream && request.include_usage && request.ignore_eos);
    ck_assert_uint_eq(request.cache_salt_len, 3);
    ck_assert_mem_eq(request.cache_salt, "x\xc3\xa9", 3);
    ck_assert_uint_eq(request.max_tokens, 7);
    ck_assert_uint_eq(s->n_bias, 2);
    ck_assert_uint_eq(s->bias[0].token, 5);
    ck_assert_float_eq(s->bias[0].bias, 1.5f);
    ck_assert_uint_eq(s->bias[1].token, 100);
    ck_assert_float_eq(s->bias[1].bias, 50);
}
END_TEST

START_TEST(accepted)
{
    static const char *const members[] = {
        "\"temperature\":0",
        "\"temperature\":2.0",
        "\"top_p\":0",
        "\"top_k\":-1",
        "\"top_k\":0",
        "\"seed\":9223372036854775807",
        "\"seed\":-9223372036854775808",
        "\"stop\":null",
        "\"stop\":[]",
        "\"stop\":\"x\"",
        "\"stop\":[\"a\",\"b\",\"c\",\"d\"]",
        "\"logit_bias\":{}",
        "\"logit_bias\":null",
        "\"repeat_penalty\":1.1",
        "\"max_tokens\":5.0",
        "\"max_tokens\":509",
        "\"n\":1",
        "\"n\":8",
        "\"t_max_predict_ms\":0",
        "\"t_max_predict_ms\":2000",
        "\"n\":2,\"best_of\":2",
        "\"n\":2,\"best_of\":0",
        "\"best_of\":1",
        "\"best_of\":0",
        "\"echo\":false",
        "\"suffix\":\"\"",
        "\"suffix\":null",
        "\"user\":\"u\"",
        "\"cache_prompt\":true",
        "\"unknown\":[1,{\"a\":{}}]",
        "\"logprobs\":0",
        "\"stream_options\":null",
        "\"response_format\":{\"type\":\"text\"}",
        "\"model\":null",
        "\"min_tokens\":0",
        "\"stop_token_ids\":[]",
        "\"use_beam_search\":false",
        "\"grammar\":\"\"",
    };
    static const char *const chat[] = {
        "\"logprobs\":true",
        "\"logprobs\":true,\"top_logprobs\":20",
        "\"top_logprobs\":0",
        "\"logprobs\":false",
        "\"tools\":[]",
        "\"tools\":null",
        "\"tool_choice\":\"none\"",
        "\"functions\":[]",
        "\"modalities\":[\"text\"]",
        "\"store\":true",
        "\"metadata\":{\"a\":\"b\"}",
        "\"service_tier\":\"auto\"",
        "\"parallel_tool_calls\":true",
        "\"reasoning_effort\":\"low\"",
        "\"audio\":null",
        "\"max_completion_tokens\":3",
        "\"suffix\":\"not a field of chat\"",
    };
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
        ck_assert_msg(with(members[i]) == STATUS_OK, "%s: %s", members[i], err.text);
    for (size_t i = 0; i < sizeof(chat) / sizeof(chat[0]); i++)
        ck_assert_msg(chat_with(chat[i]) == STATUS_OK, "%s: %s", chat[i], err.text);
}
END_TEST

START_TEST(small_rules)
{
    ck_assert_int_eq(chat_with("\"logprobs\":true"), STATUS_OK);
    ck_assert_int_eq(request.top_logprobs, 0);
    ck_assert_int_eq(chat_with("\"logprobs\":true,\"top_logprobs\":3"), STATUS_OK);
    ck_assert_int_eq(request.top_logprobs, 3);
    ck_assert_int_eq(with("\"logprobs\":0"), STATUS_OK);
    ck_assert_int_eq(request.top_logprobs, 0);
    ck_assert_int_eq(with("\"max_tokens\":0"), STATUS_OK);
    ck_assert_uint_eq(request.max_tokens, 0);
    ck_assert_int_eq(chat_with("\"max_tokens\":3,\"max_completion_tokens\":4"), STATUS_OK);
    ck_assert_uint_eq(request.max_tokens, 4);
    ck_assert_int_eq(with("\"repeat_penalty\":1.25"), STATUS_OK);
    ck_assert_float_eq(request.sampling.repetition_penalty, 1.25f);
    ck_assert_int_eq(with("\"temperature\":0.1,\"temperature\":0.2"), STATUS_OK);
    ck_assert_float_eq(request.sampling.temperature, 0.2f);
}
END_TEST

/* Each of these gives `status` and names `param`; the sentence has `part`. */
static const struct bad {
    const char *members, *param;
    enum status status;
    const char *part;
} bad_fields[] = {
    {"\"model\":\"gpt-4\"", "model", STATUS_MODEL_NOT_FOUND, "gpt-4"},
    {"\"model\":\"\"", "model", STATUS_MODEL_NOT_FOUND, "fake"},
    {"\"model\":5", "model", STATUS_INVALID, "a string, not 5"},
    {"\"temperature\":2.01", "temperature", STATUS_INVALID, "from 0 to 2, not 2.01"},
    {"\"temperature\":-0.1", "temperature", STATUS_INVALID, "from 0 to 2"},
    {"\"temperature\":\"hot\"", "temperature", STATUS_INVALID, "the string \"hot\""},
    {"\"temperature\":1e999", "temperature", STATUS_INVALID, "1e999"},
    {"\"temperature\":[]", "temperature", STATUS_INVALID, "an empty array"},
    {"\"temperature\":true", "temperature", STATUS_INVALID, "not true"},
    {"\"top_p\":1.5", "top_p", STATUS_INVALID, "from 0 to 1"},
    {"\"top_p\":{}", "top_p", STATUS_INVALID, "an object"},
    {"\"min_p\":-1", "min_p", STATUS_INVALID, "from 0 to 1"},
    {"\"top_k\":-2", "top_k", STATUS_INVALID, "whole number"},
    {"\"top_k\":1.5", "top_k", STATUS_INVALID, "whole number"},
    {"\"repetition_penalty\":0", "repetition_penalty", STATUS_INVALID, "above 0"},
    {"\"repetition_penalty\":1e-60", "repetition_penalty", STATUS_INVALID, "above 0"},
    {"\"repeat_penalty\":11", "repeat_penalty", STATUS_INVALID, "at most 10"},
    {"\"presence_penalty\":2.5", "presence_penalty", STATUS_INVALID, "from -2 to 2"},
    {"\"frequency_penalty\":-3", "frequency_penalty", STATUS_INVALID, "from -2 to 2"},
    {"\"seed\":1.5", "seed", STATUS_INVALID, "whole number"},
    {"\"seed\":9223372036854775808", "seed", STATUS_INVALID, "9223372036854775808"},
    {"\"seed\":\"1\"", "seed", STATUS_INVALID, "the string"},
    {"\"stop\":5", "stop", STATUS_INVALID, "a string or a list"},
    {"\"stop\":\"\"", "stop", STATUS_INVALID, "not empty"},
    {"\"stop\":[\"a\",\"\"]", "stop", STATUS_INVALID, "stop[1] must be"},
    {"\"stop\":[1]", "stop", STATUS_INVALID, "stop[0] must be a string"},
    {"\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop", STATUS_INVALID, "5 strings"},
    {"\"stop\":\"a\\u0000b\"", "stop", STATUS_INVALID, "U+0000"},
    {"\"logit_bias\":[]", "logit_bias", STATUS_INVALID, "an object"},
    {"\"logit_bias\":{\"263\":1}", "logit_bias", STATUS_INVALID, "0 to 262"},
    {"\"logit_bias\":{\"-1\":1}", "logit_bias", STATUS_INVALID, "-1"},
    {"\"logit_bias\":{\"\":1}", "logit_bias", STATUS_INVALID, "token id"},
    {"\"logit_bias\":{\"18446744073709551617\":1}", "logit_bias", STATUS_INVALID, "token id"},
    {"\"logit_bias\":{\"a\":1}", "logit_bias", STATUS_INVALID, "token id"},
    {"\"logit_bias\":{\"1\":101}", "logit_bias", STATUS_INVALID, "from -100 to 100"},
    {"\"logit_bias\":{\"1\":\"x\"}", "logit_bias", STATUS_INVALID, "from -100 to 100"},
    {"\"stream\":1", "stream", STATUS_INVALID, "true or false"},
    {"\"stream\":\"true\"", "stream", STATUS_INVALID, "true or false"},
    {"\"stream\":true,\"stream_options\":[]", "stream_options", STATUS_INVALID, "an object"},
    {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage",
     STATUS_INVALID, "include_usage"},
    {"\"stream_options\":{}", "stream_options", STATUS_INVALID, "stream is true"},
    {"\"cache_salt\":\"\"", "cache_salt", STATUS_INVALID, "not empty"},
    {"\"cache_salt\":[\"a\"]", "cache_salt", STATUS_INVALID, "not empty"},
    {"\"cache_salt\":\"a\\u0000\"", "cache_salt", STATUS_INVALID, "U+0000"},
    {"\"ignore_eos\":0", "ignore_eos", STATUS_INVALID, "true or false"},
    {"\"max_tokens\":-1", "max_tokens", STATUS_INVALID, "whole number"},
    {"\"max_tokens\":1.5", "max_tokens", STATUS_INVALID, "whole number"},
    {"\"max_tokens\":99999999999999999999", "max_tokens", STATUS_INVALID, "whole number"},
    {"\"max_tokens\":\"5\"", "max_tokens", STATUS_INVALID, "the string"},
    {"\"max_tokens\":510", "max_tokens", STATUS_CONTEXT_LENGTH,
     "512 tokens; the prompt has 3 and max_tokens asks for 510"},
    {"\"n\":0", "n", STATUS_INVALID, "from 1 to 128"},
    {"\"t_max_predict_ms\":-1", "t_max_predict_ms", STATUS_INVALID, "from 0"},
    {"\"n\":9", "n", STATUS_INVALID, "n is 9; a request may ask for at most 8 choices"},
    {"\"n\":129", "n", STATUS_INVALID, "from 1 to 128"},
    {"\"n\":\"x\"", "n", STATUS_INVALID, "whole number"},
    {"\"response_format\":{\"type\":\"json_object\"}", "response_format", STATUS_UNSUPPORTED,
     "\"text\""},
    {"\"response_format\":\"text\"", "response_format", STATUS_INVALID, "object"},
    {"\"response_format\":{}", "response_format", STATUS_UNSUPPORTED, "\"text\""},
    {"\"grammar\":\"root ::= x\"", "grammar", STATUS_UNSUPPORTED, "unconstrained"},
    {"\"guided_json\":{}", "guided_json", STATUS_UNSUPPORTED, "unconstrained"},
    {"\"min_tokens\":1", "min_tokens", STATUS_UNSUPPORTED, "least length"},
    {"\"stop_token_ids\":[1]", "stop_token_ids", STATUS_UNSUPPORTED, "stop strings"},
    {"\"stop_token_ids\":1", "stop_token_ids", STATUS_INVALID, "an array"},
};

static const struct bad bad_completion[] = {
    {"\"logprobs\":6", "logprobs", STATUS_INVALID, "from 0 to 5"},
    {"\"logprobs\":true", "logprobs", STATUS_INVALID, "whole number"},
    {"\"best_of\":2", "best_of", STATUS_UNSUPPORTED, "best_of 2 with n 1"},
    {"\"best_of\":3,\"n\":2", "best_of", STATUS_UNSUPPORTED, "best_of 3 with n 2"},
    {"\"best_of\":129", "best_of", STATUS_INVALID, "from 0 to 128"},
    {"\"echo\":true", "echo", STATUS_UNSUPPORTED, "echo"},
    {"\"echo\":1", "echo", STATUS_INVALID, "true or false"},
    {"\"suffix\":\"x\"", "suffix", STATUS_UNSUPPORTED, "suffix"},
    {"\"suffix\":1", "suffix", STATUS_INVALID, "a string"},
    {"\"prompt\":null", "prompt", STATUS_INVALID, "missing"},
    {"\"prompt\":5", "prompt", STATUS_INVALID, "list of token ids"},
    {"\"prompt\":{}", "prompt", STATUS_INVALID, "an object"},
    {"\"prompt\":[]", "prompt", STATUS_INVALID, "an empty array"},
    {"\"prompt\":[\"a\",\"b\"]", "prompt", STATUS_UNSUPPORTED, "2 prompts"},
    {"\"prompt\":[[1],[2]]", "prompt", STATUS_UNSUPPORTED, "2 prompts"},
    {"\"prompt\":[[]]", "prompt", STATUS_INVALID, "at least one"},
    {"\"prompt\":[true]", "prompt", STATUS_INVALID, "true"},
    {"\"prompt\":[1,263]", "prompt", STATUS_INVALID, "from 0 to 262, not 263"},
    {"\"prompt\":[-1]", "prompt", STATUS_INVALID, "-1"},
    {"\"prompt\":[1,2,\"a\"]", "prompt", STATUS_INVALID, "token id"},
    {"\"prompt\":[1.5]", "prompt", STATUS_INVALID, "token id"},
    {"\"prompt\":[[1,9999999999]]", "prompt", STATUS_INVALID, "token id"},
    {"\"prompt\":\"a\\u0000\"", "prompt", STATUS_INVALID, "U+0000"},
    {"\"prompt\":\"\xff\"", "prompt", STATUS_INVALID_JSON, "UTF-8"},
    {"\"prompt\":[\"\\ud800\"]", "prompt[0]", STATUS_INVALID_JSON, "surrogate"},
};

static const struct bad bad_chat[] = {
    {"\"logprobs\":5", "logprobs", STATUS_INVALID, "true or false"},
    {"\"top_logprobs\":21,\"logprobs\":true", "top_logprobs", STATUS_INVALID, "from 0 to 20"},
    {"\"top_logprobs\":2", "top_logprobs", STATUS_INVALID, "logprobs is true"},
    {"\"max_tokens\":0", "max_tokens", STATUS_INVALID, "from 1"},
    {"\"max_completion_tokens\":0", "max_completion_tokens", STATUS_INVALID, "from 1"},
    {"\"max_completion_tokens\":600", "max_completion_tokens", STATUS_CONTEXT_LENGTH, "600"},
    {"\"tools\":[{\"type\":\"function\"}]", "tools", STATUS_UNSUPPORTED, "tool"},
    {"\"tools\":5", "tools", STATUS_INVALID, "an array"},
    {"\"tool_choice\":\"required\"", "tool_choice", STATUS_UNSUPPORTED, "none"},
    {"\"functions\":[{}]", "functions", STATUS_UNSUPPORTED, "function"},
    {"\"modalities\":[\"text\",\"audio\"]", "modalities", STATUS_UNSUPPORTED, "text"},
    {"\"modalities\":\"text\"", "modalities", STATUS_INVALID, "modalities"},
    {"\"audio\":{\"voice\":\"x\"}", "audio", STATUS_UNSUPPORTED, "text"},
    {"\"web_search_options\":{}", "web_search_options", STATUS_UNSUPPORTED, "model alone"},
    {"\"messages\":null", "messages", STATUS_INVALID, "missing"},
    {"\"messages\":[]", "messages", STATUS_INVALID, "at least one message"},
    {"\"messages\":\"hi\"", "messages", STATUS_INVALID, "list"},
    {"\"messages\":[5]", "messages[0]", STATUS_INVALID, "an object"},
    {"\"messages\":[{}]", "messages[0].role", STATUS_INVALID, "missing"},
    {"\"messages\":[{\"role\":\"king\"}]", "messages[0].role", STATUS_INVALID, "king"},
    {"\"messages\":[{\"role\":5}]", "messages[0].role", STATUS_INVALID, "not 5"},
    {"\"messages\":[{\"role\":\"tool\"}]", "messages[0].role", STATUS_UNSUPPORTED, "tools"},
    {"\"messages\":[{\"role\":\"user\"}]", "messages[0].content", STATUS_INVALID, "missing"},
    {"\"messages\":[{\"role\":\"user\",\"content\":null}]", "messages[0].content", STATUS_INVALID,
     "null"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[]}]", "messages[0].content", STATUS_INVALID,
     "text parts"},
    {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":5}]",
     "messages[1].content", STATUS_INVALID, "not 5"},
    {"\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000\"}]", "messages[0].content",
     STATUS_INVALID, "U+0000"},
    {"\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\"}]", "messages[0].content",
     STATUS_INVALID_JSON, "UTF-8"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\xed\xa0\x80\"}]}"
     "]",
     "messages[0].content[0].text", STATUS_INVALID_JSON, "UTF-8"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[5]}]", "messages[0].content[0]", STATUS_INVALID,
     "an object"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]",
     "messages[0].content[0].type", STATUS_INVALID, "must be \"text\""},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
     "messages[0].content[0].type", STATUS_UNSUPPORTED, "image_url"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
     "messages[0].content[0].text", STATUS_INVALID, "missing"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}]",
     "messages[0].content[0].text", STATUS_INVALID, "not 5"},
    {"\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}]",
     "messages[0].tool_calls", STATUS_UNSUPPORTED, "tool_calls"},
};

static void check_bad(const struct bad *bad, size_t n, enum status (*request_with)(const char *))
{
    for (size_t i = 0; i < n; i++) {
        enum status status = request_with(bad[i].members);
        ck_assert_msg(status == bad[i].status, "%s: %s (%s)", bad[i].members, status_name(status),
                      err.text);
        ck_assert_msg(strcmp(err.param, bad[i].param) == 0, "%s: names \"%s\"", bad[i].members,
                      err.param);
        ck_assert_msg(strstr(err.text, bad[i].part) != NULL, "%s: \"%s\" lacks \"%s\"",
                      bad[i].members, err.text, bad[i].part);
        ck_assert_msg(request.tokens == NULL && request.storage == NULL, "%s: not empty",
                      bad[i].members);
    }
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

START_TEST(bad)
{
    check_bad(bad_fields, COUNT(bad_fields), with);
    check_bad(bad_completion, COUNT(bad_completion), with);
    check_bad(bad_chat, COUNT(bad_chat), chat_with);
}
END_TEST

START_TEST(bad_bodies)
{
    static const char *const bodies[] = {"",   "[]", "5", "\"x\"", "null", "{", "{\"prompt\":\"a\"",
                                         "{}x"};
    for (size_t i = 0; i < COUNT(bodies); i++) {
        ck_assert_int_eq(status_http(parse(API_COMPLETIONS, bodies[i])), 400);
        ck_assert_int_eq(status_http(parse(API_CHAT, bodies[i])), 400);
    }
    ck_assert_int_eq(parse(API_CHAT, "[]"), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "JSON object"));
    ck_assert_int_eq(parse(API_CHAT, "{}"), STATUS_INVALID);
    ck_assert_str_eq(err.param, "messages");
    ck_assert_int_eq(parse(API_COMPLETIONS, "{}"), STATUS_INVALID);
    ck_assert_str_eq(err.param, "prompt");
    context.body_limit = 10;
    ck_assert_int_eq(parse(API_COMPLETIONS, "{\"a\":12345}"), STATUS_TOO_LARGE);
    ck_assert_ptr_nonnull(strstr(err.text, "11 bytes, the most is 10"));
}
END_TEST

START_TEST(long_lists)
{
    struct buffer body = {0};
    buffer_add_text(&body, "{\"messages\":[");
    for (int i = 0; i <= API_MESSAGES_MAX; i++)
        buffer_add_text(&body, i > 0 ? ",{}" : "{}");
    buffer_add_text(&body, "]}");
    ck_assert_int_eq(parse(API_CHAT, body.ptr), STATUS_INVALID);
    ck_assert_str_eq(err.param, "messages");
    buffer_clear(&body);
    buffer_add_text(&body, "{\"prompt\":\"a\",\"logit_bias\":{");
    for (int i = 0; i <= API_BIAS_MAX; i++)
        buffer_printf(&body, "%s\"%d\":1", i > 0 ? "," : "", i % 200);
    buffer_add_text(&body, "}}");
    ck_assert_int_eq(parse(API_COMPLETIONS, body.ptr), STATUS_INVALID);
    ck_assert_str_eq(err.param, "logit_bias");
    buffer_clear(&body);
    buffer_add_text(&body, "{\"prompt\":\"a\",\"stop\":\"");
    for (int i = 0; i <= API_STOP_BYTES; i++)
        buffer_add_byte(&body, 'x');
    buffer_add_text(&body, "\"}");
    ck_assert_int_eq(parse(API_COMPLETIONS, body.ptr), STATUS_INVALID);
    ck_assert_str_eq(err.param, "stop");
    buffer_clear(&body);
    buffer_add_text(&body, "{\"prompt\":\"");
    for (int i = 0; i < 600; i++)
        buffer_add_byte(&body, 'x');
    buffer_add_text(&body, "\"}");
    ck_assert_int_eq(parse(API_COMPLETIONS, body.ptr), STATUS_CONTEXT_LENGTH);
    ck_assert_str_eq(err.param, "prompt");
    ck_assert_ptr_nonnull(strstr(err.text, "512 tokens; the prompt has 601"));
    ck_assert_str_eq(status_code(err.status), "context_length_exceeded");
    /* so long that it is refused by its size; chat likewise, and over all messages */
    buffer_clear(&body);
    buffer_add_text(&body, "{\"prompt\":\"");
    for (int i = 0; i < 12 * 513; i++)
        buffer_add_byte(&body, 'x');
    buffer_add_text(&body, "\"}");
    ck_assert_int_eq(parse(API_COMPLETIONS, body.ptr), STATUS_CONTEXT_LENGTH);
    ck_assert_str_eq(err.param, "prompt");
    ck_assert_ptr_nonnull(strstr(err.text, "has 6156 bytes, which are 513 or more"));
    buffer_clear(&body);
    buffer_add_text(&body, "{\"messages\":[");
    for (int i = 0; i < 2 * 513; i++)
        buffer_printf(&body, "%s{\"role\":\"user\",\"content\":\"123456\"}", i > 0 ? "," : "");
    buffer_add_text(&body, "]}");
    ck_assert_int_eq(parse(API_CHAT, body.ptr), STATUS_CONTEXT_LENGTH);
    ck_assert_str_eq(err.param, "messages");
    ck_assert_ptr_nonnull(strstr(err.text, "which are 513 or more"));
    buffer_release(&body);
}
END_TEST

START_TEST(context_border)
{
    context.context = 10;
    ck_assert_int_eq(with("\"max_tokens\":7"), STATUS_OK);
    ck_assert_int_eq(with("\"max_tokens\":8"), STATUS_CONTEXT_LENGTH);
    ck_assert_str_eq(err.param, "max_tokens");
    context.context = 4;
    ck_assert_int_eq(with(""), STATUS_OK);
    ck_assert_uint_eq(request.max_tokens, 1);
    context.context = 3;
    ck_assert_int_eq(with(""), STATUS_CONTEXT_LENGTH);
    ck_assert_str_eq(err.param, "prompt");
    ck_assert_int_eq(with("\"max_tokens\":0"), STATUS_OK);
    ck_assert_int_eq(with("\"max_tokens\":1"), STATUS_CONTEXT_LENGTH);
    ck_assert_str_eq(err.param, "prompt");
    ck_assert_int_eq(chat_with(""), STATUS_CONTEXT_LENGTH);
    ck_assert_str_eq(err.param, "messages");
}
END_TEST

START_TEST(prompts)
{
    ck_assert_int_eq(parse(API_COMPLETIONS, "{\"prompt\":[\"hi\"]}"), STATUS_OK);
    ck_assert_str_eq(ids(), "258 104 105");
    ck_assert_int_eq(parse(API_COMPLETIONS, "{\"prompt\":[5,262,0]}"), STATUS_OK);
    ck_assert_str_eq(ids(), "5 262 0");
    ck_assert_int_eq(parse(API_COMPLETIONS, "{\"prompt\":[[5,6]]}"), STATUS_OK);
    ck_assert_str_eq(ids(), "5 6");
    ck_assert_int_eq(parse(API_COMPLETIONS, "{\"prompt\":\"<|im_end|>\\u0041\"}"), STATUS_OK);
    ck_assert_str_eq(ids(), "258 257 65");
    ck_assert_int_eq(parse(API_COMPLETIONS, "{\"prompt\":\"\"}"), STATUS_OK);
    ck_assert_str_eq(ids(), "258");
    context.tokenizer = &fake_without_bos;
    ck_assert_int_eq(parse(API_COMPLETIONS, "{\"prompt\":\"\"}"), STATUS_INVALID);
    ck_assert_str_eq(err.param, "prompt");
}
END_TEST

START_TEST(chats)
{
    ck_assert_int_eq(parse(API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"<s>\"}]}"),
                     STATUS_OK);
    ck_assert_str_eq(ids(), "256 117 115 101 114 10 60 115 62 257 256");
    ck_assert_int_eq(parse(API_CHAT,
                           "{\"messages\":[{\"role\":\"developer\",\"content\":\"\"},"
                           "{\"role\":\"assistant\",\"name\":\"x\",\"tool_calls\":[],\"content\":[{"
                           "\"type\":\"text\","
                           "\"text\":\"a\"},{\"type\":\"refusal\",\"refusal\":\"b\"}]}]}"),
                     STATUS_OK);
    ck_assert_str_eq(ids(), "256 115 121 115 116 101 109 10 257 "
                            "256 97 115 115 105 115 116 97 110 116 10 97 10 98 257 256");
    context.tokenizer = &fake_without_chat;
    ck_assert_int_eq(chat_with(""), STATUS_UNSUPPORTED);
    ck_assert_str_eq(err.text, "the chat template is not ChatML");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("request");
    TCase *cases = tcase_create("all");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, defaults);
    tcase_add_test(cases, every_field);
    tcase_add_test(cases, accepted);
    tcase_add_test(cases, small_rules);
    tcase_add_test(cases, bad);
    tcase_add_test(cases, bad_bodies);
    tcase_add_test(cases, long_lists);
    tcase_add_test(cases, context_border);
    tcase_add_test(cases, prompts);
    tcase_add_test(cases, chats);
    suite_add_tcase(suite, cases);
    return check_run(suite);
}
