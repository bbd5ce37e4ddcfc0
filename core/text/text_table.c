#include "core/text/text_table.h"

#include <stdlib.h>

#include "core/base/xalloc.h"

void text_table_init(struct text_table *t, size_t n)
{
    size_t cap = 16;
    while (cap < n * 2)
        cap *= 2;
    t->slots = xreallocarray(NULL, cap, sizeof(*t->slots));
    t->mask = cap - 1;
    t->count = 0;
    for (size_t i = 0; i < cap; i++)
        t->slots[i] = (struct text_slot){NULL, 0, TEXT_TABLE_NONE};
}

void text_table_release(struct text_table *t)
{
    free(t->slots);
    *t = (struct text_table){0};
}

/* The low bits choose the slot. */
static size_t home(const struct text_table *t, uint64_t hash)
{
    return (hash ^ hash >> 32) & t->mask;
}

/* The slot of text, or the free one where it belongs. */
static struct text_slot *find(const struct text_table *t, struct slice text, uint64_t hash)
{
    for (size_t i = home(t, hash);; i = (i + 1) & t->mask) {
        struct text_slot *slot = &t->slots[i];
        if (slot->value == TEXT_TABLE_NONE || slice_equal(slice_make(slot->ptr, slot->len), text))
            return slot;
    }
}

static void grow(struct text_table *t)
{
    struct text_table bigger;
    text_table_init(&bigger, t->count * 2);
    for (size_t i = 0; i <= t->mask; i++) {
        struct slice text = slice_make(t->slots[i].ptr, t->slots[i].len);
        if (t->slots[i].value != TEXT_TABLE_NONE)
            *find(&bigger, text, text_hash(TEXT_HASH_EMPTY, text)) = t->slots[i];
    }
    bigger.count = t->count;
    text_table_release(t);
    *t = bigger;
}

void text_table_set_hashed(struct text_table *t, struct slice text, uint64_t hash, uint32_t value)
{
    struct text_slot *slot = find(t, text, hash);
    if (slot->value == TEXT_TABLE_NONE && ++t->count * 2 > t->mask) {
        grow(t);
        slot = find(t, text, hash);
    }
    *slot = (struct text_slot){text.ptr, (uint32_t)text.len, value};
}

void text_table_set(struct text_table *t, struct slice text, uint32_t value)
{
    text_table_set_hashed(t, text, text_hash(TEXT_HASH_EMPTY, text), value);
}

uint32_t text_table_get_hashed(const struct text_table *t, struct slice text, uint64_t hash)
{
    return find(t, text, hash)->value;
}

uint32_t text_table_get(const struct text_table *t, struct slice text)
{
    return text_table_get_hashed(t, text, text_hash(TEXT_HASH_EMPTY, text));
}

void text_table_prefetch(const struct text_table *t, uint64_t hash)
{
    __builtin_prefetch(&t->slots[home(t, hash)]);
}

void text_table_prefetch_text(const struct text_table *t, uint64_t hash)
{
    __builtin_prefetch(t->slots[home(t, hash)].ptr);
}
