/* roofline.h: what this machine could do at best, right now: the yardsticks of benchmarks.
 *
 * Both figures are for the whole team at the same moment, since clocks and memory are shared with neighbours:
 * measure them next to what they are compared with. */
#ifndef KERNELS_ROOFLINE_H
#define KERNELS_ROOFLINE_H

#include "core/kernels/team.h"

struct roofline {
    /* bytes a second that a plain read loop gets, four far-apart streams a thread */
    double read_bytes;
    /* 8-bit multiplications and additions a second of a vpdpbusd loop in registers; 0: this CPU has no
     * such instruction */
    double int8_ops;
};

struct roofline_memory;

/* Memory to read: 256 MiB, more than any cache that a guest may count as its own. NULL without memory. */
struct roofline_memory *roofline_memory_create(void);
void roofline_memory_free(struct roofline_memory *memory);
/* Takes about 30 ms. */
struct roofline roofline_measure(struct team *team, struct roofline_memory *memory);

#endif
