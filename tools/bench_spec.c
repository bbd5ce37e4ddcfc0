/* tokenring bench spec: the same prompts with drafts and without, alternating in one process, through the scheduler
 * that the server has; bench_spec_report.h says what becomes of it.
 *
 * Every answer is compared with its twins, with -H the hashes of their logits, too: these take time for each token, so
 * speed is measured without. */
#define _GNU_SOURCE
#include <getopt.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/model/session.h"
#include "core/sched/sched.h"
#include "core/spec/model_drafter.h"
#include "core/spec/ngram.h"
#include "core/spec/spec.h"
#include "core/spec/store.h"
#include "core/text/tokenizer.h"
#include "tools/bench_spec.h"
#include "tools/bench_spec_report.h"
#include "tools/numbers.h"

#define CLASSES_MAX 16
#define STREAMS_MAX 64
#define CONTEXT 2048u

struct prompt {
    unsigned class;
    uint32_t n;
    uint32_t *tokens;
};

struct run {
    const char *path, *prompts_path, *tier, *draft_path;
    uint32_t threads, n, streams, repeats, limit, always;
    float temperature;
    bool hashes;
    struct session session;
    struct gguf *draft_file;
    struct model *draft;
    struct arena *draft_arena;
    struct pages *draft_pool;
    struct spec *spec;
    struct sched *sched;
    struct tokenizer *tokenizer;
    uint32_t *eog, n_eog;
    json_t *roots; /* hold the classes' names */
    struct prompt *prompts;
    uint32_t n_prompts;
    struct class classes[CLASSES_MAX];
    unsigned n_classes;
    uint32_t n_unequal;
};

static unsigned class_of(struct run *r, const char *name)
{
    for (unsigned i = 0; i < r->n_classes; i++)
        if (strcmp(r->classes[i].name, name) == 0)
            return i;
    if (r->n_classes == CLASSES_MAX)
        return CLASSES_MAX - 1;
    r->classes[r->n_classes].name = name;
    return r->n_classes++;
}

/* Lines of {"class": TEXT, "prompt_tokens": [ID, ...]}. */
static bool read_prompts(struct run *r)
{
    FILE *f = fopen(r->prompts_path, "r");
    char *line = NULL;
    size_t cap = 0;
    if (f == NULL)
        return false;
    r->roots = json_array();
    while (getline(&line, &cap, f) > 0 && (r->limit == 0 || r->n_prompts < r->limit)) {
        json_t *root = json_loads(line, 0, NULL), *ids = json_object_get(root, "prompt_tokens"),
               *id;
        const char *class = json_string_value(json_object_get(root, "class"));
        size_t i;
        json_array_append_new(r->roots, root);
        if (class == NULL || json_array_size(ids) == 0)
            continue;
        r->prompts = xreallocarray(r->prompts, r->n_prompts + 1, sizeof(*r->prompts));
        struct prompt *p = &r->prompts[r->n_prompts++];
        *p = (struct prompt){.class = class_of(r, class), .n = (uint32_t)json_array_size(ids)};
        p->tokens = xreallocarray(NULL, p->n, sizeof(*p->tokens));
        json_array_foreach(ids, i, id)
        {
            json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
            p->tokens[i] = value < 0 || value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
        }
    }
    free(line);
    fclose(f);
    return r->n_prompts > 0;
}

/* Whether the model can take all prompts and make its tokens behind them. */
static bool prompts_suit(const struct run *r, struct error *err)
{
    uint32_t vocab = model_info(r->session.model)->vocab;
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        const struct prompt *p = &r->prompts[i];
        if (p->n > CONTEXT || p->n + r->n > CONTEXT) {
            error_set(err, STATUS_INVALID,
                      "prompt %u has %u tokens; with %u behind it at most %u are possible", i + 1,
                      p->n, r->n, CONTEXT - r->n);
            return false;
        }
        for (uint32_t k = 0; k < p->n; k++)
            if (p->tokens[k] >= vocab) {
                error_set(err, STATUS_INVALID, "prompt %u: its token %u is none of the model's %u",
                          i + 1, k, vocab);
                return false;
            }
    }
    return true;
}

struct answer {
    uint32_t n;
    uint64_t hash; /* of its tokens and, with -H, logits */
};

/* Runs prompts [first, first + count) at once; their answers, and tokens and time of each added to what its class has. */
static void run_group(struct run *r, uint32_t first, uint32_t count, enum mode mode,
                      struct answer *answers)
{
    struct error err = {0};
    struct sched_event e;
    uint64_t hashes[STREAMS_MAX] = {0};
    for (uint32_t i = 0; i < count; i++) {
        const struct prompt *p = &r->prompts[first + i];
        uint32_t *tokens = xreallocarray(NULL, p->n, sizeof(*tokens));
        memcpy(tokens, p->tokens, p->n * sizeof(*tokens));
        struct generation *g = generation_new(i, tokens, p->n);
        g->max_tokens = r->n;
        g->no_drafts = mode == OFF;
        g->sampling.temperature = r->temperature;
        g->sampling.seed = first + i;
        /* Only the text itself helps: a prompt is answered many times here. */
        g->salt.word[0] = clock_ns();
        check(sched_submit(r->sched, g, NULL, &err) == STATUS_OK);
    }
    for (uint32_t left = count; left > 0;) {
        struct pollfd p = {.fd = sched_event_fd(r->sched), .events = POLLIN};
        while (sched_next_event(r->sched, &e)) {
            check(e.kind != SCHED_FAILED);
            if (e.kind == SCHED_TOKEN)
                hashes[e.id] = (hashes[e.id] ^ e.token.token) * UINT64_C(0x9e3779b97f4a7c15);
            if (e.kind != SCHED_DONE)
                continue;
            struct class *c = &r->classes[r->prompts[first + e.id].class];
            struct tally *t = &c->of[mode].tally;
            left--;
            answers[e.id] =
                (struct answer){e.end.completion_tokens, hashes[e.id] ^ e.end.logits_hash};
            t->tokens += e.end.completion_tokens > 0 ? e.end.completion_tokens - 1 : 0;
            t->ns += e.end.decode_ns;
        }
        if (left > 0)
            poll(&p, 1, -1);
    }
}

/* One group in one way. Places and time are counted for the class of its first. What the controller learns where it may
 * not choose is forgotten. */
static void run_mode(struct run *r, uint32_t first, uint32_t count, enum mode mode,
                     struct answer *answers)
{
    struct spec *s = r->spec;
    struct controller kept = s->controller;
    struct outcome o = {0};
    s->controller.always = mode == ALWAYS ? r->always : 0;
    s->account = (struct spec_account){0};
    memset(s->tried, 0, sizeof(s->tried));
    memset(s->right, 0, sizeof(s->right));
    run_group(r, first, count, mode, answers);
    o.account = s->account;
    memcpy(o.tried, s->tried, sizeof(o.tried));
    memcpy(o.right, s->right, sizeof(o.right));
    if (mode == ALWAYS)
        s->controller = kept;
    add_outcome(&r->classes[r->prompts[first].class].of[mode], &o);
}

/* One group in all ways, from another one on each time. */
static void compare_group(struct run *r, uint32_t first, uint32_t count, uint32_t turn)
{
    struct answer answers[MODES][STREAMS_MAX];
    uint32_t n = r->always > 0 ? MODES : ALWAYS;
    for (uint32_t k = 0; k < n; k++)
        run_mode(r, first, count, (turn + k) % n, answers[(turn + k) % n]);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 1; k < n; k++)
            if (answers[k][i].n != answers[OFF][i].n ||
                answers[k][i].hash != answers[OFF][i].hash) {
                r->n_unequal++;
                break;
            }
}

/* The draft model, with pages for a full context of all texts that it drafts for. */
static bool open_draft(struct run *r, struct error *err)
{
    struct model_info info;
    if (gguf_open(r->draft_path, &r->draft_file, err) != STATUS_OK ||
        model_inspect_draft(r->draft_file, r->session.gguf, &info, err) != STATUS_OK)
        return false;
    struct model_options o = {.kernels = &r->session.kernels,
                              .team = r->session.team,
                              .kv_type = KV_F16,
                              .max_tokens = DRAFT_STEP_TOKENS,
                              .target = r->session.model,
                              .context =
                                  info.context < DRAFT_CONTEXT ? info.context : DRAFT_CONTEXT};
    if (model_load(r->draft_file, &o, &r->draft, err) != STATUS_OK)
        return false;
    size_t page = model_kv_geometry(r->draft)->page,
           limit = page * (DRAFT_CONTEXT / KV_TILE_POSITIONS + 2) * DRAFT_TEXTS * 2;
    struct arena_options arena = {limit > 64 << 20 ? limit : 64 << 20, &page, 1};
    if (arena_create(&arena, &r->draft_arena, err) != STATUS_OK ||
        pages_create(r->draft_arena, page, &r->draft_pool, err) != STATUS_OK)
        return false;
    spec_add(r->spec, model_drafter(r->draft, &r->session.kernels, r->draft_pool,
                                    pages_total(r->draft_pool)));
    return true;
}

static bool open_all(struct run *r, struct error *err)
{
    struct session_options options = {.path = r->path,
                                      .tier = r->tier,
                                      .threads = r->threads,
                                      .context = CONTEXT,
                                      .positions = (uint64_t)(r->streams + 1) * CONTEXT,
                                      .max_tokens = 256};
    if (session_open(&r->session, &options, err) != STATUS_OK ||
        tokenizer_load(r->session.gguf, &r->tokenizer, err) != STATUS_OK)
        return false;
    r->eog = xreallocarray(NULL, tokenizer_n_vocab(r->tokenizer), sizeof(*r->eog));
    for (uint32_t id = 0; id < tokenizer_n_vocab(r->tokenizer); id++)
        if (tokenizer_is_eog(r->tokenizer, id))
            r->eog[r->n_eog++] = id;
    r->spec = spec_create();
    spec_add(r->spec, ngram_drafter());
    spec_add(r->spec, store_drafter());
    if (r->draft_path != NULL && !open_draft(r, err))
        return false;
    struct sched_engine engine =
        sched_engine_of(r->session.model, &r->session.kernels, r->session.team);
    struct sched_options o = {.context = CONTEXT,
                              .prefill_chunk = 128,
                              .max_queue = STREAMS_MAX,
                              .max_running = STREAMS_MAX,
                              .no_cache = true,
                              .trace_logits = r->hashes,
                              .spec = r->spec,
                              .eog = r->eog,
                              .n_eog = r->n_eog};
    return sched_create(&engine, r->session.pool, NULL, &o, &r->sched, err) == STATUS_OK;
}

static void close_all(struct run *r)
{
    sched_free(r->sched);
    spec_free(r->spec);
    pages_free(r->draft_pool);
    if (r->draft_arena != NULL)
        arena_free(r->draft_arena);
    model_free(r->draft);
    gguf_free(r->draft_file);
    tokenizer_free(r->tokenizer);
    session_close(&r->session);
    for (uint32_t i = 0; i < r->n_prompts; i++)
        free(r->prompts[i].tokens);
    free(r->prompts);
    free(r->eog);
    json_decref(r->roots);
}

static const char help[] =
    "usage: tokenring bench spec -m FILE -p PROMPTS [OPTION]...\n"
    "\n"
    "Answers each prompt with and without drafts, in turn, and compares speed and output. PROMPTS has a JSON object a line:\n"
    "\"class\", a word, and \"prompt_tokens\", a list of token ids.\n"
    "\n"
    "  -m, --model FILE       a GGUF file\n"
    "  -p, --prompts FILE     the prompts\n"
    "  -d, --draft FILE       a draft model\n"
    "  -t, --threads N        compute threads (1)\n"
    "  -n, --gen N            tokens to make at most (128)\n"
    "  -b, --streams N        prompts at once (1)\n"
    "  -r, --repeat N         rounds over all prompts (1)\n"
    "  -a, --always N         tokens that the runs draft which measure the acceptance (3); 0: no such runs\n"
    "  -H, --hashes           compare the logits, too; slower\n"
    "  -l, --limit N          only the first N prompts\n"
    "  -T, --temperature F    0: greedy (0)\n"
    "      --tier T           scalar, avx2, avxvnni, avx512, amx (the best)\n";

static int parse(int argc, char **argv, struct run *r)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
                                            {"prompts", required_argument, NULL, 'p'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"gen", required_argument, NULL, 'n'},
                                            {"streams", required_argument, NULL, 'b'},
                                            {"repeat", required_argument, NULL, 'r'},
                                            {"limit", required_argument, NULL, 'l'},
                                            {"tier", required_argument, NULL, 'I'},
                                            {"temperature", required_argument, NULL, 'T'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"draft", required_argument, NULL, 'd'},
                                            {"always", required_argument, NULL, 'a'},
                                            {"hashes", no_argument, NULL, 'H'},
                                            {NULL, 0, NULL, 0}};
    double temperature = 0;
    int c;
    while ((c = getopt_long(argc, argv, "m:p:d:t:n:b:r:l:T:a:Hh", options, NULL)) != -1) {
        bool ok = true;
        switch (c) {
        case 'm':
            r->path = optarg;
            break;
        case 'd':
            r->draft_path = optarg;
            break;
        case 'p':
            r->prompts_path = optarg;
            break;
        case 'I':
            r->tier = optarg;
            break;
        case 't':
            ok = whole32(optarg, 1, 256, &r->threads);
            break;
        case 'n':
            ok = whole32(optarg, 2, 1024, &r->n);
            break;
        case 'b':
            ok = whole32(optarg, 1, STREAMS_MAX, &r->streams);
            break;
        case 'r':
            ok = whole32(optarg, 1, 1000, &r->repeats);
            break;
        case 'l':
            ok = whole32(optarg, 1, 1 << 20, &r->limit);
            break;
        case 'a':
            ok = whole32(optarg, 0, DRAFT_MAX, &r->always);
            break;
        case 'H':
            r->hashes = true;
            break;
        case 'T':
            temperature = 0;
            ok = strcmp(optarg, "0") == 0 || positive(optarg, 100, &temperature);
            r->temperature = (float)temperature;
            break;
        case 'h':
            fputs(help, stdout);
            return -1;
        default:
            fputs(help, stderr);
            return 2;
        }
        if (!ok) {
            fprintf(stderr, "tokenring bench spec: -%c cannot be '%s'\n", c, optarg);
            return 2;
        }
    }
    if (r->path == NULL || r->prompts_path == NULL || optind != argc) {
        fputs(help, stderr);
        return 2;
    }
    return 0;
}

int bench_spec(int argc, char **argv)
{
    struct run r = {.threads = 1, .n = 128, .streams = 1, .repeats = 1, .always = 3};
    struct error err = {0};
    int code = parse(argc, argv, &r);
    if (code != 0)
        return code < 0 ? 0 : code;
    if (!read_prompts(&r)) {
        fprintf(stderr, "tokenring bench spec: no prompts in %s\n", r.prompts_path);
        return 1;
    }
    bool ok = open_all(&r, &err) && prompts_suit(&r, &err);
    if (!ok)
        fprintf(stderr, "tokenring bench spec: %s\n", err.text);
    for (uint32_t round = 0; ok && round < r.repeats; round++)
        for (uint32_t first = 0; first < r.n_prompts; first += r.streams) {
            uint32_t left = r.n_prompts - first;
            compare_group(&r, first, left < r.streams ? left : r.streams,
                          round + first / r.streams);
        }
    if (ok)
        spec_report_print(&(struct spec_report){.classes = r.classes,
                                                .n_classes = r.n_classes,
                                                .streams = r.streams,
                                                .always = r.always,
                                                .n_unequal = r.n_unequal,
                                                .controller = &r.spec->controller});
    close_all(&r);
    return ok && r.n_unequal == 0 ? 0 : 1;
}
