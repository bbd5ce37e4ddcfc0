/* reply.h: what the model makes becomes SSE events (stream) or one JSON body.
 *
 *     api_reply_init ─▶ (api_reply_token* ─▶ api_reply_end) of each choice ─▶ api_reply_finish
 *                                        └▶ api_error_event, api_error_json (info.h)
 *
 * Each appends to a buffer of the caller: whole SSE events, or nothing, or the whole body.
 *
 *     chat, stream:  role chunk | content chunk* | finish chunk | usage chunk if asked for | [DONE]
 *                    of each    | '-- of all choices, mixed --'
 *
 * A request has n choices, named by their index. Each has its own text, log-probabilities and end; a
 * chunk is of one choice; the role chunks come first, all of them in order, since OpenAI's SDK wants to see
 * the choices so. The prompt is counted once, the tokens made of all choices together.
 *
 * Text and tokens need not align: the detokenizer holds back halves of characters and beginnings of
 * stop strings, so a token may come with no text and a later one with the text of several.
 * Log-probability entries wait until the next chunk that has text and go with it; what still waits
 * goes with the finish chunk. So each token given to api_reply_token has exactly one entry. The
 * end-of-generation token and tokens whose text a stop string took are not given.
 *
 * After api_reply_finish the reply is over. One that fails instead ends with an error event, or, where the client has no
 * byte yet, with an error body under a real HTTP status. Not streaming: api_reply_token collects, the end writes the
 * body. */
#ifndef API_REPLY_H
#define API_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/api/route.h"
#include "core/base/buffer.h"
#include "core/base/slice.h"
#include "core/base/status.h"

struct api_context;
struct api_request;

/* One of the most probable tokens at a position. */
struct api_top {
    uint32_t token;
    float logprob;
};

/* A token that was made. With logprobs off only `token` counts. */
struct api_token {
    uint32_t token;
    float logprob;
    const struct api_top *top; /* descending by logprob; as many as the request asked for */
    size_t n_top;
};

enum api_finish { API_FINISH_STOP, API_FINISH_LENGTH };

/* The figures of a finished request. */
struct api_totals {
    uint32_t prompt_tokens;
    uint32_t cached_tokens; /* of the prompt, found in the prefix cache */
    uint32_t completion_tokens;
    bool drafts;                /* speculation is on: the next two are told */
    uint32_t drafted, accepted; /* tokens guessed and verified; of those, right */
    double queue_ms;            /* arrival to first step */
    double prompt_ms;           /* first step to first token */
    double predicted_ms;        /* first token to last token */
    bool has_hash;              /* --trace-logits */
    uint64_t logits_hash;
};

/* One answer of a reply. */
struct api_choice {
    uint32_t index;
    bool ended; /* it was given to api_reply_end, and */
    enum api_finish reason;
    struct buffer text;    /* not streaming: the answer so far */
    struct buffer waiting; /* log-probabilities not yet written: n_waiting records (logprobs.h) */
    uint32_t n_waiting;
    uint32_t characters; /* characters begun by the tokens so far */
    bool has_hash;       /* as its api_totals had */
    uint64_t logits_hash;
};

struct api_reply {
    const struct api_context *ctx;
    enum api_endpoint endpoint;
    bool stream, include_usage;
    bool started;       /* the role chunks are out */
    int top_logprobs;   /* -1: no log-probabilities */
    struct buffer head; /* what every chunk begins with, up to the choices */
    struct api_choice *choices;
    uint32_t n_choices;
};

/* Starts a reply to req. id is the request's id (X-Request-Id); the reply's id is "chatcmpl-" or
 * "cmpl-" and it. created: seconds since 1970. Copies what it needs of id and req; ctx must outlive
 * the reply. */
void api_reply_init(struct api_reply *r, const struct api_context *ctx,
                    const struct api_request *req, struct slice id, uint64_t created);
void api_reply_release(struct api_reply *r);

/* "text/event-stream" or "application/json". */
const char *api_reply_content_type(const struct api_reply *r);

/* A token of that choice was made, and `text` (complete UTF-8, may be empty) came free by it.
 * Streaming: appends an event to out if there is text (and before it, once, the role chunks); out may
 * stay as it is. */
void api_reply_token(struct api_reply *r, uint32_t choice, const struct api_token *token,
                     struct slice text, struct buffer *out);

/* The end of a choice. `text` is what the detokenizer still held (may be empty); totals: the figures
 * of this choice. Streaming: its last chunks. */
void api_reply_end(struct api_reply *r, uint32_t choice, enum api_finish reason, struct slice text,
                   const struct api_totals *totals, struct buffer *out);

/* The end; all choices have theirs. totals: the figures of all together (a logits hash only where there
 * is one choice). Streaming: usage if asked for, and [DONE]; else the body. */
void api_reply_finish(struct api_reply *r, const struct api_totals *totals, struct buffer *out);

/* A comment that keeps an idle stream alive: ": keepalive" and an empty line. */
void api_keepalive(struct buffer *out);
/* The same as data, for clients that take no notice of comments: a chunk with nothing in it of
 * the first choice that goes on; in a chat that has not begun, the role chunks. Streaming only. */
void api_reply_keepalive(struct api_reply *r, struct buffer *out);

#endif
