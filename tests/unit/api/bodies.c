/* Writes one reply of every kind into the folder given, as SCHEMA.NUMBER.json or SCHEMA.NUMBER.sse, for
 * test_schemas.py. The token sequence has everything awkward: half characters, equal texts, quotes. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/api/fake_tokenizer.h"

static const char *folder;
static int number;

static void save(const char *schema, const char *ending, struct buffer *out)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.%d.%s", folder, schema, number++, ending);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(out->ptr, 1, out->len, file) != out->len || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    buffer_clear(out);
}

static void run(enum api_endpoint endpoint, bool stream, bool usage, int top,
                enum api_finish reason, uint32_t choices)
{
    static const struct {
        uint32_t token;
        const char *text;
    } made[] = {
        {'"', "\""},
        {FAKE_THE, " the"},
        {FAKE_HALF, ""},
        {0xac, "\xe2\x82\xac"},
        {FAKE_SECOND_A, "a"},
        {'\n', ""},
        {FAKE_E_ACUTE, "\n\xc3\xa9"},
    };
    static const struct api_top tops[] = {
        {'a', -0.5f}, {FAKE_SECOND_A, -1}, {FAKE_HALF, -2}, {0xff, -3}, {'\\', -4},
        {'b', -5},    {'c', -6},           {'d', -7},       {'e', -8},  {'f', -9},
        {'g', -10},   {'h', -11},          {'i', -12},      {'j', -13}, {'k', -14},
        {'l', -15},   {'m', -16},          {'n', -17},      {'o', -18}, {FAKE_IM_END, -19},
    };
    struct api_request request = {.endpoint = endpoint,
                                  .model = "org/fake-1",
                                  .stream = stream,
                                  .include_usage = usage,
                                  .n_choices = choices,
                                  .top_logprobs = top};
    struct api_totals totals = {.prompt_tokens = 9,
                                .cached_tokens = 4,
                                .completion_tokens = 7,
                                .prompt_ms = 1.5,
                                .predicted_ms = 1e3,
                                .has_hash = stream,
                                .logits_hash = 7};
    struct api_reply reply;
    struct buffer out = {0};
    api_reply_init(&reply, &fake_context, &request, slice_of("00ff"), 1700000002);
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        struct api_token token = {made[i].token, -0.1f * (float)i, tops, top > 0 ? (size_t)top : 0};
        for (uint32_t k = 0; k < choices; k++)
            api_reply_token(&reply, k, &token, slice_of(made[i].text), &out);
        if (stream)
            api_reply_keepalive(&reply, &out);
    }
    for (uint32_t k = choices; k-- > 0;)
        api_reply_end(&reply, k, reason, slice_of(""), &totals, &out);
    api_reply_finish(&reply, &totals, &out);
    const char *schema = endpoint == API_COMPLETIONS ? "CreateCompletionResponse"
                         : stream                    ? "CreateChatCompletionStreamResponse"
                                                     : "CreateChatCompletionResponse";
    save(schema, stream ? "sse" : "json", &out);
    api_reply_release(&reply);
    buffer_release(&out);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return EXIT_FAILURE;
    }
    folder = argv[1];
    for (enum api_endpoint e = API_CHAT; e <= API_COMPLETIONS; e++) {
        int most = e == API_CHAT ? API_TOP_CHAT : API_TOP_COMPLETIONS;
        for (int kind = 0; kind < 12; kind++)
            run(e, kind & 1, kind & 2,
                kind < 4   ? -1
                : kind < 8 ? 0
                           : most,
                kind & 1 ? API_FINISH_STOP : API_FINISH_LENGTH, kind % 3 == 0 ? 3 : 1);
    }
    struct buffer out = {0};
    struct error err = {0};
    api_models_json(&fake_context, &out);
    save("ListModelsResponse", "json", &out);
    api_model_json(&fake_context, slice_of("fake"), &out, &err);
    save("Model", "json", &out);
    for (int status = 1; status < STATUS_COUNT; status++) {
        err = (struct error){.status = (enum status)status};
        if (status & 1)
            error_param(&err, err.status, "messages[0]", "text \"%d\"\t", status);
        api_error_json(&err, &out);
        save("ErrorResponse", "json", &out);
        api_error_event(&err, &out);
        save("ErrorResponse", "sse", &out);
    }
    buffer_release(&out);
    return EXIT_SUCCESS;
}
