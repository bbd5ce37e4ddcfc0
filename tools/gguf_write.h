/* gguf_write.h: writes a GGUF file (version 3; its layout is in core/gguf/gguf.h), tensor by tensor.
 *
 *     keys and tensors' shapes, in any order → gguf_writer_begin → gguf_writer_data, in the order of
 *     the tensors → gguf_writer_finish
 *
 * The file grows beside its place and is renamed when it is whole, so a half-written one is never
 * found under its name. */
#ifndef TOOLS_GGUF_WRITE_H
#define TOOLS_GGUF_WRITE_H

#include <stdio.h>

#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/gguf/gguf.h"

struct gguf_writer {
    struct buffer keys, infos;
    uint64_t n_keys, n_tensors;
    uint64_t offset; /* of the next tensor's data */
    char *path, *beside;
    FILE *file; /* after begin */
};

/* Begins a key of any type: its value goes to w->keys, as gguf.h says. */
void gguf_write_key(struct gguf_writer *w, const char *name, enum gguf_type type);
/* Begins an array of n elements, which go to w->keys. */
void gguf_write_array(struct gguf_writer *w, const char *name, enum gguf_type type, uint64_t n);
/* A string element of an array. */
void gguf_write_element(struct gguf_writer *w, const char *text);
void gguf_write_u32(struct gguf_writer *w, const char *name, uint32_t value);
void gguf_write_f32(struct gguf_writer *w, const char *name, float value);
void gguf_write_text(struct gguf_writer *w, const char *name, const char *value);
void gguf_write_i32s(struct gguf_writer *w, const char *name, const uint32_t *values, uint64_t n);
/* Key i of another file, as it is. */
void gguf_write_copy(struct gguf_writer *w, const struct gguf *g, uint64_t i);
/* dims[0] = row length; 1-dimensional: n_dims 1. */
void gguf_write_tensor(struct gguf_writer *w, const char *name, enum tensor_type type,
                       uint32_t n_dims, const uint64_t *dims);

enum status gguf_writer_begin(struct gguf_writer *w, const char *path, struct error *err);
/* All bytes of the next tensor, or a part of them; last: the tensor ends here. Errors show at the
 * end. */
void gguf_writer_data(struct gguf_writer *w, const void *data, size_t bytes, bool last);
/* Closes, renames, releases. After an earlier failure (its status is passed) only cleans up. */
enum status gguf_writer_finish(struct gguf_writer *w, enum status status, struct error *err);

#endif
