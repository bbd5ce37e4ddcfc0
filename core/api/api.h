/* api.h: HTTP bodies in, HTTP bodies out. Everything that knows OpenAI's dialect lives in this
 * folder.
 *
 *     method, path ─▶ api_route ─▶ endpoint
 *     body ─────────▶ api_parse ─▶ struct api_request (checked, defaults filled, tokenized)
 *     tokens, text ─▶ api_reply ─▶ SSE events or one JSON body
 *     struct error ─▶ api_error_json, api_error_event
 *     state ────────▶ api_models_json, api_model_json, api_health_json
 *
 * All functions are pure: no I/O, no threads, no globals, no clock. What they need to know of the
 * served model is in one struct api_context, filled once after the model is loaded and constant
 * from then on, so api_parse may run in many threads at once. A context outlives every request and
 * reply made from it. */
#ifndef API_API_H
#define API_API_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/slice.h"
#include "core/base/status.h"

struct tokenizer; /* core/text/tokenizer.h */

/* The served model, as requests see it. Borrowed pointers; nothing here is owned. */
struct api_context {
    const struct tokenizer *tokenizer;
    /* Names under which the model answers: the alias if there is one, then the id. names[0] is what
     * a reply carries when the request named no model. At least one. */
    const char *const *names;
    size_t n_names;
    const char *fingerprint; /* system_fingerprint of replies */
    uint64_t created;        /* seconds since 1970: when the model was loaded */
    uint32_t context;        /* positions a sequence may have, prompt and completion together */
    uint32_t max_choices;    /* choices a request may ask for (n), at least 1 */
    size_t body_limit;       /* bytes; a longer body is refused with STATUS_TOO_LARGE */
};

#include "core/api/info.h" /* each of these can be included alone */
#include "core/api/reply.h"
#include "core/api/request.h"
#include "core/api/route.h"

#endif
