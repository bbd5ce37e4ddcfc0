/* fuzz_tokenizer.c: any bytes as text (encoded and decoded by every family), as tokens with stop strings, and as a chat
 * template. The first byte of an input chooses what is done with the rest.
 *
 * sources: core/gguf/gguf.c core/gguf/gguf_get.c core/base/buffer.c core/base/check.c core/base/huge.c core/base/readahead.c core/base/status.c core/base/xalloc.c core/text/bpe.c core/text/byte_map.c core/text/chat.c core/text/detokenizer.c core/text/merge_heap.c core/text/normalize.c core/text/pretokenizer.c core/text/special.c core/text/spm.c core/text/text_table.c core/text/tokenizer.c core/text/utf8.c core/text/vocab.c
 * covers: core/text/bpe.c core/text/chat.c core/text/detokenizer.c core/text/merge_heap.c core/text/normalize.c core/text/pretokenizer.c core/text/special.c core/text/spm.c core/text/tokenizer.c core/text/utf8.c
 * libs: -lpcre2-8 -lutf8proc
 */
#include "core/base/check.h"
#include "core/text/chat.h"
#include "core/text/detokenizer.h"
#include "core/text/normalize.h"
#include "core/text/tokenizer_priv.h"
#include "core/text/utf8.h"
#include "tests/made_vocab.h"

#define FAMILIES 7 /* the last is SentencePiece-style */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
static struct tokenizer *toks[FAMILIES];

static void load(void)
{
    static const char *const families[] = {"gpt-2",       "smollm", "llama-bpe",
                                           "deepseek-v3", "falcon", "qwen2"};
    static const char *const words[] = {"\xe2\x96\x81",
                                        "a",
                                        "b",
                                        "ab",
                                        "\xe2\x96\x81"
                                        "a",
                                        "hello",
                                        "he",
                                        "ll",
                                        "llo"};
    static const float scores[] = {-9, -8, -7, -1, -2, -3, -4, -5, -6};
    for (unsigned i = 0; i < FAMILIES; i++) {
        struct gguf_builder b = {0};
        if (i + 1 < FAMILIES)
            made_bpe(&b, families[i], chatml);
        else
            made_spm(&b, words, scores, sizeof(scores) / sizeof(scores[0]));
        toks[i] = made_load(&b);
    }
}

/* Text to ids and back; BPE without normalisation gives the same bytes. */
static void round_trip(unsigned family, unsigned flags, struct slice text)
{
    const struct tokenizer *tok = toks[family];
    struct token_list ids = {0};
    struct buffer out = {0};
    struct error err = {0};
    check(tokenizer_encode(tok, text, flags, &ids, &err) == STATUS_OK);
    for (size_t i = 0; i < ids.count; i++)
        check(ids.ids[i] < tokenizer_n_vocab(tok));
    tokenizer_decode(tok, ids.ids, ids.count, DECODE_SPECIAL, &out);
    if (family < 5)
        check(slice_equal(buffer_slice(&out), text));
    if (family == 5) {
        struct buffer normal = {0}, again = {0};
        normalize_nfc(text, &normal);
        normalize_nfc(buffer_slice(&normal), &again);
        check(slice_equal(buffer_slice(&normal), buffer_slice(&again)));
        buffer_release(&normal);
        buffer_release(&again);
    }
    buffer_release(&out);
    token_list_release(&ids);
}

static bool all_valid(struct buffer *text)
{
    return utf8_valid(text->len != 0 ? text->ptr : "", text->len) == text->len;
}

/* The first two bytes are the lengths of two stop strings, which follow; the rest are tokens, a byte each. */
static void stream(struct slice in)
{
    struct slice stops[2];
    struct detokenizer d;
    struct buffer out = {0};
    uint64_t before = 0;
    for (unsigned i = 0; i < 2; i++) {
        size_t len = in.len != 0 ? (unsigned char)in.ptr[0] % 9 : 0;
        in = in.len != 0 ? slice_make(in.ptr + 1, in.len - 1) : in;
        if (len > in.len)
            len = in.len;
        stops[i] = slice_make(in.ptr, utf8_valid(in.ptr, len));
        in = slice_make(in.ptr + len, in.len - len);
    }
    detokenizer_init(&d, toks[0], stops, 2, 0);
    bool stopped = false;
    for (size_t i = 0; i < in.len && !stopped; i++) {
        stopped = detokenizer_feed(&d, (unsigned char)in.ptr[i], &out);
        check(all_valid(&out) && d.tokens_out <= d.tokens && d.tokens_out >= before);
        before = d.tokens_out;
    }
    if (!stopped)
        stopped = detokenizer_finish(&d, &out);
    check(all_valid(&out) && (stopped || d.tokens_out == in.len));
    for (unsigned i = 0; i < 2; i++)
        check(stops[i].len == 0 || out.len == 0 ||
              memmem(out.ptr, out.len, stops[i].ptr, stops[i].len) == NULL);
    detokenizer_release(&d);
    buffer_release(&out);
}

static void chat_template(struct slice text)
{
    struct gguf_builder b = {0};
    struct gguf *g;
    struct error err = {0};
    struct chat_format f = {0};
    builder_raw_key(&b, "tokenizer.chat_template", GGUF_STRING);
    builder_put_string(&b.keys, text.ptr, text.len);
    builder_finish(&b);
    check(gguf_open_memory(b.out.ptr, b.out.len, "template", &g, &err) == STATUS_OK);
    chat_format_load(&f, g, toks[0]->vocab);
    chat_format_release(&f);
    gguf_free(g);
    builder_release(&b);
}

/* A message's markers never become markers. */
static void chat_message(struct slice text)
{
    struct chat_message message = {slice_of("user"), text};
    struct token_list ids = {0};
    struct error err = {0};
    unsigned starts = 0;
    check(chat_prompt(toks[1], &message, 1, true, &ids, &err) == STATUS_OK);
    for (size_t i = 0; i < ids.count; i++)
        starts += ids.ids[i] == MADE_FIRST_SPECIAL + MADE_START;
    check(starts == 2);
    token_list_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (toks[0] == NULL)
        load();
    if (size == 0)
        return 0;
    struct slice rest = slice_make(data + 1, size - 1);
    unsigned what = data[0] % (FAMILIES * 2 + 3);
    if (what < FAMILIES * 2)
        round_trip(what / 2, what % 2 ? ENCODE_PARSE_SPECIAL : 0, rest);
    else if (what == FAMILIES * 2)
        stream(rest);
    else if (what == FAMILIES * 2 + 1)
        chat_template(rest);
    else
        chat_message(rest);
    return 0;
}
