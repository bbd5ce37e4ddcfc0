/* answer.h: one choice of a request's answer: from the scheduler's tokens to the reply.
 *
 *     token ─▶ detokenizer ─▶ text, certain ─▶ reply
 *         └──▶ waiting, until its text begins to leave
 *
 * It ends by a stop string (answer_token says so), or with the last event of its choice (answer_close).
 * It owns its text; the reply and the buffer for what goes out are the stream's. */
#ifndef WORKER_ANSWER_H
#define WORKER_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/api/api.h"
#include "core/base/buffer.h"
#include "core/text/detokenizer.h"

struct sched_token;
struct waiting_token;

struct answer {
    uint32_t choice;
    bool ended;
    struct detokenizer detokenizer;
    struct buffer text;            /* came out of the detokenizer, not in the reply yet */
    struct waiting_token *waiting; /* tokens whose text is not out yet */
    size_t n_waiting, cap_waiting;
    uint64_t n_released;        /* tokens given to the reply */
    uint32_t tokens;            /* that count for the usage */
    uint32_t drafted, accepted; /* as the last token said */
    uint64_t logits_hash;
    uint64_t first_ns, last_ns; /* first token, latest token */
};

void answer_init(struct answer *a, uint32_t choice, const struct tokenizer *tokenizer,
                 const struct api_request *request);
void answer_release(struct answer *a);
/* A token came at now_ns: what text it frees goes to the reply. True if a stop string is complete: then the text
 * of the choice has ended, and what is left of it lies in a->text. */
bool answer_token(struct answer *a, const struct sched_token *token, uint64_t now_ns,
                  struct api_reply *reply, struct buffer *out);
/* No further token comes. The same for what was held back; true if that completed a stop string. */
bool answer_close(struct answer *a, struct api_reply *reply, struct buffer *out);

#endif
