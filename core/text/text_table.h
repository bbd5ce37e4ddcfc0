/* text_table.h: hash table from texts to 32-bit numbers; the texts are borrowed.
 *
 * Open addressing, linear probing, growing; entries are never removed. */
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

/* Makes room for n entries; more are possible. */
void text_table_init(struct text_table *t, size_t n);
void text_table_release(struct text_table *t);
/* Stores value under text; a text already there gets the new value. */
void text_table_set(struct text_table *t, struct slice text, uint32_t value);
/* The value, or TEXT_TABLE_NONE. */
uint32_t text_table_get(const struct text_table *t, struct slice text);

#endif
