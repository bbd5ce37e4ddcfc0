#include "core/text/bpe.h"

#include <stdlib.h>

#include "core/base/xalloc.h"

/* Up to so many symbols it is quicker to look at all pairs again than to keep a heap. */
#define SHORT_WORD 24

void bpe_release(struct bpe *b)
{
    free(b->symbols);
    merge_heap_release(&b->heap);
    *b = (struct bpe){0};
}

static void emit(const struct vocab *v, uint32_t symbol, struct token_list *out)
{
    if (symbol < vocab_size(v)) {
        token_list_add(out, symbol);
        return;
    }
    struct slice bytes = vocab_symbol_bytes(v, symbol);
    for (size_t i = 0; i < bytes.len; i++) {
        uint32_t byte = vocab_byte(v, (uint8_t)bytes.ptr[i]);
        if (byte < vocab_size(v))
            token_list_add(out, byte);
    }
}

/* Ranks and results stand beside the symbols: merge[i] is that of symbols i and i + 1. */
static void encode_short(const struct vocab *v, struct slice word, struct token_list *out)
{
    uint32_t ids[SHORT_WORD];
    const struct vocab_merge *merge[SHORT_WORD];
    size_t n = 0;
    for (size_t i = 0; i < word.len; i++)
        if ((ids[n] = vocab_byte(v, (uint8_t)word.ptr[i])) != TOKEN_NONE)
            n++;
    for (size_t i = 0; i + 1 < n; i++)
        merge[i] = vocab_merge(v, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (merge[i] != NULL && (best == n || merge[i]->rank < merge[best]->rank))
                best = i;
        if (best == n)
            break;
        ids[best] = merge[best]->result;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            merge[i - 1] = merge[i];
        }
        if (best > 0)
            merge[best - 1] = vocab_merge(v, ids[best - 1], ids[best]);
        if (best + 1 < n)
            merge[best] = vocab_merge(v, ids[best], ids[best + 1]);
    }
    for (size_t i = 0; i < n; i++)
        emit(v, ids[i], out);
}

static void push(struct bpe *b, const struct vocab *v, uint32_t left, uint32_t right)
{
    if (left == TOKEN_NONE || right == TOKEN_NONE)
        return;
    const struct vocab_merge *m = vocab_merge(v, b->symbols[left].id, b->symbols[right].id);
    if (m != NULL)
        merge_heap_push(&b->heap,
                        (struct merge_candidate){(uint64_t)m->rank << 32 | left, right, m->result});
}

static void encode_long(struct bpe *b, const struct vocab *v, struct slice word,
                        struct token_list *out)
{
    struct merge_candidate c;
    uint32_t n = 0;
    if (b->cap < word.len) {
        b->cap = word.len;
        b->symbols = xreallocarray(b->symbols, b->cap, sizeof(*b->symbols));
    }
    for (size_t i = 0; i < word.len; i++) {
        uint32_t id = vocab_byte(v, (uint8_t)word.ptr[i]);
        if (id != TOKEN_NONE) {
            /* before the first: TOKEN_NONE */
            b->symbols[n] = (struct bpe_symbol){id, n - 1, n + 1};
            n++;
        }
    }
    if (n == 0)
        return;
    b->symbols[n - 1].next = TOKEN_NONE;
    for (uint32_t i = 0; i + 1 < n; i++)
        push(b, v, i, i + 1);
    while (merge_heap_pop(&b->heap, &c)) {
        uint32_t left = (uint32_t)c.key;
        struct bpe_symbol *l = &b->symbols[left], *r = &b->symbols[c.right];
        if (l->id == TOKEN_NONE || r->id == TOKEN_NONE || l->next != c.right)
            continue;
        const struct vocab_merge *m = vocab_merge(v, l->id, r->id);
        if (m == NULL || m->result != c.check || m->rank != c.key >> 32)
            continue;
        l->id = m->result;
        l->next = r->next;
        r->id = TOKEN_NONE;
        if (l->next != TOKEN_NONE)
            b->symbols[l->next].prev = left;
        push(b, v, l->prev, left);
        push(b, v, left, l->next);
    }
    for (uint32_t i = 0; i != TOKEN_NONE; i = b->symbols[i].next)
        emit(v, b->symbols[i].id, out);
}

void bpe_encode(struct bpe *b, const struct vocab *v, struct slice word, struct token_list *out)
{
    if (word.len <= SHORT_WORD)
        encode_short(v, word, out);
    else
        encode_long(b, v, word, out);
}
