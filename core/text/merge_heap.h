/* merge_heap.h: which two neighbours merge next: a binary heap of candidates, shared by BPE and
 * SPM.
 *
 * Candidates are ordered by key: the upper 32 bits are the merge's order (lower first), the lower
 * 32 bits the position of its left symbol, so that of equal merges the leftmost comes first. A
 * candidate whose symbols have changed since it was pushed is stale; whoever pops it notices. */
#ifndef TEXT_MERGE_HEAP_H
#define TEXT_MERGE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct merge_candidate {
    uint64_t key;
    uint32_t right; /* position of the right symbol */
    /* what tells a stale candidate: the merged symbol (BPE), the merged length (SPM) */
    uint32_t check;
};

struct merge_heap {
    struct merge_candidate *items;
    size_t count, cap;
};

void merge_heap_release(struct merge_heap *h);
void merge_heap_push(struct merge_heap *h, struct merge_candidate c);
/* Takes the candidate with the lowest key; false if there is none. */
bool merge_heap_pop(struct merge_heap *h, struct merge_candidate *c);

#endif
