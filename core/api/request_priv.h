/* request_priv.h: the parts of api_parse, one file each: request.c has the plain fields, refuse.c
 * what is not supported, prompt.c messages and prompts. */
#ifndef API_REQUEST_PRIV_H
#define API_REQUEST_PRIV_H

#include "core/api/api.h"
#include "core/api/fields.h"

/* STATUS_UNSUPPORTED, naming the field, if a field asks for something that would change the answer
 * and is not built; STATUS_INVALID if its type or range is wrong. */
enum status refuse_unsupported(const struct fields *f, enum api_endpoint endpoint);

/* Reads messages (chat) or prompt (completions) into out->tokens. */
enum status parse_prompt(const struct fields *f, const struct api_context *ctx,
                         struct api_request *out);

#endif
