#define _GNU_SOURCE
#include "tools/draft/trainer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/xalloc.h"
#include "core/kernels/half.h"
#include "tools/draft/lookup.h"

#define HELD_OUT 25u
#define BATCH (TRAINER_ROWS * TRAINER_LENGTH)

static const float origin_weight[ORIGINS] = {
    [ORIGIN_FORCED] = 0.1f, [ORIGIN_USER] = 0.5f, [ORIGIN_DRAWN] = 1, [ORIGIN_GREEDY] = 1};
#define LOOKUP_WEIGHT 0.25f

/* ---- token map ---- */

struct count {
    uint32_t token;
    uint32_t times;
};

static int more_often(const void *a, const void *b)
{
    const struct count *x = a, *y = b;
    if (x->times != y->times)
        return x->times > y->times ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static int lower(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

void trainer_map(const struct corpus *corpus, uint32_t vocab, uint32_t n, uint32_t *map)
{
    struct count *counts = xcalloc(vocab, sizeof *counts);
    for (uint32_t i = 0; i < vocab; i++)
        counts[i].token = i;
    for (size_t i = 0; i < corpus->n_texts; i++) {
        struct corpus_text text = corpus_text(corpus, i);
        for (uint32_t k = 0; k < text.n; k++)
            if (text.tokens[k] < vocab)
                counts[text.tokens[k]].times++;
    }
    qsort(counts, vocab, sizeof *counts, more_often);
    for (uint32_t i = 0; i < n; i++)
        map[i] = counts[i].token;
    qsort(map, n, sizeof *map, lower);
    free(counts);
}

/* ---- life ---- */

size_t trainer_bytes(const struct target *t, uint32_t n_layers, uint32_t n_map)
{
    struct net_shape shape = target_shape(t, n_layers);
    size_t weights = net_bytes(&shape, 0, 0) / sizeof(real) / 2;
    return student_bytes(t, n_layers, n_map, BATCH, TRAINER_LENGTH) + adam_bytes(weights) +
           BATCH * (2 * (size_t)t->info.width + 1) * sizeof(float);
}

/* All but the student and its weights. */
static enum status prepare(struct trainer *t, const struct corpus *corpus, struct error *err)
{
    size_t width = t->student.target->info.width;
    t->corpus = corpus;
    adam_init(&t->adam, t->student.net.n_weights);
    t->teacher = xaligned(BATCH * width * sizeof *t->teacher);
    t->weight = xaligned(BATCH * sizeof *t->weight);
    t->dh = xaligned(BATCH * width * sizeof *t->dh);
    t->train = xreallocarray(NULL, corpus->n_texts + 1, sizeof *t->train);
    t->held = xreallocarray(NULL, corpus->n_texts + 1, sizeof *t->held);
    for (size_t i = 0; i < corpus->n_texts; i++) {
        struct corpus_text text = corpus_text(corpus, i);
        for (uint32_t k = 0; k < text.n; k++)
            if (text.tokens[k] >= t->student.target->info.vocab || text.origins[k] >= ORIGINS)
                return error_set(err, STATUS_CORRUPT, "%s: text %zu is damaged", corpus->path, i);
        if (text.n < 2)
            continue;
        if (i % HELD_OUT == HELD_OUT - 1)
            t->held[t->n_held++] = (uint32_t)i;
        else
            t->train[t->n_train++] = (uint32_t)i;
    }
    if (t->n_train == 0)
        return error_set(err, STATUS_INVALID, "%s holds no text to learn from", corpus->path);
    return STATUS_OK;
}

static void shuffle(struct trainer *t)
{
    for (size_t i = t->n_train; i > 1; i--) {
        size_t k = random_below(&t->random, (uint32_t)i);
        uint32_t was = t->train[i - 1];
        t->train[i - 1] = t->train[k];
        t->train[k] = was;
    }
    t->at_text = t->at_token = 0;
}

enum status trainer_init(struct trainer *t, const struct target *target,
                         const struct corpus *corpus, const uint32_t *layers, uint32_t n_layers,
                         const uint32_t *map, uint32_t n_map, uint64_t seed, struct error *err)
{
    *t = (struct trainer){.n_layers = n_layers, .random = {seed}};
    memcpy(t->layers, layers, n_layers * sizeof *layers);
    enum status status =
        student_init(&t->student, target, n_layers, map, n_map, BATCH, TRAINER_LENGTH, err);
    if (status == STATUS_OK)
        status = prepare(t, corpus, err);
    if (status == STATUS_OK)
        status = target_weights(target->gguf, layers, &t->student.net, err);
    if (status == STATUS_OK)
        shuffle(t);
    else
        trainer_release(t);
    return status;
}

void trainer_release(struct trainer *t)
{
    student_release(&t->student);
    adam_release(&t->adam);
    free(t->teacher);
    free(t->weight);
    free(t->dh);
    free(t->train);
    free(t->held);
    *t = (struct trainer){0};
}

/* ---- steps ---- */

/* Up to `room` tokens of a text from token `from` on, each of which has a next one, to place `to` of
 * the batch; begin: where this piece begins in its row. */
static uint32_t put_piece(struct trainer *t, const struct corpus_text *text, uint32_t from,
                          uint32_t room, size_t to, uint32_t begin)
{
    const struct target *target = t->student.target;
    size_t width = target->info.width;
    uint32_t n = text->n - 1 - from < room ? text->n - 1 - from : room;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = from + i, next = text->tokens[at + 1];
        const uint16_t *state = text->states + at * width;
        float *teacher = t->teacher + (to + i) * width;
        target_embedding(target, text->tokens[at], t->student.x + (to + i) * width);
        for (size_t k = 0; k < width; k++)
            teacher[k] = bf16_to_f32(state[k]);
        t->student.start[to + i] = begin;
        t->weight[to + i] = origin_weight[text->origins[at + 1]];
        if (lookup_next(text->tokens, at + 1) == next)
            t->weight[to + i] *= LOOKUP_WEIGHT;
    }
    return n;
}

static void fill_batch(struct trainer *t)
{
    for (uint32_t row = 0; row < TRAINER_ROWS; row++)
        for (uint32_t at = 0; at < TRAINER_LENGTH;) {
            if (t->at_text == t->n_train) {
                t->rounds++;
                shuffle(t);
            }
            struct corpus_text text = corpus_text(t->corpus, t->train[t->at_text]);
            uint32_t n = put_piece(t, &text, t->at_token, TRAINER_LENGTH - at,
                                   (size_t)row * TRAINER_LENGTH + at, at);
            at += n;
            t->at_token += n;
            if (t->at_token == text.n - 1) {
                t->at_text++;
                t->at_token = 0;
            }
        }
    float sum = 0;
    for (uint32_t i = 0; i < BATCH; i++)
        sum += t->weight[i];
    for (uint32_t i = 0; i < BATCH; i++)
        t->weight[i] /= sum;
}

float trainer_step(struct trainer *t, double rate)
{
    struct student *s = &t->student;
    fill_batch(t);
    struct net_batch batch = student_batch(s, TRAINER_ROWS, TRAINER_LENGTH);
    net_forward(&s->net, &batch);
    float loss = head_loss(&s->head, BATCH, s->net.h, t->teacher, t->weight, t->dh);
    net_backward(&s->net, &batch, t->dh);
    float norm = adam_step(&t->adam, &s->net, rate);
    t->seen += BATCH;
    return isfinite(norm) ? loss : norm;
}

void trainer_measure(struct trainer *t, uint32_t most, struct acceptance *alone,
                     struct acceptance *with_lookup)
{
    for (size_t i = 0; i < t->n_held && most > 0; i++) {
        struct corpus_text text = corpus_text(t->corpus, t->held[i]);
        uint32_t n = text.n < TRAINER_LENGTH ? text.n : TRAINER_LENGTH, from = 1;
        while (from < n && text.origins[from] != ORIGIN_GREEDY)
            from++;
        uint32_t end = from;
        while (end < n && text.origins[end] == ORIGIN_GREEDY)
            end++;
        if (from == end)
            continue;
        student_measure(&t->student, text.tokens, from, end, alone, with_lookup);
        most--;
    }
}

/* ---- state ---- */

static const char magic[8] = "TRDRAFT1";

struct header {
    char magic[8], sha256[72];
    uint32_t n_layers, layers[TRAINER_LAYERS], n_map, at_token;
    uint64_t n_weights, step, at_text, n_train, random, rounds, seen;
    double began, seconds;
};

enum status trainer_save(const struct trainer *t, const char *path, struct error *err)
{
    const struct net *net = &t->student.net;
    struct header h = {.n_layers = t->n_layers,
                       .n_map = t->student.n_map,
                       .at_token = t->at_token,
                       .n_weights = net->n_weights,
                       .step = t->adam.step,
                       .at_text = t->at_text,
                       .n_train = t->n_train,
                       .random = t->random.state,
                       .rounds = t->rounds,
                       .seen = t->seen,
                       .began = t->began,
                       .seconds = t->seconds};
    memcpy(h.magic, magic, sizeof magic);
    snprintf(h.sha256, sizeof h.sha256, "%s", t->student.target->sha256);
    memcpy(h.layers, t->layers, sizeof h.layers);
    char *beside = NULL;
    if (asprintf(&beside, "%s.new", path) < 0)
        return error_set(err, STATUS_NO_MEMORY, "%s", status_text(STATUS_NO_MEMORY));
    FILE *f = fopen(beside, "wb");
    bool fine = f != NULL && fwrite(&h, sizeof h, 1, f) == 1 &&
                fwrite(t->student.map, sizeof *t->student.map, h.n_map, f) == h.n_map &&
                fwrite(t->train, sizeof *t->train, t->n_train, f) == t->n_train &&
                fwrite(net->w, sizeof(real), net->n_weights, f) == net->n_weights &&
                fwrite(t->adam.mean, sizeof(real), net->n_weights, f) == net->n_weights &&
                fwrite(t->adam.square, sizeof(real), net->n_weights, f) == net->n_weights &&
                fflush(f) == 0 && fsync(fileno(f)) == 0;
    int code = errno;
    if (f != NULL && fclose(f) != 0 && fine) {
        fine = false;
        code = errno;
    }
    if (fine && rename(beside, path) != 0) {
        fine = false;
        code = errno;
    }
    if (!fine)
        remove(beside);
    free(beside);
    return fine ? STATUS_OK
                : error_set(err, STATUS_IO, "cannot write %s: %s", path, strerror(code));
}

/* The rest of a state behind its header. */
static bool read_state(struct trainer *t, const struct header *h, FILE *f)
{
    struct net *net = &t->student.net;
    size_t n = net->n_weights;
    if (h->n_weights != n || h->n_train != t->n_train || h->at_text > t->n_train ||
        fread(t->train, sizeof *t->train, t->n_train, f) != t->n_train ||
        fread(net->w, sizeof(real), n, f) != n || fread(t->adam.mean, sizeof(real), n, f) != n ||
        fread(t->adam.square, sizeof(real), n, f) != n)
        return false;
    for (size_t i = 0; i < t->n_train; i++)
        if (t->train[i] >= t->corpus->n_texts || corpus_text(t->corpus, t->train[i]).n < 2)
            return false;
    if (h->at_text < t->n_train &&
        h->at_token >= corpus_text(t->corpus, t->train[h->at_text]).n - 1)
        return false;
    t->adam.step = h->step;
    t->at_text = h->at_text;
    t->at_token = h->at_token;
    t->random.state = h->random;
    t->rounds = h->rounds;
    t->seen = h->seen;
    t->began = h->began;
    t->seconds = h->seconds;
    return true;
}

enum status trainer_load(struct trainer *t, const struct target *target,
                         const struct corpus *corpus, const char *path, bool *there,
                         struct error *err)
{
    struct header h;
    uint32_t *map = NULL;
    FILE *f = fopen(path, "rb");
    *t = (struct trainer){0};
    *there = f != NULL;
    if (f == NULL && errno == ENOENT)
        return STATUS_OK;
    if (f == NULL)
        return error_set(err, STATUS_IO, "cannot open %s: %s", path, strerror(errno));
    bool fine = fread(&h, sizeof h, 1, f) == 1 && memcmp(h.magic, magic, sizeof magic) == 0 &&
                h.n_layers > 0 && h.n_layers <= TRAINER_LAYERS && h.n_map > 0 &&
                h.n_map <= target->info.vocab;
    enum status status = STATUS_OK;
    if (fine && strncmp(h.sha256, target->sha256, sizeof h.sha256) != 0)
        status = error_set(err, STATUS_INVALID, "%s is of another model (SHA-256 %.64s)", path,
                           h.sha256);
    if (fine && status == STATUS_OK) {
        map = xreallocarray(NULL, h.n_map, sizeof *map);
        fine = fread(map, sizeof *map, h.n_map, f) == h.n_map;
        for (uint32_t i = 0; i < h.n_map; i++)
            fine = fine && map[i] < target->info.vocab;
    }
    if (fine && status == STATUS_OK) {
        status =
            student_init(&t->student, target, h.n_layers, map, h.n_map, BATCH, TRAINER_LENGTH, err);
        t->n_layers = h.n_layers;
        memcpy(t->layers, h.layers, sizeof t->layers);
        if (status == STATUS_OK)
            status = prepare(t, corpus, err);
        fine = status != STATUS_OK || read_state(t, &h, f);
    }
    if (!fine)
        status = error_set(err, STATUS_CORRUPT, "%s is damaged, or not of this corpus", path);
    if (status != STATUS_OK)
        trainer_release(t);
    free(map);
    fclose(f);
    return status;
}
