/* kv_geometry.h: where K and V of a position lie inside a page. Nobody else knows these offsets.
 *
 * A page holds KV_TILE_POSITIONS (32) positions of all layers, of one sequence (or of several that
 * share a prefix):
 *
 *     layer 0: K head 0 | K head 1 | … | V head 0 | V head 1 | …      one tile a KV head,
 *     layer 1: K head 0 | …                                           each 64-byte aligned
 *
 *     K tile: [dim][32 positions]        V tile: [32 positions][dim]        (q8_0: core/kernels/kv_q8.h)
 *
 * so that attention reads each tile once, in order. Position p lies in page p / 32 of its sequence,
 * at p % 32. Numbers are rounded to the type when written; every query, its own position's
 * included, reads the rounded value. A pool of pages belongs to one geometry. */
#ifndef MODEL_KV_GEOMETRY_H
#define MODEL_KV_GEOMETRY_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/status.h"
#include "core/kernels/kernels.h"

/* Asks for the type that suits the model: q8_0 (its perplexity is f16's within a tenth of a percent, docs/options.md),
 * but f16 for heads of fewer than 32 numbers, which have no whole block to share a scale. */
#define KV_AUTO KV_TYPES

struct kv_geometry {
    enum kv_type type; /* never KV_AUTO */
    uint32_t layers;
    uint32_t heads; /* KV heads */
    uint32_t dim;   /* head size */
    size_t tile;    /* bytes of one head's K (or V) tile */
    size_t layer;   /* bytes of a layer: 2 · heads · tile */
    size_t page;    /* bytes of a page: layers · layer, a multiple of 64 */
};

/* type may be KV_AUTO. Refuses zero counts and pages over 1 GiB (STATUS_UNSUPPORTED), naming the numbers. */
enum status kv_geometry_init(struct kv_geometry *g, enum kv_type type, uint32_t layers,
                             uint32_t heads, uint32_t dim, struct error *err);

/* The type of that name, "auto" among them; a name of a type that is known but not there (q4) is refused as
 * such. */
enum status kv_geometry_type(const char *name, enum kv_type *type, struct error *err);

/* Pages that hold n positions. */
static inline uint32_t kv_geometry_pages(uint32_t positions)
{
    return positions / KV_TILE_POSITIONS + (positions % KV_TILE_POSITIONS != 0);
}

static inline void *kv_geometry_k(const struct kv_geometry *g, void *page, uint32_t layer,
                                  uint32_t head)
{
    return (char *)page + layer * g->layer + head * g->tile;
}

static inline void *kv_geometry_v(const struct kv_geometry *g, void *page, uint32_t layer,
                                  uint32_t head)
{
    return (char *)page + layer * g->layer + (g->heads + head) * g->tile;
}

#endif
