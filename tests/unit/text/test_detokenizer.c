#include "core/text/detokenizer.h"
#include "tests/check_main.h"
#include "tests/made_vocab.h"

#define START (MADE_FIRST_SPECIAL + MADE_START)

static struct tokenizer *load(void)
{
    struct gguf_builder b = {0};
    made_bpe(&b, "gpt-2", NULL);
    return made_load(&b);
}

/* Feeds the bytes of text as single-byte tokens and checks what comes out after each, "|" between the steps. */
static void streams(const struct tokenizer *tok, const char *text, const char *stop,
                    const char *expected)
{
    struct detokenizer d;
    struct buffer out = {0};
    struct slice stops[] = {slice_of(stop)};
    detokenizer_init(&d, tok, stops, 1, 0);
    bool stopped = false;
    for (const char *at = text; *at != '\0' && !stopped; at++) {
        stopped = detokenizer_feed(&d, (unsigned char)*at, &out);
        buffer_add_byte(&out, '|');
    }
    if (!stopped)
        detokenizer_finish(&d, &out);
    ck_assert_msg(slice_is(buffer_slice(&out), expected), "%s: %s, expected %s", text, out.ptr,
                  expected);
    buffer_release(&out);
    detokenizer_release(&d);
}

START_TEST(test_characters)
{
    struct tokenizer *tok = load();
    streams(tok, "ab", "", "a|b|");
    streams(tok, "\xc3\xa9x", "", "|\xc3\xa9|x|");
    streams(tok, "\xf0\x9f\x98\x80", "", "|||\xf0\x9f\x98\x80|");
    streams(tok,
            "\xff"
            "a",
            "", "\xef\xbf\xbd|a|");
    streams(tok,
            "\xe2\x82"
            "a",
            "",
            "||\xef\xbf\xbd"
            "a|");
    streams(tok, "\xe2\x82\xe2\x82\xac", "", "||\xef\xbf\xbd||\xe2\x82\xac|");
    streams(tok, "\xf0\x80\x80", "", "|\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd|");
    streams(tok, "\xf0\x9f\x98", "",
            "|||\xef\xbf\xbd"); /* unfinished at the end: one for all three */
    tokenizer_free(tok);
}
END_TEST

START_TEST(test_stop_strings)
{
    struct tokenizer *tok = load();
    streams(tok, "a stop b", "stop", "a| |||||");
    streams(tok, "sstop", "stop", "|s||||");
    streams(tok, "stostop", "stop", "|||sto||||");
    streams(tok, "aabaab", "aabaac", "|||||aab|aab");
    streams(tok, "aabaabaac", "aabaac", "|||||aab||||");
    streams(tok, "\xc3\xa9\xc3\xa9\xc3", "\xc3\xa9\xc3\xaa", "|||\xc3\xa9||\xc3\xa9\xef\xbf\xbd");
    tokenizer_free(tok);
}
END_TEST

/* The counts: tokens fed until the stop, and those to which the text given out belongs. */
START_TEST(test_counts)
{
    struct tokenizer *tok = load();
    struct detokenizer d;
    struct buffer out = {0};
    struct slice stops[] = {slice_of("lo w"), slice_of(""), slice_of("zz")};
    detokenizer_init(&d, tok, stops, 3, 0);
    ck_assert(!detokenizer_feed(&d, 'x', &out));
    ck_assert(d.tokens == 1 && d.tokens_out == 1);
    ck_assert(!detokenizer_feed(&d, START, &out)); /* control: no text, belongs at once */
    ck_assert(d.tokens == 2 && d.tokens_out == 2);
    ck_assert(!detokenizer_feed(&d, 259, &out)); /* hello: "lo" is held */
    ck_assert(slice_is(buffer_slice(&out), "xhel"));
    ck_assert(d.tokens == 3 && d.tokens_out == 3);
    ck_assert(detokenizer_feed(&d, 264, &out)); /* " world" completes the stop string */
    ck_assert(slice_is(buffer_slice(&out), "xhel"));
    ck_assert(d.tokens == 4 && d.tokens_out == 3);
    ck_assert(detokenizer_feed(&d, 'y', &out) && detokenizer_finish(&d, &out));
    ck_assert(d.tokens == 4 && d.tokens_out == 3 && out.len == 4);
    detokenizer_release(&d);

    /* A token whose text is all held belongs only when it goes out; a character of three tokens when it is whole. */
    buffer_clear(&out);
    detokenizer_init(&d, tok, (struct slice[]){slice_of("lax")}, 1, 0);
    detokenizer_feed(&d, 'l', &out);
    detokenizer_feed(&d, START, &out);
    detokenizer_feed(&d, 'a', &out);
    ck_assert(d.tokens == 3 && d.tokens_out == 0 && out.len == 0);
    detokenizer_feed(&d, 0xe2, &out);
    detokenizer_feed(&d, 0x82, &out);
    ck_assert(d.tokens == 5 && d.tokens_out == 0);
    detokenizer_feed(&d, 0xac, &out);
    ck_assert(slice_is(buffer_slice(&out), "la\xe2\x82\xac"));
    ck_assert(d.tokens == 6 && d.tokens_out == 6);
    for (unsigned i = 0; i < 100; i++)
        detokenizer_feed(&d, i % 2 ? 'l' : 'a', &out);
    ck_assert_uint_eq(d.tokens_out, 105); /* the last "l" may begin the stop string */
    ck_assert(!detokenizer_finish(&d, &out) && d.tokens_out == 106);
    detokenizer_release(&d);
    buffer_release(&out);
    tokenizer_free(tok);
}
END_TEST

START_TEST(test_flags)
{
    static const char *const words[] = {"\xe2\x96\x81hi"};
    struct gguf_builder b = {0};
    struct detokenizer d;
    struct buffer out = {0};
    made_spm(&b, words, (float[]){-1}, 1);
    struct tokenizer *tok = made_load(&b);
    for (unsigned flags = 0; flags < 4; flags++) {
        buffer_clear(&out);
        detokenizer_init(&d, tok, NULL, 0, flags);
        detokenizer_feed(&d, 1, &out);
        detokenizer_feed(&d, 259, &out);
        detokenizer_feed(&d, 259, &out);
        detokenizer_feed(&d, 0, &out);
        detokenizer_finish(&d, &out);
        static const char *const expected[] = {" hi hi", "<s> hi hi<unk>", "hi hi",
                                               "<s>hi hi<unk>"};
        ck_assert_msg(slice_is(buffer_slice(&out), expected[flags]), "%u: %s", flags, out.ptr);
        detokenizer_release(&d);
    }
    buffer_release(&out);
    tokenizer_free(tok);
}
END_TEST

/* The whole text's answer: the stop string that is complete first, of several the longest. */
static size_t cut(const char *text, size_t len, char stops[][8], size_t n)
{
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            size_t stop = strlen(stops[i]);
            if (stop <= end && stop > longest && memcmp(text + end - stop, stops[i], stop) == 0)
                longest = stop;
        }
        if (longest != 0)
            return end - longest;
    }
    return len;
}

/* However the text is cut into tokens, the same comes out, and at every step as much as can be. */
START_TEST(test_random)
{
    struct tokenizer *tok = load();
    srand(9);
    for (unsigned round = 0; round < 5000; round++) {
        char stops[4][8], text[64];
        struct slice slices[4];
        size_t n = (size_t)rand() % 5, len = 0, done = 0;
        uint32_t ids[24];
        unsigned n_ids = (unsigned)rand() % 24;
        for (size_t i = 0; i < n; i++) {
            size_t stop = 1 + (size_t)rand() % 5;
            for (size_t k = 0; k < stop; k++)
                stops[i][k] = "ahelo"[rand() % 5];
            stops[i][stop] = '\0';
            slices[i] = slice_of(stops[i]);
        }
        static const uint32_t pool[] = {'a', 'h', 'e', 'l', 'o', 256, 257, 258, 259, 266, START};
        for (unsigned i = 0; i < n_ids && len < 50; i++) {
            ids[i] = pool[rand() % 11];
            struct slice piece = tokenizer_piece(tok, ids[i]);
            if (ids[i] != START) {
                memcpy(text + len, piece.ptr, piece.len);
                len += piece.len;
            }
            done = i + 1;
        }
        size_t expected = cut(text, len, stops, n);
        struct detokenizer d;
        struct buffer out = {0};
        bool stopped = false;
        size_t fed = 0, wrong = 0;
        detokenizer_init(&d, tok, slices, n, 0);
        for (size_t i = 0; i < done && !stopped; i++) {
            stopped = detokenizer_feed(&d, ids[i], &out);
            fed += ids[i] == START ? 0 : tokenizer_piece(tok, ids[i]).len;
            /* Held back is the longest end that begins a stop string, no more. */
            size_t held = 0;
            for (size_t s = 0; s < n && !stopped; s++)
                for (size_t k = strlen(stops[s]); k > held; k--)
                    if (k <= fed && memcmp(text + fed - k, stops[s], k) == 0)
                        held = k;
            wrong += (!stopped && out.len != fed - held) || d.tokens != i + 1;
        }
        if (!stopped)
            ck_assert(!detokenizer_finish(&d, &out) && d.tokens_out == d.tokens);
        ck_assert_uint_eq(wrong, 0);
        ck_assert_uint_eq(stopped, expected < len);
        ck_assert(slice_equal(buffer_slice(&out), slice_make(text, expected)));
        buffer_release(&out);
        detokenizer_release(&d);
    }
    tokenizer_free(tok);
}
END_TEST

CHECK_MAIN("detokenizer", test_characters, test_stop_strings, test_counts, test_flags, test_random)
