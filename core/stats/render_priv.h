/* render_priv.h: writing into a struct stats_out. */
#ifndef STATS_RENDER_PRIV_H
#define STATS_RENDER_PRIV_H

#include "core/stats/render.h"

void out_bytes(struct stats_out *out, const char *bytes, size_t n);
void out_text(struct stats_out *out, const char *text);
void out_number(struct stats_out *out, uint64_t value);
/* value / 10^digits, exactly; no zeros at the end. */
void out_decimal(struct stats_out *out, uint64_t value, unsigned digits);
/* The length of the UTF-8 character at p (NUL-terminated), 0 if there is none. */
unsigned utf8_length(const unsigned char *p);

#endif
