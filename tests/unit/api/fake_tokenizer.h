/* fake_tokenizer.h: the calls of core/text that core/api makes, with a vocabulary that one can do in
 * the head: ids 0 to 255 are bytes, then the few below. So what api_parse and api_reply do is tested
 * without a model, and a test can ask for a model without BOS or without ChatML. */
#ifndef FAKE_TOKENIZER_H
#define FAKE_TOKENIZER_H

#include <stdbool.h>

#include "core/api/api.h"
#include "core/text/tokenizer.h"

enum {
    FAKE_IM_START = 256, /* control */
    FAKE_IM_END,         /* control, ends a generation */
    FAKE_BOS,            /* control */
    FAKE_THE,            /* " the" */
    FAKE_E_ACUTE,        /* two bytes, one character */
    FAKE_SECOND_A,       /* "a" once more */
    FAKE_HALF,           /* the first two bytes of a euro sign */
    FAKE_N_VOCAB
};

struct tokenizer {
    bool add_bos, chatml;
};

extern const struct tokenizer fake_tokenizer, fake_without_bos, fake_without_chat;

/* A context of 512 positions with the names "fake" and "org/fake-1". */
extern const struct api_context fake_context;

#endif
