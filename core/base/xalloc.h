/* xalloc.h: libc allocation that aborts when there is no memory; for small, bounded things. */
#ifndef BASE_XALLOC_H
#define BASE_XALLOC_H

#include <stddef.h>

/* As malloc, calloc and realloc (n * size checked for overflow in the array forms); never return NULL. */
void *xmalloc(size_t size);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *ptr, size_t size);
void *xreallocarray(void *ptr, size_t n, size_t size);
/* Copies len bytes and adds a NUL. */
char *xmemdup(const void *ptr, size_t len);
/* 64-byte aligned, zeroed; free() releases it. */
void *xaligned(size_t size);

#endif
