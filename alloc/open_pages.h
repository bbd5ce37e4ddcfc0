/* open_pages.h: the pages of a pool that are still being filled, once more in full precision (KV type q4).
 *
 *     position   0 ........ 31   32 ....... 63   64 .. 70
 *     pages     [ q4          ] [ q4          ] [ q4      ]     the pool's
 *     open                                      [ f16     ]     these: of the page that a sequence is in
 *
 * A query reads the page that it stands in from here and all before it from the pool, so the copy may go as soon as
 * no query can stand there any more: block_table.h does that. There are few: one a sequence between steps, and during a step
 * one for each page that its tokens touch. So they are no pool of the arena, with promises and takes that may have to
 * wait; they are plain memory, named by address, reference counted (choices share one until one of them writes), and
 * never given back before the end. Owner: the scheduler thread; a step's threads read and write their bytes. */
#ifndef ALLOC_OPEN_PAGES_H
#define ALLOC_OPEN_PAGES_H

#include <stddef.h>
#include <stdint.h>

struct open_pages {
    size_t bytes; /* of one, a multiple of 64 */
    struct open_page *free;
    uint32_t used;
};

/* A page with one reference, 64-byte aligned; its bytes are any. */
void *open_page_take(struct open_pages *o);
void open_page_ref(void *page);
void open_page_unref(struct open_pages *o, void *page);
uint32_t open_page_refs(const void *page);
/* Frees the memory; no page may be in use. */
void open_pages_release(struct open_pages *o);

#endif
