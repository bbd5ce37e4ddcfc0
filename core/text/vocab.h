/* vocab.h: the tokens of a model: text, bytes, kind, score, merges; read from a GGUF and checked.
 *
 * Owns copies of everything, so the GGUF may be closed afterwards. Immutable after vocab_load. Ids
 * are dense, 0..n-1. Two texts belong to a token: `text` as the file has it ("Ġhello", "▁hello",
 * "<0x0A>"), by which encoding looks tokens up, and `bytes`, what it stands for in the output ("
 * hello", "\n"). Padding tokens that the file marks as unused have no bytes and cannot be encoded.
 */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/slice.h"
#include "core/base/status.h"
#include "core/gguf/gguf.h"

#define TOKEN_NONE UINT32_MAX

enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,      /* special: matched in text only on request, never shown unless asked */
    TOKEN_USER_DEFINED = 4, /* matched in any text before it is split, and shown */
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6, /* SentencePiece's byte fallback "<0xXX>" */
};

enum vocab_model {
    VOCAB_BPE, /* tokenizer.ggml.model "gpt2": byte-level BPE by ranked merges */
    VOCAB_SPM, /* "llama": SentencePiece-style merges by score, byte fallback */
};

struct vocab_token {
    struct slice text, bytes;
    float score; /* SPM only */
    uint8_t kind;
    bool eog; /* ends a generation */
};

/* BPE: the pair (left, right) of symbols becomes `result` with this rank; lower ranks merge first.
 * A symbol is a token id, or n_tokens + k for a text that only merges know (it is emitted byte by
 * byte if a word ends with it). */
struct vocab_merge {
    uint32_t left, right, result, rank;
};

struct vocab;

enum status vocab_load(const struct gguf *g, struct vocab **v, struct error *err);
void vocab_free(struct vocab *v);

enum vocab_model vocab_model(const struct vocab *v);
uint32_t vocab_size(const struct vocab *v);
/* id < vocab_size. */
const struct vocab_token *vocab_token(const struct vocab *v, uint32_t id);
/* The token with exactly this text, of any kind, or TOKEN_NONE. */
uint32_t vocab_find(const struct vocab *v, struct slice text);
/* The symbol with exactly this text, or TOKEN_NONE: a token that plain text may become (a control
 * token's text, spelled out by a user, never becomes that token), or a text that only merges know.
 */
uint32_t vocab_symbol(const struct vocab *v, struct slice text);
/* What one byte of text begins as: BPE: its symbol; SPM: its byte-fallback token. TOKEN_NONE if there is none. */
uint32_t vocab_byte(const struct vocab *v, uint8_t byte);
/* The merge of two adjacent symbols, or NULL. BPE only. */
const struct vocab_merge *vocab_merge(const struct vocab *v, uint32_t left, uint32_t right);
/* The bytes of a symbol, also of those that are no token. */
struct slice vocab_symbol_bytes(const struct vocab *v, uint32_t symbol);
/* Length in bytes of the longest symbol text. */
uint32_t vocab_longest(const struct vocab *v);

/* Special ids: TOKEN_NONE where the model has none. */
uint32_t vocab_bos(const struct vocab *v);
uint32_t vocab_eos(const struct vocab *v);
uint32_t vocab_unknown(const struct vocab *v);
/* Whether a text gets BOS in front (add_bos_token; absent: SPM yes, BPE no). */
bool vocab_add_bos(const struct vocab *v);
/* Whether SPM puts a space in front of a text. */
bool vocab_space_prefix(const struct vocab *v);

#endif
