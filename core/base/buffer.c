#include "core/base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"

void buffer_release(struct buffer *b)
{
    free(b->ptr);
    *b = (struct buffer){0};
}

void buffer_clear(struct buffer *b)
{
    b->len = 0;
    if (b->ptr != NULL)
        b->ptr[0] = '\0';
}

void buffer_reserve(struct buffer *b, size_t more)
{
    check(more < SIZE_MAX / 4 && b->len < SIZE_MAX / 4);
    size_t need = b->len + more + 1;
    if (need <= b->cap)
        return;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need)
        cap += cap / 2;
    b->ptr = xrealloc(b->ptr, cap);
    b->cap = cap;
}

void buffer_add(struct buffer *b, const void *ptr, size_t len)
{
    buffer_reserve(b, len);
    if (len != 0)
        memcpy(b->ptr + b->len, ptr, len);
    b->len += len;
    b->ptr[b->len] = '\0';
}

void buffer_add_slice(struct buffer *b, struct slice s)
{
    buffer_add(b, s.ptr, s.len);
}

void buffer_add_text(struct buffer *b, const char *text)
{
    buffer_add(b, text, strlen(text));
}

void buffer_add_byte(struct buffer *b, char byte)
{
    buffer_add(b, &byte, 1);
}

void buffer_printf(struct buffer *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    check(n >= 0);
    buffer_reserve(b, (size_t)n);
    vsnprintf(b->ptr + b->len, (size_t)n + 1, format, again);
    va_end(again);
    b->len += (size_t)n;
}

void buffer_consume(struct buffer *b, size_t n)
{
    check(n <= b->len);
    if (n == 0)
        return;
    memmove(b->ptr, b->ptr + n, b->len - n);
    b->len -= n;
    b->ptr[b->len] = '\0';
}
