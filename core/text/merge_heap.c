#include "core/text/merge_heap.h"

#include <stdlib.h>

#include "core/base/xalloc.h"

void merge_heap_release(struct merge_heap *h)
{
    free(h->items);
    *h = (struct merge_heap){0};
}

void merge_heap_push(struct merge_heap *h, struct merge_candidate c)
{
    if (h->count == h->cap) {
        h->cap = h->cap * 2 + 64;
        h->items = xreallocarray(h->items, h->cap, sizeof(*h->items));
    }
    size_t at = h->count++;
    for (size_t parent; at > 0 && h->items[parent = (at - 1) / 2].key > c.key; at = parent)
        h->items[at] = h->items[parent];
    h->items[at] = c;
}

bool merge_heap_pop(struct merge_heap *h, struct merge_candidate *c)
{
    if (h->count == 0)
        return false;
    *c = h->items[0];
    struct merge_candidate last = h->items[--h->count];
    size_t at = 0;
    for (size_t child; (child = at * 2 + 1) < h->count; at = child) {
        if (child + 1 < h->count && h->items[child + 1].key < h->items[child].key)
            child++;
        if (h->items[child].key >= last.key)
            break;
        h->items[at] = h->items[child];
    }
    if (h->count > 0)
        h->items[at] = last;
    return true;
}
