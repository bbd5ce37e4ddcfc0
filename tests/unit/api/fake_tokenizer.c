#include "tests/unit/api/fake_tokenizer.h"

#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/text/chat.h"

const struct tokenizer fake_tokenizer = {.add_bos = true, .chatml = true};
const struct tokenizer fake_without_bos = {.add_bos = false, .chatml = true};
const struct tokenizer fake_without_chat = {.add_bos = true, .chatml = false};

static const char *const names[] = {"fake", "org/fake-1"};
const struct api_context fake_context = {
    .tokenizer = &fake_tokenizer,
    .names = names,
    .n_names = 2,
    .fingerprint = "fp_test",
    .created = 1700000000,
    .context = 512,
    .max_choices = 8,
    .body_limit = 1 << 20,
};

static const char *const pieces[] = {"<|im_start|>", "<|im_end|>", "<s>",     " the",
                                     "\xc3\xa9",     "a",          "\xe2\x82"};

void token_list_release(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

void token_list_add(struct token_list *list, uint32_t id)
{
    if (list->count == list->cap) {
        list->cap = list->cap * 2 + 16;
        list->ids = xreallocarray(list->ids, list->cap, sizeof(*list->ids));
    }
    list->ids[list->count++] = id;
}

enum status tokenizer_encode(const struct tokenizer *tok, struct slice text, unsigned flags,
                             struct token_list *out, struct error *err)
{
    (void)err;
    if ((flags & ENCODE_ADD_BOS) && tok->add_bos)
        token_list_add(out, FAKE_BOS);
    while (text.len > 0) {
        size_t step = 1;
        uint32_t id = (unsigned char)text.ptr[0];
        for (uint32_t i = 0; i < 3 && (flags & ENCODE_PARSE_SPECIAL); i++) {
            if (slice_starts(text, slice_of(pieces[i]))) {
                id = FAKE_IM_START + i;
                step = strlen(pieces[i]);
            }
        }
        token_list_add(out, id);
        text.ptr += step;
        text.len -= step;
    }
    return STATUS_OK;
}

size_t tokenizer_least(const struct tokenizer *tok, size_t bytes)
{
    (void)tok;
    return bytes / 12; /* "<|im_start|>" */
}

struct slice tokenizer_piece(const struct tokenizer *tok, uint32_t id)
{
    static char bytes[256];
    (void)tok;
    if (id >= 256)
        return slice_of(pieces[id - 256]);
    bytes[id] = (char)id;
    return slice_make(&bytes[id], 1);
}

uint32_t tokenizer_n_vocab(const struct tokenizer *tok)
{
    (void)tok;
    return FAKE_N_VOCAB;
}

enum status chat_supported(const struct tokenizer *tok, struct error *err)
{
    if (tok->chatml)
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "the chat template is not ChatML");
}

enum status chat_prompt(const struct tokenizer *tok, const struct chat_message *messages, size_t n,
                        bool answer, struct token_list *out, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        token_list_add(out, FAKE_IM_START);
        tokenizer_encode(tok, messages[i].role, 0, out, err);
        token_list_add(out, '\n');
        tokenizer_encode(tok, messages[i].content, 0, out, err);
        token_list_add(out, FAKE_IM_END);
    }
    if (answer)
        token_list_add(out, FAKE_IM_START);
    return STATUS_OK;
}
