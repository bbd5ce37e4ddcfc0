/* numbers.h: numbers on the command line: all of the word, within bounds; else false. */
#ifndef TOOLS_NUMBERS_H
#define TOOLS_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

bool whole(const char *text, uint64_t least, uint64_t most, uint64_t *n);
bool whole32(const char *text, uint32_t least, uint32_t most, uint32_t *n);
/* Above zero. */
bool positive(const char *text, double most, double *x);

#endif
