/* glue.h: from a parsed request to the scheduler, and from its events to the reply.
 *
 *     scheduler event ─▶ detokenizer ─▶ (stop string?) ─▶ api_reply ─▶ stream->out ─▶ ring
 *
 * A stop string ends the reply where it is found and cancels the generation; tokens that were made past it are dropped
 * and not counted. A token is given to the reply when its text is certain, so that log-probabilities stand beside
 * the text they belong to and tokens of a stop string have none. */
#ifndef WORKER_GLUE_H
#define WORKER_GLUE_H

#include "core/ring/message.h"

struct stream;
struct worker;

#define GLUE_INFO_PAIRS 11

/* Begins the reply and submits the generation; a refusal becomes the answer. */
void glue_submit(struct stream *s);
/* Its time limit has passed: it ends with what it has, as by max_tokens; with 504 if that is nothing. It is not in the
 * front pool, and may be gone afterwards. */
void glue_time_is_up(struct stream *s);
/* Handles every event that the scheduler has. */
void glue_take_events(struct worker *w);
/* Adds what is known of the generation to the response head, for nginx's variables and access log. */
void glue_info_pairs(const struct stream *s, struct message_head *head, char figures[][32]);
/* Frees reply and detokenizer. */
void glue_release(struct stream *s);

#endif
