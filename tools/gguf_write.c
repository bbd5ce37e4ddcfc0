#define _GNU_SOURCE
#include "tools/gguf_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/xalloc.h"

#define ALIGNMENT 32u

static const char zeros[ALIGNMENT];

static void put_u32(struct buffer *b, uint32_t v)
{
    buffer_add(b, &v, sizeof v);
}

static void put_u64(struct buffer *b, uint64_t v)
{
    buffer_add(b, &v, sizeof v);
}

static void put_text(struct buffer *b, struct slice text)
{
    put_u64(b, text.len);
    buffer_add_slice(b, text);
}

static void key(struct gguf_writer *w, struct slice name, enum gguf_type type)
{
    put_text(&w->keys, name);
    put_u32(&w->keys, type);
    w->n_keys++;
}

void gguf_write_key(struct gguf_writer *w, const char *name, enum gguf_type type)
{
    key(w, slice_of(name), type);
}

void gguf_write_array(struct gguf_writer *w, const char *name, enum gguf_type type, uint64_t n)
{
    key(w, slice_of(name), GGUF_ARRAY);
    put_u32(&w->keys, type);
    put_u64(&w->keys, n);
}

void gguf_write_element(struct gguf_writer *w, const char *text)
{
    put_text(&w->keys, slice_of(text));
}

void gguf_write_f32(struct gguf_writer *w, const char *name, float value)
{
    key(w, slice_of(name), GGUF_F32);
    buffer_add(&w->keys, &value, sizeof value);
}

void gguf_write_u32(struct gguf_writer *w, const char *name, uint32_t value)
{
    key(w, slice_of(name), GGUF_U32);
    put_u32(&w->keys, value);
}

void gguf_write_text(struct gguf_writer *w, const char *name, const char *value)
{
    key(w, slice_of(name), GGUF_STRING);
    put_text(&w->keys, slice_of(value));
}

void gguf_write_i32s(struct gguf_writer *w, const char *name, const uint32_t *values, uint64_t n)
{
    gguf_write_array(w, name, GGUF_I32, n);
    buffer_add(&w->keys, values, n * sizeof *values);
}

void gguf_write_copy(struct gguf_writer *w, const struct gguf *g, uint64_t i)
{
    enum gguf_type type;
    struct slice name = gguf_key_name(g, i, &type);
    key(w, name, type);
    buffer_add_slice(&w->keys, gguf_key_bytes(g, i));
}

void gguf_write_tensor(struct gguf_writer *w, const char *name, enum tensor_type type,
                       uint32_t n_dims, const uint64_t *dims)
{
    uint64_t rows = 1;
    put_text(&w->infos, slice_of(name));
    put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) {
        put_u64(&w->infos, dims[i]);
        rows *= i == 0 ? 1 : dims[i];
    }
    put_u32(&w->infos, type);
    put_u64(&w->infos, w->offset);
    w->n_tensors++;
    uint64_t bytes = rows * tensor_row_bytes(type, dims[0]);
    w->offset += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

enum status gguf_writer_begin(struct gguf_writer *w, const char *path, struct error *err)
{
    struct buffer start = {0};
    w->path = xmemdup(path, strlen(path));
    if (asprintf(&w->beside, "%s.new", path) < 0) {
        w->beside = NULL;
        return error_set(err, STATUS_NO_MEMORY, "%s", status_text(STATUS_NO_MEMORY));
    }
    w->file = fopen(w->beside, "wb");
    if (w->file == NULL)
        return error_set(err, STATUS_IO, "cannot write %s: %s", w->beside, strerror(errno));
    buffer_add_text(&start, "GGUF");
    put_u32(&start, 3);
    put_u64(&start, w->n_tensors);
    put_u64(&start, w->n_keys);
    buffer_add_slice(&start, buffer_slice(&w->keys));
    buffer_add_slice(&start, buffer_slice(&w->infos));
    buffer_add(&start, zeros, (size_t)(-start.len % ALIGNMENT));
    fwrite(start.ptr, 1, start.len, w->file);
    buffer_release(&start);
    w->offset = 0;
    return STATUS_OK;
}

void gguf_writer_data(struct gguf_writer *w, const void *data, size_t bytes, bool last)
{
    fwrite(data, 1, bytes, w->file);
    w->offset += bytes;
    if (last) {
        size_t pad = (size_t)(-w->offset % ALIGNMENT);
        fwrite(zeros, 1, pad, w->file);
        w->offset += pad;
    }
}

enum status gguf_writer_finish(struct gguf_writer *w, enum status status, struct error *err)
{
    if (w->file != NULL) {
        bool fine = fflush(w->file) == 0 && ferror(w->file) == 0 && fsync(fileno(w->file)) == 0;
        int code = errno;
        if (fclose(w->file) != 0 && fine) {
            fine = false;
            code = errno;
        }
        if (status == STATUS_OK && fine && rename(w->beside, w->path) != 0) {
            fine = false;
            code = errno;
        }
        if (status == STATUS_OK && !fine)
            status = error_set(err, STATUS_IO, "cannot write %s: %s", w->path, strerror(code));
        if (status != STATUS_OK)
            remove(w->beside);
    }
    buffer_release(&w->keys);
    buffer_release(&w->infos);
    free(w->path);
    free(w->beside);
    *w = (struct gguf_writer){0};
    return status;
}
