#include "tools/draft/export.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"
#include "core/kernels/weights.h"
#include "tools/gguf_write.h"
#include "tools/draft/quantise.h"

#define FILE_TYPE_Q4_0 2u /* general.file_type "mostly Q4_0" */
#define ROWS 64u          /* of a matrix in memory at once */
#define WORTHWHILE 0.25   /* part of a target's bytes that must be saved */

static void name_target(struct gguf_writer *w, const struct target *t)
{
    gguf_write_text(w, "tokenring.draft.target", target_file(t));
    gguf_write_text(w, "tokenring.draft.target_sha256", t->sha256);
}

static bool is_matrix(const struct net_tensor *t)
{
    return t->rows != 0 && t->cols % QUANTISE_BLOCK == 0;
}

/* Whose model it was, under which licence, and its sizes. */
static void copy_keys(struct gguf_writer *w, const struct gguf *g)
{
    static const char *const origins[] = {"general.license", "general.author",
                                          "general.organization", "general.url"};
    for (uint64_t i = 0; i < gguf_key_count(g); i++) {
        enum gguf_type type;
        struct slice name = gguf_key_name(g, i, &type);
        bool wanted = slice_starts(name, slice_of("llama.")) &&
                      !slice_is(name, "llama.block_count") && !slice_is(name, "llama.vocab_size");
        for (size_t k = 0; k < sizeof origins / sizeof *origins; k++)
            wanted = wanted || slice_starts(name, slice_of(origins[k]));
        if (wanted)
            gguf_write_copy(w, g, i);
    }
}

static void student_keys(struct gguf_writer *w, const struct student *s, const uint32_t *layers,
                         const char *recipe)
{
    const struct target *t = s->target;
    struct buffer name = {0};
    buffer_printf(&name, "%s draft, layers",
                  t->info.name[0] != '\0' ? t->info.name : target_file(t));
    for (uint32_t i = 0; i < s->net.shape.layers; i++)
        buffer_printf(&name, " %u", layers[i]);
    gguf_write_text(w, "general.architecture", "llama");
    gguf_write_text(w, "general.name", name.ptr);
    gguf_write_text(w, "general.description", recipe);
    gguf_write_u32(w, "general.file_type", FILE_TYPE_Q4_0);
    copy_keys(w, t->gguf);
    gguf_write_u32(w, "llama.block_count", s->net.shape.layers);
    gguf_write_u32(w, "llama.vocab_size", t->info.vocab);
    name_target(w, t);
    gguf_write_i32s(w, "tokenring.draft.token_map", s->map, s->n_map);
    buffer_release(&name);
}

enum status export_student(const struct student *s, const char *path, const uint32_t *layers,
                           const char *recipe, struct error *err)
{
    const struct net *net = &s->net;
    const struct gguf_tensor *factors = gguf_tensor(s->target->gguf, "rope_freqs.weight");
    struct gguf_writer w = {0};
    student_keys(&w, s, layers, recipe);
    for (uint32_t i = 0; i < net->n_tensors; i++) {
        const struct net_tensor *t = &net->tensors[i];
        uint64_t dims[] = {t->cols, t->rows};
        gguf_write_tensor(&w, t->name, is_matrix(t) ? TENSOR_Q4_0 : TENSOR_F32,
                          t->rows == 0 ? 1 : 2, dims);
    }
    if (factors != NULL)
        gguf_write_tensor(&w, "rope_freqs.weight", factors->type, 1, factors->dims);
    enum status status = gguf_writer_begin(&w, path, err);
    for (uint32_t i = 0; i < net->n_tensors && status == STATUS_OK; i++) {
        const struct net_tensor *t = &net->tensors[i];
        size_t n = (t->rows == 0 ? 1 : (size_t)t->rows) * t->cols;
        if (!is_matrix(t)) {
            gguf_writer_data(&w, net->w + t->at, n * sizeof(float), true);
            continue;
        }
        uint8_t *blocks = xmalloc(n / QUANTISE_BLOCK * Q4_0_BYTES);
        quantise(4, net->w + t->at, n, blocks);
        gguf_writer_data(&w, blocks, n / QUANTISE_BLOCK * Q4_0_BYTES, true);
        free(blocks);
    }
    if (factors != NULL && status == STATUS_OK)
        gguf_writer_data(&w, factors->data, factors->bytes, true);
    return gguf_writer_finish(&w, status, err);
}

/* ---- the whole target ---- */

/* What the matrices become. */
struct becomes {
    enum tensor_type type;
    const char *name;
    uint32_t bits, block_bytes;
    uint32_t file_type; /* general.file_type "mostly ..." */
};

static const struct becomes formats[] = {{TENSOR_Q4_0, "Q4_0", 4, Q4_0_BYTES, FILE_TYPE_Q4_0},
                                         {TENSOR_Q5_0, "Q5_0", 5, Q5_0_BYTES, 8}};

static bool shrinks(const struct gguf_tensor *t, const struct becomes *to, enum weight_type *type)
{
    return t->n_dims == 2 && t->dims[0] % QUANTISE_BLOCK == 0 &&
           weight_type_from_gguf(t->type, type) &&
           t->bytes > t->dims[1] * tensor_row_bytes(to->type, t->dims[0]);
}

static void write_shrunk(struct gguf_writer *w, const struct gguf_tensor *t, enum weight_type type,
                         const struct becomes *to)
{
    uint32_t cols = (uint32_t)t->dims[0];
    size_t row = weight_row_bytes(type, cols);
    float *x = xmalloc(ROWS * (size_t)cols * sizeof *x);
    uint8_t *blocks = xmalloc(ROWS * (size_t)cols / QUANTISE_BLOCK * to->block_bytes);
    for (uint64_t at = 0; at < t->dims[1]; at += ROWS) {
        uint64_t now = t->dims[1] - at < ROWS ? t->dims[1] - at : ROWS;
        for (uint64_t i = 0; i < now; i++)
            dequantise_row(type, (const uint8_t *)t->data + (at + i) * row, cols, x + i * cols);
        quantise(to->bits, x, now * cols, blocks);
        gguf_writer_data(w, blocks, now * cols / QUANTISE_BLOCK * to->block_bytes,
                         at + now == t->dims[1]);
    }
    free(x);
    free(blocks);
}

enum status export_requantised(const struct target *t, const char *path, uint32_t bits,
                               struct error *err)
{
    const struct becomes *to = &formats[bits == 5];
    uint64_t n, all = 0, saved = 0;
    enum weight_type type;
    const struct gguf_tensor *tensors = gguf_tensors(t->gguf, &n);
    for (uint64_t i = 0; i < n; i++) {
        all += tensors[i].bytes;
        if (shrinks(&tensors[i], to, &type))
            saved += tensors[i].bytes -
                     tensors[i].dims[1] * tensor_row_bytes(to->type, tensors[i].dims[0]);
    }
    if ((double)saved < WORTHWHILE * (double)all)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s would be only %.0f %% smaller in %s, and no faster draft",
                         target_file(t), 100 * (double)saved / (double)all, to->name);
    struct gguf_writer w = {0};
    for (uint64_t i = 0; i < gguf_key_count(t->gguf); i++) {
        enum gguf_type key_type;
        struct slice name = gguf_key_name(t->gguf, i, &key_type);
        /* The alignment is the writer's own, and the target may be a draft itself. */
        if (!slice_is(name, "general.file_type") && !slice_is(name, "general.alignment") &&
            !slice_starts(name, slice_of("tokenring.draft.")))
            gguf_write_copy(&w, t->gguf, i);
    }
    gguf_write_u32(&w, "general.file_type", to->file_type);
    name_target(&w, t);
    for (uint64_t i = 0; i < n; i++) {
        char name[80] = "";
        memcpy(name, tensors[i].name.ptr, tensors[i].name.len < 79 ? tensors[i].name.len : 79);
        gguf_write_tensor(&w, name, shrinks(&tensors[i], to, &type) ? to->type : tensors[i].type,
                          tensors[i].n_dims, tensors[i].dims);
    }
    enum status status = gguf_writer_begin(&w, path, err);
    for (uint64_t i = 0; i < n && status == STATUS_OK; i++) {
        if (shrinks(&tensors[i], to, &type))
            write_shrunk(&w, &tensors[i], type, to);
        else
            gguf_writer_data(&w, tensors[i].data, tensors[i].bytes, true);
        gguf_forget(t->gguf, tensors[i].offset, tensors[i].offset + tensors[i].bytes);
    }
    return gguf_writer_finish(&w, status, err);
}
