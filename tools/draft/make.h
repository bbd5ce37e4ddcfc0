/* make.h: the three things that `tokenring draft` does. Exit statuses as in tools/tool.h. */
#ifndef TOOLS_DRAFT_MAKE_H
#define TOOLS_DRAFT_MAKE_H

#include "tools/draft/options.h"

/* Texts, training, export; progress on standard error. Ends early, with its state written, when a
 * signal comes. */
int draft_make(const struct draft_options *o);
/* Measures the draft o->output on the prompts o->measure; a table, one line a class. */
int draft_measure(const struct draft_options *o);

/* "tokenring draft: text" on standard error; 1. */
int draft_fail(const char *text);

#endif
