#define _GNU_SOURCE
#include "core/spec/model_drafter.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/block_table.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/model/model.h"
#include "core/spec/controller.h"
#include "core/spec/ngram.h"

/* What the draft knows of one text. */
struct view {
    struct block_table table;
    uint32_t promised;
    uint32_t start;                         /* index in the text of its position 0 */
    uint32_t n_fed;                         /* positions that hold the text's tokens */
    uint32_t n_guesses, guesses[DRAFT_MAX]; /* fed behind those */
};

struct model_drafter {
    struct drafter drafter; /* first */
    struct model *model;
    struct pages *pool;
    uint32_t max_pages, n_pages; /* promised at most, promised */
    uint32_t context;
    const uint32_t *map; /* tokens of the logits, or NULL */
    struct sampler *sampler;
    float *logits; /* DRAFT_TEXTS rows */
    uint32_t stride;
    /* the pass in progress */
    struct step_token tokens[DRAFT_STEP_TOKENS];
    struct step_sequence sequences[DRAFT_TEXTS];
    uint32_t n_tokens;
};

static void forget(struct model_drafter *d, struct view *v)
{
    block_table_release(&v->table);
    pages_unreserve(d->pool, v->promised);
    d->n_pages -= v->promised;
    v->promised = v->n_fed = v->n_guesses = 0;
    block_table_init(&v->table, d->pool);
}

static void finish(struct drafter *drafter, struct draft_text *t)
{
    struct model_drafter *d = (struct model_drafter *)drafter;
    if (t->model == NULL)
        return;
    forget(d, t->model);
    block_table_release(&((struct view *)t->model)->table);
    free(t->model);
    t->model = NULL;
}

/* Makes count more positions writable. */
static bool extend(struct model_drafter *d, struct view *v, uint32_t count)
{
    uint32_t need = block_pages_for(v->table.n_positions + count);
    if (need > v->promised) {
        uint32_t more = need - v->promised;
        if (d->n_pages + more > d->max_pages || !pages_reserve(d->pool, more))
            return false;
        v->promised += more;
        d->n_pages += more;
    }
    return block_table_append(&v->table, count);
}

/* Brings the view to what the text is now; afterwards 1 to DRAFT_WINDOW of its tokens are unfed. */
static struct view *look(struct model_drafter *d, struct draft_text *t)
{
    struct view *v = t->model;
    if (v == NULL) {
        t->model = v = xcalloc(1, sizeof(*v));
        block_table_init(&v->table, d->pool);
    }
    uint32_t end = v->start + v->n_fed;
    for (uint32_t i = 0; i < v->n_guesses && end < t->n_tokens - 1; i++, end++)
        if (t->tokens[end] != v->guesses[i])
            break;
    v->n_guesses = 0;
    /* A text that did not grow, because its sequence was left out of a step: its last token again. */
    end = end < t->n_tokens ? end : t->n_tokens - 1;
    v->n_fed = end - v->start;
    if (t->n_tokens - end > DRAFT_WINDOW || t->n_tokens + DRAFT_MAX - v->start > d->context ||
        v->n_fed == 0) {
        v->start = t->n_tokens > DRAFT_WINDOW ? t->n_tokens - DRAFT_WINDOW : 0;
        v->n_fed = 0;
    }
    block_table_truncate(&v->table, v->n_fed);
    return v;
}

/* Adds tokens to the pass, behind what was fed; a row of logits is wanted for the last. */
static void add(struct model_drafter *d, uint32_t sequence, struct view *v, const uint32_t *tokens,
                uint32_t n)
{
    uint32_t first = v->table.n_positions - n;
    for (uint32_t i = 0; i < n; i++)
        d->tokens[d->n_tokens++] = (struct step_token){
            .token = tokens[i], .position = first + i, .sequence = sequence, .logits = i + 1 == n};
    d->sequences[sequence] =
        (struct step_sequence){.pages = v->table.ids, .n_pages = v->table.n_pages};
}

/* The pass over what was added, for n texts; each gets one more guess. Returns how many go on. */
static uint32_t pass(struct model_drafter *d, struct draft_text **texts, uint32_t n,
                     uint32_t n_texts, double *chance, struct controller *c)
{
    uint32_t left = 0;
    uint64_t start = clock_ns();
    struct step step = {d->tokens, d->n_tokens, d->sequences, n, d->pool};
    model_step(d->model, &step, d->logits);
    for (uint32_t i = 0; i < n; i++) {
        struct draft_text *t = texts[i];
        if (d->sequences[i].failed) {
            finish(&d->drafter, t);
            continue;
        }
        float p;
        uint32_t place = t->draft.n;
        uint32_t guess = sampler_guess(d->sampler, t->sampling, d->logits + (size_t)i * d->stride,
                                       d->map, t->n_tokens + place, &p);
        double now =
            chance[i] * controller_guessed(c, t, d->map != NULL ? d->map[guess] : guess, p);
        if (t->draft.n < t->most && !ngram_extend(t) &&
            controller_wants_model(c, t, n_texts, now, 0)) {
            texts[left] = t;
            chance[left++] = now;
        }
    }
    controller_passed(c, d->n_tokens, (double)(clock_ns() - start));
    return left;
}

static void propose(struct drafter *drafter, struct draft_text **texts, uint32_t n,
                    struct controller *c)
{
    struct model_drafter *d = (struct model_drafter *)drafter;
    struct draft_text *mine[DRAFT_TEXTS];
    double chance[DRAFT_TEXTS];
    uint32_t n_mine = 0;
    d->n_tokens = 0;
    for (uint32_t i = 0; i < n && n_mine < DRAFT_TEXTS; i++) {
        struct draft_text *t = texts[i];
        if (t->draft.n > 0 || t->most == 0 || !controller_wants_model(c, t, n, 1, 0))
            continue;
        struct view *v = look(d, t);
        uint32_t from = v->start + v->n_fed, unfed = t->n_tokens - from;
        if (d->n_tokens + unfed > DRAFT_STEP_TOKENS || !extend(d, v, unfed))
            continue;
        add(d, n_mine, v, t->tokens + from, unfed);
        v->n_fed += unfed;
        t->fed = t->n_tokens;
        t->fed_guesses = 0;
        chance[n_mine] = 1;
        mine[n_mine++] = t;
    }
    while (n_mine > 0) {
        uint32_t left = pass(d, mine, n_mine, n, chance, c), ready = 0;
        d->n_tokens = 0;
        for (uint32_t i = 0; i < left; i++) {
            struct view *v = mine[i]->model;
            uint32_t guess = mine[i]->draft.tokens[mine[i]->draft.n - 1];
            if (!extend(d, v, 1))
                continue;
            v->guesses[v->n_guesses++] = guess;
            mine[i]->fed_guesses++;
            add(d, ready, v, &guess, 1);
            chance[ready] = chance[i];
            mine[ready++] = mine[i];
        }
        n_mine = ready;
    }
}

static void free_drafter(struct drafter *drafter)
{
    struct model_drafter *d = (struct model_drafter *)drafter;
    sampler_free(d->sampler);
    free(d->logits);
    free(d);
}

struct drafter *model_drafter(struct model *model, const struct kernels *kernels,
                              struct pages *pool, uint32_t max_pages)
{
    struct model_drafter *d = xcalloc(1, sizeof(*d));
    const struct model_info *info = model_info(model);
    d->drafter = (struct drafter){.name = "model",
                                  .is_model = true,
                                  .propose = propose,
                                  .finish = finish,
                                  .free = free_drafter};
    d->model = model;
    d->pool = pool;
    d->max_pages = max_pages;
    d->context = info->context < DRAFT_CONTEXT ? info->context : DRAFT_CONTEXT;
    d->map = info->output_tokens;
    d->sampler = sampler_create(kernels, info->outputs);
    d->stride = model_logits_stride(model);
    d->logits = xaligned((size_t)DRAFT_TEXTS * d->stride * sizeof(*d->logits));
    check(model_max_tokens(model) >= DRAFT_STEP_TOKENS);
    return &d->drafter;
}
