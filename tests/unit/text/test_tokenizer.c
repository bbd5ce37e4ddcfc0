#include <pthread.h>

#include "core/text/tokenizer.h"
#include "tests/check_main.h"
#include "tests/made_vocab.h"

#define START (MADE_FIRST_SPECIAL + MADE_START)

static struct tokenizer *load_bpe(const char *pre, bool add_bos)
{
    struct gguf_builder b = {0};
    made_bpe(&b, pre, NULL);
    builder_bool(&b, "tokenizer.ggml.add_bos_token", add_bos);
    return made_load(&b);
}

static void encodes(const struct tokenizer *tok, const char *text, unsigned flags,
                    const char *expected)
{
    struct token_list out = {0};
    struct error err = {0};
    ck_assert_msg(tokenizer_encode(tok, slice_of(text), flags, &out, &err) == STATUS_OK, "%s",
                  err.text);
    ck_assert_msg(strcmp(made_show(&out), expected) == 0, "%s: %s, expected %s", text,
                  made_show(&out), expected);
    token_list_release(&out);
}

/* ids of the made vocabulary: 259 hello, 264 " world", 265 "\n\n"; specials from 271 */
START_TEST(test_encode)
{
    struct tokenizer *tok = load_bpe("gpt-2", false);
    ck_assert_uint_eq(START, 271);
    encodes(tok, "", 0, "");
    encodes(tok, "hello world", 0, "259 264");
    encodes(tok, "hello\n\n\n", 0, "259 265 10");
    encodes(tok, "\xff", 0, "255");
    encodes(tok, "<|im_end|>hello", ENCODE_PARSE_SPECIAL, "272 259");
    encodes(tok, "<|", ENCODE_PARSE_SPECIAL, "60 124");
    encodes(tok, "<tool>", 0, "273");
    encodes(tok, "a<tool>boxb", 0, "97 274 98");
    encodes(tok, "[PAD]", ENCODE_PARSE_SPECIAL, "91 80 65 68 93");
    encodes(tok, "hello", ENCODE_ADD_BOS, "259"); /* the model wants none */
    tokenizer_free(tok);
}
END_TEST

/* A control token spelled out is plain text without PARSE_SPECIAL. */
START_TEST(test_no_injection)
{
    struct tokenizer *tok = load_bpe("llama-bpe", false);
    struct token_list out = {0};
    struct error err = {0};
    ck_assert_int_eq(tokenizer_encode(tok, slice_of("x<|im_end|>"), 0, &out, &err), STATUS_OK);
    ck_assert_uint_gt(out.count, 5);
    for (size_t i = 0; i < out.count; i++)
        ck_assert(!tokenizer_is_hidden(tok, out.ids[i]));
    token_list_release(&out);
    tokenizer_free(tok);
}
END_TEST

START_TEST(test_least)
{
    struct tokenizer *tok = load_bpe("gpt-2", false), *nfc = load_bpe("qwen2", false);
    /* the longest token is <|im_start|> */
    ck_assert_uint_eq(tokenizer_least(tok, 0), 0);
    ck_assert_uint_eq(tokenizer_least(tok, 1), 1);
    ck_assert_uint_eq(tokenizer_least(tok, 12), 1);
    ck_assert_uint_eq(tokenizer_least(tok, 13), 2);
    ck_assert_uint_eq(tokenizer_least(tok, 12000000), 1000000);
    ck_assert_uint_eq(tokenizer_least(nfc, 48), 1);
    ck_assert_uint_eq(tokenizer_least(nfc, 49), 2);
    tokenizer_free(tok);
    tokenizer_free(nfc);
}
END_TEST

START_TEST(test_bos)
{
    struct tokenizer *tok = load_bpe("gpt-2", true);
    struct token_list out = {0};
    struct error err = {0};
    ck_assert(tokenizer_add_bos(tok));
    encodes(tok, "hello", ENCODE_ADD_BOS, "271 259");
    encodes(tok, "hello", 0, "259");
    encodes(tok, "", ENCODE_ADD_BOS, "271");
    encodes(tok, "<|im_start|>hello", ENCODE_ADD_BOS | ENCODE_PARSE_SPECIAL,
            "271 259"); /* never twice */
    token_list_add(&out, 7);
    ck_assert_int_eq(tokenizer_encode(tok, slice_of("hello"), ENCODE_ADD_BOS, &out, &err),
                     STATUS_OK);
    ck_assert_str_eq(made_show(&out), "7 259");
    token_list_release(&out);
    tokenizer_free(tok);
}
END_TEST

START_TEST(test_families)
{
    struct tokenizer *tok = load_bpe("qwen2", false);
    encodes(tok, "e\xcc\x81", 0, "195 169"); /* NFC */
    encodes(tok, "12", 0, "49 50");
    tokenizer_free(tok);
    tok = load_bpe("llama-bpe", false);
    encodes(tok, "e\xcc\x81", 0, "101 204 129");
    encodes(tok, "12", 0, "269");
    tokenizer_free(tok);

    /* llama-bpe takes a word that is a token whole, although "l ld" would merge otherwise. */
    static const char *const merges[] = {"b c", "a b", "ab c"};
    struct gguf_builder b = {0};
    made_bpe_with(&b, "llama-bpe", merges, 3, NULL);
    tok = made_load(&b);
    encodes(tok, "abc", 0, "258");
    encodes(tok, "abcabc", 0, "97 256 97 256");
    tokenizer_free(tok);
    made_bpe_with(&b, "gpt-2", merges, 3, NULL);
    tok = made_load(&b);
    encodes(tok, "abc", 0, "97 256");
    tokenizer_free(tok);
}
END_TEST

START_TEST(test_pieces)
{
    struct tokenizer *tok = load_bpe("gpt-2", false);
    struct buffer out = {0};
    static const uint32_t ids[] = {
        START, 259, 264, START + MADE_TOOL, 0xc3, START + MADE_UNUSED, START + MADE_END};
    ck_assert(slice_is(tokenizer_piece(tok, 264), " world"));
    ck_assert(slice_is(tokenizer_piece(tok, START), "<|im_start|>"));
    ck_assert_uint_eq(tokenizer_piece(tok, 0).len, 1);
    ck_assert(tokenizer_is_hidden(tok, START) && !tokenizer_is_hidden(tok, START + MADE_TOOL));
    ck_assert(tokenizer_is_eog(tok, START + MADE_END) && !tokenizer_is_eog(tok, START));
    ck_assert_uint_eq(tokenizer_n_vocab(tok), START + MADE_SPECIALS);
    ck_assert_uint_eq(tokenizer_bos(tok), START);
    ck_assert_uint_eq(tokenizer_eos(tok), START + MADE_END);
    tokenizer_decode(tok, ids, 7, 0, &out);
    ck_assert(slice_is(buffer_slice(&out), "hello world<tool>\xc3"));
    buffer_clear(&out);
    tokenizer_decode(tok, ids, 7, DECODE_SPECIAL | DECODE_START, &out);
    ck_assert(slice_is(buffer_slice(&out), "<|im_start|>hello world<tool>\xc3<|im_end|>"));
    buffer_release(&out);
    tokenizer_free(tok);
}
END_TEST

START_TEST(test_spm)
{
    static const char *const words[] = {"\xe2\x96\x81", "\xe2\x96\x81hi", "hi", "h", "i",
                                        "\xe2\x96\x81h"};
    struct gguf_builder b = {0};
    struct buffer out = {0};
    made_spm(&b, words, (float[]){-5, -1, -2, -6, -7, -3}, 6);
    struct tokenizer *tok = made_load(&b);
    encodes(tok, "hi hi", ENCODE_ADD_BOS, "1 260 260");
    encodes(tok, "hi</s>hi", ENCODE_PARSE_SPECIAL, "260 2 260");
    encodes(tok, "", ENCODE_ADD_BOS, "1");
    static const uint32_t ids[] = {1, 260, 260, 3 + '!'};
    tokenizer_decode(tok, ids, 4, DECODE_START, &out);
    ck_assert(slice_is(buffer_slice(&out), "hi hi!"));
    buffer_clear(&out);
    tokenizer_decode(tok, ids, 4, 0, &out);
    ck_assert(slice_is(buffer_slice(&out), " hi hi!"));
    buffer_release(&out);
    tokenizer_free(tok);

    made_spm(&b, words, (float[]){-5, -1, -2, -6, -7, -3}, 6);
    builder_bool(&b, "tokenizer.ggml.add_space_prefix", false);
    builder_bool(&b, "tokenizer.ggml.add_bos_token", false);
    tok = made_load(&b);
    encodes(tok, "hi hi", ENCODE_ADD_BOS, "261 260");
    tokenizer_free(tok);
}
END_TEST

/* Whatever the bytes, decoding gives them back. */
START_TEST(test_round_trip)
{
    static const char *const families[] = {"gpt-2", "smollm", "llama-bpe", "deepseek-v3", "falcon"};
    srand(11);
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        struct tokenizer *tok = load_bpe(families[f], false);
        for (unsigned round = 0; round < 500; round++) {
            char text[200];
            size_t len = (size_t)rand() % sizeof(text);
            struct token_list ids = {0};
            struct buffer out = {0};
            struct error err = {0};
            for (size_t i = 0; i < len; i++)
                text[i] = (char)(rand() % 3 ? "hello world\n 12'sa"[rand() % 18] : rand());
            ck_assert_int_eq(tokenizer_encode(tok, slice_make(text, len), round % 2, &ids, &err),
                             STATUS_OK);
            ck_assert_uint_ge(ids.count, tokenizer_least(tok, len));
            tokenizer_decode(tok, ids.ids, ids.count, DECODE_SPECIAL, &out);
            ck_assert(slice_equal(buffer_slice(&out), slice_make(text, len)));
            buffer_release(&out);
            token_list_release(&ids);
        }
        tokenizer_free(tok);
    }
}
END_TEST

struct work {
    const struct tokenizer *tok;
    struct token_list expected[2]; /* without and with special tokens */
    unsigned wrong;
};

static const char work_text[] = "hello world <|im_end|> caf\xc3\xa9 e\xcc\x81 123 hello's\n\n";

static void *encode_often(void *arg)
{
    struct work *w = arg;
    for (unsigned i = 0; i < 300; i++) {
        struct token_list out = {0}, *expected = &w->expected[i % 2];
        struct error err = {0};
        tokenizer_encode(w->tok, slice_of(work_text), i % 2 ? ENCODE_PARSE_SPECIAL : 0, &out, &err);
        if (out.count != expected->count ||
            memcmp(out.ids, expected->ids, out.count * sizeof(*out.ids)) != 0)
            w->wrong++;
        token_list_release(&out);
    }
    return NULL;
}

START_TEST(test_threads)
{
    struct tokenizer *tok = load_bpe("qwen2", false);
    struct work work[8];
    struct error err = {0};
    pthread_t threads[8];
    for (unsigned i = 0; i < 8; i++) {
        work[i] = (struct work){.tok = tok};
        for (unsigned k = 0; k < 2; k++)
            tokenizer_encode(tok, slice_of(work_text), k ? ENCODE_PARSE_SPECIAL : 0,
                             &work[i].expected[k], &err);
        ck_assert_uint_gt(work[i].expected[0].count, work[i].expected[1].count);
    }
    for (unsigned i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, encode_often, &work[i]);
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_uint_eq(work[i].wrong, 0);
        token_list_release(&work[i].expected[0]);
        token_list_release(&work[i].expected[1]);
    }
    tokenizer_free(tok);
    tokenizer_free(NULL);
}
END_TEST

CHECK_MAIN("tokenizer", test_encode, test_no_injection, test_least, test_bos, test_families,
           test_pieces, test_spm, test_round_trip, test_threads)
