/* tokenring perplexity: how well a model predicts a text, by the rule of llama.cpp's tool.
 *
 * The text's ids are cut into windows of C tokens; what does not fill one is left out. Of each window the positions
 * from F (C/2, or what --from says) to C − 2 are scored, each predicting the next token, so that every prediction sees
 * at least F tokens before its own:
 *
 *     0 ........ F ........... C−2  C−1
 *     context    | scored      |            ppl = exp(−Σ ln p(next) / scored)
 *
 * Where the model wants BOS, the first token of each window is replaced by it. */
#define _GNU_SOURCE
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/model/sample.h"
#include "core/model/session.h"
#include "core/text/tokenizer.h"
#include "tools/numbers.h"
#include "tools/tool.h"

struct arguments {
    const char *model, *text, *tier;
    uint32_t window, from, chunks, threads; /* from 0: half the window */
    enum kv_type kv_type;
    bool json;
};

struct score {
    double nll;
    uint64_t scored;
};

static void usage(FILE *out)
{
    fputs(
        "usage: tokenring perplexity -m MODEL.gguf -f TEXT [OPTION]...\n"
        "  -m, --model FILE     the model\n"
        "  -f, --file FILE      the text, UTF-8\n"
        "  -c, --context N      tokens of a window (512)\n"
        "      --from N         first position of a window that is scored (half of it)\n"
        "      --chunks N       windows at most (all)\n"
        "      --kv-type T      f32, f16, q8_0, q4 or auto (auto: q8_0, for heads of less than 32 numbers f16)\n"
        "  -t, --threads N      compute threads (the CPUs of this process)\n"
        "      --tier T         scalar, avx2, avxvnni, avx512, amx (the best)\n"
        "      --json           the result as one JSON object\n"
        "Progress goes to standard error: the perplexity after each window.\n",
        out);
}

static int fail(const char *text)
{
    fprintf(stderr, "tokenring perplexity: %s\n", text);
    return 1;
}

static uint32_t cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > 256 ? 256 : (uint32_t)n;
}

/* 0: go on; else the exit status + 1. */
static int parse(int argc, char **argv, struct arguments *a)
{
    enum { CHUNKS = 256, FROM, KV_TYPE, TIER, JSON, HELP };
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
                                            {"file", required_argument, NULL, 'f'},
                                            {"context", required_argument, NULL, 'c'},
                                            {"chunks", required_argument, NULL, CHUNKS},
                                            {"threads", required_argument, NULL, 't'},
                                            {"kv-type", required_argument, NULL, KV_TYPE},
                                            {"tier", required_argument, NULL, TIER},
                                            {"json", no_argument, NULL, JSON},
                                            {"from", required_argument, NULL, FROM},
                                            {"help", no_argument, NULL, HELP},
                                            {NULL, 0, NULL, 0}};
    struct error err = {0};
    int option;
    bool fine = true;
    optind = 0;
    while ((option = getopt_long(argc, argv, "m:f:c:t:h", options, NULL)) != -1) {
        switch (option) {
        case 'm':
            a->model = optarg;
            break;
        case 'f':
            a->text = optarg;
            break;
        case 'c':
            fine = whole32(optarg, 4, 1u << 30, &a->window);
            break;
        case 't':
            fine = whole32(optarg, 1, 256, &a->threads);
            break;
        case CHUNKS:
            fine = whole32(optarg, 1, 1u << 30, &a->chunks);
            break;
        case FROM:
            fine = whole32(optarg, 1, 1u << 30, &a->from);
            break;
        case KV_TYPE:
            if (kv_geometry_type(optarg, &a->kv_type, &err) != STATUS_OK)
                return fail(err.text) + 2;
            break;
        case TIER:
            a->tier = optarg;
            break;
        case JSON:
            a->json = true;
            break;
        case HELP:
        case 'h':
            usage(stdout);
            return 1;
        default:
            usage(stderr);
            return 3;
        }
        if (!fine) {
            fprintf(stderr, "tokenring perplexity: '%s' is no possible number here\n", optarg);
            return 3;
        }
    }
    if (a->model == NULL || a->text == NULL || optind < argc) {
        usage(stderr);
        return 3;
    }
    a->from = a->from == 0 ? a->window / 2 : a->from;
    if (a->from > a->window - 2)
        return fail("--from leaves no position of a window to be scored") + 2;
    return 0;
}

static bool read_file(const char *path, struct buffer *out)
{
    char chunk[65536];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return false;
    while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0)
        buffer_add(out, chunk, n);
    bool fine = ferror(f) == 0;
    fclose(f);
    return fine;
}

/* The text's ids; the tokenizer's BOS (TOKEN_NONE where the model wants none). */
static enum status tokens_of(const struct gguf *g, const char *path, struct token_list *ids,
                             uint32_t *bos, struct error *err)
{
    struct buffer text = {0};
    struct tokenizer *tok;
    if (!read_file(path, &text)) {
        buffer_release(&text);
        return error_set(err, STATUS_IO, "cannot read %s", path);
    }
    enum status status = tokenizer_load(g, &tok, err);
    if (status == STATUS_OK) {
        *bos = tokenizer_add_bos(tok) ? tokenizer_bos(tok) : TOKEN_NONE;
        status = tokenizer_encode(tok, buffer_slice(&text), ENCODE_ADD_BOS, ids, err);
        tokenizer_free(tok);
    }
    buffer_release(&text);
    return status;
}

/* Scores one window; ids is changed where BOS stands in front. */
static enum status score_window(struct session *s, struct sampler *sampler, uint32_t *ids,
                                uint32_t window, uint32_t first, uint32_t bos, float *rows,
                                struct score *score, struct error *err)
{
    uint32_t n = window - 1 - first, stride = model_logits_stride(s->model);
    if (bos != TOKEN_NONE)
        ids[0] = bos;
    session_reset(s);
    enum status status = session_feed(s, ids, first, 0, SESSION_LOGITS_NONE, NULL, err);
    if (status == STATUS_OK)
        status = session_feed(s, ids + first, n, 0, SESSION_LOGITS_ALL, rows, err);
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++) {
        const float *row = rows + (size_t)i * stride;
        score->nll -= (double)row[ids[first + i + 1]] - sampler_log_sum(sampler, row);
        score->scored++;
    }
    return status;
}

static void print_result(const struct arguments *a, const struct score *score, uint32_t windows,
                         double seconds)
{
    double ppl = exp(score->nll / (double)score->scored);
    if (!a->json) {
        printf("perplexity %.4f over %u windows of %u tokens (%llu scored), %.1f s\n", ppl, windows,
               a->window, (unsigned long long)score->scored, seconds);
        return;
    }
    json_t *json =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:I, s:s, s:f, s:f, s:f}", "model", a->model, "text",
                  a->text, "window", (int)a->window, "from", (int)a->from, "windows", (int)windows,
                  "scored_tokens", (json_int_t)score->scored, "kv_type", kv_type_name(a->kv_type),
                  "nll", score->nll, "ppl", ppl, "seconds", seconds);
    json_dumpf(json, stdout, JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(json);
}

static int run(const struct arguments *a, struct session *s)
{
    struct error err = {0};
    struct token_list ids = {0};
    uint32_t bos = TOKEN_NONE, vocab = model_info(s->model)->vocab;
    if (tokens_of(s->gguf, a->text, &ids, &bos, &err) != STATUS_OK)
        return fail(err.text);
    size_t windows = ids.count / a->window;
    for (size_t i = 0; i < ids.count; i++)
        if (ids.ids[i] >= vocab)
            return fail("the tokenizer has more tokens than the model");
    if (windows == 0) {
        fprintf(stderr, "tokenring perplexity: %s has %zu tokens, a window needs %u\n", a->text,
                ids.count, a->window);
        token_list_release(&ids);
        return 1;
    }
    windows = a->chunks > 0 && a->chunks < windows ? a->chunks : windows;
    struct sampler *sampler = sampler_create(&s->kernels, vocab);
    float *rows =
        xaligned((size_t)(a->window - a->from) * model_logits_stride(s->model) * sizeof(float));
    struct score score = {0};
    uint64_t start = clock_ns();
    enum status status = STATUS_OK;
    for (size_t w = 0; w < windows && status == STATUS_OK; w++) {
        status = score_window(s, sampler, ids.ids + w * a->window, a->window, a->from, bos, rows,
                              &score, &err);
        if (status == STATUS_OK)
            fprintf(stderr, "[%zu/%zu] %.4f\n", w + 1, windows,
                    exp(score.nll / (double)score.scored));
    }
    free(rows);
    sampler_free(sampler);
    token_list_release(&ids);
    if (status != STATUS_OK)
        return fail(err.text);
    print_result(a, &score, (uint32_t)windows, (double)(clock_ns() - start) * 1e-9);
    return 0;
}

int cmd_perplexity(int argc, char **argv)
{
    struct arguments a = {.window = 512, .threads = cpus(), .kv_type = KV_AUTO};
    struct session session;
    struct error err = {0};
    int done = parse(argc, argv, &a);
    if (done != 0)
        return done - 1;
    struct session_options options = {.path = a.model,
                                      .tier = a.tier,
                                      .threads = a.threads,
                                      .context = a.window,
                                      .kv_type = a.kv_type};
    if (session_open(&session, &options, &err) != STATUS_OK)
        return fail(err.text);
    a.kv_type = model_kv_geometry(session.model)->type;
    kernels_enter_thread();
    int status = run(&a, &session);
    session_close(&session);
    return status;
}
