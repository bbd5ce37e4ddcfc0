/* chat.h: messages to the prompt's token ids, for models whose chat template is ChatML.
 *
 *     <|im_start|>system\nYou are
 * …<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n
 *
 * Whether the model's tokenizer.chat_template is ChatML, and which system message it puts where the
 * first message is none, is found when the tokenizer is loaded. Only the markers become control
 * tokens: role and content are encoded without special tokens, so a user cannot forge a turn. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/slice.h"
#include "core/base/status.h"
#include "core/text/tokenizer.h"

struct chat_message {
    struct slice role, content; /* UTF-8 */
};

/* STATUS_OK if the model can chat; else STATUS_UNSUPPORTED and a sentence that says why not. */
enum status chat_supported(const struct tokenizer *tok, struct error *err);

/* Appends the ids of n >= 1 messages to out; with `answer` also the opening of the assistant's
 * turn. Where the first message is not of the role "system", the template's own system message (if
 * it has one) comes first. BOS in front iff the model or the template wants it, never twice. Fails
 * as chat_supported, or STATUS_INVALID without a message; out is unchanged then. */
enum status chat_prompt(const struct tokenizer *tok, const struct chat_message *messages, size_t n,
                        bool answer, struct token_list *out, struct error *err);

#endif
