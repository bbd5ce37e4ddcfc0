/* hash.h: the logits hash, proof that two runs computed the same numbers.
 *
 * FNV-1a 64 over the row's vocabulary entries as little-endian f32, −0 written as +0; chained: the
 * hash of one row is the start of the next. One row per emitted token, in order of position. */
#ifndef MODEL_HASH_H
#define MODEL_HASH_H

#include <stdint.h>

/* Where a sequence's chain starts: FNV's offset basis. */
#define LOGITS_HASH_START 0xcbf29ce484222325u

/* Goes on with one row of n logits. */
uint64_t logits_hash(uint64_t hash, const float *logits, uint32_t n);

#endif
