/* buffer.h: a growable run of bytes, as git's strbuf: always NUL-terminated behind its length.
 *
 * { 0 } is an empty buffer. Out of memory aborts: the sizes that go in here are bounded by limits checked
 * before (body limit, token limits), so running out is a broken machine, not an input. */
#ifndef BASE_BUFFER_H
#define BASE_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/slice.h"

struct buffer {
    char *ptr; /* NULL until the first byte */
    size_t len;
    size_t cap;
};

/* Frees the memory; the buffer is empty and usable afterwards. */
void buffer_release(struct buffer *b);
/* Empties it, keeps the memory. */
void buffer_clear(struct buffer *b);
/* Makes room for `more` bytes behind len (and the NUL). */
void buffer_reserve(struct buffer *b, size_t more);
void buffer_add(struct buffer *b, const void *ptr, size_t len);
void buffer_add_slice(struct buffer *b, struct slice s);
void buffer_add_text(struct buffer *b, const char *text);
void buffer_add_byte(struct buffer *b, char byte);
void buffer_printf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Removes the first n bytes (n <= len). */
void buffer_consume(struct buffer *b, size_t n);

static inline struct slice buffer_slice(const struct buffer *b)
{
    return (struct slice){b->ptr, b->len};
}

#endif
