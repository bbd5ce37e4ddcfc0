#include "core/text/normalize.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/text/utf8.h"

/* A character may decompose into so many code points (U+FDFA and friends are compatibility only).
 */
#define MAX_DECOMPOSED 18

bool normalize_is_trivial(struct slice text)
{
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.ptr[i] >= 0xcc)
            return false;
    return true;
}

static unsigned class_of(utf8proc_int32_t code)
{
    return utf8proc_get_property(code)->combining_class < 0
               ? 0
               : (unsigned)utf8proc_get_property(code)->combining_class;
}

/* Sorts a run of combining marks by class, equal ones in their order: by counting, as the library's
 * own exchange of neighbours takes quadratic time for a run that an attacker made. */
static void sort_marks(utf8proc_int32_t *marks, size_t n, utf8proc_int32_t *scratch)
{
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[class_of(marks[i]) + 1]++;
    for (unsigned c = 1; c < 257; c++)
        start[c] += start[c - 1];
    memcpy(scratch, marks, n * sizeof(*marks));
    for (size_t i = 0; i < n; i++)
        marks[start[class_of(scratch[i])]++] = scratch[i];
}

/* NFC of valid UTF-8: decompose, order the marks, compose. */
static void normalize_valid(const char *text, size_t len, struct buffer *out)
{
    size_t cap = len + MAX_DECOMPOSED, n = 0, bytes;
    utf8proc_int32_t *codes = xreallocarray(NULL, cap, sizeof(*codes));
    for (size_t at = 0; at < len; at += bytes) {
        int last_class = 0;
        utf8proc_int32_t code = (utf8proc_int32_t)utf8_code(text + at, &bytes);
        if (cap - n < MAX_DECOMPOSED)
            codes = xreallocarray(codes, cap = cap * 2, sizeof(*codes));
        utf8proc_ssize_t made = utf8proc_decompose_char(
            code, codes + n, MAX_DECOMPOSED, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last_class);
        check(made >= 0 && made <= MAX_DECOMPOSED);
        n += (size_t)made;
    }
    utf8proc_int32_t *scratch = NULL;
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (class_of(codes[i]) == 0)
            continue;
        while (end < n && class_of(codes[end]) != 0)
            end++;
        if (end - i > 1 && scratch == NULL)
            scratch = xreallocarray(NULL, n, sizeof(*scratch));
        if (end - i > 1)
            sort_marks(codes + i, end - i, scratch);
    }
    free(scratch);
    utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    check(composed >= 0);
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        char utf8[4];
        buffer_add(out, utf8, utf8_put((uint32_t)codes[i], utf8));
    }
    free(codes);
}

void normalize_nfc(struct slice text, struct buffer *out)
{
    for (size_t at = 0, len; at < text.len;) {
        size_t valid = utf8_valid(text.ptr + at, text.len - at);
        if (valid != 0)
            normalize_valid(text.ptr + at, valid, out);
        at += valid;
        if (at < text.len) {
            utf8_step(text.ptr + at, text.len - at, &len);
            buffer_add(out, text.ptr + at, len);
            at += len;
        }
    }
}
