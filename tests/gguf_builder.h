/* gguf_builder.h: makes GGUF files in memory for tests; header only.
 *
 *     struct gguf_builder b = {0};
 *     builder_str(&b, "general.architecture", "llama");
 *     builder_tensor(&b, "token_embd.weight", TENSOR_F32, 2, (uint64_t[]){64, 512}, data, bytes);
 *     builder_finish(&b);                      b.out.ptr, b.out.len are the file
 *     builder_release(&b);
 *
 * Keys and tensors stand in the file in the order of the calls. Nothing is checked, so that wrong
 * files can be made: builder_raw_key begins a key of any type, builder_u32/u64/bytes append to it
 * by hand. */
#ifndef TESTS_GGUF_BUILDER_H
#define TESTS_GGUF_BUILDER_H

#include <stdio.h>
#include <stdlib.h>

#include "core/base/buffer.h"
#include "core/gguf/gguf.h"

struct gguf_builder {
    struct buffer keys, infos, data, out;
    uint64_t n_keys, n_tensors;
    uint32_t version;   /* 0: 3 */
    uint64_t alignment; /* of the data; 0: 32. The key general.alignment is the caller's */
};

static inline void builder_put(struct buffer *b, const void *ptr, size_t len)
{
    buffer_add(b, ptr, len);
}

static inline void builder_put_u32(struct buffer *b, uint32_t v)
{
    buffer_add(b, &v, sizeof(v));
}

static inline void builder_put_u64(struct buffer *b, uint64_t v)
{
    buffer_add(b, &v, sizeof(v));
}

static inline void builder_put_string(struct buffer *b, const void *ptr, size_t len)
{
    builder_put_u64(b, len);
    buffer_add(b, ptr, len);
}

/* Name and type of a key; its value goes to b->keys by the builder_put functions. */
static inline void builder_raw_key(struct gguf_builder *b, const char *name, uint32_t type)
{
    builder_put_string(&b->keys, name, strlen(name));
    builder_put_u32(&b->keys, type);
    b->n_keys++;
}

static inline void builder_u32(struct gguf_builder *b, const char *name, uint32_t v)
{
    builder_raw_key(b, name, GGUF_U32);
    builder_put_u32(&b->keys, v);
}

static inline void builder_f32(struct gguf_builder *b, const char *name, float v)
{
    builder_raw_key(b, name, GGUF_F32);
    builder_put(&b->keys, &v, sizeof(v));
}

static inline void builder_bool(struct gguf_builder *b, const char *name, bool v)
{
    uint8_t byte = v;
    builder_raw_key(b, name, GGUF_BOOL);
    builder_put(&b->keys, &byte, 1);
}

static inline void builder_str(struct gguf_builder *b, const char *name, const char *v)
{
    builder_raw_key(b, name, GGUF_STRING);
    builder_put_string(&b->keys, v, strlen(v));
}

static inline void builder_array(struct gguf_builder *b, const char *name, uint32_t type,
                                 const void *ptr, uint64_t n, size_t element)
{
    builder_raw_key(b, name, GGUF_ARRAY);
    builder_put_u32(&b->keys, type);
    builder_put_u64(&b->keys, n);
    builder_put(&b->keys, ptr, (size_t)n * element);
}

static inline void builder_strings(struct gguf_builder *b, const char *name, const struct slice *v,
                                   uint64_t n)
{
    builder_array(b, name, GGUF_STRING, NULL, n, 0);
    for (uint64_t i = 0; i < n; i++)
        builder_put_string(&b->keys, v[i].ptr, v[i].len);
}

/* A tensor's entry with any type, shape and offset; no data. */
static inline void builder_raw_tensor(struct gguf_builder *b, const char *name, uint32_t type,
                                      uint32_t n_dims, const uint64_t *dims, uint64_t offset)
{
    builder_put_string(&b->infos, name, strlen(name));
    builder_put_u32(&b->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        builder_put_u64(&b->infos, dims[i]);
    builder_put_u32(&b->infos, type);
    builder_put_u64(&b->infos, offset);
    b->n_tensors++;
}

static inline void builder_pad(struct buffer *out, uint64_t alignment)
{
    while (out->len % (alignment != 0 ? alignment : 32) != 0)
        buffer_add_byte(out, 0);
}

/* A tensor with its data (bytes of it; NULL: zeros). */
static inline void builder_tensor(struct gguf_builder *b, const char *name, uint32_t type,
                                  uint32_t n_dims, const uint64_t *dims, const void *data,
                                  size_t bytes)
{
    builder_pad(&b->data, b->alignment);
    builder_raw_tensor(b, name, type, n_dims, dims, b->data.len);
    buffer_reserve(&b->data, bytes);
    if (data != NULL)
        buffer_add(&b->data, data, bytes);
    else
        for (size_t i = 0; i < bytes; i++)
            buffer_add_byte(&b->data, 0);
}

/* Puts the parts together; the file is b->out. */
static inline void builder_finish(struct gguf_builder *b)
{
    buffer_clear(&b->out);
    buffer_add(&b->out, "GGUF", 4);
    builder_put_u32(&b->out, b->version != 0 ? b->version : 3);
    builder_put_u64(&b->out, b->n_tensors);
    builder_put_u64(&b->out, b->n_keys);
    buffer_add_slice(&b->out, buffer_slice(&b->keys));
    buffer_add_slice(&b->out, buffer_slice(&b->infos));
    if (b->n_tensors != 0) {
        builder_pad(&b->out, b->alignment);
        buffer_add_slice(&b->out, buffer_slice(&b->data));
    }
}

static inline void builder_release(struct gguf_builder *b)
{
    buffer_release(&b->keys);
    buffer_release(&b->infos);
    buffer_release(&b->data);
    buffer_release(&b->out);
    *b = (struct gguf_builder){0};
}

/* Finishes and opens; aborts with the message if the file is refused. The builder must outlive the
 * result. */
static inline struct gguf *builder_open(struct gguf_builder *b)
{
    struct gguf *g;
    struct error err = {0};
    builder_finish(b);
    if (gguf_open_memory(b->out.ptr, b->out.len, "made", &g, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return g;
}

#endif
