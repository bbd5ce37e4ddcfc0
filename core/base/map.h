/* map.h: hash map from u64 to pointer; open addressing, linear probing, deletion by shifting back.
 *
 * { 0 } is an empty map. Keys are any u64; values must not be NULL. Owns neither. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

struct map_slot {
    uint64_t key;
    void *value; /* NULL: free slot */
};

struct map {
    struct map_slot *slots;
    size_t cap; /* power of two, or 0 */
    size_t count;
};

void map_release(struct map *m);
/* The value, or NULL. */
void *map_get(const struct map *m, uint64_t key);
/* Stores value (not NULL); returns what it replaces, or NULL. */
void *map_set(struct map *m, uint64_t key, void *value);
/* Removes the key; returns its value, or NULL. */
void *map_take(struct map *m, uint64_t key);
/* Walks the slots: start with *i = 0; NULL at the end. The map must not change while walking. */
void *map_next(const struct map *m, size_t *i, uint64_t *key);

#endif
