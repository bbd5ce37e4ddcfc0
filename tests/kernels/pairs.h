/* pairs.h: the (operation, tier) pairs that this CPU can run.
 *
 * An op is a slot of struct kernels with its check and its benchmark. A tier is tested on the ops
 * whose slot it replaces; the slots that it inherits were tested under the tier that made them. */
#ifndef TESTS_KERNELS_PAIRS_H
#define TESTS_KERNELS_PAIRS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/kernels/kernels.h"
#include "core/kernels/select.h"

struct machine; /* bench.h */
struct pair;

struct op {
    const char *name;
    size_t slot;      /* offset in struct kernels */
    unsigned variant; /* weight type, KV type, acts kind: what the check needs to know */
    void (*verify)(const struct pair *); /* against the scalar tier, by Check's asserts */
    void (*oracle)(const struct op *,
                   const struct kernels *scalar); /* scalar against doubles; may be NULL */
    void (*bench)(const struct pair *, const struct machine *); /* prints lines; may be NULL */
};

struct pair {
    const struct op *op;
    struct kernels scalar, kernels; /* the reference and the tier under test */
};

/* The ops of all families, in order; NULL behind the last. */
const struct op *op_at(size_t i);

#define MAX_PAIRS 512

/* Fills out with the pairs of one tier; returns their number. The tier must be present. */
size_t pairs_collect(const char *tier, const char *below, struct pair *out);
/* The pairs of a table `high` on the slots in which it differs from `low`, or on all (low NULL). */
size_t pairs_between(const struct kernels *low, const struct kernels *high, struct pair *out);

/* The pairs of the products of a table `k` in 2 or 4 streams: as its products. name: of the variant. */
size_t pairs_streamed(const struct kernels *k, uint32_t streams, const char *name,
                      struct pair *out);

/* Fills the table with the AVX-VNNI tier in its build with EVEX-encoded instructions, which runs where tier avx512 does;
 * false where it does not run. */
#define EVEX_TIER "avxvnni-evex"
bool evex_fill(struct kernels *k);

/* Op tables of the families; concatenated by pairs.c. */
extern const struct op product_ops[], attention_ops[], vector_ops[];

#endif
