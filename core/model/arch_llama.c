#include "core/model/arch_llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/huge.h"
#include "core/base/xalloc.h"

/* Sizes in a file above these are refused before anything is multiplied with them. */
#define SIZE_LIMIT (1u << 24)

static enum status read_sizes(struct llama *l, const struct gguf *g, struct error *err)
{
    struct error found = {0};
    uint32_t experts = gguf_u32(g, "llama.expert_count", 0, &found);
    l->layers = gguf_need_u32(g, "llama.block_count", &found);
    l->width = gguf_need_u32(g, "llama.embedding_length", &found);
    l->ffn = gguf_need_u32(g, "llama.feed_forward_length", &found);
    l->heads = gguf_need_u32(g, "llama.attention.head_count", &found);
    l->kv_heads = gguf_u32(g, "llama.attention.head_count_kv", l->heads, &found);
    l->context = gguf_need_u32(g, "llama.context_length", &found);
    l->eps = gguf_need_f32(g, "llama.attention.layer_norm_rms_epsilon", &found);
    uint32_t even = l->heads > 0 ? l->width / l->heads : 0;
    l->head_size = gguf_u32(g, "llama.attention.key_length", even, &found);
    uint32_t value_size = gguf_u32(g, "llama.attention.value_length", l->head_size, &found);
    if (found.status != STATUS_OK) {
        *err = found;
        return found.status;
    }
    if (experts > 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "llama.expert_count is %u: mixtures of experts are not supported",
                         experts);
    uint64_t tensors;
    gguf_tensors(g, &tensors);
    if (l->layers == 0 || l->layers > tensors)
        return error_set(err, STATUS_CORRUPT, "llama.block_count is %u in a file of %llu tensors",
                         l->layers, (unsigned long long)tensors);
    const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"llama.embedding_length", l->width},
                 {"llama.feed_forward_length", l->ffn},
                 {"llama.attention.head_count", l->heads},
                 {"llama.attention.head_count_kv", l->kv_heads},
                 {"llama.attention.key_length", l->head_size},
                 {"llama.context_length", l->context}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value == 0 || sizes[i].value > SIZE_LIMIT)
            return error_set(err, STATUS_CORRUPT, "%s is %u, which is not a possible size",
                             sizes[i].key, sizes[i].value);
    if (l->heads % l->kv_heads != 0)
        return error_set(err, STATUS_CORRUPT,
                         "llama.attention.head_count %u is no multiple of head_count_kv %u",
                         l->heads, l->kv_heads);
    if (!gguf_has(g, "llama.attention.key_length") && l->width % l->heads != 0)
        return error_set(err, STATUS_CORRUPT,
                         "llama.embedding_length %u is no multiple of attention.head_count %u",
                         l->width, l->heads);
    if ((uint64_t)l->heads * l->head_size > SIZE_LIMIT || l->head_size > 1024)
        return error_set(err, STATUS_UNSUPPORTED, "%u heads of %u numbers are not supported",
                         l->heads, l->head_size);
    if (value_size != l->head_size)
        return error_set(err, STATUS_UNSUPPORTED,
                         "llama.attention.value_length %u unlike key_length %u is not supported",
                         value_size, l->head_size);
    if (!isfinite(l->eps) || l->eps < 0)
        return error_set(err, STATUS_CORRUPT, "llama.attention.layer_norm_rms_epsilon is %g",
                         (double)l->eps);
    return STATUS_OK;
}

static void free_state(void *state)
{
    struct llama *l = state;
    rope_release(&l->rope);
    draft_tables_release(&l->tables);
    huge_unmap(l->scratch, l->scratch_mapped);
    free(l->layer);
    free(l->local);
    free(l->local_ffn);
    free(l->local_gated);
    free(l);
}

static enum status read_keys(const struct gguf *g, const struct gguf *target,
                             struct model_info *info, void **state, struct error *err)
{
    struct llama *l = xcalloc(1, sizeof *l);
    struct error found = {0};
    enum status status = read_sizes(l, g, err);
    uint32_t rope_dims = gguf_u32(g, "llama.rope.dimension_count", l->head_size, &found);
    if (status == STATUS_OK && found.status != STATUS_OK) {
        *err = found;
        status = found.status;
    }
    if (status == STATUS_OK && rope_dims > l->head_size)
        status = error_set(err, STATUS_CORRUPT,
                           "llama.rope.dimension_count %u is larger than a head of %u", rope_dims,
                           l->head_size);
    if (status == STATUS_OK)
        status = rope_init(&l->rope, g, "llama", rope_dims, l->context, err);
    if (status == STATUS_OK && target != NULL)
        status = draft_tables_find(g, target, l->width, &l->tables, err);
    const struct gguf_tensor *embedding =
        gguf_tensor(l->tables.source != NULL ? l->tables.source : g, "token_embd.weight");
    if (status == STATUS_OK && embedding == NULL)
        status = error_set(err, STATUS_CORRUPT, "the model has no tensor token_embd.weight");
    if (status == STATUS_OK && (embedding->n_dims != 2 || embedding->dims[1] > SIZE_LIMIT))
        status = error_set(err, STATUS_CORRUPT,
                           "tensor token_embd.weight has %u dimensions and %llu rows",
                           embedding->n_dims, (unsigned long long)embedding->dims[1]);
    if (status != STATUS_OK) {
        free_state(l);
        return status;
    }
    l->vocab = (uint32_t)embedding->dims[1];
    l->layer = xcalloc(l->layers, sizeof *l->layer);
    info->layers = l->layers;
    info->width = l->width;
    info->heads = l->heads;
    info->kv_heads = l->kv_heads;
    info->head_size = l->head_size;
    info->ffn = l->ffn;
    info->vocab = l->vocab;
    info->outputs = l->tables.map != NULL ? l->tables.n_map : l->vocab;
    info->output_tokens = l->tables.map;
    info->head_row = l->tables.head_row;
    info->context = l->context;
    *state = l;
    return STATUS_OK;
}

static enum status layer_tensors(struct llama *l, uint32_t i, struct weights *w, struct error *err)
{
    struct llama_layer *layer = &l->layer[i];
    uint32_t q = llama_q_cols(l), kv = llama_kv_cols(l);
    const struct {
        const char *name;
        uint32_t rows, cols; /* rows 0: a vector */
        struct matrix *m;
        const float **v;
    } parts[] = {{"attn_norm", 0, l->width, NULL, &layer->attn_norm},
                 {"attn_q", q, l->width, &layer->q, NULL},
                 {"attn_k", kv, l->width, &layer->k, NULL},
                 {"attn_v", kv, l->width, &layer->v, NULL},
                 {"attn_output", l->width, q, &layer->output, NULL},
                 {"ffn_norm", 0, l->width, NULL, &layer->ffn_norm},
                 {"ffn_gate", l->ffn, l->width, &layer->gate, NULL},
                 {"ffn_up", l->ffn, l->width, &layer->up, NULL},
                 {"ffn_down", l->width, l->ffn, &layer->down, NULL}};
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", i, parts[p].name);
        enum status status =
            parts[p].rows == 0
                ? weights_vector(w, name, parts[p].cols, parts[p].v, err)
                : weights_matrix(w, name, parts[p].rows, parts[p].cols, parts[p].m, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* Embedding and head of a draft, which are its own or the target's. */
static enum status draft_tensors(struct llama *l, struct weights *w, struct model_info *info,
                                 struct error *err)
{
    enum status status = STATUS_OK;
    if (l->tables.source == w->gguf)
        status =
            weights_embedding(w, "token_embd.weight", l->vocab, l->width, NULL, &l->embedding, err);
    else if (l->target != NULL) {
        l->embedding = *l->target;
        info->target_head = l->tables.map != NULL ? l->target_head : NULL;
    }
    weights_skip(w, "output.weight");
    weights_skip(w, "tokenring.draft.output.weight"); /* rows that the target has too */
    if (status == STATUS_OK && w->block != NULL)
        status = draft_tables_head(&l->tables, l->width, &l->head, err);
    return status;
}

static enum status read_tensors(void *state, struct weights *w, struct model_info *info,
                                struct error *err)
{
    struct llama *l = state;
    enum status status = STATUS_OK;
    info->tied = gguf_tensor(w->gguf, "output.weight") == NULL;
    for (uint32_t i = 0; i < l->layers && status == STATUS_OK; i++)
        status = layer_tensors(l, i, w, err);
    if (status == STATUS_OK)
        status = weights_vector(w, "output_norm.weight", l->width, &l->output_norm, err);
    const char *head = info->tied ? "token_embd.weight" : "output.weight";
    bool draft = l->tables.source != NULL;
    if (status == STATUS_OK && draft)
        status = draft_tensors(l, w, info, err);
    if (status == STATUS_OK && !draft)
        status = weights_matrix(w, head, l->vocab, l->width, &l->head, err);
    if (status == STATUS_OK && !draft)
        status = weights_embedding(w, "token_embd.weight", l->vocab, l->width,
                                   info->tied ? &l->head : NULL, &l->embedding, err);
    weights_skip(w, "rope_freqs.weight"); /* rope_init has read it */
    return status;
}

/* Hands out scratch; with base NULL it only counts. */
struct cutter {
    uint8_t *base;
    size_t used;
};

static void *cut(struct cutter *c, size_t bytes)
{
    size_t at = c->used;
    c->used += (bytes + 63) & ~(size_t)63;
    return c->base == NULL ? NULL : c->base + at;
}

static float *cut_rows(struct cutter *c, size_t rows, size_t cols)
{
    return cut(c, rows * cols * sizeof(float));
}

static void cut_acts(struct cutter *c, const bool *wanted, size_t rows, uint32_t cols,
                     struct llama_acts *acts)
{
    for (int kind = 0; kind < ACTS_KINDS; kind++)
        acts->data[kind] = wanted[kind] ? cut(c, rows * acts_stride(kind, cols)) : NULL;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void cut_scratch(struct llama *l, struct cutter *c, size_t rows, const bool *wanted)
{
    uint32_t q = llama_q_cols(l), cols = larger(larger(l->width, q), l->ffn);
    l->x = cut_rows(c, rows, l->width);
    l->qkv = cut_rows(c, rows, q + 2 * llama_kv_cols(l));
    l->mixed = cut_rows(c, rows, q);
    l->gate = cut_rows(c, rows, l->ffn);
    l->up = cut_rows(c, rows, l->ffn);
    l->cos = cut_rows(c, rows, l->rope.pairs);
    l->sin = cut_rows(c, rows, l->rope.pairs);
    cut_acts(c, wanted, rows, cols, &l->acts);
    cut_acts(c, wanted, rows, l->ffn, &l->gated);
    for (uint32_t t = 0; t < l->threads; t++) {
        cut_acts(c, wanted, LLAMA_LOCAL_TOKENS, cols, &l->local[t]);
        l->local_ffn[t] = cut_rows(c, 1, l->ffn);
        l->local_gated[t] = cut_rows(c, 2 * LLAMA_GATED_TOKENS, LLAMA_GATED_ROWS);
    }
    uint32_t group = l->heads / l->kv_heads;
    void *attention = cut(c, attention_scratch(l->geometry, group, (uint32_t)rows, l->threads));
    if (c->base != NULL)
        attention_init(&l->attention, l->kernels, l->geometry, group,
                       1.0f / sqrtf((float)l->head_size), (uint32_t)rows, l->threads, attention);
}

static enum status make_ready(void *state, const struct model_options *options,
                              const struct kv_geometry *geometry, size_t *scratch,
                              struct error *err)
{
    struct llama *l = state;
    l->kernels = options->kernels;
    l->geometry = geometry;
    l->threads = team_size(options->team);
    l->local = xcalloc(l->threads, sizeof *l->local);
    l->local_ffn = xcalloc(l->threads, sizeof *l->local_ffn);
    l->local_gated = xcalloc(l->threads, sizeof *l->local_gated);

    bool wanted[ACTS_KINDS] = {false};
    for (int kind = 0; kind < ACTS_KINDS; kind++) /* a draft's head is not known yet */
        wanted[kind] = l->tables.source != NULL;
    if (l->tables.source == NULL)
        wanted[weight_info(l->head.type)->acts] = true;
    for (uint32_t i = 0; i < l->layers; i++) {
        const struct llama_layer *layer = &l->layer[i];
        const struct matrix *all[] = {&layer->q,    &layer->k,  &layer->v,   &layer->output,
                                      &layer->gate, &layer->up, &layer->down};
        for (size_t m = 0; m < sizeof all / sizeof *all; m++)
            wanted[weight_info(all[m]->type)->acts] = true;
    }
    struct cutter counting = {NULL, 0};
    cut_scratch(l, &counting, options->max_tokens, wanted);
    l->scratch = huge_map(counting.used, &l->scratch_mapped);
    if (l->scratch == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for %zu MiB of scratch",
                         counting.used >> 20);
    *scratch = l->scratch_mapped;
    struct cutter cutting = {l->scratch, 0};
    cut_scratch(l, &cutting, options->max_tokens, wanted);
    return STATUS_OK;
}

static const struct embedding *embedding_of(const void *state)
{
    const struct llama *l = state;
    return &l->embedding;
}

static const struct matrix *head_of(const void *state)
{
    const struct llama *l = state;
    return &l->head;
}

static void borrow_tables(void *state, const struct embedding *embedding, const struct matrix *head)
{
    struct llama *l = state;
    l->target = embedding;
    l->target_head = head;
}

static void multiply(void *state, uint32_t first, uint32_t layers, struct team_member *me)
{
    struct llama part = *(const struct llama *)state; /* the same scratch, other weights */
    part.layer += first;
    llama_multiply(&part, layers, me);
}

const struct arch arch_llama = {
    .name = "llama",
    .read = read_keys,
    .tensors = read_tensors,
    .ready = make_ready,
    .embedding = embedding_of,
    .head = head_of,
    .borrow = borrow_tables,
    .step = llama_step,
    .multiply = multiply,
    .free = free_state,
};
