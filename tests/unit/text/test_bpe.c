#include "core/text/bpe.h"
#include "tests/check_main.h"
#include "tests/made_vocab.h"

/* The definition, carried out plainly: as long as there is one, merge the pair of lowest rank, the leftmost of equals. */
static void plain(const struct vocab *v, struct slice word, struct token_list *out)
{
    uint32_t ids[4096];
    size_t n = word.len;
    for (size_t i = 0; i < n; i++)
        ids[i] = vocab_byte(v, (uint8_t)word.ptr[i]);
    for (;;) {
        const struct vocab_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const struct vocab_merge *m = vocab_merge(v, ids[i], ids[i + 1]);
            if (m != NULL && (best == NULL || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (best == NULL)
            break;
        ids[at] = best->result;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof(*ids));
        n--;
    }
    token_list_add_all(out, ids, n);
}

START_TEST(test_known)
{
    struct gguf_builder b = {0};
    struct bpe scratch = {0};
    struct token_list out = {0};
    made_bpe(&b, "gpt-2", NULL);
    struct tokenizer *tok = made_load(&b);
    const struct vocab *v = tokenizer_vocab(tok);
    bpe_encode(&scratch, v, slice_of("hello"), &out);
    bpe_encode(&scratch, v, slice_of("hellhe"), &out);
    bpe_encode(&scratch, v, slice_of(" world"), &out);
    bpe_encode(&scratch, v, slice_of("aaaaaaa"), &out);
    bpe_encode(&scratch, v, slice_of(""), &out);
    ck_assert_str_eq(made_show(&out), "259 258 256 264 267 266 97");
    token_list_release(&out);
    bpe_release(&scratch);
    tokenizer_free(tok);
}
END_TEST

/* Random merges over few letters, random words: short and long ways agree with the definition. */
START_TEST(test_random)
{
    srand(1);
    for (unsigned round = 0; round < 20; round++) {
        static char texts[400][128];
        const char *merges[400];
        char parts[404][64] = {"a", "b", "c", "d"};
        size_t n_parts = 4, n = 0;
        while (n < 400) {
            const char *left = parts[(size_t)rand() % n_parts],
                       *right = parts[(size_t)rand() % n_parts];
            if (strlen(left) + strlen(right) > 40)
                continue;
            snprintf(texts[n], sizeof(texts[n]), "%s %s", left, right);
            merges[n] = texts[n];
            snprintf(parts[n_parts++], sizeof(parts[0]), "%s%s", left, right);
            n++;
        }
        struct gguf_builder b = {0};
        struct bpe scratch = {0};
        made_bpe_with(&b, "gpt-2", merges, 400, NULL);
        struct tokenizer *tok = made_load(&b);
        const struct vocab *v = tokenizer_vocab(tok);
        for (unsigned w = 0; w < 60; w++) {
            char word[600];
            size_t len = (size_t)rand() % (w % 3 == 0 ? 600 : 40);
            struct token_list got = {0}, expected = {0};
            for (size_t i = 0; i < len; i++)
                word[i] = "abcd"[rand() % (w % 2 ? 4 : 2)];
            bpe_encode(&scratch, v, slice_make(word, len), &got);
            plain(v, slice_make(word, len), &expected);
            ck_assert_msg(got.count == expected.count &&
                              (got.count == 0 ||
                               memcmp(got.ids, expected.ids, got.count * sizeof(*got.ids)) == 0),
                          "%.*s: %s", (int)len, word, made_show(&got));
            token_list_release(&got);
            token_list_release(&expected);
        }
        bpe_release(&scratch);
        tokenizer_free(tok);
    }
}
END_TEST

/* Symbols that are no tokens become the tokens of their bytes; bytes without any are left out before merging. */
START_TEST(test_incomplete_vocabulary)
{
    static const struct slice tokens[] = {{"a", 1}, {"b", 1}, {"abc", 3}, {"ad", 2}, {"d", 1}};
    static const struct slice merges[] = {{"a b", 3}, {"ab c", 4}, {"a d", 3}};
    struct gguf_builder b = {0};
    struct bpe scratch = {0};
    struct token_list out = {0};
    builder_str(&b, "tokenizer.ggml.model", "gpt2");
    builder_str(&b, "tokenizer.ggml.pre", "gpt-2");
    builder_strings(&b, "tokenizer.ggml.tokens", tokens, 5);
    builder_strings(&b, "tokenizer.ggml.merges", merges, 3);
    struct tokenizer *tok = made_load(&b);
    const struct vocab *v = tokenizer_vocab(tok);
    bpe_encode(&scratch, v, slice_of("abc"), &out);
    bpe_encode(&scratch, v, slice_of("abab"), &out);
    bpe_encode(&scratch, v, slice_of("axd"), &out);
    ck_assert_str_eq(made_show(&out), "2 0 1 0 1 3");
    out.count = 0;
    bpe_encode(&scratch, v, slice_of("xyz"), &out);
    bpe_encode(&scratch, v, slice_of("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"), &out);
    ck_assert_uint_eq(out.count, 0);
    bpe_encode(&scratch, v, slice_of("axxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxdxxabcxx"), &out);
    ck_assert_str_eq(made_show(&out), "3 2");
    token_list_release(&out);
    bpe_release(&scratch);
    tokenizer_free(tok);
}
END_TEST

CHECK_MAIN("bpe", test_known, test_random, test_incomplete_vocabulary)
