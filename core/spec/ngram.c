#include "core/spec/ngram.h"

#include <stdlib.h>

#include "core/base/xalloc.h"

#define BLOCK 32u

/* The end of a text and its draft. */
struct past {
    uint32_t n, tokens[NGRAM_MOST]; /* the last one first */
};

static struct past past_of(const uint32_t *tokens, uint32_t n_tokens, const uint32_t *draft,
                           uint32_t n_draft)
{
    struct past p = {0};
    while (p.n < NGRAM_MOST && n_draft > 0)
        p.tokens[p.n++] = draft[--n_draft];
    while (p.n < NGRAM_MOST && n_tokens > 0)
        p.tokens[p.n++] = tokens[--n_tokens];
    return p;
}

/* Tokens before `end` that equal the past. */
static uint32_t equal_past(const uint32_t *tokens, uint32_t end, const struct past *p)
{
    uint32_t n = 0;
    while (n < p->n && n < end && tokens[end - 1 - n] == p->tokens[n])
        n++;
    return n;
}

/* Notes a place of n equal tokens; they come from the latest on. */
static void note(struct ngram_match *m, uint32_t n, uint32_t next)
{
    if (m->length == 0) {
        *m = (struct ngram_match){.length = n, .next = next};
        return;
    }
    if (m->other == 0)
        m->other = n > m->length ? m->next : next;
    if (n > m->length) {
        m->length = n;
        m->next = next;
    }
}

struct ngram_match ngram_find(const uint32_t *tokens, uint32_t n_tokens, const uint32_t *draft,
                              uint32_t n_draft)
{
    struct ngram_match m = {0};
    struct past past = past_of(tokens, n_tokens, draft, n_draft);
    if (past.n < NGRAM_LEAST)
        return m;
    uint32_t last = past.tokens[0], end = n_draft > 0 ? n_tokens : n_tokens - 1;
    while (end >= NGRAM_LEAST && (m.length < NGRAM_MOST || m.other == 0)) {
        uint32_t begin = end > BLOCK ? end - BLOCK : 0, hits = 0;
        /* Most blocks hold no such token; this loop is made of vectors. */
        for (uint32_t i = begin; i < end; i++)
            hits |= tokens[i] == last;
        for (uint32_t i = end; hits != 0 && i > begin; i--) {
            uint32_t n = tokens[i - 1] == last ? equal_past(tokens, i, &past) : 0;
            if (n >= NGRAM_LEAST)
                note(&m, n, i);
        }
        end = begin;
    }
    return m;
}

bool ngram_extend(struct draft_text *t)
{
    struct draft *d = &t->draft;
    struct ngram_match m = ngram_find(t->tokens, t->n_tokens, d->tokens, d->n);
    bool found = m.length > 0 && d->n < t->most;
    if (m.length == 0)
        return false;
    for (uint32_t k = 0; d->n < t->most; k++) {
        uint32_t at = m.next + k, at_other = m.other + k;
        uint32_t token = at < t->n_tokens ? t->tokens[at] : d->tokens[at - t->n_tokens];
        enum draft_second second = DRAFT_ALONE;
        if (m.other != 0) {
            bool same = token == (at_other < t->n_tokens ? t->tokens[at_other]
                                                         : d->tokens[at_other - t->n_tokens]);
            second = same ? DRAFT_CONFIRMED : DRAFT_DISPUTED;
            m.other = same ? m.other : 0;
        }
        draft_add(d, token, draft_kind_text(m.length + k, second));
    }
    return found;
}

static void propose(struct drafter *d, struct draft_text **texts, uint32_t n, struct controller *c)
{
    (void)d;
    (void)c;
    for (uint32_t i = 0; i < n; i++)
        if (texts[i]->draft.n == 0 && texts[i]->most > 0)
            ngram_extend(texts[i]);
}

static void free_drafter(struct drafter *d)
{
    free(d);
}

struct drafter *ngram_drafter(void)
{
    struct drafter *d = xcalloc(1, sizeof(*d));
    *d = (struct drafter){.name = "ngram", .propose = propose, .free = free_drafter};
    return d;
}
