/* byte_map.h: the code of byte-level BPE, in which vocabularies write bytes as printable
 * characters.
 *
 * Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for themselves as code points; the other 68, in
 * ascending order, are U+0100, U+0101, … (so a space is U+0120 "Ġ", a newline U+010A "Ċ"). The rule
 * is GPT-2's. */
#ifndef TEXT_BYTE_MAP_H
#define TEXT_BYTE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/slice.h"

/* The UTF-8 of the character that stands for byte; returns its length, 1 or 2. */
size_t byte_map_put(uint8_t byte, char out[4]);
/* Translates a text in this code to its bytes; what is not in the code is copied as it is. out has
 * room for text.len bytes; returns how many were written. */
size_t byte_map_decode(struct slice text, char *out);

#endif
