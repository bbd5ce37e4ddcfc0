/* store.h: the drafter that looks the end of a text up in recent answers.
 *
 *     ring   | answer of A ....... | answer of B ... | answer of A .... |   overwritten in turn
 *     index  hash(salt, 3 tokens) -> the latest place behind them
 *
 * Answers are found under their own salt alone, so no text shows through to another tenant, not
 * even by the time that an answer takes. Fixed size: STORE_TOKENS tokens and as many index entries;
 * what an entry points at may be overwritten, so everything is compared before it is used. */
#ifndef SPEC_STORE_H
#define SPEC_STORE_H

#include "core/spec/drafter.h"

#define STORE_TOKENS (1u << 16)
#define STORE_LEAST 3u

struct drafter *store_drafter(void);

#endif
