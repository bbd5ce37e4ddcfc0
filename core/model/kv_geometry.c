#include "core/model/kv_geometry.h"

#include <string.h>

#define PAGE_MAX ((size_t)1 << 30)
#define AUTO_Q8_DIM 32u

enum status kv_geometry_init(struct kv_geometry *g, enum kv_type type, uint32_t layers,
                             uint32_t heads, uint32_t dim, struct error *err)
{
    if (layers == 0 || heads == 0 || dim == 0 || layers > 65536 || heads > 65536 || dim > 65536)
        return error_set(err, STATUS_UNSUPPORTED,
                         "KV pages for %u layers of %u KV heads of %u numbers are not supported",
                         layers, heads, dim);
    if (type == KV_AUTO)
        type = dim < AUTO_Q8_DIM ? KV_F16 : KV_Q8_0;
    size_t tile = kv_tile_bytes(type, dim);
    size_t open_tile = type == KV_Q4 ? kv_tile_bytes(KV_F16, dim) : 0;
    if ((tile > open_tile ? tile : open_tile) > PAGE_MAX / 2 / layers / heads)
        return error_set(err, STATUS_UNSUPPORTED,
                         "a KV page of %u layers of %u KV heads of %u numbers (%s) would be larger "
                         "than 1 GiB",
                         layers, heads, dim, kv_type_name(type));
    *g = (struct kv_geometry){.type = type, .layers = layers, .heads = heads, .dim = dim};
    g->tile = tile;
    g->layer = 2 * heads * tile;
    g->page = layers * g->layer;
    g->open_tile = open_tile;
    g->open_page = layers * 2 * heads * open_tile;
    return STATUS_OK;
}

enum status kv_geometry_type(const char *name, enum kv_type *type, struct error *err)
{
    if (kv_type_parse(name, type))
        return STATUS_OK;
    if (strcmp(name, "auto") == 0) {
        *type = KV_AUTO;
        return STATUS_OK;
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "there is no KV type '%s' (f32, f16, q8_0 and q4 are supported)", name);
}
