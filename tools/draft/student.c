#include "tools/draft/student.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"
#include "core/kernels/select.h"
#include "core/model/context_rows.h"
#include "tools/draft/lookup.h"

size_t student_bytes(const struct target *t, uint32_t layers, uint32_t n_map, uint32_t max_tokens,
                     uint32_t length)
{
    struct net_shape shape = target_shape(t, layers);
    return net_bytes(&shape, max_tokens, length) + head_bytes(n_map, t->info.width) +
           (size_t)max_tokens * (t->info.width + 3) * sizeof(float) +
           (size_t)CONTEXT_ROWS * t->info.width * sizeof(float);
}

enum status student_init(struct student *s, const struct target *t, uint32_t layers,
                         const uint32_t *map, uint32_t n_map, uint32_t max_tokens, uint32_t length,
                         struct error *err)
{
    struct net_shape shape = target_shape(t, layers);
    uint32_t width = t->info.width, pairs = t->rope.pairs;
    *s = (struct student){.target = t, .length = length, .n_map = n_map};
    enum status status = kernels_select(t->tier, &s->kernels, err);
    if (status != STATUS_OK)
        return status;
    kernels_enter_thread();
    net_init(&s->net, &shape, &s->kernels, max_tokens, length);
    head_init(&s->head, n_map, width, &s->kernels);
    s->map = xreallocarray(NULL, n_map, sizeof *s->map);
    memcpy(s->map, map, n_map * sizeof *s->map);
    for (uint32_t i = 0; i < n_map; i++)
        target_head(t, map[i], s->head.rows + (size_t)i * width);
    s->x = xaligned((size_t)max_tokens * width * sizeof *s->x);
    s->start = xcalloc(max_tokens, sizeof *s->start);
    s->guesses = xcalloc(max_tokens, sizeof *s->guesses);
    s->logits = xcalloc(max_tokens, sizeof *s->logits);
    s->mapped = xcalloc(t->info.vocab, sizeof *s->mapped);
    for (uint32_t i = 0; i < n_map; i++)
        s->mapped[map[i]] = true;
    s->rare = xaligned((size_t)CONTEXT_ROWS * width * sizeof *s->rare);
    s->cos = xaligned((size_t)length * pairs * sizeof *s->cos);
    s->sin = xaligned((size_t)length * pairs * sizeof *s->sin);
    for (uint32_t i = 0; i < length; i++)
        rope_table(&t->rope, i, s->cos + (size_t)i * pairs, s->sin + (size_t)i * pairs);
    return STATUS_OK;
}

void student_release(struct student *s)
{
    if (s->map != NULL) {
        net_release(&s->net);
        head_release(&s->head);
    }
    free(s->map);
    free(s->x);
    free(s->start);
    free(s->guesses);
    free(s->logits);
    free(s->mapped);
    free(s->rare);
    free(s->cos);
    free(s->sin);
    *s = (struct student){0};
}

static enum status read_map(const struct gguf *g, const struct target *t, uint32_t **map,
                            uint32_t *n, struct error *err)
{
    struct gguf_array array;
    *map = NULL;
    if (!gguf_array(g, "tokenring.draft.token_map", &array, err) ||
        (array.type != GGUF_I32 && array.type != GGUF_U32) || array.count == 0 ||
        array.count > t->info.vocab)
        return error_set(err, STATUS_INVALID, "%s is no draft: it has no token map", gguf_path(g));
    *n = (uint32_t)array.count;
    *map = xreallocarray(NULL, *n, sizeof **map);
    for (uint32_t i = 0; i < *n; i++) {
        (*map)[i] = (uint32_t)gguf_array_u64(&array, i);
        if ((*map)[i] >= t->info.vocab)
            return error_set(err, STATUS_INVALID,
                             "%s maps to token %u, the target's vocabulary has %u", gguf_path(g),
                             (*map)[i], t->info.vocab);
    }
    return STATUS_OK;
}

static enum status open_draft(const char *path, struct gguf **g, uint32_t *n_layers,
                              struct error *err)
{
    struct error found = {0};
    enum status status = gguf_open(path, g, err);
    if (status != STATUS_OK)
        return status;
    status = gguf_map(*g, err);
    *n_layers = gguf_u32(*g, "llama.block_count", 0, &found);
    if (status != STATUS_OK)
        gguf_free(*g);
    return status;
}

static enum status take_layers(struct student *s, const struct gguf *g, uint32_t n,
                               struct error *err)
{
    uint32_t layers[STUDENT_LAYERS];
    for (uint32_t i = 0; i < n; i++)
        layers[i] = i;
    return target_weights(g, layers, &s->net, err);
}

enum status student_weights(struct student *s, const char *path, struct error *err)
{
    struct gguf *g;
    uint32_t n, wanted = s->net.shape.layers;
    enum status status = open_draft(path, &g, &n, err);
    if (status != STATUS_OK)
        return status;
    if (n != wanted)
        status = error_set(err, STATUS_INVALID, "%s has %u layers, not %u", path, n, wanted);
    if (status == STATUS_OK)
        status = take_layers(s, g, n, err);
    gguf_free(g);
    return status;
}

enum status student_read(struct student *s, const struct target *t, const char *path,
                         uint32_t length, struct error *err)
{
    struct gguf *g;
    uint32_t *map = NULL, n_map = 0, n = 0;
    *s = (struct student){0};
    enum status status = open_draft(path, &g, &n, err);
    if (status != STATUS_OK)
        return status;
    status = read_map(g, t, &map, &n_map, err);
    if (status == STATUS_OK && (n == 0 || n > STUDENT_LAYERS))
        status = error_set(err, STATUS_INVALID, "%s has %u layers", path, n);
    if (status == STATUS_OK)
        status = student_init(s, t, n, map, n_map, length, length, err);
    if (status == STATUS_OK)
        status = take_layers(s, g, n, err);
    if (status != STATUS_OK)
        student_release(s);
    free(map);
    gguf_free(g);
    return status;
}

struct net_batch student_batch(const struct student *s, uint32_t rows, uint32_t length)
{
    return (struct net_batch){
        rows, length, s->x, s->start, {length, s->target->rope.pairs, s->cos, s->sin}};
}

/* Guesses that the text's own rare tokens do better than. */
static void guess_rare(struct student *s, const uint32_t *tokens, uint32_t n)
{
    struct context_tokens set = {0};
    float logits[CONTEXT_ROWS];
    size_t width = s->target->info.width;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place = s->mapped[tokens[i]] ? CONTEXT_ROWS : context_tokens_add(&set, tokens[i]);
        if (place != CONTEXT_ROWS)
            target_head(s->target, tokens[i], s->rare + place * width);
        if (set.n > 0)
            multiply(1, set.n, width, 1, plain(s->net.h + i * width, width), turned(s->rare, width),
                     0, logits, set.n);
        for (uint32_t k = 0; k < set.n; k++)
            if (logits[k] + CONTEXT_ROWS_LEAD > s->logits[i]) {
                s->logits[i] = logits[k] + CONTEXT_ROWS_LEAD;
                s->guesses[i] = set.tokens[k];
            }
    }
}

const uint32_t *student_guess(struct student *s, const uint32_t *tokens, uint32_t n)
{
    uint32_t width = s->target->info.width;
    for (uint32_t i = 0; i < n; i++) {
        target_embedding(s->target, tokens[i], s->x + (size_t)i * width);
        s->start[i] = 0;
    }
    struct net_batch batch = student_batch(s, 1, n);
    net_forward(&s->net, &batch);
    head_best(&s->head, n, s->net.h, s->guesses, s->logits);
    for (uint32_t i = 0; i < n; i++)
        s->guesses[i] = s->map[s->guesses[i]];
    guess_rare(s, tokens, n);
    return s->guesses;
}

void student_measure(struct student *s, const uint32_t *tokens, uint32_t from, uint32_t n,
                     struct acceptance *alone, struct acceptance *with_lookup)
{
    const uint32_t *guesses = student_guess(s, tokens, n - 1);
    bool *right = xcalloc(n, 1), *either = xcalloc(n, 1);
    for (uint32_t i = from; i < n; i++) {
        uint32_t found = lookup_next(tokens, i);
        right[i] = guesses[i - 1] == tokens[i];
        either[i] = found != LOOKUP_NONE ? found == tokens[i] : right[i];
    }
    acceptance_add(alone, right + from, n - from);
    acceptance_add(with_lookup, either + from, n - from);
    free(right);
    free(either);
}
