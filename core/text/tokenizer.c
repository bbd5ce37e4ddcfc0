#include "core/text/tokenizer.h"

#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/text/bpe.h"
#include "core/text/byte_map.h"
#include "core/text/normalize.h"
#include "core/text/spm.h"
#include "core/text/tokenizer_priv.h"

/* Positions inside a text are 32 bits wide, and escaping may triple it. */
#define MAX_TEXT (1u << 30)
/* NFC makes a text shorter by at most this factor: U+0390, of 2 bytes, can be written as U+1FBE U+0308 U+0301 (7). */
#define NFC_SHRINK 4u

void token_list_release(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

static void reserve(struct token_list *list, size_t more)
{
    if (list->cap - list->count >= more)
        return;
    list->cap = list->cap * 2 > list->count + more ? list->cap * 2 : list->count + more + 16;
    list->ids = xreallocarray(list->ids, list->cap, sizeof(*list->ids));
}

void token_list_add(struct token_list *list, uint32_t id)
{
    reserve(list, 1);
    list->ids[list->count++] = id;
}

void token_list_add_all(struct token_list *list, const uint32_t *ids, size_t n)
{
    if (n == 0)
        return;
    reserve(list, n);
    memcpy(list->ids + list->count, ids, n * sizeof(*ids));
    list->count += n;
}

/* How much text, before it is normalised, one token can stand for. */
static uint32_t most_bytes(const struct tokenizer *tok)
{
    size_t most = 1;
    for (uint32_t id = 0; id < vocab_size(tok->vocab); id++) {
        size_t len = vocab_token(tok->vocab, id)->bytes.len;
        if (len > most)
            most = len;
    }
    bool nfc = vocab_model(tok->vocab) == VOCAB_BPE && pretokenizer_nfc(tok->pretokenizer);
    return (uint32_t)(nfc ? most * NFC_SHRINK : most);
}

enum status tokenizer_load(const struct gguf *g, struct tokenizer **out, struct error *err)
{
    struct tokenizer *tok = xcalloc(1, sizeof(*tok));
    struct error inner = {0};
    *out = NULL;
    enum status status = vocab_load(g, &tok->vocab, err);
    if (status == STATUS_OK && vocab_model(tok->vocab) == VOCAB_BPE) {
        struct slice pre = gguf_str(g, "tokenizer.ggml.pre", slice_of(""), &inner);
        status = inner.status;
        if (status == STATUS_OK && pre.len == 0)
            status = error_set(&inner, STATUS_UNSUPPORTED, "key 'tokenizer.ggml.pre' is missing");
        if (status == STATUS_OK)
            status = pretokenizer_create(pre, &tok->pretokenizer, &inner);
        if (status != STATUS_OK)
            error_set(err, status, "%s: %s", gguf_path(g), inner.text);
    }
    if (status != STATUS_OK) {
        vocab_free(tok->vocab);
        free(tok);
        return status;
    }
    special_init(&tok->user_defined, tok->vocab, false);
    special_init(&tok->special, tok->vocab, true);
    chat_format_load(&tok->chat, g, tok->vocab);
    tok->most_bytes = most_bytes(tok);
    *out = tok;
    return STATUS_OK;
}

void tokenizer_free(struct tokenizer *tok)
{
    if (tok == NULL)
        return;
    special_release(&tok->user_defined);
    special_release(&tok->special);
    chat_format_release(&tok->chat);
    pretokenizer_free(tok->pretokenizer);
    vocab_free(tok->vocab);
    free(tok);
}

/* What one call of tokenizer_encode carries through. */
struct encoder {
    const struct tokenizer *tok;
    struct token_list *out;
    struct error *err;
    struct bpe bpe;
    struct buffer normalised;
};

/* The token that is the whole word, or TOKEN_NONE. */
static uint32_t whole_word(const struct vocab *v, struct slice word)
{
    char text[1024], *end = text;
    if (word.len * 2 > sizeof(text))
        return TOKEN_NONE; /* longer than any token of the families that have this rule */
    for (size_t i = 0; i < word.len; i++) {
        char mapped[4];
        size_t len = byte_map_put((uint8_t)word.ptr[i], mapped);
        memcpy(end, mapped, len);
        end += len;
    }
    uint32_t symbol = vocab_symbol(v, slice_make(text, (size_t)(end - text)));
    return symbol < vocab_size(v) ? symbol : TOKEN_NONE;
}

static void encode_word(void *context, struct slice word)
{
    struct encoder *e = context;
    uint32_t id;
    if (pretokenizer_whole_words(e->tok->pretokenizer) &&
        (id = whole_word(e->tok->vocab, word)) != TOKEN_NONE) {
        token_list_add(e->out, id);
        return;
    }
    bpe_encode(&e->bpe, e->tok->vocab, word, e->out);
}

/* Encodes text between special tokens. */
static enum status encode_fragment(struct encoder *e, struct slice text)
{
    const struct tokenizer *tok = e->tok;
    if (text.len == 0)
        return STATUS_OK;
    if (vocab_model(tok->vocab) == VOCAB_SPM)
        return spm_encode(tok->vocab, text, vocab_space_prefix(tok->vocab), e->out, e->err);
    if (pretokenizer_nfc(tok->pretokenizer) && !normalize_is_trivial(text)) {
        buffer_clear(&e->normalised);
        normalize_nfc(text, &e->normalised);
        text = buffer_slice(&e->normalised);
    }
    return pretokenizer_split(tok->pretokenizer, text, encode_word, e, e->err);
}

enum status tokenizer_encode(const struct tokenizer *tok, struct slice text, unsigned flags,
                             struct token_list *out, struct error *err)
{
    struct encoder e = {.tok = tok, .out = out, .err = err};
    size_t before = out->count, n_hits = 0, at = 0;
    enum status status = STATUS_OK;
    if (text.len >= MAX_TEXT)
        return error_set(err, STATUS_TOO_LARGE, "a text of %zu bytes is too long to tokenize",
                         text.len);
    bool bos = (flags & ENCODE_ADD_BOS) && before == 0 && vocab_add_bos(tok->vocab);
    if (bos)
        token_list_add(out, vocab_bos(tok->vocab));
    struct special_hit *hits = special_find(
        flags & ENCODE_PARSE_SPECIAL ? &tok->special : &tok->user_defined, text, &n_hits);
    for (size_t i = 0; i < n_hits && status == STATUS_OK; i++) {
        status = encode_fragment(&e, slice_make(text.ptr + at, hits[i].at - at));
        token_list_add(out, hits[i].id);
        at = hits[i].at + hits[i].len;
    }
    if (status == STATUS_OK)
        status = encode_fragment(&e, slice_make(text.ptr + at, text.len - at));
    if (bos && out->count > 1 && out->ids[1] == out->ids[0])
        memmove(out->ids, out->ids + 1, --out->count * sizeof(*out->ids));
    if (status != STATUS_OK)
        out->count = before;
    free(hits);
    bpe_release(&e.bpe);
    buffer_release(&e.normalised);
    return status;
}

size_t tokenizer_least(const struct tokenizer *tok, size_t bytes)
{
    return bytes / tok->most_bytes + (bytes % tok->most_bytes != 0);
}

void tokenizer_decode(const struct tokenizer *tok, const uint32_t *ids, size_t n, unsigned flags,
                      struct buffer *out)
{
    bool strip = (flags & DECODE_START) && vocab_space_prefix(tok->vocab);
    for (size_t i = 0; i < n; i++) {
        struct slice piece = tokenizer_piece(tok, ids[i]);
        if (tokenizer_is_hidden(tok, ids[i])) {
            if (flags & DECODE_SPECIAL)
                buffer_add_slice(out, piece);
            continue;
        }
        if (strip && piece.len != 0) {
            strip = false;
            if (piece.ptr[0] == ' ')
                piece = slice_make(piece.ptr + 1, piece.len - 1);
        }
        buffer_add_slice(out, piece);
    }
}

struct slice tokenizer_piece(const struct tokenizer *tok, uint32_t id)
{
    return vocab_token(tok->vocab, id)->bytes;
}

bool tokenizer_is_hidden(const struct tokenizer *tok, uint32_t id)
{
    unsigned kind = vocab_token(tok->vocab, id)->kind;
    return kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN;
}

bool tokenizer_is_eog(const struct tokenizer *tok, uint32_t id)
{
    return id < vocab_size(tok->vocab) && vocab_token(tok->vocab, id)->eog;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *tok)
{
    return vocab_size(tok->vocab);
}

uint32_t tokenizer_bos(const struct tokenizer *tok)
{
    return vocab_bos(tok->vocab);
}

uint32_t tokenizer_eos(const struct tokenizer *tok)
{
    return vocab_eos(tok->vocab);
}

bool tokenizer_add_bos(const struct tokenizer *tok)
{
    return vocab_add_bos(tok->vocab);
}

const struct vocab *tokenizer_vocab(const struct tokenizer *tok)
{
    return tok->vocab;
}
