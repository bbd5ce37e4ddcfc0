/* text_table.h: hash table from texts, none empty, to 32-bit numbers; long texts are borrowed.
 *
 * Open addressing, linear probing, growing; entries are never removed. A text of up to 8 bytes stands in its slot, so that
 * most look-ups in a vocabulary touch one cache line. Tables are larger than caches: who has many texts to look up makes
 * the keys of some, prefetches their slots, then goes on with those. */
#ifndef TEXT_TEXT_TABLE_H
#define TEXT_TEXT_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/slice.h"

#define TEXT_TABLE_NONE UINT32_MAX

/* What is compared: the bytes themselves, in some order that their number decides, or where they are. */
union text_place {
    uint64_t bytes;  /* of up to 8 */
    const char *ptr; /* of more */
};

struct text_slot {
    union text_place text;
    uint32_t len, value; /* len 0: free slot */
};

struct text_table {
    struct text_slot *slots;
    size_t mask, count, mapped;
};

/* A text made ready for look-ups. */
struct text_key {
    union text_place text;
    uint32_t len;
    uint64_t hash;
};

struct text_key text_key(struct slice text);

/* Makes room for n entries; more are possible. */
void text_table_init(struct text_table *t, size_t n);
void text_table_release(struct text_table *t);
/* Stores value under text; a text already there gets the new value. Returns the old one, or TEXT_TABLE_NONE. */
uint32_t text_table_set(struct text_table *t, const struct text_key *key, uint32_t value);
/* The value, or TEXT_TABLE_NONE. */
uint32_t text_table_get(const struct text_table *t, const struct text_key *key);
/* Fetches the slot into the caches. */
void text_table_prefetch(const struct text_table *t, const struct text_key *key);

#endif
