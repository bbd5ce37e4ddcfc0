/* api_parse with real vocabularies: what the made-up tokenizer of the other tests cannot show. */
#include <stdlib.h>

#include "core/api/api.h"
#include "core/gguf/gguf.h"
#include "core/text/tokenizer.h"
#include "tests/shared.h"

static int failures;

static void expect(bool good, const char *what)
{
    if (!good) {
        printf("not as it should be: %s\n", what);
        failures++;
    }
}

static enum status parse(const struct api_context *ctx, enum api_endpoint e, const char *body,
                         struct api_request *request, struct error *err)
{
    api_request_release(request);
    return api_parse(e, slice_of(body), ctx, request, err);
}

/* The prompt's ids written as text by the model's own tokens. */
static bool spells(const struct tokenizer *tok, const struct api_request *request, const char *text)
{
    struct buffer out = {0};
    tokenizer_decode(tok, request->tokens, request->n_tokens, DECODE_SPECIAL, &out);
    bool same = slice_is(buffer_slice(&out), text);
    if (!same)
        printf("\"%s\" is not \"%s\"\n", out.ptr, text);
    buffer_release(&out);
    return same;
}

int main(void)
{
    const char *shared = shared_folder("api_real");
    if (shared == NULL)
        return 77;
    struct gguf *file = NULL;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    if (gguf_open(shared_path(shared, "data/models/stories260K/stories260K-f32.gguf"), &file,
                  &err) != STATUS_OK ||
        tokenizer_load(file, &tok, &err) != STATUS_OK) {
        printf("%s\n", err.text);
        return EXIT_FAILURE;
    }
    const char *names[] = {"stories"};
    struct api_context ctx = {.tokenizer = tok,
                              .names = names,
                              .n_names = 1,
                              .fingerprint = "fp",
                              .context = 512,
                              .max_choices = 1,
                              .body_limit = 65536};
    struct api_request request = {0};

    expect(parse(&ctx, API_COMPLETIONS, "{\"prompt\":\"\"}", &request, &err) == STATUS_OK,
           "empty prompt");
    expect(request.n_tokens == 1 && request.tokens[0] == tokenizer_bos(tok),
           "an empty prompt is BOS");
    expect(parse(&ctx, API_COMPLETIONS, "{\"prompt\":\"</s>\"}", &request, &err) == STATUS_OK &&
               request.tokens[request.n_tokens - 1] == tokenizer_eos(tok),
           "special tokens of a prompt are parsed");
    expect(parse(&ctx, API_COMPLETIONS, "{\"prompt\":[511]}", &request, &err) == STATUS_OK &&
               request.n_tokens == 1 && request.tokens[0] == 511,
           "ids are used as they are");
    expect(parse(&ctx, API_COMPLETIONS, "{\"prompt\":[512]}", &request, &err) == STATUS_INVALID,
           "512 is outside of the vocabulary");
    expect(parse(&ctx, API_COMPLETIONS, "{\"prompt\":\"Once upon a time\"}", &request, &err) ==
                   STATUS_OK &&
               spells(tok, &request, "<s> Once upon a time"),
           "text gets BOS");
    expect(parse(&ctx, API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &request,
                 &err) == STATUS_UNSUPPORTED &&
               err.text[0] != '\0',
           "a model without ChatML refuses chat");

    api_request_release(&request);
    tokenizer_free(tok);
    gguf_free(file);
    printf("%d failures\n", failures);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
