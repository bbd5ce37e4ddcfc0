#include "core/text/special.h"
#include "tests/check_main.h"
#include "tests/made_vocab.h"

#define MAX_SPECIALS 40

/* A vocabulary whose tokens are all user-defined; odd ids are control tokens with `mixed`. */
static struct tokenizer *load(char texts[][8], size_t n, bool mixed)
{
    struct gguf_builder b = {0};
    struct slice all[MAX_SPECIALS], merge = {"x y", 3};
    int32_t kinds[MAX_SPECIALS];
    for (size_t i = 0; i < n; i++) {
        all[i] = slice_of(texts[i]);
        kinds[i] = mixed && i % 2 ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
    }
    builder_str(&b, "tokenizer.ggml.model", "gpt2");
    builder_str(&b, "tokenizer.ggml.pre", "gpt-2");
    builder_strings(&b, "tokenizer.ggml.tokens", all, n);
    builder_strings(&b, "tokenizer.ggml.merges", &merge, 1);
    builder_array(&b, "tokenizer.ggml.token_type", GGUF_I32, kinds, n, 4);
    return made_load(&b);
}

/* The definition: for each length, longest first, cut out what matches in the text that is left, leftmost first. */
static void plain(const struct vocab *v, struct slice text, int *owner)
{
    for (size_t i = 0; i < text.len; i++)
        owner[i] = -1;
    for (size_t len = 8; len > 0; len--)
        for (size_t at = 0; at + len <= text.len; at++) {
            uint32_t id = vocab_find(v, slice_make(text.ptr + at, len));
            bool free = id != TOKEN_NONE;
            for (size_t i = at; i < at + len && free; i++)
                free = owner[i] == -1;
            for (size_t i = at; i < at + len && free; i++)
                owner[i] = (int)id;
        }
}

START_TEST(test_random)
{
    srand(5);
    for (unsigned round = 0; round < 200; round++) {
        char texts[MAX_SPECIALS][8];
        size_t n = 1 + (size_t)rand() % (MAX_SPECIALS - 1);
        for (size_t i = 0; i < n; i++) {
            size_t len = (size_t)rand() % 6; /* 0: a token without text is never found */
            for (size_t k = 0; k < len; k++)
                texts[i][k] = "<|>"[rand() % 3];
            texts[i][len] = '\0';
        }
        struct tokenizer *tok = load(texts, n, false);
        const struct vocab *v = tokenizer_vocab(tok);
        struct special s;
        special_init(&s, v, false);
        for (unsigned t = 0; t < 50; t++) {
            char text[40];
            int owner[40];
            size_t len = (size_t)rand() % 40, n_hits, end = 0;
            for (size_t i = 0; i < len; i++)
                text[i] = "<|>x"[rand() % 4];
            plain(v, slice_make(text, len), owner);
            struct special_hit *hits = special_find(&s, slice_make(text, len), &n_hits);
            for (size_t h = 0; h < n_hits; h++) {
                ck_assert_uint_ge(hits[h].at, end);
                for (; end < hits[h].at; end++)
                    ck_assert_int_eq(owner[end], -1);
                for (; end < hits[h].at + hits[h].len; end++)
                    ck_assert_int_eq(owner[end], (int)hits[h].id);
                ck_assert(slice_equal(vocab_token(v, hits[h].id)->text,
                                      slice_make(text + hits[h].at, hits[h].len)));
            }
            for (; end < len; end++)
                ck_assert_int_eq(owner[end], -1);
            free(hits);
        }
        special_release(&s);
        tokenizer_free(tok);
    }
}
END_TEST

START_TEST(test_kinds)
{
    char texts[][8] = {"<u>", "<c>", "<u>c"};
    struct tokenizer *tok = load(texts, 3, true);
    struct special user, all;
    size_t n;
    special_init(&user, tokenizer_vocab(tok), false);
    special_init(&all, tokenizer_vocab(tok), true);
    struct slice text = slice_of("<c><u>c<u>");
    struct special_hit *hits = special_find(&user, text, &n);
    ck_assert(n == 2 && hits[0].at == 3 && hits[0].id == 2 && hits[1].at == 7 && hits[1].id == 0);
    free(hits);
    hits = special_find(&all, text, &n);
    ck_assert(n == 3 && hits[0].at == 0 && hits[0].id == 1);
    free(hits);
    ck_assert(special_find(&all, slice_of("no such thing <"), &n) == NULL && n == 0);
    special_release(&user);
    special_release(&all);
    tokenizer_free(tok);
}
END_TEST

/* Many candidates of many lengths in a long text stay quick. */
START_TEST(test_long)
{
    char texts[7][8];
    struct buffer text = {0};
    struct special s;
    size_t n;
    for (size_t i = 0; i < 7; i++) {
        memset(texts[i], ' ', i + 1);
        texts[i][i + 1] = '\0';
    }
    struct tokenizer *tok = load(texts, 7, false);
    special_init(&s, tokenizer_vocab(tok), false);
    for (unsigned i = 0; i < 1000000; i++)
        buffer_add_byte(&text, ' ');
    free(special_find(&s, buffer_slice(&text), &n));
    ck_assert_uint_eq(n, 1000000 / 7 + 1);
    buffer_release(&text);
    special_release(&s);
    tokenizer_free(tok);
}
END_TEST

CHECK_MAIN("special", test_random, test_kinds, test_long)
