/* tokenizer_priv.h: the inside of a tokenizer, for the files of core/text that make its parts. */
#ifndef TEXT_TOKENIZER_PRIV_H
#define TEXT_TOKENIZER_PRIV_H

#include "core/base/buffer.h"
#include "core/text/pretokenizer.h"
#include "core/text/special.h"
#include "core/text/tokenizer.h"

/* What chat.c found in the model's template. */
struct chat_format {
    const char *refusal; /* why there is no chat; NULL: the template is ChatML */
    uint32_t start, end; /* <|im_start|>, <|im_end|> */
    bool bos;            /* the template prints BOS */
    bool has_system;     /* it has a system message of its own: */
    struct buffer system;
};

struct tokenizer {
    struct vocab *vocab;
    struct pretokenizer *pretokenizer; /* BPE only */
    struct special user_defined;       /* matched in any text */
    struct special special;            /* matched with ENCODE_PARSE_SPECIAL */
    struct chat_format chat;
    uint32_t most_bytes; /* of text that one token stands for */
};

/* Reads tokenizer.chat_template; tok->vocab is loaded. */
void chat_format_load(struct chat_format *c, const struct gguf *g, const struct vocab *v);
void chat_format_release(struct chat_format *c);

#endif
