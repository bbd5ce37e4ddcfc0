#include "core/base/xalloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"

void *xmalloc(size_t size)
{
    void *p = malloc(size ? size : 1);
    check(p != NULL);
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    check(p != NULL);
    return p;
}

void *xrealloc(void *ptr, size_t size)
{
    void *p = realloc(ptr, size ? size : 1);
    check(p != NULL);
    return p;
}

void *xreallocarray(void *ptr, size_t n, size_t size)
{
    check(size == 0 || n <= SIZE_MAX / size);
    return xrealloc(ptr, n * size);
}

char *xmemdup(const void *ptr, size_t len)
{
    char *p = xmalloc(len + 1);
    if (len != 0)
        memcpy(p, ptr, len);
    p[len] = '\0';
    return p;
}

void *xaligned(size_t size)
{
    check(size < SIZE_MAX - 64);
    size = (size + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, size ? size : 64);
    check(p != NULL);
    memset(p, 0, size ? size : 64);
    return p;
}
