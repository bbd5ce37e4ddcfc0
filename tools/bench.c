/* tokenring bench: prefill and decode speed of a model on this machine, set against what the machine can do.
 *
 * A test is pp N (a prompt of N tokens after a context of D) or tg N (N tokens one by one for B sequences at once, each
 * after a context of D). Decoding feeds made-up tokens: what is drawn costs the same. Right before each repetition the
 * limits are measured anew (core/kernels/roofline.h), since clocks and memory are shared with neighbours:
 *   MBU = (weight bytes + KV bytes that a step reads) / time / read bandwidth
 *   MFU = 2 * parameters in products * tokens / time / int8 peak */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/kernels/roofline.h"
#include "core/model/session.h"
#include "tools/bench_serve.h"
#include "tools/bench_spec.h"
#include "tools/numbers.h"
#include "tools/tool.h"

#define LIST_MAX 16
#define REPEATS_MAX 64

struct list {
    uint32_t values[LIST_MAX];
    unsigned n;
};

enum format { TABLE, JSON, CSV };

struct bench {
    const char *path, *tier;
    struct list prompts, made, batches, depths;
    uint32_t threads, repeats, chunk;
    enum kv_type kv_type;
    enum format format;
    bool no_kv;
    uint32_t streams;  /* 0: measured */
    double reading[3]; /* seconds, as model_choose_streams says them */
    struct session session;
    struct roofline_memory *memory;
    float *logits;
    bool first_row;
};

struct test {
    bool prefill;
    uint32_t n, batch, depth;
};

struct result {
    double median, least, most; /* tokens a second */
    double mbu, mfu;            /* of the median repetition; 0: no roofline known */
};

static uint32_t token_at(const struct bench *b, uint32_t sequence, uint32_t position)
{
    uint32_t mixed = (sequence * 7919u + position + 1u) * 2654435761u;
    return (mixed >> 8) % model_info(b->session.model)->vocab;
}

/* Feeds n tokens to one sequence, the last one's logits wanted. */
static bool feed(struct bench *b, struct block_table *table, uint32_t sequence, uint32_t n)
{
    uint32_t start = table->n_positions;
    if (!session_append(&b->session, table, n))
        return false;
    struct step_token *tokens = xreallocarray(NULL, b->chunk, sizeof(*tokens));
    for (uint32_t done = 0; done < n;) {
        uint32_t now = n - done < b->chunk ? n - done : b->chunk;
        for (uint32_t i = 0; i < now; i++)
            tokens[i] = (struct step_token){token_at(b, sequence, start + done + i),
                                            start + done + i, 0, done + i == n - 1};
        struct step_sequence s = session_sequence(table);
        struct step step = {tokens, now, &s, 1, b->session.pool};
        model_step(b->session.model, &step, b->logits);
        done += now;
    }
    block_table_truncate(table, table->n_positions); /* its open pages (KV type q4) */
    free(tokens);
    return true;
}

/* One token for each sequence, n times. */
static bool decode(struct bench *b, struct block_table *tables, uint32_t batch, uint32_t n)
{
    struct step_token tokens[512];
    struct step_sequence sequences[512];
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t s = 0; s < batch; s++) {
            uint32_t at = tables[s].n_positions;
            if (!session_append(&b->session, &tables[s], 1))
                return false;
            tokens[s] = (struct step_token){token_at(b, s, at), at, s, true};
            sequences[s] = session_sequence(&tables[s]);
        }
        struct step step = {tokens, batch, sequences, batch, b->session.pool};
        model_step(b->session.model, &step, b->logits);
        for (uint32_t s = 0; s < batch; s++)
            block_table_truncate(&tables[s], tables[s].n_positions);
    }
    return true;
}

/* --no-kv: each token recomputes everything before it, as an engine without a cache would. */
static bool decode_without_cache(struct bench *b, struct block_table *table, uint32_t n)
{
    for (uint32_t i = 1; i <= n; i++) {
        uint32_t pages = table->n_pages;
        block_table_truncate(table, 0);
        pages_unreserve(b->session.pool, pages);
        if (!feed(b, table, 0, i))
            return false;
    }
    return true;
}

/* What a step over `tokens` tokens reads and computes: the embedding is looked up, not multiplied. */
static double product_parameters(const struct bench *b)
{
    const struct model_info *info = model_info(b->session.model);
    double embedding = (double)info->vocab * info->width;
    return (double)info->parameters - (info->tied ? 0 : embedding);
}

static double kv_bytes(const struct bench *b, uint32_t positions)
{
    const struct kv_geometry *g = model_kv_geometry(b->session.model);
    return (double)g->page / KV_TILE_POSITIONS * positions;
}

static bool run_once(struct bench *b, const struct test *t, double *rate, double *mbu, double *mfu)
{
    struct session *s = &b->session;
    struct block_table tables[512];
    uint32_t batch = t->prefill ? 1 : t->batch;
    bool ok = true;
    for (uint32_t i = 0; i < batch; i++) {
        block_table_init(&tables[i], s->pool);
        if (ok && t->depth > 0)
            ok = feed(b, &tables[i], i, t->depth);
    }
    struct roofline line = roofline_measure(s->team, b->memory);
    uint64_t start = clock_ns();
    if (ok && t->prefill)
        ok = feed(b, &tables[0], 0, t->n);
    else if (ok && b->no_kv)
        ok = decode_without_cache(b, &tables[0], t->n);
    else if (ok)
        ok = decode(b, tables, batch, t->n);
    double seconds = (double)(clock_ns() - start) * 1e-9;
    double tokens = (double)t->n * batch, steps = t->prefill ? ceil((double)t->n / b->chunk) : t->n;
    *rate = tokens / seconds;
    double bytes = steps * (double)model_info(s->model)->weight_bytes +
                   (t->prefill ? 0 : tokens * kv_bytes(b, t->depth + t->n / 2));
    *mbu = bytes / seconds / line.read_bytes;
    *mfu = line.int8_ops > 0 ? 2 * product_parameters(b) * tokens / seconds / line.int8_ops : 0;
    for (uint32_t i = 0; i < batch; i++) {
        uint32_t pages = tables[i].n_pages;
        block_table_release(&tables[i]);
        pages_unreserve(s->pool, pages);
    }
    return ok;
}

struct repetition {
    double rate, mbu, mfu;
};

static int by_rate(const void *a, const void *b)
{
    double x = ((const struct repetition *)a)->rate, y = ((const struct repetition *)b)->rate;
    return (x > y) - (x < y);
}

static bool run_test(struct bench *b, const struct test *t, struct result *r)
{
    struct repetition reps[REPEATS_MAX];
    struct test warm = *t;
    warm.n = t->n < 8 ? t->n : 8;
    double unused[3];
    if (!run_once(b, &warm, &unused[0], &unused[1], &unused[2]))
        return false;
    for (uint32_t i = 0; i < b->repeats; i++)
        if (!run_once(b, t, &reps[i].rate, &reps[i].mbu, &reps[i].mfu))
            return false;
    qsort(reps, b->repeats, sizeof(*reps), by_rate);
    const struct repetition *middle = &reps[b->repeats / 2];
    *r = (struct result){middle->rate, reps[0].rate, reps[b->repeats - 1].rate, middle->mbu,
                         middle->mfu};
    return true;
}

static void name_of(const struct bench *b, const struct test *t, char *name, size_t size)
{
    int n = snprintf(name, size, "%s%u", t->prefill ? "pp" : "tg", t->n);
    if (!t->prefill && t->batch > 1)
        n += snprintf(name + n, size - (size_t)n, " b%u", t->batch);
    if (t->depth > 0)
        n += snprintf(name + n, size - (size_t)n, " d%u", t->depth);
    if (b->no_kv && !t->prefill)
        snprintf(name + n, size - (size_t)n, " no-kv");
}

/* The key of a JSON figure: prefill_tps and decode_tps for the plain tests, the rest told apart by batch and depth. */
static void print_json(struct bench *b, const struct test *t, const struct result *r)
{
    char suffix[48] = "";
    int n = 0;
    if (t->prefill ? b->prompts.n > 1 : b->made.n > 1)
        n += snprintf(suffix + n, sizeof(suffix) - (size_t)n, "_n%u", t->n);
    if (!t->prefill && t->batch > 1)
        n += snprintf(suffix + n, sizeof(suffix) - (size_t)n, "_b%u", t->batch);
    if (t->depth > 0)
        snprintf(suffix + n, sizeof(suffix) - (size_t)n, "_d%u", t->depth);
    const char *kind = t->prefill ? "prefill" : "decode";
    printf(", \"%s_tps%s\": %.2f, \"%s_tps_min%s\": %.2f, \"%s_tps_max%s\": %.2f", kind, suffix,
           r->median, kind, suffix, r->least, kind, suffix, r->most);
    printf(", \"%s_mbu%s\": %.3f, \"%s_mfu%s\": %.3f", kind, suffix, r->mbu, kind, suffix, r->mfu);
}

/* What the number of streams was chosen by, if it was. */
static const char *measured_streams(const struct bench *b, char *text, size_t size)
{
    text[0] = '\0';
    if (b->reading[0] > 0)
        snprintf(text, size, " (1, 2, 4: %.2f, %.2f, %.2f ms)", b->reading[0] * 1e3,
                 b->reading[1] * 1e3, b->reading[2] * 1e3);
    return text;
}

static void print_row(struct bench *b, const struct test *t, const struct result *r)
{
    char name[64], text[80];
    name_of(b, t, name, sizeof(name));
    const struct model_info *info = model_info(b->session.model);
    const char *file = strrchr(b->path, '/') != NULL ? strrchr(b->path, '/') + 1 : b->path;
    if (b->format == JSON) {
        print_json(b, t, r);
    } else if (b->format == CSV) {
        if (b->first_row)
            puts(
                "model,weight_bytes,parameters,tier,threads,kv_type,test,n,batch,depth,tps,tps_min,tps_max,mbu,mfu");
        printf("%s,%zu,%llu,%s,%u,%s,%s,%u,%u,%u,%.2f,%.2f,%.2f,%.3f,%.3f\n", file,
               info->weight_bytes, (unsigned long long)info->parameters, b->session.kernels.tier,
               b->threads, kv_type_name(b->kv_type), t->prefill ? "pp" : "tg", t->n, t->batch,
               t->depth, r->median, r->least, r->most, r->mbu, r->mfu);
    } else {
        if (b->first_row)
            printf(
                "%s: %.2f B parameters, %.1f MiB of weights, %s, %u threads, KV %s, %u weight stream(s)%s\n\n%-18s %10s %21s %6s %6s\n",
                file, (double)info->parameters * 1e-9, (double)info->weight_bytes / 1048576,
                b->session.kernels.tier, b->threads, kv_type_name(b->kv_type),
                b->session.kernels.streams, measured_streams(b, text, sizeof(text)), "test",
                "tokens/s", "(least ... most)", "MBU", "MFU");
        printf("%-18s %10.2f %10.2f %10.2f %5.1f%% %5.1f%%\n", name, r->median, r->least, r->most,
               100 * r->mbu, 100 * r->mfu);
    }
    b->first_row = false;
    fflush(stdout);
}

static bool run_all(struct bench *b)
{
    for (unsigned d = 0; d < b->depths.n; d++) {
        for (unsigned i = 0; i < b->prompts.n; i++) {
            struct test t = {true, b->prompts.values[i], 1, b->depths.values[d]};
            struct result r;
            if (t.n == 0)
                continue;
            if (!run_test(b, &t, &r))
                return false;
            print_row(b, &t, &r);
        }
        for (unsigned i = 0; i < b->made.n; i++) {
            for (unsigned k = 0; k < b->batches.n; k++) {
                struct test t = {false, b->made.values[i], b->batches.values[k],
                                 b->depths.values[d]};
                struct result r;
                if (t.n == 0)
                    continue;
                if (!run_test(b, &t, &r))
                    return false;
                print_row(b, &t, &r);
            }
        }
    }
    return true;
}

static bool parse_list(const char *text, uint32_t least, uint32_t most, struct list *list)
{
    list->n = 0;
    for (const char *p = text;;) {
        char *end;
        unsigned long v = strtoul(p, &end, 10);
        if (end == p || v < least || v > most || list->n == LIST_MAX ||
            (*end != ',' && *end != '\0'))
            return false;
        list->values[list->n++] = (uint32_t)v;
        if (*end == '\0')
            return true;
        p = end + 1;
    }
}

static const char help[] =
    "usage: tokenring bench -m FILE [OPTION]...\n"
    "       tokenring bench serve URL [OPTION]...    loads a server; see `tokenring bench serve --help`\n"
    "       tokenring bench spec ...                 what drafts bring; see `tokenring bench spec --help`\n"
    "\n"
    "Measures prefill (pp) and decode (tg) speed and sets them against this machine's memory bandwidth (MBU) and\n"
    "8-bit peak (MFU), which are measured in the same run. Lists are numbers with commas between them.\n"
    "\n"
    "  -m, --model FILE       a GGUF file\n"
    "  -t, --threads N        compute threads (1)\n"
    "  -p, --prompt LIST      prompt lengths (512; 0: none)\n"
    "  -n, --gen LIST         tokens to make (128; 0: none)\n"
    "  -b, --batch LIST       sequences that decode together (1)\n"
    "  -d, --depth LIST       tokens of context before the test (0)\n"
    "  -r, --repeat N         repetitions, of which the median is shown (5)\n"
    "      --kv-type T        f32, f16, q8_0, q4 or auto (auto: q8_0, for heads of less than 32 numbers f16)\n"
    "      --prefill-chunk N  most tokens of a step (512)\n"
    "      --tier T           scalar, avx2, avxvnni, avx512, amx (the best)\n"
    "      --weight-streams N runs of weights that a thread reads at once for 1 or 2 tokens: 1, 2, 4 or auto: measured (auto)\n"
    "      --no-kv            decode without a cache, everything recomputed for each token\n"
    "      --json, --csv      one flat object; rows with a header\n";

static int parse(int argc, char **argv, struct bench *b)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"prompt", required_argument, NULL, 'p'},
                                            {"gen", required_argument, NULL, 'n'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"depth", required_argument, NULL, 'd'},
                                            {"repeat", required_argument, NULL, 'r'},
                                            {"kv-type", required_argument, NULL, 'K'},
                                            {"prefill-chunk", required_argument, NULL, 'c'},
                                            {"tier", required_argument, NULL, 'T'},
                                            {"weight-streams", required_argument, NULL, 'S'},
                                            {"no-kv", no_argument, NULL, 'N'},
                                            {"json", no_argument, NULL, 'J'},
                                            {"csv", no_argument, NULL, 'C'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "m:t:p:n:b:d:r:h", options, NULL)) != -1) {
        bool ok = true;
        struct error err = {0};
        switch (c) {
        case 'm':
            b->path = optarg;
            break;
        case 'T':
            b->tier = optarg;
            break;
        case 'p':
            ok = parse_list(optarg, 0, 1 << 20, &b->prompts);
            break;
        case 'n':
            ok = parse_list(optarg, 0, 1 << 20, &b->made);
            break;
        case 'b':
            ok = parse_list(optarg, 1, 512, &b->batches);
            break;
        case 'd':
            ok = parse_list(optarg, 0, 1 << 20, &b->depths);
            break;
        case 't':
            ok = whole32(optarg, 1, 256, &b->threads);
            break;
        case 'r':
            ok = whole32(optarg, 1, REPEATS_MAX, &b->repeats);
            break;
        case 'c':
            ok = whole32(optarg, 1, 4096, &b->chunk);
            break;
        case 'K':
            if (kv_geometry_type(optarg, &b->kv_type, &err) != STATUS_OK) {
                fprintf(stderr, "tokenring bench: %s\n", err.text);
                return 2;
            }
            break;
        case 'S':
            if (model_streams_parse(optarg, &b->streams, &err) != STATUS_OK) {
                fprintf(stderr, "tokenring bench: %s\n", err.text);
                return 2;
            }
            break;
        case 'N':
            b->no_kv = true;
            break;
        case 'J':
            b->format = JSON;
            break;
        case 'C':
            b->format = CSV;
            break;
        case 'h':
            fputs(help, stdout);
            return -1;
        default:
            fputs(help, stderr);
            return 2;
        }
        if (!ok) {
            fprintf(stderr, "tokenring bench: -%c cannot be '%s'\n", c, optarg);
            return 2;
        }
    }
    if (b->path == NULL || optind != argc) {
        fputs(help, stderr);
        return 2;
    }
    return 0;
}

static uint32_t largest(const struct list *list)
{
    uint32_t most = 0;
    for (unsigned i = 0; i < list->n; i++)
        most = list->values[i] > most ? list->values[i] : most;
    return most;
}

int cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        return bench_serve(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "spec") == 0)
        return bench_spec(argc - 1, argv + 1);
    struct bench b = {.threads = 1,
                      .repeats = 5,
                      .chunk = 512,
                      .kv_type = KV_AUTO,
                      .first_row = true,
                      .prompts = {{512}, 1},
                      .made = {{128}, 1},
                      .batches = {{1}, 1},
                      .depths = {{0}, 1}};
    int code = parse(argc, argv, &b);
    if (code != 0)
        return code < 0 ? 0 : code;
    uint32_t batch = largest(&b.batches),
             most = largest(&b.prompts) > largest(&b.made) ? largest(&b.prompts) : largest(&b.made);
    uint32_t longest = largest(&b.depths) + most;
    struct session_options options = {.path = b.path,
                                      .tier = b.tier,
                                      .threads = b.threads,
                                      .streams = b.streams,
                                      .kv_type = b.kv_type,
                                      .context = longest,
                                      .positions = (uint64_t)batch * (longest + KV_TILE_POSITIONS),
                                      .max_tokens = b.chunk > batch ? b.chunk : batch};
    struct error err = {0};
    if (session_open(&b.session, &options, &err) != STATUS_OK) {
        fprintf(stderr, "tokenring bench: %s\n", err.text);
        return 1;
    }
    if (b.streams == 0)
        model_choose_streams(b.session.model, &b.session.kernels, b.reading);
    b.kv_type = model_kv_geometry(b.session.model)->type;
    b.memory = roofline_memory_create();
    b.logits = xaligned((size_t)batch * model_logits_stride(b.session.model) * sizeof(float));
    if (b.format == JSON)
        printf(
            "{\"model\": \"%s\", \"tier\": \"%s\", \"threads\": %u, \"kv_type\": \"%s\", \"weight_streams\": %u",
            model_info(b.session.model)->name, b.session.kernels.tier, b.threads,
            kv_type_name(b.kv_type), b.session.kernels.streams);
    bool ok = b.memory != NULL && run_all(&b);
    if (b.format == JSON)
        puts("}");
    if (!ok)
        fprintf(stderr, "tokenring bench: the context does not fit the KV memory\n");
    roofline_memory_free(b.memory);
    free(b.logits);
    session_close(&b.session);
    return ok ? 0 : 1;
}
