#include "core/text/byte_map.h"
#include "core/text/utf8.h"
#include "tests/check_main.h"

/* Every scalar value there and back; every surrogate refused. */
START_TEST(test_every_code)
{
    unsigned wrong = 0;
    for (uint32_t code = 0; code < 0x110000; code++) {
        char text[4];
        size_t len = utf8_put(code, text), got;
        bool surrogate = code >= 0xd800 && code < 0xe000;
        wrong += utf8_step(text, len, &got) != (surrogate ? UTF8_INVALID : UTF8_CHARACTER);
        if (surrogate)
            continue;
        wrong += got != len || utf8_code(text, &got) != code || got != len;
        for (size_t cut = 1; cut < len; cut++)
            wrong += utf8_step(text, cut, &got) != UTF8_PARTIAL || got != cut;
    }
    ck_assert_uint_eq(wrong, 0);
}
END_TEST

/* Maximal subparts, as the Unicode standard's table 3-8 and its neighbours divide them. */
START_TEST(test_invalid)
{
    static const struct {
        const char *text;
        size_t len, part;
    } rows[] = {
        {"\x80", 1, 1},
        {"\xc0\xaf", 2, 1},
        {"\xc1\xbf", 2, 1},
        {"\xe0\x80\xbf", 3, 1},
        {"\xe0\x9f\xbf", 3, 1},
        {"\xed\xa0\x80", 3, 1},
        {"\xf4\x91\x92\x93", 4, 1},
        {"\xff", 1, 1},
        {"\xe1\x80\xe2", 3, 2},
        {"\xf1\x80\x80\x41", 4, 3},
        {"\xf0\x90\xbf\xbf\xbf", 3, 3},
        {"\xc2\x41", 2, 1},
        {"\xf0\x80\x80", 3, 1},
        {"\xf5\x80", 2, 1},
    };
    size_t len;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum utf8 kind = utf8_step(rows[i].text, rows[i].len, &len);
        ck_assert_msg(kind == (i == 10 ? UTF8_PARTIAL : UTF8_INVALID) && len == rows[i].part,
                      "row %zu: %d, %zu", i, kind, len);
    }
    ck_assert_uint_eq(utf8_valid("a\xc3\xa9\xe2\x82", 5), 3);
    ck_assert_uint_eq(utf8_valid("", 0), 0);
    ck_assert_uint_eq(utf8_valid("\xff"
                                 "abc",
                                 4),
                      0);
}
END_TEST

/* Each byte has a character of its own, printable, and comes back; texts that are not in the code are copied. */
START_TEST(test_byte_map)
{
    char text[4], out[16];
    for (unsigned byte = 0; byte < 256; byte++) {
        size_t len = byte_map_put((uint8_t)byte, text), got;
        uint32_t code = utf8_code(text, &got);
        ck_assert_uint_eq(got, len);
        ck_assert(code > 0x20 && code != 0x7f && code != 0xad && !(code >= 0x80 && code <= 0xa0) &&
                  code <= 0x143);
        ck_assert_uint_eq(byte_map_decode(slice_make(text, len), out), 1);
        ck_assert_uint_eq((unsigned char)out[0], byte);
    }
    ck_assert_uint_eq(byte_map_put(' ', text), 2);
    ck_assert_int_eq(memcmp(text, "\xc4\xa0", 2), 0);
    struct slice mixed = slice_of("a \xe2\x96\x81\xff\xc5\x84");
    ck_assert_uint_eq(byte_map_decode(mixed, out), mixed.len);
    ck_assert_int_eq(memcmp(out, mixed.ptr, mixed.len), 0);
}
END_TEST

CHECK_MAIN("utf8", test_every_code, test_invalid, test_byte_map)
