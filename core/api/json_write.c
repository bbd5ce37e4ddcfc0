#include "core/api/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/text/utf8.h"

/* Bytes at p that stand for themselves inside a JSON string. */
static size_t plain_run(const char *p, const char *end)
{
    const char *q = p;
    size_t n;
    while (q < end) {
        unsigned char c = (unsigned char)*q;
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f)
            break;
        if (c < 0x80)
            q++;
        else if (utf8_step(q, (size_t)(end - q), &n) == UTF8_CHARACTER)
            q += n;
        else
            break;
    }
    return (size_t)(q - p);
}

/* Writes what stands at p and cannot stand for itself; returns its length. */
static size_t add_special(struct buffer *out, const char *p, const char *end)
{
    size_t n = 1;
    switch (*p) {
    case '"':
        buffer_add_text(out, "\\\"");
        break;
    case '\\':
        buffer_add_text(out, "\\\\");
        break;
    case '\n':
        buffer_add_text(out, "\\n");
        break;
    case '\r':
        buffer_add_text(out, "\\r");
        break;
    case '\t':
        buffer_add_text(out, "\\t");
        break;
    default:
        if ((unsigned char)*p < 0x80) {
            buffer_printf(out, "\\u%04x", (unsigned char)*p);
        } else {
            utf8_step(p, (size_t)(end - p), &n);
            buffer_add_text(out, "\xef\xbf\xbd");
        }
    }
    return n;
}

void json_add_escaped(struct buffer *out, struct slice text)
{
    const char *p = text.ptr, *end = p + text.len;
    while (p < end) {
        size_t run = plain_run(p, end);
        buffer_add(out, p, run);
        p += run;
        if (p < end)
            p += add_special(out, p, end);
    }
}

void json_add_string(struct buffer *out, struct slice text)
{
    buffer_add_byte(out, '"');
    json_add_escaped(out, text);
    buffer_add_byte(out, '"');
}

void json_add_float(struct buffer *out, float value)
{
    if (!isfinite(value)) {
        buffer_add_text(out, "-9999.0");
        return;
    }
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    buffer_add_text(out, text);
}

void json_add_fixed(struct buffer *out, double value)
{
    buffer_printf(out, "%.3f", isfinite(value) ? value : 0.0);
}

void json_add_u64(struct buffer *out, uint64_t value)
{
    char digits[20], *p = digits + sizeof(digits);
    do {
        *--p = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    buffer_add(out, p, (size_t)(digits + sizeof(digits) - p));
}
