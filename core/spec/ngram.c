#include "core/spec/ngram.h"

#include <stdlib.h>

#include "core/base/xalloc.h"

#define BLOCK 32u

/* Tokens before `end` (of both) that are equal. */
static uint32_t equal_past(const uint32_t *tokens, uint32_t end, uint32_t n_tokens)
{
    uint32_t n = 0;
    while (n < NGRAM_MOST && n < end && tokens[end - 1 - n] == tokens[n_tokens - 1 - n])
        n++;
    return n;
}

uint32_t ngram_find(const uint32_t *tokens, uint32_t n_tokens, uint32_t *next)
{
    uint32_t best = NGRAM_LEAST - 1;
    if (n_tokens <= NGRAM_LEAST)
        return 0;
    uint32_t last = tokens[n_tokens - 1];
    for (uint32_t end = n_tokens - 1; end >= NGRAM_LEAST && best < NGRAM_MOST;) {
        uint32_t begin = end > BLOCK ? end - BLOCK : 0, hits = 0;
        /* Most blocks hold no such token; this loop is made of vectors. */
        for (uint32_t i = begin; i < end; i++)
            hits |= tokens[i] == last;
        for (uint32_t i = end; hits != 0 && i > begin && best < NGRAM_MOST; i--) {
            uint32_t n = tokens[i - 1] == last ? equal_past(tokens, i, n_tokens) : 0;
            if (n > best) {
                best = n;
                *next = i;
            }
        }
        end = begin;
    }
    return best >= NGRAM_LEAST ? best : 0;
}

static void propose(struct drafter *d, struct draft_text **texts, uint32_t n, struct controller *c)
{
    (void)d;
    (void)c;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_text *t = texts[i];
        uint32_t next = 0, length;
        if (t->draft.n > 0 || t->most == 0 ||
            (length = ngram_find(t->tokens, t->n_tokens, &next)) == 0)
            continue;
        enum draft_kind kind = draft_kind_text(length);
        for (uint32_t k = 0; k < t->most; k++) {
            uint32_t at = next + k;
            draft_add(&t->draft,
                      at < t->n_tokens ? t->tokens[at] : t->draft.tokens[at - t->n_tokens], kind);
        }
    }
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
