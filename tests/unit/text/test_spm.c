#include "core/text/spm.h"
#include "tests/check_main.h"
#include "tests/made_vocab.h"

static struct tokenizer *load(const char *const *words, const float *scores, size_t n)
{
    struct gguf_builder b = {0};
    made_spm(&b, words, scores, n);
    return made_load(&b);
}

static void encodes(const struct tokenizer *tok, const char *text, bool prefix,
                    const char *expected)
{
    struct token_list out = {0};
    struct error err = {0};
    ck_assert_int_eq(spm_encode(tokenizer_vocab(tok), slice_of(text), prefix, &out, &err),
                     STATUS_OK);
    ck_assert_msg(strcmp(made_show(&out), expected) == 0, "%s: %s, expected %s", text,
                  made_show(&out), expected);
    token_list_release(&out);
}

START_TEST(test_known)
{
    /* Ids 259, 260, … */
    static const char *const words[] = {"\xe2\x96\x81",
                                        "a",
                                        "b",
                                        "ab",
                                        "ba",
                                        ("\xe2\x96\x81"
                                         "a"),
                                        "aa"};
    struct tokenizer *tok = load(words, (float[]){-9, -9, -9, -2, -1, -3, -0.0f}, 7);
    encodes(tok, "", true, "");
    encodes(tok, "a", false, "260");
    encodes(tok, "a", true, "264");
    encodes(tok, "aba", false, "260 263"); /* "ba" has the higher score */
    encodes(tok, "aaa", false, "265 260"); /* leftmost of equals; −0 is 0 */
    encodes(tok, " b", false, "259 261");
    encodes(tok, "\xc3\xa9", false, "198 172"); /* é: byte tokens */
    encodes(tok,
            "a\xff"
            "b",
            false, "260 258 261");
    encodes(tok, "</s>", false, "63 50 118 65"); /* never the control token */
    tokenizer_free(tok);
}
END_TEST

/* The definition, carried out plainly on random text over few letters. */
START_TEST(test_random)
{
    char texts[120][12];
    const char *words[120];
    float scores[120];
    srand(3);
    for (unsigned i = 0; i < 120; i++) {
        size_t len = i < 3 ? 1 : 2 + (size_t)rand() % 5;
        for (size_t k = 0; k < len; k++)
            texts[i][k] = (char)("abc"[i < 3 ? i : (unsigned)rand() % 3]);
        texts[i][len] = '\0';
        words[i] = texts[i];
        scores[i] = (float)-(rand() % 50);
    }
    struct tokenizer *tok = load(words, scores, 120);
    const struct vocab *v = tokenizer_vocab(tok);
    for (unsigned round = 0; round < 2000; round++) {
        char text[64];
        size_t len = (size_t)rand() % 60, n = len, start[65];
        struct token_list got = {0}, expected = {0};
        struct error err = {0};
        for (size_t i = 0; i < len; i++)
            text[i] = "abc"[rand() % 3];
        for (size_t i = 0; i <= len; i++)
            start[i] = i;
        for (;;) {
            size_t best = n;
            float score = 0;
            for (size_t i = 0; i + 1 < n; i++) {
                uint32_t id = vocab_symbol(v, slice_make(text + start[i], start[i + 2] - start[i]));
                if (id != TOKEN_NONE && (best == n || vocab_token(v, id)->score > score)) {
                    best = i;
                    score = vocab_token(v, id)->score;
                }
            }
            if (best == n)
                break;
            memmove(start + best + 1, start + best + 2, (n - best - 1) * sizeof(*start));
            n--;
        }
        for (size_t i = 0; i < n; i++)
            token_list_add(&expected,
                           vocab_symbol(v, slice_make(text + start[i], start[i + 1] - start[i])));
        ck_assert_int_eq(spm_encode(v, slice_make(text, len), false, &got, &err), STATUS_OK);
        ck_assert_msg(got.count == expected.count &&
                          (got.count == 0 ||
                           memcmp(got.ids, expected.ids, got.count * sizeof(*got.ids)) == 0),
                      "%.*s: %s", (int)len, text, made_show(&got));
        token_list_release(&got);
        token_list_release(&expected);
    }
    tokenizer_free(tok);
}
END_TEST

START_TEST(test_long)
{
    static const char *const words[] = {"a", "aa", "aaaa", "\xe2\x96\x81",
                                        "\xe2\x96\x81\xe2\x96\x81"};
    struct tokenizer *tok = load(words, (float[]){-1, -2, -3, -1, -2}, 5);
    struct buffer text = {0};
    struct token_list out = {0};
    struct error err = {0};
    for (unsigned i = 0; i < 1000000; i++)
        buffer_add_byte(&text, i < 500000 ? 'a' : ' ');
    ck_assert_int_eq(spm_encode(tokenizer_vocab(tok), buffer_slice(&text), false, &out, &err),
                     STATUS_OK);
    ck_assert_uint_eq(out.count, 125000 + 250000);
    ck_assert_int_eq(
        spm_encode(tokenizer_vocab(tok), slice_make(text.ptr, 1u << 30), false, &out, &err),
        STATUS_TOO_LARGE);
    token_list_release(&out);
    buffer_release(&text);
    tokenizer_free(tok);
}
END_TEST

CHECK_MAIN("spm", test_known, test_random, test_long)
