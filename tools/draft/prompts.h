/* prompts.h: what the target is asked, so that it writes the texts that its draft learns from.
 *
 *     bare      nothing: the target writes the user's turn, too
 *     opened    the first words of a question; the target goes on
 *     whole     a template filled with a topic, a programming task, or something to do with a text
 *               that the target wrote before
 *
 * The lists are our own; no data set is used. */
#ifndef TOOLS_DRAFT_PROMPTS_H
#define TOOLS_DRAFT_PROMPTS_H

#include <stdbool.h>

#include "core/base/buffer.h"
#include "tools/draft/random.h"

enum prompt_kind { PROMPT_BARE, PROMPT_OPENED, PROMPT_WHOLE };

/* Replaces out by the user's words. earlier: a text of the target's own, empty if there is none
 * yet. */
enum prompt_kind prompt_make(struct random *random, struct slice earlier, struct buffer *out);
/* A follow-up to an answer; whole. */
void prompt_follow_up(struct random *random, struct buffer *out);
/* A system message, or NULL for the model's own. */
const char *prompt_system(struct random *random);

#endif
