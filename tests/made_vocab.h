/* made_vocab.h: small made-up vocabularies as GGUF files in memory, so that tests need no model; header only.
 *
 * Byte-level BPE: ids 0..255 are the bytes, then the results of the merges in their order, then the special tokens.
 * SentencePiece-style: 0 <unk>, 1 <s>, 2 </s>, 3..258 the bytes, then the words with the scores given. */
#ifndef TESTS_MADE_VOCAB_H
#define TESTS_MADE_VOCAB_H

#include "core/text/byte_map.h"
#include "core/text/tokenizer.h"
#include "tests/gguf_builder.h"

struct made_special {
    const char *text;
    int32_t kind;
};

/* The specials of made_bpe, behind the merges. */
enum { MADE_START, MADE_END, MADE_TOOL, MADE_TOOLBOX, MADE_UNUSED, MADE_SPECIALS };

static const struct made_special made_specials[MADE_SPECIALS] = {
    {"<|im_start|>", TOKEN_CONTROL}, {"<|im_end|>", TOKEN_CONTROL},
    {"<tool>", TOKEN_USER_DEFINED},  {"<tool>box", TOKEN_USER_DEFINED},
    {"[PAD]", TOKEN_UNUSED},
};

/* Words of the default BPE vocabulary: id 256 + index. */
static const char *const made_merges[] = {
    "h e",
    "l l",
    "he ll",
    "hell o",
    "\xc4\xa0 w",
    "o r",
    "\xc4\xa0w or",
    "l d",
    "\xc4\xa0wor ld",
    "\xc4\x8a \xc4\x8a",
    "a a",
    "aa aa",
    "\xc3\xa2 \xc4\xa4",
    "1 2",
    "' s",
};
#define MADE_N_MERGES (sizeof(made_merges) / sizeof(made_merges[0]))
#define MADE_FIRST_SPECIAL ((uint32_t)(256 + MADE_N_MERGES))

/* Appends a BPE vocabulary with these merges ("left right" in byte_map's code) to b; bos and eos are the ChatML markers. */
static inline void made_bpe_with(struct gguf_builder *b, const char *pre, const char *const *merges,
                                 size_t n_merges, const char *chat_template)
{
    size_t n = 256 + n_merges + MADE_SPECIALS, used = 0;
    struct slice *texts = malloc((n + n_merges) * sizeof(*texts)), *merge_texts = texts + n;
    int32_t *kinds = malloc(n * sizeof(*kinds));
    char *space = malloc(256 * 2 + n_merges * 256);
    for (unsigned i = 0; i < 256; i++) {
        size_t len = byte_map_put((uint8_t)i, space + used);
        texts[i] = slice_make(space + used, len);
        kinds[i] = TOKEN_NORMAL;
        used += len;
    }
    for (size_t i = 0; i < n_merges; i++) {
        const char *cut = strchr(merges[i], ' ');
        size_t left = (size_t)(cut - merges[i]), right = strlen(cut + 1);
        memcpy(space + used, merges[i], left);
        memcpy(space + used + left, cut + 1, right);
        texts[256 + i] = slice_make(space + used, left + right);
        kinds[256 + i] = TOKEN_NORMAL;
        merge_texts[i] = slice_of(merges[i]);
        used += left + right;
    }
    for (size_t i = 0; i < MADE_SPECIALS; i++) {
        texts[256 + n_merges + i] = slice_of(made_specials[i].text);
        kinds[256 + n_merges + i] = made_specials[i].kind;
    }
    builder_str(b, "tokenizer.ggml.model", "gpt2");
    builder_str(b, "tokenizer.ggml.pre", pre);
    builder_strings(b, "tokenizer.ggml.tokens", texts, n);
    builder_array(b, "tokenizer.ggml.token_type", GGUF_I32, kinds, n, sizeof(*kinds));
    builder_strings(b, "tokenizer.ggml.merges", merge_texts, n_merges);
    builder_u32(b, "tokenizer.ggml.bos_token_id", (uint32_t)(256 + n_merges + MADE_START));
    builder_u32(b, "tokenizer.ggml.eos_token_id", (uint32_t)(256 + n_merges + MADE_END));
    if (chat_template != NULL)
        builder_str(b, "tokenizer.chat_template", chat_template);
    free(texts);
    free(kinds);
    free(space);
}

static inline void made_bpe(struct gguf_builder *b, const char *pre, const char *chat_template)
{
    made_bpe_with(b, pre, made_merges, MADE_N_MERGES, chat_template);
}

#define MADE_FIRST_WORD 259

/* Appends a SentencePiece-style vocabulary to b: words as plain text, "▁" for spaces. */
static inline void made_spm(struct gguf_builder *b, const char *const *words, const float *scores,
                            size_t n_words)
{
    size_t n = MADE_FIRST_WORD + n_words;
    struct slice *texts = malloc(n * sizeof(*texts));
    int32_t *kinds = malloc(n * sizeof(*kinds));
    float *all_scores = calloc(n, sizeof(*all_scores));
    char bytes[256][8];
    texts[0] = slice_of("<unk>"), kinds[0] = TOKEN_UNKNOWN;
    texts[1] = slice_of("<s>"), kinds[1] = TOKEN_CONTROL;
    texts[2] = slice_of("</s>"), kinds[2] = TOKEN_CONTROL;
    for (unsigned i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof(bytes[i]), "<0x%02X>", i);
        texts[3 + i] = slice_of(bytes[i]);
        kinds[3 + i] = TOKEN_BYTE;
    }
    for (size_t i = 0; i < n_words; i++) {
        texts[MADE_FIRST_WORD + i] = slice_of(words[i]);
        kinds[MADE_FIRST_WORD + i] = TOKEN_NORMAL;
        all_scores[MADE_FIRST_WORD + i] = scores[i];
    }
    builder_str(b, "tokenizer.ggml.model", "llama");
    builder_strings(b, "tokenizer.ggml.tokens", texts, n);
    builder_array(b, "tokenizer.ggml.scores", GGUF_F32, all_scores, n, sizeof(*all_scores));
    builder_array(b, "tokenizer.ggml.token_type", GGUF_I32, kinds, n, sizeof(*kinds));
    free(texts);
    free(kinds);
    free(all_scores);
}

/* Finishes b and loads its tokenizer; aborts with the message if it is refused. Releases b. */
static inline struct tokenizer *made_load(struct gguf_builder *b)
{
    struct gguf *g = builder_open(b);
    struct tokenizer *tok;
    struct error err = {0};
    if (tokenizer_load(g, &tok, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    gguf_free(g);
    builder_release(b);
    return tok;
}

/* "1 22 333" of a list, in a static buffer: for comparisons that print what differs. */
static inline const char *made_show(const struct token_list *list)
{
    static char text[1 << 16];
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < list->count && used + 16 < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%u", i == 0 ? "" : " ",
                                 list->ids[i]);
    return text;
}

#endif
