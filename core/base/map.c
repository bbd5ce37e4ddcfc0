#include "core/base/map.h"

#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"

/* Fibonacci hashing: spreads ids that count upwards. */
static size_t home(const struct map *m, uint64_t key)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ (h >> 32)) & (m->cap - 1);
}

static size_t find(const struct map *m, uint64_t key)
{
    size_t i = home(m, key);
    while (m->slots[i].value != NULL && m->slots[i].key != key)
        i = (i + 1) & (m->cap - 1);
    return i;
}

void map_release(struct map *m)
{
    free(m->slots);
    *m = (struct map){0};
}

void *map_get(const struct map *m, uint64_t key)
{
    return m->cap == 0 ? NULL : m->slots[find(m, key)].value;
}

static void grow(struct map *m)
{
    struct map bigger = {0};
    bigger.cap = m->cap == 0 ? 16 : m->cap * 2;
    bigger.slots = xcalloc(bigger.cap, sizeof(*bigger.slots));
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].value != NULL)
            bigger.slots[find(&bigger, m->slots[i].key)] = m->slots[i];
    bigger.count = m->count;
    free(m->slots);
    *m = bigger;
}

void *map_set(struct map *m, uint64_t key, void *value)
{
    check(value != NULL);
    if (m->count * 4 >= m->cap * 3)
        grow(m);
    struct map_slot *slot = &m->slots[find(m, key)];
    void *old = slot->value;
    if (old == NULL)
        m->count++;
    *slot = (struct map_slot){key, value};
    return old;
}

void *map_take(struct map *m, uint64_t key)
{
    if (m->cap == 0)
        return NULL;
    size_t hole = find(m, key);
    void *value = m->slots[hole].value;
    if (value == NULL)
        return NULL;
    m->count--;
    size_t mask = m->cap - 1;
    for (size_t i = (hole + 1) & mask; m->slots[i].value != NULL; i = (i + 1) & mask) {
        size_t want = home(m, m->slots[i].key);
        if (((i - want) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole].value = NULL;
    return value;
}

void *map_next(const struct map *m, size_t *i, uint64_t *key)
{
    while (*i < m->cap) {
        const struct map_slot *slot = &m->slots[(*i)++];
        if (slot->value != NULL) {
            if (key != NULL)
                *key = slot->key;
            return slot->value;
        }
    }
    return NULL;
}
