/* utf8.h: is this UTF-8? For the reader, which refuses what is not, and the writer, which replaces
 * it. */
#ifndef API_UTF8_H
#define API_UTF8_H

#include <stddef.h>

/* Bytes of the well-formed sequence (RFC 3629: shortest form, no surrogates, at most U+10FFFF) that
 * starts at p, of which `left` bytes may be read; 0 if none starts there. */
static inline size_t utf8_sequence(const unsigned char *p, size_t left)
{
    if (left == 0)
        return 0;
    unsigned char a = p[0];
    if (a < 0x80)
        return 1;
    if (a < 0xc2 || a > 0xf4)
        return 0;
    size_t n = a < 0xe0 ? 2 : a < 0xf0 ? 3 : 4;
    if (left < n)
        return 0;
    unsigned char low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80;
    unsigned char high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

#endif
