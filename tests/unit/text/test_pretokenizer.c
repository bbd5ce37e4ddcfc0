#include "core/base/buffer.h"
#include "core/text/pretokenizer.h"
#include "tests/check_main.h"

static void add_word(void *context, struct slice word)
{
    struct buffer *out = context;
    buffer_add_byte(out, '[');
    buffer_add_slice(out, word);
    buffer_add_byte(out, ']');
}

/* The words of a text in brackets. */
static void splits(const char *name, struct slice text, const char *expected)
{
    struct pretokenizer *p;
    struct buffer out = {0};
    struct error err = {0};
    ck_assert_msg(pretokenizer_create(slice_of(name), &p, &err) == STATUS_OK, "%s", err.text);
    ck_assert_msg(pretokenizer_split(p, text, add_word, &out, &err) == STATUS_OK, "%s", err.text);
    ck_assert_msg(slice_is(buffer_slice(&out), expected), "%s: %.*s, expected %s", name,
                  (int)out.len, out.ptr, expected);
    buffer_release(&out);
    pretokenizer_free(p);
}

#define SPLITS(name, text, expected) splits(name, slice_of(text), expected)

START_TEST(test_families)
{
    SPLITS("gpt-2", "Hello world's  best 123abc!!\n\n",
           "[Hello][ world]['s][ ][ best][ 123][abc][!!][\n\n]");
    SPLITS("gpt-2", "it'S a\tb ", "[it]['][S][ a][\t][b][ ]");
    SPLITS("smollm", "a123 4", "[a][1][2][3][ ][4]");
    SPLITS("starcoder", "x   12", "[x][   ][1][2]");
    SPLITS("llama-bpe", "it'S 12345 (foo)\r\n\r\n bar;\n x",
           "[it]['S][ ][123][45][ (][foo][)\r\n\r\n][ bar][;\n][ x]");
    SPLITS("llama3", "a  b\n \n c", "[a][ ][ b][\n \n][ c]");
    SPLITS("qwen2", "123 'LL",
           "[1][2][3][ ']"
           "[LL]");
    SPLITS("deepseek-v3",
           "1234\xe6\xb1\x89\xe5\xad\x97"
           "abc (x)!\n y",
           "[123][4][\xe6\xb1\x89\xe5\xad\x97][abc][ (][x][)!\n][ y]");
    SPLITS("deepseek-v3", "e\xcc\x81t \xd9\x86", "[e\xcc\x81t][ \xd9\x86]");
    SPLITS("falcon", "ab1234,c $x", "[ab][123][4][,][c][ ][$][x]");
    /* White space is Unicode's: U+00A0, U+0085, U+3000 are, U+200B and U+180E are not. */
    SPLITS("gpt-2",
           "a\xc2\xa0\xc2\x85\xe3\x80\x80"
           "b",
           "[a][\xc2\xa0\xc2\x85][\xe3\x80\x80][b]");
    SPLITS("gpt-2",
           "a\xe2\x80\x8b\xe1\xa0\x8e"
           "b",
           "[a][\xe2\x80\x8b\xe1\xa0\x8e][b]");
    SPLITS("gpt-2", "\xc2\xbd\xc2\xb2\xe2\x85\xa7x", "[\xc2\xbd\xc2\xb2\xe2\x85\xa7][x]");
    SPLITS("gpt-2", "", "");
}
END_TEST

START_TEST(test_invalid_bytes)
{
    SPLITS("gpt-2", "ab\xff\xfe cd\xc3", "[ab][\xff\xfe][ cd][\xc3]");
    SPLITS("llama-bpe", "\xed\xa0\x80x", "[\xed\xa0\x80][x]");
}
END_TEST

START_TEST(test_properties)
{
    struct pretokenizer *p;
    struct error err = {0};
    ck_assert_int_eq(pretokenizer_create(slice_of("qwen2"), &p, &err), STATUS_OK);
    ck_assert(pretokenizer_nfc(p) && !pretokenizer_whole_words(p));
    pretokenizer_free(p);
    ck_assert_int_eq(pretokenizer_create(slice_of("llama-bpe"), &p, &err), STATUS_OK);
    ck_assert(!pretokenizer_nfc(p) && pretokenizer_whole_words(p));
    pretokenizer_free(p);
    static const char *const unknown[] = {"",       "gpt",     "gpt-2 ",
                                          "gpt-22", "default", "llama-bpe llama3"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        ck_assert_int_eq(pretokenizer_create(slice_of(unknown[i]), &p, &err), STATUS_UNSUPPORTED);
        ck_assert_ptr_null(p);
        ck_assert_ptr_nonnull(strstr(err.text, unknown[i]));
    }
    pretokenizer_free(NULL);
}
END_TEST

static void count_bytes(void *context, struct slice word)
{
    *(size_t *)context += word.len != 0 ? word.len : SIZE_MAX / 2; /* no word is empty */
}

/* Texts of a megabyte that make careless expressions slow or fail; the words are the whole text. */
START_TEST(test_long_texts)
{
    static const char *const names[] = {"gpt-2", "smollm",      "llama-bpe",
                                        "qwen2", "deepseek-v3", "falcon"};
    static const char *const units[] = {
        " ", "a", "1", "\n \n", "'", "!?", " \xc3\xa9", "\xcc\x81", "\xff", "                  x"};
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        struct pretokenizer *p;
        struct error err = {0};
        ck_assert_int_eq(pretokenizer_create(slice_of(names[n]), &p, &err), STATUS_OK);
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
            struct buffer text = {0};
            size_t total = 0;
            while (text.len < 1000000)
                buffer_add_text(&text, units[u]);
            ck_assert_msg(pretokenizer_split(p, buffer_slice(&text), count_bytes, &total, &err) ==
                              STATUS_OK,
                          "%s", err.text);
            ck_assert_uint_eq(total, text.len);
            buffer_release(&text);
        }
        pretokenizer_free(p);
    }
}
END_TEST

CHECK_MAIN("pretokenizer", test_families, test_invalid_bytes, test_properties, test_long_texts)
