/* normalize.h: Unicode normalisation form C, in time O(n log n) for any text. */
#ifndef TEXT_NORMALIZE_H
#define TEXT_NORMALIZE_H

#include <stdbool.h>

#include "core/base/buffer.h"
#include "core/base/slice.h"

/* Whether the text is in NFC for a reason that is quick to see (no character at or above U+0300).
 */
bool normalize_is_trivial(struct slice text);
/* Appends the text's NFC to out; bytes that are not UTF-8 are copied. */
void normalize_nfc(struct slice text, struct buffer *out);

#endif
