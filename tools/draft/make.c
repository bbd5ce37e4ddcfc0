#define _GNU_SOURCE
#include "tools/draft/make.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "tools/draft/export.h"
#include "tools/draft/generate.h"

#define TEXT_SHARE 0.333 /* of the minutes, at most */
#define REPORT_SECONDS 5.0
#define MEASURE_STEPS 100u
#define MEASURE_TEXTS 24u
#define SAVE_SECONDS 180.0

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

/* One run of the command. */
struct run {
    const struct draft_options *o;
    struct target target;
    struct corpus corpus;
    struct trainer trainer;
    char *corpus_path, *state_path;
    uint64_t begin;      /* of this run, on the clock */
    double before;       /* seconds spent by earlier runs */
    uint64_t reported;   /* last line, on the clock */
    uint64_t first_seen; /* tokens when this run began to count */
};

static double seconds(const struct run *r)
{
    return r->before + (double)(clock_ns() - r->begin) * 1e-9;
}

static double left(const struct run *r)
{
    double s = r->o->minutes * 60 - seconds(r);
    return s < 0 ? 0 : s;
}

static void show_time(double s)
{
    s = s < 0 ? 0 : s > 1e9 ? 1e9 : s;
    fprintf(stderr, "%u:%02u left\n", (unsigned)s / 60, (unsigned)s % 60);
}

/* True every REPORT_SECONDS. */
static bool time_to_report(struct run *r)
{
    uint64_t now = clock_ns();
    if ((double)(now - r->reported) * 1e-9 < REPORT_SECONDS)
        return false;
    r->reported = now;
    return true;
}

/* ---- before anything big: is there room? ---- */

static uint64_t memory_there(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return (uint64_t)kib << 10;
}

static enum status check_room(const struct run *r, uint32_t n_layers, uint32_t n_map,
                              struct error *err)
{
    uint64_t there = memory_there(), need = trainer_bytes(&r->target, n_layers, n_map);
    uint64_t texts = generate_bytes(&r->target, r->o->slots);
    need = need > texts ? need : texts;
    if (there != 0 && need > there)
        return error_set(
            err, STATUS_NO_MEMORY,
            "this takes %llu MiB of memory, %llu MiB are available; fewer --slots take less",
            (unsigned long long)(need >> 20), (unsigned long long)(there >> 20));
    struct statvfs disk;
    uint64_t room = corpus_bytes(r->o->tokens, r->target.info.width);
    if (r->corpus.size < room && fstatvfs(r->corpus.fd, &disk) == 0 &&
        room - r->corpus.size > (uint64_t)disk.f_bavail * disk.f_frsize)
        return error_set(
            err, STATUS_IO,
            "%llu tokens of text take %llu MiB beside the output, where only %llu MiB are "
            "free; --tokens makes it less",
            (unsigned long long)r->o->tokens, (unsigned long long)(room >> 20),
            (unsigned long long)((uint64_t)disk.f_bavail * disk.f_frsize >> 20));
    return STATUS_OK;
}

static enum status choose_layers(const struct run *r, uint32_t *layers, uint32_t *n,
                                 struct error *err)
{
    uint32_t all = r->target.info.layers;
    *n = r->o->n_layers;
    memcpy(layers, r->o->layers, sizeof r->o->layers);
    if (*n == 0) {
        layers[0] = 0;
        layers[1] = all - 1;
        *n = all > 1 ? 2 : 1;
    }
    if (layers[*n - 1] >= all)
        return error_set(err, STATUS_INVALID, "--layers: %s has layers 0 to %u, not %u",
                         target_file(&r->target), all - 1, layers[*n - 1]);
    return STATUS_OK;
}

/* ---- texts ---- */

static bool texts_go_on(void *data, uint64_t tokens, uint64_t growing)
{
    struct run *r = data;
    double spent = seconds(r), most = r->o->minutes * 60 * TEXT_SHARE;
    if (stopped || (spent > most && tokens > 0))
        return false;
    if (time_to_report(r)) {
        double rate = (double)(tokens + growing - r->first_seen) / (spent - r->before);
        double needed = tokens < r->o->tokens ? (double)(r->o->tokens - tokens) / rate : 0;
        fprintf(stderr, "texts: %llu of %llu tokens, %.0f tokens/s, ", (unsigned long long)tokens,
                (unsigned long long)r->o->tokens, rate);
        show_time(needed < most - spent ? needed : most - spent);
    }
    return true;
}

static enum status write_texts(struct run *r, struct error *err)
{
    struct generate_options options = {.threads = r->o->threads,
                                       .slots = r->o->slots,
                                       .tokens = r->o->tokens,
                                       .seed = r->o->seed,
                                       .go_on = texts_go_on,
                                       .data = r};
    r->first_seen = r->corpus.n_tokens;
    if (r->corpus.n_tokens >= r->o->tokens)
        return STATUS_OK;
    return generate(&r->target, &options, &r->corpus, err);
}

/* ---- training ---- */

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void recipe(const struct run *r, struct buffer *out)
{
    const struct trainer *t = &r->trainer;
    buffer_clear(out);
    buffer_printf(
        out, "Draft for %s (SHA-256 %s), made by tokenring draft " TOKENRING_VERSION ": layers",
        target_file(&r->target), r->target.sha256);
    for (uint32_t i = 0; i < t->n_layers; i++)
        buffer_printf(out, "%s %u", i > 0 ? "," : "", t->layers[i]);
    if (r->o->from != NULL)
        buffer_printf(out, " (begun with %s)", file_name(r->o->from));
    buffer_printf(
        out,
        " of the target trained on %llu tokens of its own writing, %llu steps of %u tokens, rate "
        "%g; embedding and head are the target's. A derived work under the target's licence.",
        (unsigned long long)r->corpus.n_tokens, (unsigned long long)t->adam.step,
        TRAINER_ROWS * TRAINER_LENGTH, r->o->rate);
}

static enum status save(struct run *r, struct error *err)
{
    struct buffer text = {0};
    r->trainer.seconds = seconds(r);
    enum status status = trainer_save(&r->trainer, r->state_path, err);
    recipe(r, &text);
    if (status == STATUS_OK)
        status =
            export_student(&r->trainer.student, r->o->output, r->trainer.layers, text.ptr, err);
    buffer_release(&text);
    return status;
}

static void measure(struct run *r, uint32_t texts)
{
    struct acceptance alone = {0}, both = {0};
    trainer_measure(&r->trainer, texts, &alone, &both);
    if (alone.tokens == 0)
        return;
    fprintf(
        stderr,
        "held out (%llu greedy tokens): agreement %.3f, accepted k=1/2/4: %.2f/%.2f/%.2f; lookup first: "
        "%.3f, %.2f/%.2f/%.2f\n",
        (unsigned long long)alone.tokens, acceptance_share(&alone), acceptance_mean(&alone, 0),
        acceptance_mean(&alone, 1), acceptance_mean(&alone, 2), acceptance_share(&both),
        acceptance_mean(&both, 0), acceptance_mean(&both, 1), acceptance_mean(&both, 2));
}

/* How much of the training is over, 0 … 1. */
static double done(const struct run *r)
{
    const struct trainer *t = &r->trainer;
    if (r->o->steps > 0)
        return (double)t->adam.step / (double)r->o->steps;
    double whole = r->o->minutes * 60 - t->began; /* none is left where the texts took it all */
    return whole > 0 ? (seconds(r) - t->began) / whole : 1;
}

static void report(struct run *r, double loss, double tokens_per_second)
{
    const struct trainer *t = &r->trainer;
    double steps = (double)r->o->steps - (double)t->adam.step;
    fprintf(stderr, "step %llu, %.2f times through, loss %.3f, %.0f tokens/s, ",
            (unsigned long long)t->adam.step, (double)t->seen / (double)r->corpus.n_tokens, loss,
            tokens_per_second);
    show_time(r->o->steps > 0 ? steps * TRAINER_ROWS * TRAINER_LENGTH / tokens_per_second
                              : left(r));
}

static enum status train(struct run *r, struct error *err)
{
    struct trainer *t = &r->trainer;
    double start = seconds(r), saved = start, mean = 0;
    uint64_t first = t->seen;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !stopped && done(r) < 1) {
        double loss = (double)trainer_step(t, adam_rate(r->o->rate, t->adam.step, done(r)));
        if (!isfinite(loss))
            return error_set(err, STATUS_NON_FINITE,
                             "the training went astray at step %llu; a lower --rate may help",
                             (unsigned long long)t->adam.step);
        mean = mean == 0 ? loss : mean * 0.95 + loss * 0.05;
        if (time_to_report(r))
            report(r, mean, (double)(t->seen - first) / (seconds(r) - start));
        if (t->adam.step % MEASURE_STEPS == 0)
            measure(r, MEASURE_TEXTS);
        if (seconds(r) - saved > SAVE_SECONDS) {
            saved = seconds(r);
            status = save(r, err);
        }
    }
    if (status == STATUS_OK)
        status = save(r, err);
    if (status == STATUS_OK && !stopped)
        measure(r, UINT32_MAX);
    return status;
}

/* From the state of an interrupted run, from another draft, or from the target's layers. */
static enum status start_training(struct run *r, const uint32_t *layers, uint32_t n_layers,
                                  uint32_t n_map, struct error *err)
{
    bool there = false;
    enum status status = corpus_map(&r->corpus, err);
    if (status == STATUS_OK && r->o->resume)
        status = trainer_load(&r->trainer, &r->target, &r->corpus, r->state_path, &there, err);
    if (status != STATUS_OK || there) {
        r->before = r->trainer.seconds;
        return status;
    }
    uint32_t *map = xreallocarray(NULL, n_map, sizeof *map);
    trainer_map(&r->corpus, r->target.info.vocab, n_map, map);
    status = trainer_init(&r->trainer, &r->target, &r->corpus, layers, n_layers, map, n_map,
                          r->o->seed, err);
    if (status == STATUS_OK && r->o->from != NULL)
        status = student_weights(&r->trainer.student, r->o->from, err);
    r->trainer.began = seconds(r);
    free(map);
    return status;
}

static enum status make(struct run *r, struct error *err)
{
    uint32_t layers[TRAINER_LAYERS], n_layers, vocab = r->target.info.vocab;
    uint32_t n_map = r->o->head_tokens < vocab ? r->o->head_tokens : vocab;
    enum status status = choose_layers(r, layers, &n_layers, err);
    if (status == STATUS_OK)
        status = corpus_open(&r->corpus, r->corpus_path, r->target.info.width, r->target.sha256,
                             r->o->resume, err);
    if (status == STATUS_OK)
        status = check_room(r, n_layers, n_map, err);
    /* A state says that its corpus is complete. */
    bool training = r->o->resume && access(r->state_path, F_OK) == 0;
    if (status == STATUS_OK && !training)
        status = write_texts(r, err);
    if (status == STATUS_OK && !stopped)
        status = start_training(r, layers, n_layers, n_map, err);
    if (status == STATUS_OK && !stopped)
        status = train(r, err);
    return status;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int draft_make(const struct draft_options *o)
{
    if (same_file(o->model, o->output))
        return draft_fail("the output is the model's own file");
    struct error err = {0};
    struct run r = {.o = o, .begin = clock_ns(), .corpus = {.fd = -1}};
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    openblas_set_num_threads((int)o->threads);
    enum status status = target_open(&r.target, o->model, o->tier, &err);
    if (status == STATUS_OK && o->requantise > 0)
        status = export_requantised(&r.target, o->output, o->requantise, &err);
    if (asprintf(&r.corpus_path, "%s.corpus", o->output) < 0 ||
        asprintf(&r.state_path, "%s.state", o->output) < 0)
        return draft_fail("out of memory");
    if (status == STATUS_OK && o->requantise == 0) {
        if (!o->resume)
            remove(r.state_path);
        status = make(&r, &err);
        if (status == STATUS_OK && !stopped && !o->keep) {
            remove(r.corpus_path);
            remove(r.state_path);
        }
    }
    trainer_release(&r.trainer);
    corpus_close(&r.corpus);
    target_close(&r.target);
    free(r.corpus_path);
    free(r.state_path);
    if (status != STATUS_OK)
        return draft_fail(err.text);
    return stopped ? draft_fail("stopped; --resume goes on from here") : 0;
}
