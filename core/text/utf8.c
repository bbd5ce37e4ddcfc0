#include "core/text/utf8.h"

enum utf8 utf8_step(const char *p, size_t n, size_t *len)
{
    const unsigned char *s = (const unsigned char *)p;
    unsigned char low = 0x80, high = 0xbf; /* of the second byte */
    size_t need;
    *len = 1;
    if (s[0] < 0x80)
        return UTF8_CHARACTER;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return UTF8_INVALID;
    if (s[0] < 0xe0) {
        need = 2;
    } else if (s[0] < 0xf0) {
        need = 3;
        if (s[0] == 0xe0)
            low = 0xa0;
        if (s[0] == 0xed)
            high = 0x9f;
    } else {
        need = 4;
        if (s[0] == 0xf0)
            low = 0x90;
        if (s[0] == 0xf4)
            high = 0x8f;
    }
    for (; *len < need; ++*len) {
        if (*len == n)
            return UTF8_PARTIAL;
        if (s[*len] < low || s[*len] > high)
            return UTF8_INVALID;
        low = 0x80;
        high = 0xbf;
    }
    return UTF8_CHARACTER;
}

uint32_t utf8_code(const char *p, size_t *len)
{
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) {
        *len = 1;
        return s[0];
    }
    *len = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t code = s[0] & (0xffu >> (*len + 1));
    for (size_t i = 1; i < *len; i++)
        code = code << 6 | (s[i] & 0x3f);
    return code;
}

size_t utf8_put(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t len = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = len; i-- > 1; code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((0xf00u >> len & 0xf0) | code);
    return len;
}

size_t utf8_valid(const char *p, size_t n)
{
    size_t at = 0, len;
    while (at < n && utf8_step(p + at, n - at, &len) == UTF8_CHARACTER)
        at += len;
    return at;
}
