#include "core/text/text_table.h"
#include "tests/check_main.h"
#include "tests/made_vocab.h"

START_TEST(test_bpe_vocab)
{
    struct gguf_builder b = {0};
    struct vocab *v;
    struct error err = {0};
    made_bpe(&b, "gpt-2", NULL);
    struct gguf *g = builder_open(&b);
    ck_assert_msg(vocab_load(g, &v, &err) == STATUS_OK, "%s", err.text);
    gguf_free(g);
    builder_release(&b); /* the vocabulary owns what it needs */
    uint32_t hello = vocab_find(v, slice_of("hello")), start = MADE_FIRST_SPECIAL + MADE_START;
    ck_assert_int_eq(vocab_model(v), VOCAB_BPE);
    ck_assert_uint_eq(vocab_size(v), MADE_FIRST_SPECIAL + MADE_SPECIALS);
    ck_assert_uint_eq(hello, 259);
    ck_assert(slice_is(vocab_token(v, 264)->text, "\xc4\xa0world"));
    ck_assert(slice_is(vocab_token(v, 264)->bytes, " world"));
    ck_assert(slice_is(vocab_symbol_bytes(v, 265), "\n\n"));
    ck_assert_uint_eq(vocab_byte(v, 'h'), 'h');
    const struct vocab_merge *m = vocab_merge(v, 'h', 'e');
    ck_assert(m != NULL && m->rank == 0 && m->result == 256);
    ck_assert_ptr_null(vocab_merge(v, 'e', 'h'));
    ck_assert_uint_eq(vocab_bos(v), start);
    ck_assert_uint_eq(vocab_eos(v), start + 1);
    ck_assert_uint_eq(vocab_unknown(v), TOKEN_NONE);
    ck_assert(!vocab_add_bos(v) && !vocab_space_prefix(v));
    ck_assert(vocab_token(v, start + 1)->eog && !vocab_token(v, start)->eog &&
              !vocab_token(v, hello)->eog);
    ck_assert_uint_eq(vocab_find(v, slice_of("<|im_start|>")), start);
    ck_assert_uint_eq(vocab_symbol(v, slice_of("<|im_start|>")), TOKEN_NONE);
    ck_assert_uint_eq(vocab_symbol(v, slice_of("<tool>")), start + MADE_TOOL);
    ck_assert_uint_eq(vocab_find(v, slice_of("hell0")), TOKEN_NONE);
    ck_assert_uint_eq(vocab_token(v, start + MADE_UNUSED)->bytes.len, 0);
    ck_assert_uint_eq(vocab_longest(v),
                      12 - 3 + 0); /* "<tool>box": control tokens are no symbols */
    vocab_free(v);
    vocab_free(NULL);
}
END_TEST

/* Merges may name texts that are no tokens; the symbols are kept apart from the ids. */
START_TEST(test_symbols_beyond_tokens)
{
    static const struct slice tokens[] = {{"a", 1}, {"b", 1}, {"abc", 3}},
                              merges[] = {{"a b", 3}, {"ab c", 4}};
    struct gguf_builder b = {0};
    struct vocab *v;
    struct error err = {0};
    builder_str(&b, "tokenizer.ggml.model", "gpt2");
    builder_strings(&b, "tokenizer.ggml.tokens", tokens, 3);
    builder_strings(&b, "tokenizer.ggml.merges", merges, 2);
    struct gguf *g = builder_open(&b);
    ck_assert_msg(vocab_load(g, &v, &err) == STATUS_OK, "%s", err.text);
    uint32_t ab = vocab_symbol(v, slice_of("ab")), c = vocab_symbol(v, slice_of("c"));
    ck_assert(ab >= 3 && c >= 3 && ab != c && ab != TOKEN_NONE && c != TOKEN_NONE);
    ck_assert_uint_eq(vocab_byte(v, 'c'), c);
    ck_assert_uint_eq(vocab_byte(v, 'd'), TOKEN_NONE);
    ck_assert(slice_is(vocab_symbol_bytes(v, ab), "ab"));
    ck_assert_uint_eq(vocab_merge(v, ab, c)->result, 2);
    ck_assert_uint_eq(vocab_find(v, slice_of("ab")), TOKEN_NONE);
    vocab_free(v);
    gguf_free(g);
    builder_release(&b);
}
END_TEST

START_TEST(test_spm_vocab)
{
    static const char *const words[] = {"\xe2\x96\x81",
                                        ("\xe2\x96\x81"
                                         "a"),
                                        "a"};
    struct gguf_builder b = {0};
    made_spm(&b, words, (float[]){-1, -2, -3}, 3);
    struct tokenizer *tok = made_load(&b);
    const struct vocab *v = tokenizer_vocab(tok);
    ck_assert_int_eq(vocab_model(v), VOCAB_SPM);
    ck_assert(slice_is(vocab_token(v, 260)->bytes, " a"));
    ck_assert(vocab_token(v, 3)->bytes.len == 1 && vocab_token(v, 3)->bytes.ptr[0] == 0);
    ck_assert_uint_eq(vocab_byte(v, 0xff), 258);
    ck_assert_uint_eq(vocab_bos(v), 1);
    ck_assert_uint_eq(vocab_eos(v), 2);
    ck_assert_uint_eq(vocab_unknown(v), 0);
    ck_assert(vocab_add_bos(v) && vocab_space_prefix(v) && vocab_token(v, 2)->eog);
    ck_assert_uint_eq(vocab_symbol(v, slice_of("</s>")), TOKEN_NONE);
    ck_assert_uint_eq(vocab_symbol(v, slice_of("<0x00>")), TOKEN_NONE);
    ck_assert_float_eq(vocab_token(v, 261)->score, -3);
    tokenizer_free(tok);
}
END_TEST

/* Builds a small vocabulary, then what `spoil` adds, and expects a refusal that contains the words. */
static void refused(struct gguf_builder *b, enum status status, const char *word)
{
    struct tokenizer *tok;
    struct error err = {0};
    struct gguf *g = builder_open(b);
    enum status got = tokenizer_load(g, &tok, &err);
    ck_assert_msg(got == status && strstr(err.text, word) != NULL &&
                      strstr(err.text, "made: ") != NULL,
                  "%s: %s, %s", word, status_name(got), err.text);
    ck_assert_ptr_null(tok);
    gguf_free(g);
    builder_release(b);
}

START_TEST(test_refused)
{
    static const struct slice two[] = {{"a", 1}, {"b", 1}}, ab[] = {{"a b", 3}},
                              bytes[] = {{"<0xzz>", 6}};
    struct gguf_builder b = {0};
    float nan = __builtin_nanf("");
#define MODEL(name) builder_str(&b, "tokenizer.ggml.model", name)
#define TOKENS() builder_strings(&b, "tokenizer.ggml.tokens", two, 2)
#define MERGES() builder_strings(&b, "tokenizer.ggml.merges", ab, 1)
#define SCORES() builder_array(&b, "tokenizer.ggml.scores", GGUF_F32, (float[]){0, 0}, 2, 4)
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.model' is missing");
    builder_u32(&b, "tokenizer.ggml.model", 1);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.model'");
    MODEL("bert"), TOKENS();
    refused(&b, STATUS_UNSUPPORTED, "'bert' is not supported");
    MODEL("gpt2");
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.tokens' must be");
    MODEL("gpt2"), builder_array(&b, "tokenizer.ggml.tokens", GGUF_U32, (uint32_t[]){1}, 1, 4);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.tokens' must be");
    MODEL("gpt2"), TOKENS();
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.merges' must be");
    MODEL("gpt2"), TOKENS(), MERGES();
    refused(&b, STATUS_UNSUPPORTED, "'tokenizer.ggml.pre' is missing");
    MODEL("gpt2"), TOKENS(), MERGES(), builder_str(&b, "tokenizer.ggml.pre", "viking");
    refused(&b, STATUS_UNSUPPORTED, "'viking' is not supported");
    MODEL("gpt2"), TOKENS(), MERGES(), builder_u32(&b, "tokenizer.ggml.bos_token_id", 4000000000u);
    refused(&b, STATUS_CORRUPT,
            "'tokenizer.ggml.bos_token_id' is 4000000000, but there are only 2 tokens");
    MODEL("gpt2"), TOKENS(), MERGES(), builder_u32(&b, "tokenizer.ggml.eot_token_id", 2);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.eot_token_id' is 2");
    MODEL("gpt2"), TOKENS(), MERGES(), builder_str(&b, "tokenizer.ggml.eos_token_id", "x");
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.eos_token_id'");
    MODEL("gpt2"), TOKENS(), MERGES(), builder_bool(&b, "tokenizer.ggml.add_bos_token", true);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.add_bos_token' is true");
    MODEL("gpt2"), TOKENS(), MERGES(), builder_u32(&b, "tokenizer.ggml.add_bos_token", 1);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.add_bos_token'");
    MODEL("gpt2"), TOKENS(), MERGES(),
        builder_array(&b, "tokenizer.ggml.token_type", GGUF_I32, (int32_t[]){1}, 1, 4);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.token_type' has not as many");
    MODEL("gpt2"), TOKENS(), MERGES(),
        builder_array(&b, "tokenizer.ggml.token_type", GGUF_I32, (int32_t[]){1, 7}, 2, 4);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.token_type' has an element");
    MODEL("gpt2"), TOKENS(), MERGES(),
        builder_array(&b, "tokenizer.ggml.token_type", GGUF_F32, (float[]){1, 1}, 2, 4);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.token_type' must be");
    MODEL("gpt2"), TOKENS(), builder_strings(&b, "tokenizer.ggml.merges", two, 2);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.merges' has an element");
    MODEL("gpt2"), TOKENS(),
        builder_strings(&b, "tokenizer.ggml.merges", (struct slice[]){{"a ", 2}}, 1);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.merges' has an element");
    MODEL("llama"), TOKENS();
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.scores' is missing");
    MODEL("llama"), TOKENS(),
        builder_array(&b, "tokenizer.ggml.scores", GGUF_F32, (float[]){0, nan}, 2, 4);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.scores' has an element");
    MODEL("llama"), TOKENS(),
        builder_array(&b, "tokenizer.ggml.scores", GGUF_U32, (uint32_t[]){0, 1}, 2, 4);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.scores' must be");
    MODEL("llama"), builder_strings(&b, "tokenizer.ggml.tokens", bytes, 1);
    builder_array(&b, "tokenizer.ggml.scores", GGUF_F32, (float[]){0}, 1, 4);
    builder_array(&b, "tokenizer.ggml.token_type", GGUF_I32, (int32_t[]){6}, 1, 4);
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.tokens' has a byte token");
    MODEL("llama"), TOKENS(), SCORES(), builder_str(&b, "tokenizer.ggml.add_space_prefix", "yes");
    refused(&b, STATUS_CORRUPT, "'tokenizer.ggml.add_space_prefix'");
}
END_TEST

/* End markers are known by their text, whatever kind a file gives them, unless merges form them from plain text. */
START_TEST(test_ends)
{
    static const struct slice tokens[] = {
        {"<|eot_id|>", 10}, {"</s>", 4},     {"<", 1},       {"/s>", 3},
        {"<|return|>", 10}, {"<|call|>", 8}, {"<|end|>", 7}, {"x", 1}};
    static const struct slice merges[] = {{"< /s>", 5}};
    struct gguf_builder b = {0};
    builder_str(&b, "tokenizer.ggml.model", "gpt2");
    builder_str(&b, "tokenizer.ggml.pre", "gpt-2");
    builder_strings(&b, "tokenizer.ggml.tokens", tokens, 8);
    builder_strings(&b, "tokenizer.ggml.merges", merges, 1);
    builder_u32(&b, "tokenizer.ggml.eom_token_id", 7);
    struct tokenizer *tok = made_load(&b);
    const struct vocab *v = tokenizer_vocab(tok);
    ck_assert(tokenizer_is_eog(tok, 0) && vocab_token(v, 0)->kind == TOKEN_CONTROL);
    ck_assert(!tokenizer_is_eog(tok, 1) && vocab_token(v, 1)->kind == TOKEN_NORMAL);
    ck_assert(tokenizer_is_eog(tok, 4) && tokenizer_is_eog(tok, 5));
    ck_assert(!tokenizer_is_eog(tok, 6)); /* only a part of the format where the other two exist */
    ck_assert(tokenizer_is_eog(tok, 7));
    ck_assert(!tokenizer_is_eog(tok, 8) && !tokenizer_is_eog(tok, TOKEN_NONE));
    tokenizer_free(tok);
}
END_TEST

/* Of several tokens with one text the last is found by it, and the last that plain text may become is its symbol; merges
 * make that one, wherever it stands. */
START_TEST(test_same_texts)
{
    static const struct slice tokens[] = {{"a", 1},
                                          {"b", 1},
                                          {"ab", 2},
                                          {"ab", 2},
                                          {"ab", 2},
                                          {"<|im_end|>", 10},
                                          {"b", 1},
                                          {"<|im_end|>", 10},
                                          {"longer than 8", 13},
                                          {"aa", 2},
                                          {"longer than 8", 13}},
                              merges[] = {{"a b", 3}, {"a a", 3}};
    static const int32_t kinds[] = {1, 1, 1, 1, 3, 1, 1, 1, 4, 1, 3};
    struct gguf_builder b = {0};
    struct vocab *v;
    struct error err = {0};
    builder_str(&b, "tokenizer.ggml.model", "gpt2");
    builder_strings(&b, "tokenizer.ggml.tokens", tokens, 11);
    builder_array(&b, "tokenizer.ggml.token_type", GGUF_I32, kinds, 11, 4);
    builder_strings(&b, "tokenizer.ggml.merges", merges, 2);
    struct gguf *g = builder_open(&b);
    ck_assert_msg(vocab_load(g, &v, &err) == STATUS_OK, "%s", err.text);
    ck_assert_uint_eq(vocab_find(v, slice_of("ab")), 4);
    ck_assert_uint_eq(vocab_symbol(v, slice_of("ab")), 3);
    ck_assert_uint_eq(vocab_find(v, slice_of("b")), 6);
    ck_assert_uint_eq(vocab_symbol(v, slice_of("b")), 6);
    ck_assert_uint_eq(vocab_find(v, slice_of("<|im_end|>")), 7); /* made a control token */
    ck_assert_uint_eq(vocab_symbol(v, slice_of("<|im_end|>")), 5);
    ck_assert_uint_eq(vocab_find(v, slice_of("longer than 8")), 10);
    ck_assert_uint_eq(vocab_symbol(v, slice_of("longer than 8")), 8);
    ck_assert_uint_eq(vocab_find(v, slice_of("")), TOKEN_NONE);
    ck_assert_uint_eq(vocab_symbol(v, slice_of("")), TOKEN_NONE);
    const struct vocab_merge *ab = vocab_merge(v, 0, 6), *aa = vocab_merge(v, 0, 0);
    ck_assert(ab != NULL && ab->result == 3 && ab->rank == 0);
    ck_assert(aa != NULL && aa->result == 9 && aa->rank == 1);
    ck_assert_ptr_null(vocab_merge(v, 0, 1)); /* the hidden "b" */
    ck_assert_uint_eq(vocab_longest(v), 13);
    vocab_free(v);
    gguf_free(g);
    builder_release(&b);
}
END_TEST

/* Texts of 1 to 20 bytes that differ in one of them: those of up to 8 stand in the slots. */
START_TEST(test_text_table)
{
    enum { LONGEST = 20, TEXTS = LONGEST * (LONGEST + 1) / 2 };
    struct text_table t = {0};
    char texts[TEXTS][LONGEST + 1];
    uint32_t n = 0;
    text_table_init(&t, 0);
    for (size_t len = 1; len <= LONGEST; len++)
        for (size_t at = 0; at < len; at++, n++) {
            memset(texts[n], 'x', len);
            texts[n][len] = '\0';
            texts[n][at] = 'y';
            struct text_key key = text_key(slice_of(texts[n]));
            ck_assert_uint_eq(text_table_get(&t, &key), TEXT_TABLE_NONE);
            ck_assert_uint_eq(text_table_set(&t, &key, n), TEXT_TABLE_NONE);
        }
    ck_assert_uint_eq(t.count, TEXTS);
    for (uint32_t i = 0; i < TEXTS; i++) {
        char copy[LONGEST + 1]; /* found by the bytes, not by where they are */
        memcpy(copy, texts[i], sizeof(copy));
        struct text_key key = text_key(slice_of(copy));
        ck_assert_uint_eq(text_table_get(&t, &key), i);
    }
    struct text_key key = text_key(slice_of(texts[7])), none = text_key(slice_of("yy"));
    ck_assert_uint_eq(text_table_set(&t, &key, 70), 7);
    ck_assert_uint_eq(text_table_get(&t, &key), 70);
    ck_assert_uint_eq(text_table_get(&t, &none), TEXT_TABLE_NONE);
    ck_assert_uint_eq(t.count, TEXTS);
    text_table_release(&t);
}
END_TEST

CHECK_MAIN("vocab", test_bpe_vocab, test_symbols_beyond_tokens, test_spm_vocab, test_refused,
           test_ends, test_same_texts, test_text_table)
