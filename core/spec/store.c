#include "core/spec/store.h"

#include <stdlib.h>

#include "core/base/xalloc.h"

#define MASK (STORE_TOKENS - 1)
#define MATCH_MOST 16u

struct store {
    struct drafter drafter; /* first */
    uint32_t *tokens;       /* STORE_TOKENS, by place & MASK */
    struct siphash *salts;  /* of the same places */
    uint64_t *index;        /* places, by hash & MASK; 0: none */
    uint64_t end;           /* the next place; starts at 1 */
};

static uint64_t hash_of(const struct siphash *salt, const uint32_t *last)
{
    uint64_t h = salt->word[0];
    for (uint32_t i = 0; i < STORE_LEAST; i++) {
        h = (h ^ last[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

/* Whether `place` still holds a token of that salt. */
static bool holds(const struct store *s, uint64_t place, const struct siphash *salt)
{
    if (place == 0 || place >= s->end || place + STORE_TOKENS <= s->end)
        return false;
    const struct siphash *its = &s->salts[place & MASK];
    return its->word[0] == salt->word[0] && its->word[1] == salt->word[1];
}

/* Tokens before `place` that equal the text's last. */
static uint32_t equal_past(const struct store *s, uint64_t place, const struct draft_text *t)
{
    uint32_t n = 0;
    while (n < MATCH_MOST && n < t->n_tokens && holds(s, place - 1 - n, &t->salt) &&
           s->tokens[(place - 1 - n) & MASK] == t->tokens[t->n_tokens - 1 - n])
        n++;
    return n;
}

static void propose(struct drafter *d, struct draft_text **texts, uint32_t n, struct controller *c)
{
    const struct store *s = (const struct store *)d;
    (void)c;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_text *t = texts[i];
        if (t->draft.n > 0 || t->most == 0 || t->n_tokens < STORE_LEAST)
            continue;
        uint64_t place = s->index[hash_of(&t->salt, t->tokens + t->n_tokens - STORE_LEAST) & MASK];
        if (!holds(s, place, &t->salt))
            continue;
        uint32_t length = equal_past(s, place, t);
        if (length < STORE_LEAST)
            continue;
        for (uint32_t k = 0; k < t->most && holds(s, place + k, &t->salt); k++)
            draft_add(&t->draft, s->tokens[(place + k) & MASK], draft_kind_store(length + k));
    }
}

static void put(struct store *s, const struct siphash *salt, uint32_t token)
{
    s->tokens[s->end & MASK] = token;
    s->salts[s->end & MASK] = *salt;
    s->end++;
}

/* Keeps the answer, with the last tokens of the prompt, so that its beginning is found too. */
static void finish(struct drafter *d, struct draft_text *t)
{
    struct store *s = (struct store *)d;
    if (t->n_tokens == t->n_prompt)
        return;
    uint32_t begin = t->n_prompt > STORE_LEAST ? t->n_prompt - STORE_LEAST : 0;
    if (t->n_tokens - begin > STORE_TOKENS / 4)
        begin = t->n_tokens - STORE_TOKENS / 4;
    for (uint32_t i = begin; i < t->n_tokens; i++) {
        if (i >= begin + STORE_LEAST)
            s->index[hash_of(&t->salt, t->tokens + i - STORE_LEAST) & MASK] = s->end;
        put(s, &t->salt, t->tokens[i]);
    }
}

static void free_store(struct drafter *d)
{
    struct store *s = (struct store *)d;
    free(s->tokens);
    free(s->salts);
    free(s->index);
    free(s);
}

struct drafter *store_drafter(void)
{
    struct store *s = xcalloc(1, sizeof(*s));
    s->drafter =
        (struct drafter){.name = "store", .propose = propose, .finish = finish, .free = free_store};
    s->tokens = xcalloc(STORE_TOKENS, sizeof(*s->tokens));
    s->salts = xcalloc(STORE_TOKENS, sizeof(*s->salts));
    s->index = xcalloc(STORE_TOKENS, sizeof(*s->index));
    s->end = 1;
    return &s->drafter;
}
