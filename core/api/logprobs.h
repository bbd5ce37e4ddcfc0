/* logprobs.h: the log-probability entries of a choice, kept until there is a chunk to put them in.
 *
 * A record is a struct logprob_record and top_logprobs struct api_top behind it (fewer used when
 * the vocabulary is smaller), all of one reply equally long. */
#ifndef API_LOGPROBS_H
#define API_LOGPROBS_H

#include "core/api/reply.h"

struct logprob_record {
    uint32_t token;
    float logprob;
    uint32_t character; /* of the answer, in which this token begins */
    uint32_t n_top;
};

/* Keeps a token's entry. No effect if the request wants no log-probabilities. */
void logprobs_keep(const struct api_reply *r, struct api_choice *c, const struct api_token *token);
/* Writes the value of a choice's "logprobs" with all waiting entries, which wait no longer; null if
 * the request wants none. */
void logprobs_write(const struct api_reply *r, struct api_choice *c, struct buffer *out);

#endif
