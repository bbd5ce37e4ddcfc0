/* terms.h: on what terms a request is served, as nginx's configuration says in pairs of the REQUEST
 * frame. The module sends no header of a client under these names.
 *
 *     x-tokenring-tenant              a text: the key of fairness, and of what may share cached pages
 *     x-tokenring-priority            0 to 9; 5
 *     x-tokenring-max-tokens          the most tokens an answer may have
 *     x-tokenring-keepalive-interval  milliseconds; 0: none; --keepalive-interval
 *     x-tokenring-queue-timeout       milliseconds; 0: none; --queue-timeout
 *     x-tokenring-request-timeout     milliseconds; 0: none; --request-timeout
 *     x-tokenring-keepalive           comment, or data: an empty chunk
 *     x-tokenring-on-disconnect       stop, or prefill: a prompt that is being computed is computed to its end
 *
 * A number that is none, or out of range, or a word that is not one of these, is as if it had not been said, and is
 * logged. */
#ifndef WORKER_TERMS_H
#define WORKER_TERMS_H

#include "core/ring/message.h"

struct generation;
struct stream;

/* Fills in the stream's terms: what m says, else the options'. */
void terms_read(struct stream *s, const struct message_request *m);
/* The terms become the generation's; its max_tokens must be set. */
void terms_apply(const struct stream *s, struct generation *g);

#endif
