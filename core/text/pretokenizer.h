/* pretokenizer.h: splits a text into the words that byte-level BPE merges within; one rule a model
 * family.
 *
 * A rule is a list of regular expressions. Each splits the pieces that the one before it left: its
 * matches and the gaps between them both become pieces. Expressions are compiled once (PCRE2, UTF,
 * UCP, JIT where possible, limits on backtracking); a struct pretokenizer is immutable and may be
 * used by many threads at once. Runs of bytes that are not UTF-8 become words of their own. */
#ifndef TEXT_PRETOKENIZER_H
#define TEXT_PRETOKENIZER_H

#include <stdbool.h>

#include "core/base/slice.h"
#include "core/base/status.h"

struct pretokenizer;

/* By the value of tokenizer.ggml.pre; a name that is not known is refused (STATUS_UNSUPPORTED). */
enum status pretokenizer_create(struct slice name, struct pretokenizer **p, struct error *err);
void pretokenizer_free(struct pretokenizer *p);

/* Whether the family normalises text to NFC first. */
bool pretokenizer_nfc(const struct pretokenizer *p);
/* Whether a word that is a token is taken whole, whatever the merges would make of it. */
bool pretokenizer_whole_words(const struct pretokenizer *p);

/* Calls word(context, …) for each word, from left to right; together they are the text. Fails
 * (STATUS_INTERNAL) when an expression reaches its limit. */
enum status pretokenizer_split(const struct pretokenizer *p, struct slice text,
                               void (*word)(void *context, struct slice word), void *context,
                               struct error *err);

#endif
