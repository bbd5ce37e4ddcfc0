/* json_write.h: pieces of JSON appended to a buffer. The caller writes brackets and commas. */
#ifndef API_JSON_WRITE_H
#define API_JSON_WRITE_H

#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/slice.h"

/* The text in quotes, escaped; what is not valid UTF-8 becomes U+FFFD. */
void json_add_string(struct buffer *out, struct slice text);
/* The same without the quotes. */
void json_add_escaped(struct buffer *out, struct slice text);
/* Shortest form that keeps a float exactly; not finite (a log-probability of 0): -9999.0, as OpenAI
 * writes it. */
void json_add_float(struct buffer *out, float value);
/* Three decimals; not finite: 0. For milliseconds and rates. */
void json_add_fixed(struct buffer *out, double value);
void json_add_u64(struct buffer *out, uint64_t value);

#endif
