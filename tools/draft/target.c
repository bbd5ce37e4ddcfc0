#include "tools/draft/target.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/kernels/weights.h"

static enum status hash_file(const char *path, char hex[SHA256_HEX], struct error *err)
{
    static char chunk[1 << 16];
    struct sha256 sha;
    size_t n;
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return error_set(err, STATUS_IO, "cannot open %s: %s", path, strerror(errno));
    sha256_init(&sha);
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        sha256_add(&sha, chunk, n);
    bool fine = ferror(f) == 0;
    fclose(f);
    sha256_finish(&sha, hex);
    return fine ? STATUS_OK : error_set(err, STATUS_IO, "cannot read %s", path);
}

enum status target_open(struct target *t, const char *path, const char *tier, struct error *err)
{
    *t = (struct target){.tier = tier};
    struct error found = {0};
    enum status status = gguf_open(path, &t->gguf, err);
    if (status == STATUS_OK)
        status = gguf_map(t->gguf, err);
    if (status == STATUS_OK)
        status = model_inspect(t->gguf, &t->info, err);
    if (status == STATUS_OK)
        status = tokenizer_load(t->gguf, &t->tokenizer, err);
    if (status == STATUS_OK && tokenizer_n_vocab(t->tokenizer) > t->info.vocab)
        status = error_set(err, STATUS_CORRUPT, "the tokenizer has %u tokens, the model %u",
                           tokenizer_n_vocab(t->tokenizer), t->info.vocab);
    if (status == STATUS_OK) {
        t->eps = gguf_need_f32(t->gguf, "llama.attention.layer_norm_rms_epsilon", &found);
        uint32_t dims = gguf_u32(t->gguf, "llama.rope.dimension_count", t->info.head_size, &found);
        status = rope_init(&t->rope, t->gguf, "llama", dims, t->info.context, err);
    }
    if (status == STATUS_OK && found.status != STATUS_OK) {
        *err = found;
        status = found.status;
    }
    if (status == STATUS_OK)
        status = hash_file(path, t->sha256, err);
    if (status != STATUS_OK)
        target_close(t);
    return status;
}

void target_close(struct target *t)
{
    rope_release(&t->rope);
    if (t->tokenizer != NULL)
        tokenizer_free(t->tokenizer);
    gguf_free(t->gguf);
    *t = (struct target){0};
}

const char *target_file(const struct target *t)
{
    const char *path = gguf_path(t->gguf), *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static void read_rows(const struct gguf_tensor *tensor, uint64_t first, uint64_t n, float *out)
{
    enum weight_type type = WEIGHT_F32;
    weight_type_from_gguf(tensor->type, &type);
    uint32_t cols = (uint32_t)tensor->dims[0];
    size_t bytes = weight_row_bytes(type, cols);
    for (uint64_t i = 0; i < n; i++)
        dequantise_row(type, (const uint8_t *)tensor->data + (first + i) * bytes, cols,
                       out + i * cols);
}

enum status target_tensor(const struct gguf *g, const char *name, uint32_t rows, uint32_t cols,
                          float *out, struct error *err)
{
    const struct gguf_tensor *tensor = gguf_tensor(g, name);
    enum weight_type type;
    uint32_t n = rows == 0 ? 1 : rows;
    if (tensor == NULL || tensor->dims[0] != cols || tensor->dims[1] != n)
        return error_set(err, STATUS_CORRUPT, "the model has no tensor %s of [%u, %u]", name, cols,
                         n);
    if (!weight_type_from_gguf(tensor->type, &type))
        return error_set(err, STATUS_UNSUPPORTED, "tensor %s of type %s is not supported", name,
                         tensor_type_name(tensor->type));
    read_rows(tensor, 0, n, out);
    return STATUS_OK;
}

void target_embedding(const struct target *t, uint32_t token, float *out)
{
    read_rows(gguf_tensor(t->gguf, "token_embd.weight"), token, 1, out);
}

void target_head(const struct target *t, uint32_t token, float *out)
{
    const char *name = t->info.tied ? "token_embd.weight" : "output.weight";
    read_rows(gguf_tensor(t->gguf, name), token, 1, out);
}

struct net_shape target_shape(const struct target *t, uint32_t layers)
{
    const struct model_info *i = &t->info;
    return (struct net_shape){layers,       i->width, i->heads, i->kv_heads,
                              i->head_size, i->ffn,   t->eps};
}

enum status target_weights(const struct gguf *g, const uint32_t *layers, struct net *net,
                           struct error *err)
{
    for (uint32_t i = 0; i < net->n_tensors; i++) {
        const struct net_tensor *tensor = &net->tensors[i];
        char name[64];
        unsigned layer;
        int at = 0;
        if (sscanf(tensor->name, "blk.%u%n", &layer, &at) == 1 && at > 0)
            snprintf(name, sizeof name, "blk.%u%s", layers[layer], tensor->name + at);
        else
            snprintf(name, sizeof name, "%s", tensor->name);
        enum status status =
            target_tensor(g, name, tensor->rows, tensor->cols, net->w + tensor->at, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}
