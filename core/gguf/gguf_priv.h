/* gguf_priv.h: what the parser fills and the getters read. */
#ifndef GGUF_GGUF_PRIV_H
#define GGUF_GGUF_PRIV_H

#include "core/gguf/gguf.h"

struct gguf_key {
    struct slice name;
    /* scalars: the value; strings: behind their length; arrays: the first element */
    const uint8_t *value;
    uint64_t count; /* strings: bytes; arrays: elements */
    enum gguf_type type;
    enum gguf_type element; /* arrays */
};

struct gguf {
    char *path;
    /* The bytes [0, have): all of a file in memory; of one on disk those up to the tensors' data, read
     * into memory of our own, for which `reserved` bytes of addresses are kept. */
    const uint8_t *bytes;
    uint64_t size, have;
    size_t reserved;
    int fd;          /* -1: in memory */
    int fetch_fd;    /* gguf_fetch's; -1: in memory, or none could be opened */
    bool read_short; /* readahead_is_short */
    const void *map; /* gguf_map's */
    uint32_t version;
    uint64_t n_keys, n_tensors;
    struct gguf_key *keys;
    struct gguf_tensor *tensors;
    /* Indices sorted by name, for lookups. */
    uint32_t *keys_by_name, *tensors_by_name;
};

/* Bytes of a value of a fixed-size type; 0 for strings, arrays and unknown types. */
uint32_t gguf_type_size(uint32_t type);
/* "u32", "string", …; "unknown". */
const char *gguf_type_name(uint32_t type);
const struct gguf_key *gguf_find_key(const struct gguf *g, struct slice name);

#define GGUF_QUOTE 72
/* A name from the file, cut and with everything but printable ASCII as '?', for messages. Returns
 * out. */
const char *gguf_quote(struct slice name, char out[GGUF_QUOTE]);

#endif
