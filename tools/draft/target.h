/* target.h: the model that a draft is made for: its file, named by its SHA-256, and what training
 * takes from it: sizes, rows of its tables, weights of layers to start from. */
#ifndef TOOLS_DRAFT_TARGET_H
#define TOOLS_DRAFT_TARGET_H

#include "core/base/sha256.h"
#include "core/gguf/gguf.h"
#include "core/model/model.h"
#include "core/model/rope.h"
#include "core/text/tokenizer.h"
#include "tools/draft/net.h"

struct target {
    struct gguf *gguf;
    const char *tier; /* of the kernels that run it and its drafts; NULL: the best */
    struct model_info info;
    struct tokenizer *tokenizer;
    struct rope rope;
    float eps;
    char sha256[SHA256_HEX];
};

/* tier stays the caller's. Whatever is wrong with the file, or not supported, is named; a tier that is not there, when
 * kernels are chosen. On failure nothing is left open. */
enum status target_open(struct target *t, const char *path, const char *tier, struct error *err);
void target_close(struct target *t);

/* The last part of the path. */
const char *target_file(const struct target *t);

/* A matrix or vector of the file as floats: rows · cols of them (a vector: rows 0). The tensor must
 * exist with this shape. */
enum status target_tensor(const struct gguf *g, const char *name, uint32_t rows, uint32_t cols,
                          float *out, struct error *err);
/* Row of the embedding; of the head (the embedding where they are tied). */
void target_embedding(const struct target *t, uint32_t token, float *out);
void target_head(const struct target *t, uint32_t token, float *out);

/* The shape of a student of so many layers; and its weights from these layers of a file: of the
 * target, or (layers 0, 1, …) of a draft. */
struct net_shape target_shape(const struct target *t, uint32_t layers);
enum status target_weights(const struct gguf *g, const uint32_t *layers, struct net *net,
                           struct error *err);

#endif
