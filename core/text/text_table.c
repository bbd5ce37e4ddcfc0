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

/* FNV-1a with a final mix, as the low bits choose the slot. */
static uint64_t hash(struct slice text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < text.len; i++)
        h = (h ^ (unsigned char)text.ptr[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* The slot of text, or the free one where it belongs. */
static struct text_slot *find(const struct text_table *t, struct slice text)
{
    for (size_t i = hash(text) & t->mask;; i = (i + 1) & t->mask) {
        struct text_slot *slot = &t->slots[i];
        if (slot->value == TEXT_TABLE_NONE || slice_equal(slice_make(slot->ptr, slot->len), text))
            return slot;
    }
}

static void grow(struct text_table *t)
{
    struct text_table bigger;
    text_table_init(&bigger, t->count * 2);
    for (size_t i = 0; i <= t->mask; i++)
        if (t->slots[i].value != TEXT_TABLE_NONE)
            *find(&bigger, slice_make(t->slots[i].ptr, t->slots[i].len)) = t->slots[i];
    bigger.count = t->count;
    text_table_release(t);
    *t = bigger;
}

void text_table_set(struct text_table *t, struct slice text, uint32_t value)
{
    struct text_slot *slot = find(t, text);
    if (slot->value == TEXT_TABLE_NONE && ++t->count * 2 > t->mask) {
        grow(t);
        slot = find(t, text);
    }
    *slot = (struct text_slot){text.ptr, (uint32_t)text.len, value};
}

uint32_t text_table_get(const struct text_table *t, struct slice text)
{
    return find(t, text)->value;
}
