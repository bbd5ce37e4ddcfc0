/* text_table.h: hash table from texts to 32-bit numbers; the texts are borrowed.
 *
 * Open addressing, linear probing, growing; entries are never removed. Tables are larger than caches:
 * who has many texts to look up takes their hashes first, prefetches the slots of some, then goes on
 * with those. */
#ifndef TEXT_TEXT_TABLE_H
#define TEXT_TEXT_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/slice.h"

#define TEXT_TABLE_NONE UINT32_MAX

struct text_slot {
    const char *ptr;
    uint32_t len, value; /* value TEXT_TABLE_NONE: free slot */
};

struct text_table {
    struct text_slot *slots;
    size_t mask, count;
};

/* The hash of a text, or, from the hash of what stands before it, of both together. */
#define TEXT_HASH_EMPTY UINT64_C(0xcbf29ce484222325)
static inline uint64_t text_hash(uint64_t before, struct slice text)
{
    for (size_t i = 0; i < text.len; i++) /* FNV-1a */
        before = (before ^ (unsigned char)text.ptr[i]) * UINT64_C(0x100000001b3);
    return before;
}

/* Makes room for n entries; more are possible. */
void text_table_init(struct text_table *t, size_t n);
void text_table_release(struct text_table *t);
/* Stores value under text; a text already there gets the new value. */
void text_table_set(struct text_table *t, struct slice text, uint32_t value);
/* The value, or TEXT_TABLE_NONE. */
uint32_t text_table_get(const struct text_table *t, struct slice text);
/* The same with the text's hash at hand. */
void text_table_set_hashed(struct text_table *t, struct slice text, uint64_t hash, uint32_t value);
uint32_t text_table_get_hashed(const struct text_table *t, struct slice text, uint64_t hash);
/* Fetches the slot into the caches; and, when it is there, the text that it holds. */
void text_table_prefetch(const struct text_table *t, uint64_t hash);
void text_table_prefetch_text(const struct text_table *t, uint64_t hash);

#endif
