/* utf8.h: one step through bytes that may or may not be UTF-8 (Unicode 15, table 3-7: no
 * surrogates, nothing overlong). */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/slice.h"

enum utf8 {
    UTF8_CHARACTER, /* *len bytes are a character */
    UTF8_INVALID,   /* *len bytes are a maximal subpart: one U+FFFD stands for them */
    UTF8_PARTIAL,   /* the bytes end inside a character that may become valid; *len = all of them */
};

/* Looks at p[0..n), n ≥ 1. */
enum utf8 utf8_step(const char *p, size_t n, size_t *len);
/* The code point of a valid character; *len its bytes. */
uint32_t utf8_code(const char *p, size_t *len);
/* Writes a code point (no surrogate, ≤ 0x10FFFF); returns its length, 1..4. */
size_t utf8_put(uint32_t code, char out[4]);
/* Bytes of the longest valid beginning of p[0..n). */
size_t utf8_valid(const char *p, size_t n);

#endif
