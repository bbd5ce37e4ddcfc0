#include <stdlib.h>
#include <utf8proc.h>

#include "core/text/normalize.h"
#include "core/text/utf8.h"
#include "tests/check_main.h"

static void becomes(const char *text, const char *expected)
{
    struct buffer out = {0};
    normalize_nfc(slice_of(text), &out);
    ck_assert_msg(slice_is(buffer_slice(&out), expected), "%s: %.*s", text, (int)out.len, out.ptr);
    buffer_release(&out);
}

START_TEST(test_known)
{
    becomes("", "");
    becomes("plain", "plain");
    becomes("e\xcc\x81", "\xc3\xa9");
    becomes("\xe2\x84\xab", "\xc3\x85");                             /* Angstrom sign */
    becomes("a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81");            /* marks in the wrong order */
    becomes("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* Hangul */
    becomes("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc");             /* never composed */
    becomes("\xef\xac\x81", "\xef\xac\x81"); /* fi ligature: compatibility only */
    becomes("x\xff"
            "e\xcc\x81\xc3",
            "x\xff\xc3\xa9\xc3"); /* invalid bytes are copied */
    ck_assert(normalize_is_trivial(slice_of("caf\xc3\xa9 \xc5\x93")));
    ck_assert(!normalize_is_trivial(slice_of("e\xcc\x81")));
}
END_TEST

/* The same as the library's own way on random text full of marks. */
START_TEST(test_random)
{
    static const uint32_t pool[] = {'a',    'e',     0x301,  0x323,  0x327,  0x345,  0xe9,  0x1ea1,
                                    0x1100, 0x1161,  0x11a8, 0xac00, 0x958,  0x93c,  0x5d9, 0x5b4,
                                    0x212b, 0x1d15e, 0x30ab, 0x3099, 0xfb1d, 0x0f71, 0x0f72};
    srand(7);
    for (unsigned round = 0; round < 20000; round++) {
        struct buffer text = {0}, out = {0};
        for (int n = rand() % 12; n >= 0; n--) {
            char utf8[4];
            uint32_t code = rand() % 4 != 0
                                ? pool[(size_t)rand() % (sizeof(pool) / sizeof(pool[0]))]
                                : (uint32_t)rand() % 0xd800;
            buffer_add(&text, utf8, utf8_put(code != 0 ? code : 1, utf8));
        }
        normalize_nfc(buffer_slice(&text), &out);
        utf8proc_uint8_t *expected = utf8proc_NFC((const utf8proc_uint8_t *)text.ptr);
        ck_assert_str_eq(out.ptr, (const char *)expected);
        free(expected);
        buffer_release(&text);
        buffer_release(&out);
    }
}
END_TEST

/* A run of marks in the worst order takes no quadratic time (the case's limit would be reached). */
START_TEST(test_many_marks)
{
    struct buffer text = {0}, out = {0};
    buffer_add_byte(&text, 'a');
    for (unsigned i = 0; i < 500000; i++)
        buffer_add_text(&text, i % 2 ? "\xcc\xa3" : "\xcc\x81");
    normalize_nfc(buffer_slice(&text), &out);
    ck_assert_uint_eq(
        out.len, 3 + 499999 * 2); /* one dot below joins the letter, and what stays is sorted */
    ck_assert_int_eq(memcmp(out.ptr, "\xe1\xba\xa1\xcc\xa3", 5), 0);
    ck_assert_int_eq(memcmp(out.ptr + out.len - 4, "\xcc\x81\xcc\x81", 4), 0);
    buffer_release(&text);
    buffer_release(&out);
}
END_TEST

CHECK_MAIN("normalize", test_known, test_random, test_many_marks)
