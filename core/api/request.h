/* request.h: a request body becomes a struct api_request, wholly checked, or an error that names
 * the field.
 *
 * Rules of reading:
 * - JSON by RFC 8259; of equal keys the last wins; at most JSON_DEPTH_MAX levels. Invalid UTF-8 and
 * lone surrogates are refused anywhere, U+0000 in every text that is used.
 * - null is the same as absent for every optional field.
 * - Whole numbers may be written as 5 or 5.0. Every number has a range; outside of it is an error,
 * never clamped.
 * - Fields that nobody here knows are ignored. Fields that would change the answer and are not
 * supported (tools, response_format other than text, echo, ...) are refused by name unless
 * they hold their do-nothing value.
 *
 * Ownership: a parsed request owns its tokens (malloc'ed; a caller who takes them over sets the
 * pointer to NULL), bias and stop strings until api_request_release. `model` points into the
 * context. */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/api/route.h"
#include "core/base/slice.h"
#include "core/base/status.h"

struct api_context;

enum {
    API_STOP_MAX = 4,                 /* stop strings of a request */
    API_STOP_BYTES = 1024,            /* bytes of one stop string */
    API_CHOICES_MAX = 128,            /* n, where the context allows so many */
    API_TOP_CHAT = 20,                /* top_logprobs of chat completions */
    API_TOP_COMPLETIONS = 5,          /* logprobs of completions */
    API_SALT_BYTES = 1024,            /* bytes of cache_salt */
    API_BIAS_MAX = 4096,              /* entries of logit_bias */
    API_MESSAGES_MAX = 16384,         /* messages of a chat */
    API_BODY_BYTES = 16 * 1024 * 1024 /* default of api_context.body_limit */
};

struct api_bias {
    uint32_t token;
    float bias; /* -100 to 100, added to the logit */
};

/* How the next token is chosen; the order in which these apply is the sampler's
 * (core/model/sample.h). */
struct api_sampling {
    float temperature;        /* 0 to 2, default 1; 0 = greedy */
    float top_p;              /* 0 to 1, default 1 = off */
    float min_p;              /* 0 to 1, default 0 = off */
    uint32_t top_k;           /* default 0 = off */
    float repetition_penalty; /* above 0, at most 10, default 1 = off */
    float presence_penalty;   /* -2 to 2, default 0 */
    float frequency_penalty;  /* -2 to 2, default 0 */
    bool has_seed;            /* false: the caller draws a seed */
    uint64_t seed;            /* a negative seed is taken modulo 2^64 */
    struct api_bias *bias;    /* ascending by token, no token twice */
    size_t n_bias;
};

struct api_request {
    enum api_endpoint endpoint; /* API_CHAT or API_COMPLETIONS */
    const char *model;          /* the name asked for; ctx->names[0] if none was */
    uint32_t *tokens;           /* the prompt, at least one token */
    size_t n_tokens;
    /* Tokens to make at most; absent in the request: the rest of the context. n_tokens + max_tokens
     * <= context. 0 only for completions that asked for it: the answer is empty, with finish reason
     * "length". */
    uint32_t max_tokens;
    uint32_t n_choices; /* answers to make from the prompt, at least 1, at most ctx->max_choices */
    struct api_sampling sampling;
    struct slice stop[API_STOP_MAX]; /* not empty, valid UTF-8 */
    size_t n_stop;
    int top_logprobs; /* -1: no log-probabilities; else the chosen token's and so many of the most
                         probable */
    bool stream;
    bool include_usage;  /* stream_options.include_usage */
    uint32_t predict_ms; /* time for the answer from its first token on; 0: no limit */
    bool ignore_eos;     /* an end-of-generation token does not end the answer */
    char *cache_salt; /* malloc'ed, or NULL: whose texts may share their KV pages with this one */
    size_t cache_salt_len;
    void *storage; /* holds the stop strings */
};

/* Parses and validates body for endpoint (API_CHAT or API_COMPLETIONS) and tokenizes its prompt. On
 * STATUS_OK out owns memory (api_request_release); on any other status out is empty and err (not
 * NULL) has the sentence and, where one is at fault, the field. Thread-safe: ctx is only read. */
enum status api_parse(enum api_endpoint endpoint, struct slice body, const struct api_context *ctx,
                      struct api_request *out, struct error *err);

/* Frees what the request owns and zeroes it; a zeroed request may be released. */
void api_request_release(struct api_request *req);

#endif
