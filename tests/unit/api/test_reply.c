/* Replies byte by byte: chunks, bodies, log-probabilities, errors, models, health. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "core/api/json_write.h"
#include "tests/unit/api/fake_tokenizer.h"
#include "tests/check_main.h"

static struct api_request request;
static struct api_reply reply;
static struct buffer out;

static void setup(void)
{
    request = (struct api_request){
        .endpoint = API_CHAT, .model = "fake", .n_choices = 1, .top_logprobs = -1};
    out = (struct buffer){0};
}

static void teardown(void)
{
    api_reply_release(&reply);
    buffer_release(&out);
}

static void begin(void)
{
    api_reply_init(&reply, &fake_context, &request, slice_of("r1"), 1700000001);
}

static void token(uint32_t id, float logprob, const char *text)
{
    struct api_top top[2] = {{'x', -0.5f}, {'y', -1.5f}};
    struct api_token t = {.token = id, .logprob = logprob, .top = top, .n_top = 2};
    api_reply_token(&reply, 0, &t, slice_of(text), &out);
}

static void finish(enum api_finish reason, const char *text, const struct api_totals *figures)
{
    api_reply_end(&reply, 0, reason, slice_of(text), figures, &out);
    api_reply_finish(&reply, figures, &out);
}

static const struct api_totals totals = {
    .prompt_tokens = 12,
    .cached_tokens = 2,
    .completion_tokens = 5,
    .queue_ms = 0.5,
    .prompt_ms = 100,
    .predicted_ms = 50,
};

#define TIMINGS                                                                                    \
    "\"timings\":{\"cache_n\":2,\"prompt_n\":10,\"queue_ms\":0.500,\"prompt_ms\":100.000,"         \
    "\"prompt_per_second\":100.000,\"predicted_n\":5,\"predicted_ms\":50.000,"                     \
    "\"predicted_per_second\":80.000}"
#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":5,\"total_tokens\":17,"                 \
    "\"prompt_tokens_details\":{\"cached_tokens\":2}}"
#define CHAT_HEAD                                                                                  \
    "data: {\"id\":\"chatcmpl-r1\",\"object\":\"chat.completion.chunk\",\"created\":1700000001,"   \
    "\"model\":\"fake\",\"system_fingerprint\":\"fp_test\",\"choices\":["
#define TEXT_HEAD                                                                                  \
    "data: {\"id\":\"cmpl-r1\",\"object\":\"text_completion\",\"created\":1700000001,"             \
    "\"model\":\"fake\",\"system_fingerprint\":\"fp_test\",\"choices\":["

START_TEST(chat_stream)
{
    request.stream = true;
    begin();
    ck_assert_str_eq(api_reply_content_type(&reply), "text/event-stream");
    token('H', 0, "H");
    ck_assert_str_eq(out.ptr,
                     CHAT_HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                               "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT_HEAD
                               "{\"index\":0,\"delta\":{\"content\":\"H\"},\"logprobs\":null,"
                               "\"finish_reason\":null}]}\n\n");
    buffer_clear(&out);
    token(0xc3, 0, "");
    ck_assert_uint_eq(out.len, 0);
    token(0xa9, 0, "\xc3\xa9\n\"");
    ck_assert_str_eq(out.ptr, CHAT_HEAD "{\"index\":0,\"delta\":{\"content\":\"\xc3\xa9\\n\\\"\"},"
                                        "\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    buffer_clear(&out);
    finish(API_FINISH_STOP, "", &totals);
    ck_assert_str_eq(out.ptr,
                     CHAT_HEAD "{\"index\":0,\"delta\":{},\"logprobs\":null,"
                               "\"finish_reason\":\"stop\"}]," TIMINGS "}\n\ndata: [DONE]\n\n");
}
END_TEST

START_TEST(chat_stream_usage)
{
    request.stream = request.include_usage = true;
    begin();
    struct api_totals traced = totals;
    traced.has_hash = true;
    traced.logits_hash = 0x0123456789abcdefull;
    finish(API_FINISH_LENGTH, "tail", &traced);
    const char *hash = "\"logits_hash\":\"0123456789abcdef\"}";
    /* Role, tail, finish, usage, [DONE]: also when no token was ever made. */
    int events = 0, nulls = 0;
    for (const char *p = out.ptr; (p = strstr(p, "\n\n")) != NULL; p += 2)
        events++;
    for (const char *p = out.ptr; (p = strstr(p, "\"usage\":null}\n")) != NULL; p++)
        nulls++;
    ck_assert_int_eq(events, 5);
    ck_assert_int_eq(nulls, 3);
    const char *usage = strstr(out.ptr, "\"choices\":[]," USAGE ",\"timings\"");
    ck_assert_ptr_nonnull(usage);
    ck_assert_ptr_nonnull(strstr(usage, hash));
    ck_assert(strstr(out.ptr, "\"finish_reason\":\"length\"") < usage);
    ck_assert_ptr_nonnull(strstr(out.ptr, "{\"content\":\"tail\"}"));
}
END_TEST

START_TEST(completion_stream)
{
    request.endpoint = API_COMPLETIONS;
    request.stream = true;
    begin();
    token('H', 0, "H");
    ck_assert_str_eq(out.ptr, TEXT_HEAD "{\"index\":0,\"text\":\"H\",\"logprobs\":null,"
                                        "\"finish_reason\":null}]}\n\n");
    buffer_clear(&out);
    finish(API_FINISH_LENGTH, "", &totals);
    ck_assert_str_eq(out.ptr,
                     TEXT_HEAD "{\"index\":0,\"text\":\"\",\"logprobs\":null,"
                               "\"finish_reason\":\"length\"}]," TIMINGS "}\n\ndata: [DONE]\n\n");
}
END_TEST

START_TEST(bodies)
{
    begin();
    ck_assert_str_eq(api_reply_content_type(&reply), "application/json");
    token('H', 0, "H");
    ck_assert_uint_eq(out.len, 0);
    finish(API_FINISH_STOP, "i", &totals);
    ck_assert_str_eq(
        out.ptr, "{\"id\":\"chatcmpl-r1\",\"object\":\"chat.completion\",\"created\":1700000001,"
                 "\"model\":\"fake\",\"system_fingerprint\":\"fp_test\",\"choices\":[{\"index\":0,"
                 "\"message\":{\"role\":\"assistant\",\"content\":\"Hi\",\"refusal\":null},"
                 "\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE "," TIMINGS "}");
    api_reply_release(&reply);
    buffer_clear(&out);
    request.endpoint = API_COMPLETIONS;
    begin();
    finish(API_FINISH_LENGTH, "", &totals);
    ck_assert_str_eq(
        out.ptr,
        "{\"id\":\"cmpl-r1\",\"object\":\"text_completion\",\"created\":1700000001,"
        "\"model\":\"fake\",\"system_fingerprint\":\"fp_test\",\"choices\":[{\"index\":0,"
        "\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE "," TIMINGS "}");
}
END_TEST

START_TEST(chat_logprobs)
{
    request.stream = true;
    request.top_logprobs = 1;
    begin();
    token(FAKE_HALF, -0.25f, "");
    ck_assert_ptr_null(strstr(out.ptr, "-0.25"));
    buffer_clear(&out);
    token(0xac, -INFINITY, "\xe2\x82\xac");
    ck_assert_ptr_nonnull(strstr(
        out.ptr, "\"logprobs\":{\"content\":[{\"token\":\"bytes:\\\\xe2\\\\x82\",\"logprob\":-0.25,"
                 "\"bytes\":[226,130],\"top_logprobs\":[{\"token\":\"x\",\"logprob\":-0.5,"
                 "\"bytes\":[120]}]},{\"token\":\"bytes:\\\\xac\",\"logprob\":-9999.0,"
                 "\"bytes\":[172],\"top_logprobs\":[{\"token\":\"x\",\"logprob\":-0.5,"
                 "\"bytes\":[120]}]}],\"refusal\":null}"));
    buffer_clear(&out);
    /* Written once; what waits at the end goes with the finish chunk. */
    token('a', -1, "a");
    ck_assert_ptr_null(strstr(out.ptr, "226"));
    buffer_clear(&out);
    token('b', -2, "");
    finish(API_FINISH_LENGTH, "", &totals);
    ck_assert_ptr_nonnull(
        strstr(out.ptr, "\"delta\":{},\"logprobs\":{\"content\":[{\"token\":\"b\""));
}
END_TEST

START_TEST(completion_logprobs)
{
    request.endpoint = API_COMPLETIONS;
    request.top_logprobs = 2;
    begin();
    token(FAKE_THE, -1, " the");
    token(FAKE_E_ACUTE, -2, "\xc3\xa9");
    token(FAKE_HALF, -3, "");
    token('x', -0.5f, "\xef\xbf\xbdx");
    struct api_top same[2] = {{'a', -0.125f}, {FAKE_SECOND_A, -0.25f}};
    struct api_token t = {.token = FAKE_SECOND_A, .logprob = -0.25f, .top = same, .n_top = 2};
    api_reply_token(&reply, 0, &t, slice_of("a"), &out);
    finish(API_FINISH_STOP, "", &totals);
    ck_assert_ptr_nonnull(strstr(
        out.ptr,
        "\"logprobs\":{\"tokens\":[\" the\",\"\xc3\xa9\",\"bytes:\\\\xe2\\\\x82\",\"x\",\"a\"],"
        "\"token_logprobs\":[-1,-2,-3,-0.5,-0.25],"
        "\"top_logprobs\":[{\"x\":-0.5,\"y\":-1.5,\" "
        "the\":-1},{\"x\":-0.5,\"y\":-1.5,\"\xc3\xa9\":-2},"
        "{\"x\":-0.5,\"y\":-1.5,\"bytes:\\\\xe2\\\\x82\":-3},{\"x\":-0.5,\"y\":-1.5},{\"a\":-0.125}"
        "],"
        "\"text_offset\":[0,4,5,6,7]}"));
}
END_TEST

/* A token inside a character has that character's offset. */
START_TEST(offset_inside_a_character)
{
    request.endpoint = API_COMPLETIONS;
    request.top_logprobs = 0;
    begin();
    token('q', -1, "q");
    token(FAKE_HALF, -1, "");
    token(0xac, -1, "\xe2\x82\xac");
    token('q', -1, "q");
    finish(API_FINISH_STOP, "", &totals);
    ck_assert_ptr_nonnull(strstr(out.ptr, "\"text_offset\":[0,1,1,2]"));
}
END_TEST

START_TEST(completion_logprobs_zero)
{
    request.endpoint = API_COMPLETIONS;
    request.top_logprobs = 0;
    begin();
    token('q', -1, "q");
    finish(API_FINISH_STOP, "", &totals);
    ck_assert_ptr_nonnull(strstr(out.ptr, "\"top_logprobs\":[{\"q\":-1}]"));
}
END_TEST

static void token_of(uint32_t choice, uint32_t id, const char *text)
{
    struct api_top top = {'x', -0.5f};
    struct api_token t = {.token = id, .logprob = -1, .top = &top, .n_top = 1};
    api_reply_token(&reply, choice, &t, slice_of(text), &out);
}

#define DELTA(index, delta, finish)                                                                \
    CHAT_HEAD "{\"index\":" index ",\"delta\":{" delta                                             \
              "},\"logprobs\":null,\"finish_reason\":" finish "}]"
#define ROLE(index) DELTA(index, "\"role\":\"assistant\",\"content\":\"\"", "null") "}\n\n"

START_TEST(choices_of_a_stream)
{
    request.stream = true;
    request.n_choices = 2;
    begin();
    token_of(1, 'a', "a");
    token_of(0, 'b', "b");
    api_reply_end(&reply, 1, API_FINISH_STOP, slice_of(""), &totals, &out);
    token_of(0, 'c', "c");
    ck_assert_str_eq(
        out.ptr,
        ROLE("0") ROLE("1") DELTA("1", "\"content\":\"a\"", "null") "}\n\n" DELTA(
            "0", "\"content\":\"b\"",
            "null") "}\n\n" DELTA("1", "", "\"stop\"") "," TIMINGS
                                                       "}\n\n" DELTA("0", "\"content\":\"c\"",
                                                                     "null") "}\n\n");
    buffer_clear(&out);
    api_reply_end(&reply, 0, API_FINISH_LENGTH, slice_of("d"), &totals, &out);
    api_reply_finish(&reply, &totals, &out);
    ck_assert_str_eq(out.ptr, DELTA("0", "\"content\":\"d\"", "null") "}\n\n" DELTA(
                                  "0", "", "\"length\"") "," TIMINGS "}\n\ndata: [DONE]\n\n");
}
END_TEST

START_TEST(choices_of_a_body)
{
    struct api_totals traced = totals;
    traced.has_hash = true;
    traced.logits_hash = 0xabc;
    request.n_choices = 2;
    request.top_logprobs = 1;
    request.endpoint = API_COMPLETIONS;
    begin();
    token_of(1, 'a', "a");
    token_of(0, 'b', "b");
    token_of(1, 'c', "c");
    api_reply_end(&reply, 1, API_FINISH_LENGTH, slice_of(""), &traced, &out);
    api_reply_end(&reply, 0, API_FINISH_STOP, slice_of("!"), &traced, &out);
    ck_assert_uint_eq(out.len, 0);
    api_reply_finish(&reply, &totals, &out);
    ck_assert_ptr_nonnull(strstr(
        out.ptr,
        "\"choices\":[{\"index\":0,\"text\":\"b!\",\"logprobs\":{\"tokens\":[\"b\"],"
        "\"token_logprobs\":[-1],\"top_logprobs\":[{\"x\":-0.5,\"b\":-1}],\"text_offset\":[0]},"
        "\"finish_reason\":\"stop\",\"logits_hash\":\"0000000000000abc\"},"
        "{\"index\":1,\"text\":\"ac\",\"logprobs\":{\"tokens\":[\"a\",\"c\"],"
        "\"token_logprobs\":[-1,-1],\"top_logprobs\":[{\"x\":-0.5,\"a\":-1},{\"x\":-0.5,\"c\":-1}],"
        "\"text_offset\":[0,1]},\"finish_reason\":\"length\",\"logits_hash\":\"0000000000000abc\"}]," USAGE));
}
END_TEST

START_TEST(keepalives_as_data)
{
    request.stream = true;
    request.n_choices = 2;
    request.top_logprobs = 0;
    begin();
    api_reply_keepalive(&reply, &out);
    ck_assert_str_eq(out.ptr, ROLE("0") ROLE("1"));
    buffer_clear(&out);
    token('a', -1, "");
    api_reply_keepalive(&reply, &out);
    ck_assert_str_eq(out.ptr, DELTA("0", "", "null") "}\n\n");
    buffer_clear(&out);
    token('b', -1, "b"); /* what waited is still there */
    ck_assert_ptr_nonnull(strstr(out.ptr, "{\"token\":\"a\""));
    api_reply_end(&reply, 0, API_FINISH_STOP, slice_of(""), &totals, &out);
    buffer_clear(&out);
    api_reply_keepalive(&reply, &out); /* nothing behind a finish reason */
    ck_assert_str_eq(out.ptr, DELTA("1", "", "null") "}\n\n");
    buffer_clear(&out);
    api_reply_release(&reply);
    buffer_clear(&out);
    request.endpoint = API_COMPLETIONS;
    begin();
    api_reply_keepalive(&reply, &out);
    ck_assert_str_eq(out.ptr, TEXT_HEAD "{\"index\":0,\"text\":\"\",\"logprobs\":null,"
                                        "\"finish_reason\":null}]}\n\n");
}
END_TEST

START_TEST(failures)
{
    struct error err = {0};
    error_param(&err, STATUS_INVALID, "stop", "bad \"thing\" \xff");
    const char *body = "{\"error\":{\"message\":\"bad \\\"thing\\\" \xef\xbf\xbd\",\"type\":"
                       "\"invalid_request_error\",\"param\":\"stop\",\"code\":\"invalid_value\"}}";
    begin();
    api_error_json(&err, &out);
    ck_assert_str_eq(out.ptr, body);
    buffer_clear(&out);
    err = (struct error){.status = STATUS_DRAINING};
    api_error_event(&err, &out);
    ck_assert_str_eq(out.ptr,
                     "data: {\"error\":{\"message\":\"the worker is shutting down\",\"type\":"
                     "\"server_error\",\"param\":null,\"code\":\"draining\"}}\n\n"
                     "data: [DONE]\n\n");
    buffer_clear(&out);
    api_keepalive(&out);
    ck_assert_str_eq(out.ptr, ": keepalive\n\n");
}
END_TEST

START_TEST(id_is_escaped)
{
    api_reply_init(&reply, &fake_context, &request, slice_of("a\"b\n\x01"), 1);
    finish(API_FINISH_STOP, "", &totals);
    ck_assert_ptr_nonnull(strstr(out.ptr, "{\"id\":\"chatcmpl-a\\\"b\\n\\u0001\","));
}
END_TEST

START_TEST(models)
{
    api_models_json(&fake_context, &out);
    ck_assert_str_eq(
        out.ptr, "{\"object\":\"list\",\"data\":[{\"id\":\"fake\",\"object\":\"model\",\"created\":"
                 "1700000000,\"owned_by\":\"tokenring\",\"max_model_len\":512},{\"id\":"
                 "\"org/fake-1\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":"
                 "\"tokenring\",\"max_model_len\":512}]}");
    static const char *const ids[] = {"org/fake-1", "org%2Ffake-1", "org%2ffake%2D1"};
    struct error err = {0};
    for (size_t i = 0; i < 3; i++) {
        buffer_clear(&out);
        ck_assert_int_eq(api_model_json(&fake_context, slice_of(ids[i]), &out, &err), STATUS_OK);
        ck_assert_str_eq(out.ptr,
                         "{\"id\":\"org/fake-1\",\"object\":\"model\",\"created\":1700000000,"
                         "\"owned_by\":\"tokenring\",\"max_model_len\":512}");
    }
    buffer_clear(&out);
    ck_assert_int_eq(api_model_json(&fake_context, slice_of("gpt%2"), &out, &err),
                     STATUS_MODEL_NOT_FOUND);
    ck_assert_uint_eq(out.len, 0);
    ck_assert_str_eq(err.param, "model");
    ck_assert_ptr_nonnull(strstr(err.text, "\"gpt%2\""));
}
END_TEST

START_TEST(health)
{
    struct api_health h = {.state = API_HEALTH_OK, .model = "fake", .version = "1", .running = 2};
    ck_assert_int_eq(api_health_json(&h, &out), 200);
    ck_assert_str_eq(out.ptr, "{\"status\":\"ok\",\"model\":\"fake\",\"version\":\"1\","
                              "\"requests_running\":2,\"requests_waiting\":0}");
    buffer_clear(&out);
    h = (struct api_health){.state = API_HEALTH_LOADING, .percent = 42};
    ck_assert_int_eq(api_health_json(&h, &out), 503);
    ck_assert_str_eq(out.ptr, "{\"status\":\"loading\",\"progress\":42,"
                              "\"requests_running\":0,\"requests_waiting\":0}");
    buffer_clear(&out);
    h.state = API_HEALTH_DRAINING;
    ck_assert_int_eq(api_health_json(&h, &out), 503);
    ck_assert_ptr_nonnull(strstr(out.ptr, "\"draining\""));
    buffer_clear(&out);
    h = (struct api_health){.state = API_HEALTH_ERROR, .error = "no \"model\""};
    ck_assert_int_eq(api_health_json(&h, &out), 503);
    ck_assert_ptr_nonnull(strstr(out.ptr, "\"error\":\"no \\\"model\\\"\""));
}
END_TEST

START_TEST(numbers)
{
    static const float values[] = {0,         -1,      -0.1f,           1e-10f,
                                   -123.456f, 3.4e38f, 1.17549435e-38f, -2.3841858e-7f};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        buffer_clear(&out);
        json_add_float(&out, values[i]);
        ck_assert_msg(strtof(out.ptr, NULL) == values[i], "%s", out.ptr);
    }
    buffer_clear(&out);
    json_add_float(&out, -0.1f);
    ck_assert_str_eq(out.ptr, "-0.1");
    buffer_clear(&out);
    json_add_float(&out, NAN);
    json_add_fixed(&out, INFINITY);
    json_add_u64(&out, UINT64_MAX);
    ck_assert_str_eq(out.ptr, "-9999.00.00018446744073709551615");
}
END_TEST

START_TEST(escapes)
{
    struct slice text = slice_make("\0\x1f\"\\\b\x7f\xf0\x9f\x98\x80\xe2\x82z\xc0\x80", 15);
    json_add_string(&out, text);
    ck_assert_str_eq(out.ptr, "\"\\u0000\\u001f\\\"\\\\\\u0008\\u007f\xf0\x9f\x98\x80"
                              "\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\"");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reply");
    TCase *cases = tcase_create("all");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, chat_stream);
    tcase_add_test(cases, chat_stream_usage);
    tcase_add_test(cases, completion_stream);
    tcase_add_test(cases, bodies);
    tcase_add_test(cases, chat_logprobs);
    tcase_add_test(cases, completion_logprobs);
    tcase_add_test(cases, completion_logprobs_zero);
    tcase_add_test(cases, offset_inside_a_character);
    tcase_add_test(cases, choices_of_a_stream);
    tcase_add_test(cases, choices_of_a_body);
    tcase_add_test(cases, keepalives_as_data);
    tcase_add_test(cases, failures);
    tcase_add_test(cases, id_is_escaped);
    tcase_add_test(cases, models);
    tcase_add_test(cases, health);
    tcase_add_test(cases, numbers);
    tcase_add_test(cases, escapes);
    suite_add_tcase(suite, cases);
    return check_run(suite);
}
