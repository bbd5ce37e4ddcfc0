#define _GNU_SOURCE /* qsort_r */
#include "core/text/special.h"

#include <stdlib.h>

#include "core/base/xalloc.h"

static struct slice text_of(const struct special *s, uint32_t i)
{
    return vocab_token(s->v, s->ids[i])->text;
}

static int by_text(const void *a, const void *b, void *vocab)
{
    struct slice x = vocab_token(vocab, *(const uint32_t *)a)->text,
                 y = vocab_token(vocab, *(const uint32_t *)b)->text;
    int order = memcmp(x.ptr, y.ptr, x.len < y.len ? x.len : y.len);
    return order != 0 ? order : (x.len > y.len) - (x.len < y.len);
}

static int descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

void special_init(struct special *s, const struct vocab *v, bool all)
{
    uint32_t size = vocab_size(v);
    *s = (struct special){.v = v};
    s->ids = xreallocarray(NULL, (size_t)size + 1, sizeof(*s->ids));
    for (uint32_t id = 0; id < size; id++) {
        const struct vocab_token *t = vocab_token(v, id);
        bool wanted = t->kind == TOKEN_USER_DEFINED ||
                      (all && (t->kind == TOKEN_CONTROL || t->kind == TOKEN_UNKNOWN));
        if (wanted && t->text.len != 0 && vocab_find(v, t->text) == id)
            s->ids[s->n++] = id;
    }
    qsort_r(s->ids, s->n, sizeof(*s->ids), by_text, (void *)(uintptr_t)v);
    s->ids = xreallocarray(s->ids, (size_t)s->n + 1, sizeof(*s->ids));
    s->lengths = xreallocarray(NULL, (size_t)s->n + 1, sizeof(*s->lengths));
    for (unsigned byte = 0, i = 0; byte <= 256; byte++) {
        while (i < s->n && (unsigned char)text_of(s, i).ptr[0] < byte)
            i++;
        s->first[byte] = i;
    }
    for (uint32_t i = 0; i < s->n; i++)
        s->lengths[i] = (uint32_t)text_of(s, i).len;
    qsort(s->lengths, s->n, sizeof(*s->lengths), descending);
    for (uint32_t i = 0; i < s->n; i++)
        if (i == 0 || s->lengths[i] != s->lengths[s->n_lengths - 1])
            s->lengths[s->n_lengths++] = s->lengths[i];
}

void special_release(struct special *s)
{
    free(s->ids);
    free(s->lengths);
    *s = (struct special){0};
}

/* The longest token of at most max bytes with which p[0..n) begins; 0 if there is none. */
static uint32_t longest_at(const struct special *s, const char *p, size_t n, size_t max,
                           uint32_t *id)
{
    uint32_t low = s->first[(unsigned char)p[0]], high = s->first[(unsigned char)p[0] + 1],
             longest = 0;
    if (n > max)
        n = max;
    for (size_t depth = 1; low < high; depth++) {
        if (text_of(s, low).len == depth) { /* texts are distinct, so only the first can end here */
            longest = (uint32_t)depth;
            *id = s->ids[low++];
        }
        if (depth >= n)
            break;
        /* Narrow to those whose next byte is p[depth]. */
        unsigned char wanted = (unsigned char)p[depth];
        uint32_t a = low, b = high;
        while (a < b) {
            uint32_t middle = a + (b - a) / 2;
            if ((unsigned char)text_of(s, middle).ptr[depth] < wanted)
                a = middle + 1;
            else
                b = middle;
        }
        low = a;
        b = high;
        while (a < b) {
            uint32_t middle = a + (b - a) / 2;
            if ((unsigned char)text_of(s, middle).ptr[depth] <= wanted)
                a = middle + 1;
            else
                b = middle;
        }
        high = a;
    }
    return longest;
}

/* Takes hits longest first; a hit is free iff its ends are, as all taken ones are at least as long.
 */
static void choose(const struct special *s, struct slice text, struct special_hit *hits, size_t n)
{
    unsigned char *taken = xcalloc(text.len, 1);
    uint32_t *longest = xreallocarray(NULL, n, sizeof(*longest));
    for (size_t i = 0; i < n; i++) {
        longest[i] = hits[i].len;
        hits[i].len = 0;
    }
    for (uint32_t k = 0; k < s->n_lengths; k++) {
        uint32_t len = s->lengths[k], id;
        for (size_t i = 0; i < n; i++) {
            size_t at = hits[i].at;
            if (longest[i] < len || taken[at] || taken[at + len - 1])
                continue;
            if (longest_at(s, text.ptr + at, text.len - at, len, &id) != len)
                continue;
            hits[i].len = len;
            hits[i].id = id;
            memset(taken + at, 1, len);
        }
    }
    free(longest);
    free(taken);
}

struct special_hit *special_find(const struct special *s, struct slice text, size_t *n)
{
    struct special_hit *hits = NULL;
    size_t count = 0, cap = 0, kept = 0;
    *n = 0;
    if (s->n == 0)
        return NULL;
    for (size_t at = 0; at < text.len; at++) {
        uint32_t id, len = longest_at(s, text.ptr + at, text.len - at, SIZE_MAX, &id);
        if (len == 0)
            continue;
        if (count == cap) {
            cap = cap * 2 + 16;
            hits = xreallocarray(hits, cap, sizeof(*hits));
        }
        hits[count++] = (struct special_hit){at, len, id};
    }
    if (count == 0)
        return NULL;
    choose(s, text, hits, count);
    for (size_t i = 0; i < count; i++)
        if (hits[i].len != 0)
            hits[kept++] = hits[i];
    *n = kept;
    return hits;
}
