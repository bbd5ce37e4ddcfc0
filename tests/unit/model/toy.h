/* toy.h: llama models with random weights of any size and type, as GGUF in memory; header only. */
#ifndef TESTS_MODEL_TOY_H
#define TESTS_MODEL_TOY_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/kernels/weights.h"
#include "core/model/model.h"
#include "tests/gguf_builder.h"

struct toy {
    uint32_t layers, width, heads, kv_heads, head_size, ffn, vocab, context;
    enum weight_type embedding, q, k, v, output, gate, up, down, head;
    bool tied;
    bool no_epsilon; /* of norms: 0 */
    /* Tests of faults: */
    const char *skip;   /* this tensor is left out */
    const char *misfit; /* this tensor gets one row (or number) more */
    const char *retype; /* this tensor gets the GGUF type number `type` */
    uint32_t type;
    uint32_t bad_row;     /* of an F32 embedding: has a number that is none; 0: no row */
    const char *skip_key; /* this key is left out */
    void (*more)(struct gguf_builder *b); /* adds keys and tensors */
};

static inline struct toy toy_default(void)
{
    return (struct toy){.layers = 2,
                        .width = 256,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_size = 64,
                        .ffn = 256,
                        .vocab = 97,
                        .context = 1024};
}

static inline uint32_t toy_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 32);
}

/* A small positive number as f16: 2⁻⁸ … 2⁻⁷. */
static inline uint16_t toy_scale(uint64_t *seed)
{
    return (uint16_t)(0x1c00 + toy_random(seed) % 0x400);
}

static inline void toy_tensor(const struct toy *t, struct gguf_builder *b, const char *name,
                              enum weight_type type, uint32_t rows, uint32_t cols)
{
    const struct weight_info *info = weight_info(type);
    uint64_t seed = 7, dims[2] = {cols, rows};
    if (t->skip != NULL && strcmp(t->skip, name) == 0)
        return;
    for (const char *c = name; *c != '\0'; c++)
        seed = seed * 31 + (unsigned char)*c;
    uint32_t n_dims = rows == 0 ? 1 : 2;
    if (t->misfit != NULL && strcmp(t->misfit, name) == 0)
        dims[n_dims - 1]++;
    if (n_dims == 1)
        dims[1] = 1;
    size_t bytes = weight_row_bytes(type, (uint32_t)dims[0]) * dims[1];
    uint8_t *data = malloc(bytes);
    if (info->acts == ACTS_F32) {
        for (size_t i = 0; i < bytes / info->block_bytes; i++) {
            float x = rows == 0 ? 1 : ((float)toy_random(&seed) * 0x1p-32f - 0.5f) * 0.2f;
            uint32_t bits;
            memcpy(&bits, &x, 4);
            if (type == WEIGHT_F32)
                memcpy(data + 4 * i, &x, 4);
            else if (type == WEIGHT_BF16)
                memcpy(data + 2 * i, (uint16_t[]){(uint16_t)(bits >> 16)}, 2);
            else /* f16 of ±2⁻⁷ … 2⁻⁴ */
                memcpy(data + 2 * i,
                       (uint16_t[]){(uint16_t)((toy_random(&seed) & 0x8000) |
                                               (0x2000 + toy_random(&seed) % 0xc00))},
                       2);
        }
    } else {
        for (size_t i = 0; i < bytes; i++)
            data[i] = (uint8_t)(toy_random(&seed) >> 24);
        bool second = type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1 || type == WEIGHT_Q4_K ||
                      type == WEIGHT_Q5_K || type == WEIGHT_Q2_K;
        const size_t behind = type == WEIGHT_Q6_K   ? 208
                              : type == WEIGHT_Q3_K ? 108
                              : type == WEIGHT_Q2_K ? 80
                                                    : 0;
        for (size_t at = 0; at < bytes; at += info->block_bytes) {
            uint16_t d = toy_scale(&seed), m = toy_scale(&seed);
            if (info->block_cols == 256) /* scales of up to 63 or 127 stand behind it */
                d = (uint16_t)(d - 0x1400), m = (uint16_t)(m - 0x1000);
            if (type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1)
                m = (uint16_t)(0x8000 | (m + 0x0c00));
            if (type == WEIGHT_Q8_0 || type == WEIGHT_IQ4_NL || type == WEIGHT_IQ4_XS)
                d = (uint16_t)(d - 0x1000);
            if (type == WEIGHT_MXFP4)
                data[at] = (uint8_t)(120 + toy_random(&seed) % 3);
            else
                memcpy(data + at + behind, &d, 2);
            if (second)
                memcpy(data + at + behind + 2, &m, 2);
        }
    }
    if (t->bad_row > 0 && strcmp(name, "token_embd.weight") == 0)
        memcpy(data + 4 * ((size_t)t->bad_row * cols + 3), (uint32_t[]){0x7fc00000}, 4);
    uint32_t id = info->gguf_id;
    if (t->retype != NULL && strcmp(t->retype, name) == 0)
        id = t->type;
    builder_tensor(b, name, id, n_dims, dims, data, bytes);
    free(data);
}

static inline void toy_key(const struct toy *t, struct gguf_builder *b, const char *name,
                           uint32_t value)
{
    if (t->skip_key == NULL || strcmp(t->skip_key, name) != 0)
        builder_u32(b, name, value);
}

/* The builder must outlive the result; release both. */
static inline struct gguf *toy_open(const struct toy *t, struct gguf_builder *b)
{
    uint32_t q = t->heads * t->head_size, kv = t->kv_heads * t->head_size;
    *b = (struct gguf_builder){0};
    builder_str(b, "general.architecture", "llama");
    toy_key(t, b, "llama.block_count", t->layers);
    toy_key(t, b, "llama.embedding_length", t->width);
    toy_key(t, b, "llama.feed_forward_length", t->ffn);
    toy_key(t, b, "llama.attention.head_count", t->heads);
    toy_key(t, b, "llama.attention.head_count_kv", t->kv_heads);
    toy_key(t, b, "llama.attention.key_length", t->head_size);
    toy_key(t, b, "llama.context_length", t->context);
    builder_f32(b, "llama.attention.layer_norm_rms_epsilon", t->no_epsilon ? 0 : 1e-5f);
    if (t->more != NULL)
        t->more(b);
    toy_tensor(t, b, "token_embd.weight", t->embedding, t->vocab, t->width);
    for (uint32_t i = 0; i < t->layers; i++) {
        char name[64];
#define TOY_LAYER(part, type, rows, cols)                                                          \
    snprintf(name, sizeof name, "blk.%u." part ".weight", i);                                      \
    toy_tensor(t, b, name, type, rows, cols)
        TOY_LAYER("attn_norm", WEIGHT_F32, 0, t->width);
        TOY_LAYER("attn_q", t->q, q, t->width);
        TOY_LAYER("attn_k", t->k, kv, t->width);
        TOY_LAYER("attn_v", t->v, kv, t->width);
        TOY_LAYER("attn_output", t->output, t->width, q);
        TOY_LAYER("ffn_norm", WEIGHT_F32, 0, t->width);
        TOY_LAYER("ffn_gate", t->gate, t->ffn, t->width);
        TOY_LAYER("ffn_up", t->up, t->ffn, t->width);
        TOY_LAYER("ffn_down", t->down, t->width, t->ffn);
#undef TOY_LAYER
    }
    toy_tensor(t, b, "output_norm.weight", WEIGHT_F32, 0, t->width);
    if (!t->tied)
        toy_tensor(t, b, "output.weight", t->head, t->vocab, t->width);
    return builder_open(b);
}

#endif
