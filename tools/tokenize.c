/* tokenize.c: `tokenring tokenize`: text on stdin to token ids on stdout, and back. */
#define _GNU_SOURCE
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buffer.h"
#include "core/text/detokenizer.h"
#include "core/text/tokenizer.h"
#include "tools/tool.h"

static const char usage[] =
    "usage: tokenring tokenize -m MODEL.gguf [OPTION]...\n"
    "\n"
    "Reads text on stdin and writes its token ids on one line.\n"
    "\n"
    "  -m, --model FILE   the model (or a file with only its vocabulary)\n"
    "      --jsonl        one JSON string a line in, one JSON array of ids a line out\n"
    "      --special      special tokens written out in the text become those tokens (default)\n"
    "      --no-special   they are plain text\n"
    "      --bos          begin with BOS where the model's prompts do (add_bos_token)\n"
    "      --detokenize   ids in (numbers; with --jsonl one JSON array a line), text out (one JSON "
    "string a\n"
    "                     line); --special shows special tokens\n"
    "  -h, --help         this text\n";

struct options {
    const char *model;
    bool jsonl, special, no_special, bos, detokenize;
};

/* One run; line is the number of the input line at work, 0 where lines do not matter. */
struct run {
    const struct tokenizer *tok;
    const struct options *options;
    unsigned long line;
};

static int fail(const struct run *r, const char *why)
{
    fflush(stdout);
    if (r->line != 0)
        fprintf(stderr, "tokenring tokenize: line %lu: %s\n", r->line, why);
    else
        fprintf(stderr, "tokenring tokenize: %s\n", why);
    return 1;
}

static int print_ids(const struct run *r, struct slice text, const char *open, const char *between,
                     const char *close)
{
    struct token_list ids = {0};
    struct error err = {0};
    unsigned flags = (r->options->no_special ? 0 : ENCODE_PARSE_SPECIAL) |
                     (r->options->bos ? ENCODE_ADD_BOS : 0);
    if (tokenizer_encode(r->tok, text, flags, &ids, &err) != STATUS_OK) {
        token_list_release(&ids);
        return fail(r, err.text);
    }
    fputs(open, stdout);
    for (size_t i = 0; i < ids.count; i++)
        printf("%s%u", i == 0 ? "" : between, ids.ids[i]);
    fputs(close, stdout);
    token_list_release(&ids);
    return 0;
}

static unsigned decode_flags(const struct run *r)
{
    return DECODE_START | (r->options->special ? DECODE_SPECIAL : 0);
}

/* A line with a JSON string to a line with an array. */
static int encode_line(const struct run *r, const json_t *value)
{
    if (!json_is_string(value))
        return fail(r, "is no JSON string");
    return print_ids(r, slice_make(json_string_value(value), json_string_length(value)), "[", ", ",
                     "]\n");
}

/* A line with a JSON array to a line with a string; bytes that are not UTF-8 become U+FFFD. */
static int decode_line(const struct run *r, const json_t *value)
{
    struct detokenizer d;
    struct buffer text = {0};
    size_t n = json_array_size(value);
    if (!json_is_array(value))
        return fail(r, "is no JSON array of token ids");
    detokenizer_init(&d, r->tok, NULL, 0, decode_flags(r));
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(value, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= tokenizer_n_vocab(r->tok)) {
            buffer_release(&text);
            detokenizer_release(&d);
            return fail(r, "has an element that is no token id of this model");
        }
        detokenizer_feed(&d, (uint32_t)json_integer_value(id), &text);
    }
    detokenizer_finish(&d, &text);
    json_t *string = json_stringn_nocheck(text.len != 0 ? text.ptr : "", text.len);
    json_dumpf(string, stdout, JSON_ENCODE_ANY);
    putchar('\n');
    json_decref(string);
    buffer_release(&text);
    detokenizer_release(&d);
    return 0;
}

static int run_lines(struct run *r)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int failed = 0;
    while (!failed && (len = getline(&line, &cap, stdin)) >= 0) {
        json_error_t error;
        r->line++;
        json_t *value = json_loadb(line, (size_t)len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        if (value == NULL) {
            char why[JSON_ERROR_TEXT_LENGTH + 32];
            snprintf(why, sizeof(why), "is not valid JSON: %s", error.text);
            failed = fail(r, why);
        } else {
            failed = r->options->detokenize ? decode_line(r, value) : encode_line(r, value);
        }
        json_decref(value);
    }
    free(line);
    return failed;
}

static void read_all(struct buffer *out)
{
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof(chunk), stdin)) > 0)
        buffer_add(out, chunk, n);
}

/* Numbers with spaces, commas or brackets between them, to the bytes that they stand for. */
static int decode_numbers(struct run *r, const struct buffer *in)
{
    struct buffer text = {0};
    struct token_list ids = {0};
    const char *at = in->len != 0 ? in->ptr : "";
    int failed = 0;
    r->line = 1;
    while (!failed) {
        for (; *at != '\0' && strchr(" \t\r\n,[]", *at) != NULL; at++)
            r->line += *at == '\n';
        char *end;
        unsigned long long id = strtoull(at, &end, 10);
        if (end == at && at == in->ptr + in->len)
            break;
        if (end == at || *at == '-' || *at == '+' || id >= tokenizer_n_vocab(r->tok))
            failed = fail(r, "has something that is no token id of this model");
        else
            token_list_add(&ids, (uint32_t)id);
        at = end;
    }
    if (!failed) {
        tokenizer_decode(r->tok, ids.ids, ids.count, decode_flags(r), &text);
        fwrite(text.ptr, 1, text.len, stdout);
    }
    token_list_release(&ids);
    buffer_release(&text);
    return failed;
}

static int run_text(struct run *r)
{
    struct buffer in = {0};
    read_all(&in);
    int failed = r->options->detokenize ? (in.len != 0 ? decode_numbers(r, &in) : 0)
                                        : print_ids(r, buffer_slice(&in), "", " ", "\n");
    buffer_release(&in);
    return failed;
}

/* Fills o; returns false after an error message or the help text, with *exit_status set. */
static bool parse_options(int argc, char **argv, struct options *o, int *exit_status)
{
    static const struct option longs[] = {
        {"model", required_argument, NULL, 'm'}, {"jsonl", no_argument, NULL, 'j'},
        {"special", no_argument, NULL, 's'},     {"no-special", no_argument, NULL, 'n'},
        {"bos", no_argument, NULL, 'b'},         {"detokenize", no_argument, NULL, 'd'},
        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0},
    };
    *exit_status = 2;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "m:h", longs, NULL)) != -1;) {
        switch (c) {
        case 'm':
            o->model = optarg;
            break;
        case 'j':
            o->jsonl = true;
            break;
        case 's':
            o->special = true;
            break;
        case 'n':
            o->no_special = true;
            break;
        case 'b':
            o->bos = true;
            break;
        case 'd':
            o->detokenize = true;
            break;
        case 'h':
            fputs(usage, stdout);
            *exit_status = 0;
            return false;
        default:
            fputs(usage, stderr);
            return false;
        }
    }
    if (optind < argc)
        fprintf(stderr, "tokenring tokenize: '%s' is no option; text is read from stdin\n",
                argv[optind]);
    else if (o->model == NULL)
        fputs("tokenring tokenize: the model is missing (-m FILE)\n", stderr);
    else if (o->special && o->no_special)
        fputs("tokenring tokenize: --special and --no-special exclude each other\n", stderr);
    else
        return true;
    return false;
}

int cmd_tokenize(int argc, char **argv)
{
    struct options o = {0};
    struct error err = {0};
    struct gguf *g;
    struct tokenizer *tok = NULL;
    int exit_status;
    if (!parse_options(argc, argv, &o, &exit_status))
        return exit_status;
    enum status status = gguf_open(o.model, &g, &err);
    if (status == STATUS_OK)
        status = tokenizer_load(g, &tok, &err);
    gguf_free(g);
    if (status != STATUS_OK) {
        fprintf(stderr, "tokenring tokenize: %s\n", err.text);
        return 1;
    }
    struct run r = {.tok = tok, .options = &o};
    int failed = o.jsonl ? run_lines(&r) : run_text(&r);
    tokenizer_free(tok);
    r.line = 0;
    if (!failed && (fflush(stdout) != 0 || ferror(stdout)))
        failed = fail(&r, "stdout cannot be written");
    if (!failed && ferror(stdin))
        failed = fail(&r, "stdin cannot be read");
    return failed;
}
