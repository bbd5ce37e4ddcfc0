/* attention.h: the attention stages of a layer, over pages.
 *
 * An item is an item of the plan (plan.h: one block of queries, or several that share pages) and a
 * KV head: all query heads of that KV head and all tokens that see a run share each tile that is
 * read. Runs of 256 positions are counted from position
 * 0 and folded in order (kernels.h), so the cut into items cannot be seen in the result. When there
 * are few items and they cannot be shared out evenly (a few long sequences), runs become items of
 * their own, and a further stage folds them. While a thread works on a run, the kernel brings near
 * what it reads next.
 *
 * q4: the runs hold the positions before a query's own page; that page, in f16, is folded in behind them as a run of its
 * own, of one tile. The outcome is put back through the Hadamard transform. */
#ifndef MODEL_ATTENTION_H
#define MODEL_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/kernels/kernels.h"
#include "core/kernels/team.h"
#include "core/model/kv_geometry.h"
#include "core/model/plan.h"

struct attention {
    const struct kernels *kernels;
    const struct kv_geometry *geometry;
    uint32_t group; /* query heads of a KV head */
    float scale;
    uint32_t threads;
    /* Scratch of each thread: the queries of an item, (max, sum) of each, outputs of one run. */
    uint8_t *scratch;
    size_t thread_bytes, states_at, outs_at;
    /* For types that want them: the step's queries, quantised, [token][head][blocks]. */
    struct query_block *blocks;
    uint32_t n_blocks; /* of a head; 0: not wanted */
    /* Where runs are items: max, sum and output of each (query, head, run). */
    uint32_t parts_cap;
    float *part_max, *part_sum, *part_outs;
};

/* The operands of one layer's attention: q and out are [token][head · dim] with rows of ldq and ldo
 * floats; out is written. */
struct attention_layer {
    const struct step *step;
    const struct plan_queries *queries;
    uint32_t layer;
    const float *q;
    size_t ldq;
    float *out;
    size_t ldo;
};

/* Bytes of scratch; attention_init cuts it (64-byte aligned) into the arrays. */
size_t attention_scratch(const struct kv_geometry *geometry, uint32_t group, uint32_t tokens,
                         uint32_t threads);
void attention_init(struct attention *a, const struct kernels *kernels,
                    const struct kv_geometry *geometry, uint32_t group, float scale,
                    uint32_t tokens, uint32_t threads, void *scratch);
/* To be called for each token of a step and KV head before they attend, once its group's queries, at q, are ready. */
void attention_prepare(const struct attention *a, uint32_t token, uint32_t head, const float *q);
/* Whether the runs of these queries' items become items of their own. */
bool attention_splits(const struct attention *a, const struct plan_queries *queries);
/* All stages of one layer; called by every member of a run. */
void attention_stages(const struct attention *a, const struct attention_layer *l,
                      struct team_member *me);
/* One item by itself, all its runs: queries of the plan's item `item`, heads of KV head `head`. */
void attention_item(const struct attention *a, const struct attention_layer *l, uint32_t item,
                    uint32_t head, uint32_t thread);

#endif
