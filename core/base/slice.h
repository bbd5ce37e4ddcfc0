/* slice.h: a borrowed run of bytes. Never owns, never NUL-terminated by promise. */
#ifndef BASE_SLICE_H
#define BASE_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct slice {
    const char *ptr;
    size_t len;
};

/* A slice of a string literal or other NUL-terminated text (its NUL not counted). */
static inline struct slice slice_of(const char *text)
{
    return (struct slice){text, strlen(text)};
}

static inline struct slice slice_make(const void *ptr, size_t len)
{
    return (struct slice){(const char *)ptr, len};
}

static inline bool slice_equal(struct slice a, struct slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static inline bool slice_is(struct slice a, const char *text)
{
    return slice_equal(a, slice_of(text));
}

static inline bool slice_starts(struct slice a, struct slice prefix)
{
    return a.len >= prefix.len && (prefix.len == 0 || memcmp(a.ptr, prefix.ptr, prefix.len) == 0);
}

#endif
