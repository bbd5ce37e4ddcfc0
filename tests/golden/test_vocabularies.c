/* Vocabularies of real models: token ids as their own tokenizers give them, and the chat prompts of the default model. */
#define _GNU_SOURCE /* strchrnul */
#include <glob.h>
#include <jansson.h>
#include <string.h>

#include "core/text/chat.h"
#include "tests/made_vocab.h"
#include "tests/shared.h"

static int failed;

static struct tokenizer *load(const char *path)
{
    struct gguf *g;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    if (gguf_open(path, &g, &err) != STATUS_OK || tokenizer_load(g, &tok, &err) != STATUS_OK) {
        printf("not ok %s\n", err.text);
        failed = 1;
    }
    gguf_free(g);
    return tok;
}

static bool encodes(const struct tokenizer *tok, struct slice text, unsigned flags,
                    const uint32_t *expected, size_t n)
{
    struct token_list ids = {0};
    struct error err = {0};
    bool same = tokenizer_encode(tok, text, flags, &ids, &err) == STATUS_OK && ids.count == n &&
                (n == 0 || memcmp(ids.ids, expected, n * sizeof(*expected)) == 0);
    if (!same)
        printf("    %.*s\n    gives %s\n", (int)text.len, text.ptr, made_show(&ids));
    token_list_release(&ids);
    return same;
}

static void report(const char *what, size_t good, size_t all)
{
    bool ok = good == all && all != 0;
    printf("%s %s: %zu of %zu\n", ok ? "ok" : "not ok", what, good, all);
    failed |= !ok;
}

/* name.gguf.inp has the cases, name.gguf.out a line of ids for each. */
static void test_cases(const char *shared, const char *name)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[4096];
    struct buffer in = {0}, out = {0};
    size_t good = 0, all = 0;
    snprintf(path, sizeof(path), "%s/data/vocab/%s.gguf.inp", shared, name);
    shared_read(path, &in);
    snprintf(path, sizeof(path), "%s/data/vocab/%s.gguf.out", shared, name);
    shared_read(path, &out);
    snprintf(path, sizeof(path), "%s/data/vocab/%s.gguf", shared, name);
    struct tokenizer *tok = load(path);
    const char *line = out.ptr;
    for (const char *at = in.ptr, *end; tok != NULL && (end = strstr(at, separator)) != NULL;
         all++) {
        uint32_t ids[1024];
        size_t n = 0;
        const char *newline = strchrnul(line, '\n');
        while (n < 1024 && line < newline) {
            char *next;
            line += strspn(line, " ");
            if (line < newline)
                ids[n++] = (uint32_t)strtoul(line, &next, 10), line = next;
        }
        line = newline + (*newline == '\n');
        good += encodes(tok, slice_make(at, (size_t)(end - at)), 0, ids, n);
        at = end + strlen(separator);
    }
    report(name, all == 46 ? good : 0, 46);
    tokenizer_free(tok);
    buffer_release(&in);
    buffer_release(&out);
}

static size_t read_ids(const json_t *array, uint32_t *ids, size_t max)
{
    size_t n = 0;
    for (; n < json_array_size(array) && n < max; n++)
        ids[n] = (uint32_t)json_integer_value(json_array_get(array, n));
    return n;
}

/* Calls row for each JSON line of a file. */
static size_t each_line(const char *path, size_t (*row)(const json_t *row, void *context),
                        void *context, size_t *all)
{
    struct buffer in = {0};
    size_t good = 0;
    *all = 0;
    shared_read(path, &in);
    for (char *at = in.ptr, *end; at != NULL && (end = strchr(at, '\n')) != NULL; at = end + 1) {
        json_t *value = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, NULL);
        good += row(value, context);
        json_decref(value);
        ++*all;
    }
    buffer_release(&in);
    return good;
}

struct column {
    const struct tokenizer *tok;
    const char *name;
};

static size_t tokens_row(const json_t *row, void *context)
{
    const struct column *c = context;
    const json_t *text = json_object_get(row, "text");
    uint32_t ids[4096];
    size_t n = read_ids(json_object_get(row, c->name), ids, 4096);
    struct slice bytes = slice_make(json_string_value(text), json_string_length(text));
    if (!encodes(c->tok, bytes, 0, ids, n))
        return 0;
    /* And back, but where the model's own rules lose something: NFC, and bytes for which it has no token. */
    struct buffer out = {0};
    bool lossy = strcmp(c->name, "qwen3") == 0;
    for (size_t i = 0; i < bytes.len; i++)
        lossy |= vocab_byte(tokenizer_vocab(c->tok), (uint8_t)bytes.ptr[i]) == TOKEN_NONE;
    tokenizer_decode(c->tok, ids, n, DECODE_START, &out);
    bool same = lossy || slice_equal(buffer_slice(&out), bytes);
    if (!same)
        printf("    %.*s\n    comes back as %.*s\n", (int)bytes.len, bytes.ptr, (int)out.len,
               out.ptr);
    buffer_release(&out);
    return same;
}

/* A prompt in the template's words is the same ids when it is built from messages. */
static bool built_from_messages(const struct tokenizer *tok, const char *prompt,
                                const uint32_t *ids, size_t n)
{
    struct chat_message messages[16];
    size_t n_messages = 0;
    struct token_list got = {0};
    struct error err = {0};
    const char *at = prompt, *role;
    while ((role = strstr(at, "<|im_start|>")) != NULL && n_messages < 16) {
        role += strlen("<|im_start|>");
        const char *newline = strchr(role, '\n'), *end = strstr(role, "<|im_end|>");
        if (end == NULL)
            break;
        messages[n_messages++] =
            (struct chat_message){slice_make(role, (size_t)(newline - role)),
                                  slice_make(newline + 1, (size_t)(end - newline - 1))};
        at = end;
    }
    /* Without its system message, where that is the template's own. */
    bool own = n_messages > 1 && strstr(prompt, "named SmolLM") != NULL &&
               slice_is(messages[0].role, "system");
    bool same = chat_prompt(tok, messages + own, n_messages - own, true, &got, &err) == STATUS_OK &&
                got.count == n && memcmp(got.ids, ids, n * sizeof(*ids)) == 0;
    if (!same)
        printf("    %s\n    built: %s %s\n", prompt, err.text, made_show(&got));
    token_list_release(&got);
    return same;
}

static size_t greedy_row(const json_t *row, void *context)
{
    const json_t *prompt = json_object_get(row, "prompt"), *text = json_object_get(row, "text");
    bool special = json_is_true(json_object_get(row, "special"));
    uint32_t ids[4096];
    size_t n = read_ids(json_object_get(row, "prompt_ids"), ids, 4096);
    struct slice bytes = slice_make(json_string_value(prompt), json_string_length(prompt));
    bool same = encodes(context, bytes, special ? ENCODE_PARSE_SPECIAL : 0, ids, n);
    if (special)
        same = built_from_messages(context, json_string_value(prompt), ids, n) && same;
    struct buffer out = {0};
    n = read_ids(json_object_get(row, "ids"), ids, 4096);
    tokenizer_decode(context, ids, n, DECODE_SPECIAL, &out);
    same = slice_is(buffer_slice(&out), json_string_value(text)) && same;
    buffer_release(&out);
    return same;
}

/* stories260K's goldens: prompts with BOS. */
static void test_stories(const char *shared)
{
    char path[4096];
    glob_t files;
    size_t good = 0;
    snprintf(path, sizeof(path), "%s/data/models/stories260K/stories260K-f32.gguf", shared);
    struct tokenizer *tok = load(path);
    snprintf(path, sizeof(path), "%s/data/models/stories260K/golden/*.json", shared);
    if (tok == NULL || glob(path, 0, NULL, &files) != 0) {
        report("stories260K", 0, 1);
        return;
    }
    for (size_t i = 0; i < files.gl_pathc; i++) {
        json_t *golden = json_load_file(files.gl_pathv[i], 0, NULL);
        const json_t *prompt = json_object_get(golden, "prompt");
        uint32_t ids[4096];
        size_t n = read_ids(json_object_get(golden, "prompt_ids"), ids, 4096);
        good += encodes(tok, slice_make(json_string_value(prompt), json_string_length(prompt)),
                        ENCODE_ADD_BOS, ids, n);
        json_decref(golden);
    }
    report("stories260K's prompts", good, files.gl_pathc);
    globfree(&files);
    tokenizer_free(tok);
}

/* No template of another family passes for ChatML. */
static void test_templates(const char *shared)
{
    char pattern[4096];
    glob_t files;
    size_t refused = 0;
    snprintf(pattern, sizeof(pattern), "%s/data/templates/models/*.jinja", shared);
    if (glob(pattern, 0, NULL, &files) != 0) {
        report("templates", 0, 1);
        return;
    }
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct gguf_builder b = {0};
        struct buffer text = {0};
        struct error err = {0};
        shared_read(files.gl_pathv[i], &text);
        made_bpe(&b, "gpt-2", text.ptr);
        struct tokenizer *tok = made_load(&b);
        if (chat_supported(tok, &err) != STATUS_OK)
            refused++;
        else
            printf("    accepted: %s\n", files.gl_pathv[i]);
        tokenizer_free(tok);
        buffer_release(&text);
    }
    report("templates that are not plain ChatML are refused", refused, files.gl_pathc);
    globfree(&files);
}

int main(void)
{
    static const char *const names[] = {"smollm2",
                                        "qwen3",
                                        "llama3",
                                        "deepseek_v3",
                                        "ggml-vocab-gpt-2",
                                        "ggml-vocab-starcoder",
                                        "ggml-vocab-falcon",
                                        "ggml-vocab-llama-spm",
                                        "ggml-vocab-phi-3"};
    static const char *const columns[][2] = {{"smollm2", "smollm2"},
                                             {"qwen3", "qwen3"},
                                             {"llama3", "llama3"},
                                             {"deepseek_v3", "deepseek_v3"},
                                             {"llama_spm", "ggml-vocab-llama-spm"}};
    const char *shared = shared_folder("vocabularies");
    char path[4096];
    size_t all, good;
    if (shared == NULL)
        return 77;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        test_cases(shared, names[i]);
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        snprintf(path, sizeof(path), "%s/data/vocab/%s.gguf", shared, columns[i][1]);
        struct column c = {load(path), columns[i][0]};
        if (c.tok == NULL)
            continue;
        snprintf(path, sizeof(path), "%s/data/vocab/tokens.jsonl", shared);
        good = each_line(path, tokens_row, &c, &all);
        snprintf(path, sizeof(path), "tokens.jsonl, %s", columns[i][0]);
        report(path, good, all);
        tokenizer_free((struct tokenizer *)(uintptr_t)c.tok);
    }
    /* The draft model has the default model's vocabulary and template. */
    snprintf(path, sizeof(path), "%s/data/models/smollm2-draft/smollm2-135m-draft.gguf", shared);
    struct tokenizer *tok = load(path);
    if (tok != NULL) {
        snprintf(path, sizeof(path), "%s/data/golden/smollm2/greedy.jsonl", shared);
        good = each_line(path, greedy_row, tok, &all);
        report("the default model's prompts", good, all);
    }
    tokenizer_free(tok);
    test_stories(shared);
    test_templates(shared);
    return failed;
}
