#include "alloc/open_pages.h"

#include <stdlib.h>

#include "core/base/check.h"

/* Stands on the cache line before the page's bytes. */
struct open_page {
    struct open_page *next; /* free ones */
    uint32_t refs;
};

#define HEAD ((size_t)64)

static struct open_page *head_of(const void *page)
{
    return (struct open_page *)((char *)page - HEAD);
}

void *open_page_take(struct open_pages *o)
{
    struct open_page *p = o->free;
    if (p != NULL)
        o->free = p->next;
    else
        p = aligned_alloc(HEAD, HEAD + o->bytes);
    check(p != NULL);
    p->refs = 1;
    o->used++;
    return (char *)p + HEAD;
}

void open_page_ref(void *page)
{
    head_of(page)->refs++;
}

void open_page_unref(struct open_pages *o, void *page)
{
    struct open_page *p = head_of(page);
    check(p->refs > 0);
    if (--p->refs > 0)
        return;
    p->next = o->free;
    o->free = p;
    o->used--;
}

uint32_t open_page_refs(const void *page)
{
    return head_of(page)->refs;
}

void open_pages_release(struct open_pages *o)
{
    check(o->used == 0);
    while (o->free != NULL) {
        struct open_page *p = o->free;
        o->free = p->next;
        free(p);
    }
}
