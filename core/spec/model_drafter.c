#define _GNU_SOURCE
#include "core/spec/model_drafter.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/block_table.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/model/context_rows.h"
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
    struct context_rows *rows; /* NULL: the head is whole, or too many others have some */
    uint32_t n_seen;           /* tokens of the text that were looked at for it */
};

struct model_drafter {
    struct drafter drafter; /* first */
    struct model *model;
    struct pages *pool;
    uint32_t max_pages, n_pages; /* promised at most, promised */
    uint32_t context;
    struct sampler *sampler;
    float *logits; /* DRAFT_TEXTS rows */
    uint32_t stride;
    uint32_t *map; /* NULL: the head is whole; its tokens, then those of a text's context rows */
    /* Where the head was taken from the target's (else NULL): */
    const struct matrix *head; /* that one */
    const struct kernels *kernels;
    uint32_t n_rows;  /* texts that have context rows */
    uint64_t *mapped; /* bit t % 64 of word t / 64: the draft's head has token t */
    float *hidden;    /* DRAFT_TEXTS rows */
    float *row;       /* logits of the draft's head and of context rows */
    void *acts;
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
    struct view *v = t->model;
    forget(d, v);
    block_table_release(&v->table);
    if (v->rows != NULL) {
        context_rows_release(v->rows);
        free(v->rows);
        d->n_rows--;
    }
    free(v);
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

/* Rows for the tokens that the text has now. */
static void look_for_rows(struct model_drafter *d, struct view *v, const struct draft_text *t)
{
    if (v->rows == NULL && (d->head == NULL || d->n_rows == DRAFT_TEXTS))
        return;
    if (v->rows == NULL) {
        v->rows = xcalloc(1, sizeof(*v->rows));
        context_rows_init(v->rows, d->head);
        d->n_rows++;
        v->n_seen = t->n_tokens > CONTEXT_ROWS_WINDOW ? t->n_tokens - CONTEXT_ROWS_WINDOW : 0;
    }
    for (; v->n_seen < t->n_tokens; v->n_seen++) {
        uint32_t token = t->tokens[v->n_seen];
        if ((d->mapped[token / 64] >> token % 64 & 1) == 0)
            context_rows_add(v->rows, token);
    }
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
    look_for_rows(d, v, t);
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

/* The guess for place `place` of the draft of text i of the pass; *p: its probability. */
static uint32_t guess_of(struct model_drafter *d, uint32_t i, const struct draft_text *t, float *p)
{
    const struct model_info *info = model_info(d->model);
    const struct context_rows *rows = ((const struct view *)t->model)->rows;
    const float *logits = d->logits + (size_t)i * d->stride;
    uint32_t n = info->outputs;
    if (rows != NULL && rows->set.n > 0 &&
        context_rows_logits(rows, d->kernels, d->hidden + (size_t)i * info->width, d->acts,
                            d->row + n)) {
        for (uint32_t k = 0; k < rows->set.n; k++)
            d->row[n + k] += CONTEXT_ROWS_LEAD;
        memcpy(d->row, logits, n * sizeof(*logits));
        memcpy(d->map + n, rows->set.tokens, rows->set.n * sizeof(*d->map));
        logits = d->row;
        n += rows->set.n;
    }
    uint32_t guess =
        sampler_guess(d->sampler, t->sampling, logits, n, d->map, t->n_tokens + t->draft.n, p);
    return d->map != NULL ? d->map[guess] : guess;
}

/* The pass over what was added, for n texts; each gets one more guess. Returns how many go on. */
static uint32_t pass(struct model_drafter *d, struct draft_text **texts, uint32_t n,
                     uint32_t n_texts, double *chance, struct controller *c)
{
    uint32_t left = 0;
    uint64_t start = clock_ns();
    struct step step = {d->tokens, d->n_tokens, d->sequences, n, d->pool};
    model_step_hidden(d->model, &step, d->logits, d->hidden);
    for (uint32_t i = 0; i < n; i++) {
        struct draft_text *t = texts[i];
        if (d->sequences[i].failed) {
            finish(&d->drafter, t);
            continue;
        }
        float p;
        uint32_t guess = guess_of(d, i, t, &p);
        double now = chance[i] * controller_guessed(c, t, guess, p);
        /* Where the text itself goes on behind the guess, it does so for nothing. */
        if (t->draft.n < t->most && (c->always || !ngram_extend(t)) &&
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
    free(d->mapped);
    free(d->map);
    free(d->hidden);
    free(d->row);
    free(d->acts);
    free(d);
}

/* What the rows of contexts need. */
static void init_rows(struct model_drafter *d, const struct model_info *info)
{
    size_t acts = 0;
    d->head = info->target_head;
    d->mapped = xcalloc((info->vocab + 63) / 64, sizeof(*d->mapped));
    for (uint32_t i = 0; i < info->outputs; i++)
        d->mapped[d->map[i] / 64] |= (uint64_t)1 << d->map[i] % 64;
    d->hidden = xaligned((size_t)DRAFT_TEXTS * info->width * sizeof(*d->hidden));
    d->row = xaligned((info->outputs + CONTEXT_ROWS) * sizeof(*d->row));
    for (int kind = 0; kind < ACTS_KINDS; kind++) {
        size_t stride = acts_stride((enum acts_kind)kind, info->width);
        acts = stride > acts ? stride : acts;
    }
    d->acts = xaligned(acts);
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
    d->kernels = kernels;
    if (info->output_tokens != NULL) {
        d->map = xreallocarray(NULL, info->outputs + CONTEXT_ROWS, sizeof(*d->map));
        memcpy(d->map, info->output_tokens, info->outputs * sizeof(*d->map));
    }
    if (info->target_head != NULL)
        init_rows(d, info);
    d->sampler = sampler_create(kernels, info->outputs + (d->head != NULL ? CONTEXT_ROWS : 0));
    d->stride = model_logits_stride(model);
    d->logits = xaligned((size_t)DRAFT_TEXTS * d->stride * sizeof(*d->logits));
    check(model_max_tokens(model) >= DRAFT_STEP_TOKENS);
    return &d->drafter;
}
