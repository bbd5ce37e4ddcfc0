#include "core/text/text_table.h"

#include <string.h>

#include "core/base/huge.h"

static uint64_t load64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint64_t load32(const char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* Eight bytes at most as a number: different for different texts of one length. */
static uint64_t short_text(const char *p, size_t len)
{
    if (len == 8)
        return load64(p);
    if (len >= 4)
        return load32(p) | load32(p + len - 4) << 32;
    if (len == 0)
        return 0;
    return (uint64_t)(unsigned char)p[0] | (uint64_t)(unsigned char)p[len / 2] << 8 |
           (uint64_t)(unsigned char)p[len - 1] << 16;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

struct text_key text_key(struct slice text)
{
    struct text_key key = {.len = (uint32_t)text.len, .hash = text.len};
    if (text.len <= 8) {
        key.text.bytes = short_text(text.ptr, text.len);
        key.hash = mix(key.hash, key.text.bytes);
        return key;
    }
    key.text.ptr = text.ptr;
    for (size_t i = 0; i + 8 < text.len; i += 8)
        key.hash = mix(key.hash, load64(text.ptr + i));
    key.hash = mix(key.hash, load64(text.ptr + text.len - 8));
    return key;
}

void text_table_init(struct text_table *t, size_t n)
{
    size_t cap = 16;
    while (cap < n * 2)
        cap *= 2;
    t->slots = huge_table(cap * sizeof(*t->slots), &t->mapped);
    t->mask = cap - 1;
    t->count = 0;
}

void text_table_release(struct text_table *t)
{
    huge_table_free(t->slots, t->mapped);
    *t = (struct text_table){0};
}

static bool holds(const struct text_slot *slot, const struct text_key *key)
{
    if (slot->len != key->len)
        return false;
    return key->len <= 8 ? slot->text.bytes == key->text.bytes
                         : memcmp(slot->text.ptr, key->text.ptr, key->len) == 0;
}

/* The slot of the text, or the free one where it belongs. */
static struct text_slot *find(const struct text_table *t, const struct text_key *key)
{
    for (size_t i = key->hash & t->mask;; i = (i + 1) & t->mask) {
        struct text_slot *slot = &t->slots[i];
        if (slot->len == 0 || holds(slot, key))
            return slot;
    }
}

static void grow(struct text_table *t)
{
    struct text_table bigger;
    text_table_init(&bigger, t->count * 2);
    for (size_t i = 0; i <= t->mask; i++) {
        const struct text_slot *slot = &t->slots[i];
        if (slot->len == 0)
            continue;
        struct text_key key = {slot->text, slot->len, 0};
        if (slot->len <= 8)
            key.hash = mix(slot->len, slot->text.bytes);
        else
            key = text_key(slice_make(slot->text.ptr, slot->len));
        *find(&bigger, &key) = *slot;
    }
    bigger.count = t->count;
    text_table_release(t);
    *t = bigger;
}

uint32_t text_table_set(struct text_table *t, const struct text_key *key, uint32_t value)
{
    struct text_slot *slot = find(t, key);
    uint32_t before = slot->len != 0 ? slot->value : TEXT_TABLE_NONE;
    if (slot->len == 0 && ++t->count * 2 > t->mask + 1) {
        grow(t);
        slot = find(t, key);
    }
    *slot = (struct text_slot){key->text, key->len, value};
    return before;
}

uint32_t text_table_get(const struct text_table *t, const struct text_key *key)
{
    const struct text_slot *slot = find(t, key);
    return slot->len != 0 ? slot->value : TEXT_TABLE_NONE;
}

void text_table_prefetch(const struct text_table *t, const struct text_key *key)
{
    __builtin_prefetch(&t->slots[key->hash & t->mask]);
}
