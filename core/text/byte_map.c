#include "core/text/byte_map.h"

#include "core/text/utf8.h"

static int stands_for_itself(uint32_t code)
{
    return (code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) ||
           (code >= 0xae && code <= 0xff);
}

/* The n-th byte that does not stand for itself: 0x00-0x20, 0x7F-0xA0, 0xAD. */
static uint8_t shifted(uint32_t n)
{
    return (uint8_t)(n <= 0x20 ? n : n <= 0x42 ? n - 0x21 + 0x7f : 0xad);
}

size_t byte_map_put(uint8_t byte, char out[4])
{
    if (stands_for_itself(byte))
        return utf8_put(byte, out);
    uint32_t n = byte <= 0x20 ? byte : byte == 0xad ? 0x43 : byte - 0x7fu + 0x21;
    return utf8_put(0x100 + n, out);
}

size_t byte_map_decode(struct slice text, char *out)
{
    size_t n = 0, len;
    for (size_t at = 0; at < text.len; at += len) {
        const char *p = text.ptr + at;
        if ((unsigned char)*p - 0x21u <= 0x7eu - 0x21u) { /* nearly all of them */
            out[n++] = *p;
            len = 1;
            continue;
        }
        if (utf8_step(p, text.len - at, &len) == UTF8_CHARACTER) {
            uint32_t code = utf8_code(p, &len);
            if (stands_for_itself(code)) {
                out[n++] = (char)code;
                continue;
            }
            if (code >= 0x100 && code <= 0x143) {
                out[n++] = (char)shifted(code - 0x100);
                continue;
            }
        }
        memcpy(out + n, p, len);
        n += len;
    }
    return n;
}
