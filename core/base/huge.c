#define _GNU_SOURCE
#include "core/base/huge.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core/base/xalloc.h"

void *huge_map(size_t bytes, size_t *mapped)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    size_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, total = size + HUGE_PAGE;
    char *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    /* What lies before the border and behind the end is unmapped again. */
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0)
        munmap(p, before);
    munmap(p + before + size, total - before - size);
    madvise(p + before, size, MADV_HUGEPAGE);
    *mapped = size;
    return p + before;
}

void huge_touch(void *p)
{
    /* Kernels before 5.14 refuse; there the first write does it. */
    (void)madvise(p, HUGE_PAGE, MADV_POPULATE_WRITE);
}

void huge_unmap(void *p, size_t mapped)
{
    if (p != NULL)
        munmap(p, mapped);
}

void *huge_table(size_t bytes, size_t *mapped)
{
    *mapped = 0;
    void *table = bytes >= HUGE_PAGE / 2 ? huge_map(bytes, mapped) : NULL;
    return table != NULL ? table : xcalloc(1, bytes);
}

void huge_table_free(void *table, size_t mapped)
{
    if (mapped > 0)
        huge_unmap(table, mapped);
    else
        free(table);
}
