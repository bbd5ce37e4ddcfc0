/* kv_geometry.h: where K and V of a position lie inside a page. Nobody else knows these offsets.
 *
 * A page holds KV_TILE_POSITIONS (32) positions of all layers, of one sequence (or of several that
 * share a prefix):
 *
 *     layer 0: K head 0 | K head 1 | … | V head 0 | V head 1 | …      one tile a KV head,
 *     layer 1: K head 0 | …                                           each 64-byte aligned
 *
 *     K tile: [dim][32 positions]        V tile: [32 positions][dim]        (q8_0, q4: core/kernels/kv_q8.h, kv_q4.h)
 *
 * so that attention reads each tile once, in order. Position p lies in page p / 32 of its sequence,
 * at p % 32. Numbers are rounded to the type when written; every query, its own position's
 * included, reads the rounded value. A pool of pages belongs to one geometry.
 *
 * q4: a query at t reads the positions of its own page, ⌊t / 32⌋, as f16, from an open page (alloc/open_pages.h) of the
 * same order with tiles of f16; all before them as q4. Both are written at once, so what a query sees depends on
 * positions alone. K, V and queries are in the Hadamard transform's terms (kernels.h). */
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
    uint32_t heads;              /* KV heads */
    uint32_t dim;                /* head size */
    size_t tile;                 /* bytes of one head's K (or V) tile */
    size_t layer;                /* bytes of a layer: 2 · heads · tile */
    size_t page;                 /* bytes of a page: layers · layer, a multiple of 64 */
    size_t open_tile, open_page; /* of an open page; 0 if the type needs none */
};

/* type may be KV_AUTO. Refuses zero counts and pages over 1 GiB (STATUS_UNSUPPORTED), naming the numbers. */
enum status kv_geometry_init(struct kv_geometry *g, enum kv_type type, uint32_t layers,
                             uint32_t heads, uint32_t dim, struct error *err);

/* The type of that name, "auto" among them. */
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

static inline void *kv_geometry_open_k(const struct kv_geometry *g, void *open, uint32_t layer,
                                       uint32_t head)
{
    return (char *)open + (2 * (size_t)layer * g->heads + head) * g->open_tile;
}

static inline void *kv_geometry_open_v(const struct kv_geometry *g, void *open, uint32_t layer,
                                       uint32_t head)
{
    return kv_geometry_open_k(g, open, layer, g->heads + head);
}

#endif
