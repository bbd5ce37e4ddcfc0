/* tokenizer.h: text to token ids and back, for one model.
 *
 *     text ── special tokens cut out ─┬─ normalise ── pre-tokenizer: words ── BPE merges ─┬─▶ ids
 *                                     └─ (SentencePiece: spaces to ▁, merges over all) ───┘
 *
 * Owns a struct vocab; needs nothing of the GGUF after tokenizer_load. Immutable after it: any
 * number of threads may encode and decode with one tokenizer at the same time. Any bytes can be
 * encoded: invalid UTF-8 is no error, its bytes become byte tokens. Time is O(n log n) in the
 * text's length, also without a single space in it. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/slice.h"
#include "core/base/status.h"
#include "core/gguf/gguf.h"
#include "core/text/vocab.h"

/* A growable array of ids; { 0 } is empty. */
struct token_list {
    uint32_t *ids;
    size_t count, cap;
};

void token_list_release(struct token_list *list);
void token_list_add(struct token_list *list, uint32_t id);
void token_list_add_all(struct token_list *list, const uint32_t *ids, size_t n);

enum {
    /* Control tokens written out in the text ("<|im_end|>") become those tokens. For templates and
     * raw prompts, never for what a chat user wrote. User-defined tokens are always matched. */
    ENCODE_PARSE_SPECIAL = 1,
    /* Puts BOS in front iff the model wants it and the ids do not begin with it already. */
    ENCODE_ADD_BOS = 2,
};

enum {
    /* Control and unknown tokens are shown as their text instead of nothing. */
    DECODE_SPECIAL = 1,
    /* The first token begins a text: SentencePiece's leading space is dropped. Not for the
       continuation of a prompt. */
    DECODE_START = 2,
};

struct tokenizer;

/* Reads vocabulary, pre-tokenizer and chat template. A pre-tokenizer or tokenizer model that is not
 * known is refused by name (STATUS_UNSUPPORTED), a damaged vocabulary with the key named
 * (STATUS_CORRUPT). */
enum status tokenizer_load(const struct gguf *g, struct tokenizer **tok, struct error *err);
void tokenizer_free(struct tokenizer *tok);

/* Appends text's ids to out. flags: ENCODE_*. ADD_BOS acts where out was empty before. Fails only
 * when the pre-tokenizer's match limit is reached (STATUS_INTERNAL); out then holds no new ids. */
enum status tokenizer_encode(const struct tokenizer *tok, struct slice text, unsigned flags,
                             struct token_list *out, struct error *err);
/* The number of tokens that `bytes` of text come to at least, at no cost: whoever takes texts of strangers need not
 * tokenize megabytes to see that they are too long. (Bytes for which a damaged vocabulary has no token are counted.) */
size_t tokenizer_least(const struct tokenizer *tok, size_t bytes);
/* Appends the bytes of n ids (each < tokenizer_n_vocab) to out. flags: DECODE_*. The result may be
 * invalid UTF-8. */
void tokenizer_decode(const struct tokenizer *tok, const uint32_t *ids, size_t n, unsigned flags,
                      struct buffer *out);

/* The raw bytes of one token (may be part of a character): a control token gives its text
 * ("<|im_end|>"), see tokenizer_is_hidden; an unused one is empty. id < n_vocab. */
struct slice tokenizer_piece(const struct tokenizer *tok, uint32_t id);
/* Whether the token is a control or unknown token, which an answer's text does not show. */
bool tokenizer_is_hidden(const struct tokenizer *tok, uint32_t id);
/* Whether the token ends a generation: eos, eot, eom and the well-known end markers. Ids ≥ n_vocab:
 * false. */
bool tokenizer_is_eog(const struct tokenizer *tok, uint32_t id);

uint32_t tokenizer_n_vocab(const struct tokenizer *tok);
/* TOKEN_NONE where there is none. */
uint32_t tokenizer_bos(const struct tokenizer *tok);
uint32_t tokenizer_eos(const struct tokenizer *tok);
bool tokenizer_add_bos(const struct tokenizer *tok);
const struct vocab *tokenizer_vocab(const struct tokenizer *tok);

#endif
