/* tokenring bench spec: the same prompts with drafts and without, alternating in one process, through the scheduler
 * that the server has.
 *
 * For each class of prompts: how many times as fast, how often the drafts that were verified were right, and two
 * bounds, both by
 *     (1 - a^(g+1)) / ((1 - a) * (v(g+1) + g*c))
 * with the best constant length g, a step of n rows v(n) and a guess c in steps of one row, as measured in these runs.
 *     bound    a is that of a third run, where -a tokens are drafted and verified in every step, whatever they cost: of
 *              all guesses that the target got to. What drafting always that far could bring at best.
 *     chosen   a is that of the guesses that the controller chose to verify. It chose the better ones, so no constant
 *              length reaches this: the harder of the two.
 * Every answer is compared with its twins, with -H the hashes of their logits, too: these take time for each token, so
 * speed is measured without. Then, where the time of the drafted runs went. */
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

#define CLASSES_MAX 16
#define STREAMS_MAX 64
#define CONTEXT 2048u

struct prompt {
    unsigned class;
    uint32_t n;
    uint32_t *tokens;
};

struct tally {
    uint64_t tokens, ns;
};

/* Without drafts; with as many as pay; with a constant number. */
enum mode { OFF, ON, ALWAYS, MODES };

struct outcome {
    struct tally tally;
    struct spec_account account;
    uint64_t tried[DRAFT_MAX], right[DRAFT_MAX]; /* by place */
};

struct class
{
    const char *name;
    struct outcome of[MODES];
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

static void add_outcome(struct outcome *sum, const struct outcome *o)
{
    sum->tally.tokens += o->tally.tokens;
    sum->tally.ns += o->tally.ns;
    for (uint32_t i = 0; i < DRAFT_MAX; i++) {
        sum->tried[i] += o->tried[i];
        sum->right[i] += o->right[i];
    }
    for (uint32_t i = 0; i < DRAFT_MAX + 2; i++) {
        sum->account.steps[i] += o->account.steps[i];
        sum->account.step_ns[i] += o->account.step_ns[i];
    }
    sum->account.draft_ns += o->account.draft_ns;
    sum->account.passes += o->account.passes;
    sum->account.drafted += o->account.drafted;
    sum->account.right += o->account.right;
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

static double rate(const struct outcome *o)
{
    return o->tally.ns > 0 ? (double)o->tally.tokens * 1e9 / (double)o->tally.ns : 0;
}

static double ratio(const struct class *c)
{
    return c->of[OFF].tally.ns > 0 ? rate(&c->of[ON]) / rate(&c->of[OFF]) : 0;
}

/* Share of the drafted tokens that the target got to (all before them right) that were right. */
static double acceptance(const struct outcome *o)
{
    uint64_t tried = 0, right = 0;
    for (uint32_t k = 0; k < DRAFT_MAX; k++) {
        tried += o->tried[k];
        right += o->right[k];
    }
    return tried > 0 ? (double)right / (double)tried : 0;
}

static double step_ns(const struct spec_account *a)
{
    double sum = 0;
    for (uint32_t i = 0; i < DRAFT_MAX + 2; i++)
        sum += a->step_ns[i];
    return sum;
}

static uint64_t n_steps(const struct spec_account *a)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < DRAFT_MAX + 2; i++)
        sum += a->steps[i];
    return sum;
}

/* Costs in steps without drafts, as measured over all prompts. */
struct costs {
    double step;               /* ns */
    double row[DRAFT_MAX + 1]; /* steps with so many drafted tokens */
    double pass;
};

static struct costs costs_of(const struct run *r, const struct class *all)
{
    const struct spec_account *off = &all->of[OFF].account, *on = &all->of[ON].account,
                              *always = &all->of[ALWAYS].account;
    struct costs c = {.step = step_ns(off) / (double)n_steps(off), .row[0] = 1};
    double known = cost_of(&r->spec->controller.step, r->streams);
    for (uint32_t i = 1; i <= DRAFT_MAX; i++) {
        uint64_t n = on->steps[i] + always->steps[i];
        c.row[i] = n >= 8 ? (on->step_ns[i] + always->step_ns[i]) / (double)n / c.step
                          : cost_of(&r->spec->controller.step, r->streams + i) / known;
    }
    if (on->passes > 0)
        c.pass = on->draft_ns / (double)on->passes / c.step;
    return c;
}

static double best_bound(const struct costs *c, double a)
{
    double best = 1, power = a;
    for (uint32_t g = 1; g <= DRAFT_MAX; g++) {
        power *= a;
        double made = a < 1 ? (1 - power) / (1 - a) : g + 1,
               bound = made / (c->row[g] + g * c->pass);
        best = bound > best ? bound : best;
    }
    return best;
}

static void print_places(const struct outcome *o)
{
    for (uint32_t k = 0; k < 8 && o->tried[k] > 0; k++)
        printf(" %4.2f(%lu)", (double)o->right[k] / (double)o->tried[k],
               (unsigned long)o->tried[k]);
}

static void print_class(const struct run *r, const struct class *c, const struct costs *costs)
{
    const struct outcome *on = &c->of[ON], *always = &c->of[ALWAYS];
    printf("%-12s %7.1f %7.1f %6.3f", c->name, rate(&c->of[OFF]), rate(on), ratio(c));
    if (r->always > 0)
        printf("   %6.3f %6.2f", acceptance(always), best_bound(costs, acceptance(always)));
    printf("   %6.3f %6.2f  ", acceptance(on), best_bound(costs, acceptance(on)));
    print_places(on);
    puts("");
}

/* Where the time of the runs with drafts went, in parts of that of those without. */
static void print_account(const struct class *all, const struct costs *c)
{
    const struct outcome *on = &all->of[ON];
    const struct spec_account *a = &on->account;
    double whole = step_ns(&all->of[OFF].account), base = (double)n_steps(a) * c->step,
           rows = step_ns(a) - base,
           wrong = a->drafted > 0 ? rows * (double)(a->drafted - a->right) / (double)a->drafted : 0,
           outside_off = (double)all->of[OFF].tally.ns - whole,
           outside_on = (double)on->tally.ns - step_ns(a) - a->draft_ns;
    printf(
        "time with drafts, in that of all steps without: steps of one row each %.3f, further rows "
        "%.3f (of wrong guesses %.3f), drafting %.3f",
        base / whole, rows / whole, wrong / whole, a->draft_ns / whole);
    printf("; between steps %.3f, without drafts %.3f\n", outside_on / whole, outside_off / whole);
    printf("steps by drafted tokens:");
    for (uint32_t i = 0; i < DRAFT_MAX + 2; i++)
        if (a->steps[i] > 0)
            printf(" %s%u: %llu", i > DRAFT_MAX ? "over " : "", i > DRAFT_MAX ? DRAFT_MAX : i,
                   (unsigned long long)a->steps[i]);
    printf("; %llu passes of the draft model\n", (unsigned long long)a->passes);
}

static void print_all(const struct run *r)
{
    struct class all = {.name = "all"};
    double ratios = 0;
    unsigned n = 0;
    for (unsigned i = 0; i < r->n_classes; i++)
        for (unsigned mode = 0; mode < MODES; mode++)
            add_outcome(&all.of[mode], &r->classes[i].of[mode]);
    struct costs costs = costs_of(r, &all);
    printf("class          off/s    on/s  ratio%s   chosen a bound   by place (tries)\n",
           r->always > 0 ? "   always a bound" : "");
    for (unsigned i = 0; i < r->n_classes; i++) {
        print_class(r, &r->classes[i], &costs);
        ratios += ratio(&r->classes[i]);
        n += ratio(&r->classes[i]) > 0;
    }
    print_class(r, &all, &costs);
    printf("mean of the classes' ratios %.3f; answers unequal: %u\n", n > 0 ? ratios / n : 0,
           r->n_unequal);
    if (r->always > 0) {
        printf("%u drafted always: %.3f times as fast; by place", r->always,
               rate(&all.of[ALWAYS]) / rate(&all.of[OFF]));
        print_places(&all.of[ALWAYS]);
        puts("");
    }
    printf("a step of %u: %.3f ms; with 1, 2, 3, 4, 8 drafted tokens:", r->streams,
           costs.step / 1e6);
    for (uint32_t rows = 1; rows <= 8; rows += rows < 4 ? 1 : 4)
        printf(" %.3f", costs.row[rows]);
    printf("; a guess of the draft model: %.3f\n", costs.pass);
    if (r->streams == 1)
        print_account(&all, &costs);
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

static bool number(const char *text, uint32_t least, uint32_t most, uint32_t *value)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    *value = (uint32_t)v;
    return end != text && *end == '\0' && v >= least && v <= most;
}

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
            ok = number(optarg, 1, 256, &r->threads);
            break;
        case 'n':
            ok = number(optarg, 2, 1024, &r->n);
            break;
        case 'b':
            ok = number(optarg, 1, STREAMS_MAX, &r->streams);
            break;
        case 'r':
            ok = number(optarg, 1, 1000, &r->repeats);
            break;
        case 'l':
            ok = number(optarg, 1, 1 << 20, &r->limit);
            break;
        case 'a':
            ok = number(optarg, 0, DRAFT_MAX, &r->always);
            break;
        case 'H':
            r->hashes = true;
            break;
        case 'T':
            r->temperature = strtof(optarg, NULL);
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
        print_all(&r);
    close_all(&r);
    return ok && r.n_unequal == 0 ? 0 : 1;
}
