/* rope.h: rotary position embedding: which angles.
 *
 * Pair i of a head turns by position · frequency[i]; the kernels turn pairs by given cosines and
 * sines, this file makes those. Frequencies, i < pairs = dims / 2:
 *
 *     none    base^(−2i/dims)
 *     linear  the same / factor
 *     yarn    between both: pairs that turn often in the original context keep their frequency,
 *             slow ones are interpolated, a ramp lies between; cosines and sines are scaled by
 *             attn_factor · (0.1 · ln factor + 1)                      (Peng et al., 2309.00071)
 *     any of these / the number in the rope_freqs tensor (Llama 3.1's long context)
 *
 * All in double, angles too, with an own sine and cosine: the same bits everywhere. */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H

#include <stdint.h>

#include "core/base/status.h"
#include "core/gguf/gguf.h"

struct rope {
    uint32_t pairs;
    double scale;        /* of cosines and sines */
    double *frequencies; /* pairs of them, owned */
};

/* Reads the keys of architecture `arch` (rope.*) and the tensor rope_freqs.weight; dims is
 * rope.dimension_count. Unknown kinds are refused by name, impossible numbers with the key. */
enum status rope_init(struct rope *rope, const struct gguf *g, const char *arch, uint32_t dims,
                      uint32_t context, struct error *err);
void rope_release(struct rope *rope);

/* Cosines and sines of one position, `pairs` each, scaled. */
void rope_table(const struct rope *rope, uint32_t position, float *cos, float *sin);

#endif
