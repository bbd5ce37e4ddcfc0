#include "core/text/spm.h"

#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/text/merge_heap.h"
#include "core/text/utf8.h"

#define MAX_FRAGMENT (1u << 30)

struct symbol {
    uint32_t start, len; /* of the escaped text; len 0: merged into its left neighbour */
    uint32_t prev, next;
};

struct spm {
    const struct vocab *v;
    struct buffer text;
    struct symbol *symbols;
    struct merge_heap heap;
};

/* Orders floats as unsigned numbers, the highest score first. */
static uint32_t score_order(float score)
{
    uint32_t bits;
    score += 0.0f; /* −0 becomes +0 */
    memcpy(&bits, &score, sizeof(bits));
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static void push(struct spm *s, uint32_t left, uint32_t right)
{
    if (left == TOKEN_NONE || right == TOKEN_NONE)
        return;
    const struct symbol *l = &s->symbols[left], *r = &s->symbols[right];
    uint32_t len = l->len + r->len;
    if (len > vocab_longest(s->v))
        return;
    uint32_t id = vocab_symbol(s->v, slice_make(s->text.ptr + l->start, len));
    if (id != TOKEN_NONE)
        merge_heap_push(
            &s->heap,
            (struct merge_candidate){
                (uint64_t)score_order(vocab_token(s->v, id)->score) << 32 | left, right, len});
}

static void emit(struct spm *s, const struct symbol *symbol, struct token_list *out)
{
    struct slice text = slice_make(s->text.ptr + symbol->start, symbol->len);
    uint32_t id = vocab_symbol(s->v, text);
    if (id != TOKEN_NONE) {
        token_list_add(out, id);
        return;
    }
    for (size_t i = 0; i < text.len; i++) {
        uint32_t byte = vocab_byte(s->v, (uint8_t)text.ptr[i]);
        if (byte == TOKEN_NONE)
            byte = vocab_unknown(s->v);
        if (byte != TOKEN_NONE)
            token_list_add(out, byte);
    }
}

/* Splits the text into characters (invalid bytes one by one); returns how many. */
static uint32_t split(struct spm *s)
{
    uint32_t n = 0;
    size_t len;
    s->symbols = xreallocarray(NULL, s->text.len + 1, sizeof(*s->symbols));
    for (size_t at = 0; at < s->text.len; at += len, n++) {
        if (utf8_step(s->text.ptr + at, s->text.len - at, &len) != UTF8_CHARACTER)
            len = 1;
        s->symbols[n] = (struct symbol){(uint32_t)at, (uint32_t)len, n == 0 ? TOKEN_NONE : n - 1,
                                        at + len == s->text.len ? TOKEN_NONE : n + 1};
    }
    return n;
}

static void merge(struct spm *s)
{
    struct merge_candidate c;
    while (merge_heap_pop(&s->heap, &c)) {
        uint32_t left = (uint32_t)c.key;
        struct symbol *l = &s->symbols[left], *r = &s->symbols[c.right];
        if (l->len == 0 || r->len == 0 || l->next != c.right || l->len + r->len != c.check)
            continue;
        l->len += r->len;
        l->next = r->next;
        r->len = 0;
        if (l->next != TOKEN_NONE)
            s->symbols[l->next].prev = left;
        push(s, l->prev, left);
        push(s, left, l->next);
    }
}

enum status spm_encode(const struct vocab *v, struct slice fragment, bool space_prefix,
                       struct token_list *out, struct error *err)
{
    static const char mark[] = "\xe2\x96\x81";
    struct spm s = {.v = v};
    if (fragment.len >= MAX_FRAGMENT)
        return error_set(err, STATUS_TOO_LARGE, "a text of %zu bytes is too long to tokenize",
                         fragment.len);
    if (fragment.len == 0)
        return STATUS_OK;
    if (space_prefix)
        buffer_add(&s.text, mark, 3);
    for (size_t i = 0; i < fragment.len; i++) {
        if (fragment.ptr[i] == ' ')
            buffer_add(&s.text, mark, 3);
        else
            buffer_add_byte(&s.text, fragment.ptr[i]);
    }
    uint32_t n = split(&s);
    for (uint32_t i = 0; i + 1 < n; i++)
        push(&s, i, i + 1);
    merge(&s);
    for (uint32_t i = 0; i != TOKEN_NONE; i = s.symbols[i].next)
        emit(&s, &s.symbols[i], out);
    merge_heap_release(&s.heap);
    free(s.symbols);
    buffer_release(&s.text);
    return STATUS_OK;
}
