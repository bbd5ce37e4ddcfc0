/* block_table.h: which pages hold the positions of one sequence.
 *
 *   position   0 ........ 31   32 ....... 63   64 ...... 95 (70 positions used)
 *   ids[]     [ page 17     ] [ page 4      ] [ page 9     ]
 *              shared, full    shared, full    own
 *
 * A page holds BLOCK_POSITIONS positions. The table holds one reference to each of its pages.
 * Rules (CONTRACTS: block table):
 *   append    makes the next positions writable. A last page that is partly used and shared is copied first.
 *   truncate  drops whole pages past the new end; leaves bytes; never writes to or copies a page.
 *   fork      a second table with the same pages, one more reference each.
 * Over a pool with open pages (open_pages.h), the table holds one beside each page from open_first on: those that were
 * appended to and may yet be read in full precision. A truncate keeps the one of a last page that is partly used and drops
 * the others, so after each step somebody truncates, if only to what is there, and never into a page before the last.
 *
 * Full pages are never written again, so sharing them needs no copy. Owner: the scheduler thread. */
#ifndef ALLOC_BLOCK_TABLE_H
#define ALLOC_BLOCK_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/pages.h"

#define BLOCK_POSITIONS 32u /* P, positions a page; not an option */

struct block_table {
    struct pages *pool;
    uint32_t *ids; /* n_pages page ids, position / BLOCK_POSITIONS is the index */
    uint32_t n_pages;
    uint32_t cap;
    uint32_t n_positions; /* positions appended and not truncated */

    void **
        open; /* pages open_first … open_first + n_open − 1 in full precision, up to the last one */
    uint32_t open_first, n_open, open_cap;
};

/* Pages that n positions need. */
static inline uint32_t block_pages_for(uint32_t n_positions)
{
    return n_positions / BLOCK_POSITIONS + (n_positions % BLOCK_POSITIONS != 0);
}

/* An empty table over pool. */
void block_table_init(struct block_table *t, struct pages *pool);
/* Drops all references and frees the ids; the table must be initialised again before use. */
void block_table_release(struct block_table *t);
/* Makes positions [n_positions, n_positions + count) writable and counts them. False, and nothing
 * changed, if the pool has no page ready. */
bool block_table_append(struct block_table *t, uint32_t count);
/* Appends a full page that already holds positions (a prefix-cache hit): takes one more reference.
 * The table must end at a page border. */
void block_table_adopt(struct block_table *t, uint32_t id);
/* Forgets all positions from n_positions on (n_positions <= t->n_positions). */
void block_table_truncate(struct block_table *t, uint32_t n_positions);
/* dst (uninitialised) becomes a second view of src's positions. */
void block_table_fork(struct block_table *dst, const struct block_table *src);

#endif
