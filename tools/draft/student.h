/* student.h: a draft in training, or one read from its file: layers, the trimmed head over the
 * target's tables, the token map, and the guessing of next tokens. */
#ifndef TOOLS_DRAFT_STUDENT_H
#define TOOLS_DRAFT_STUDENT_H

#include "core/kernels/kernels.h"
#include "tools/draft/acceptance.h"
#include "tools/draft/head.h"
#include "tools/draft/net.h"
#include "tools/draft/target.h"

#define STUDENT_LAYERS 64u

struct student {
    const struct target *target;
    struct kernels kernels;
    struct net net;
    struct head head;
    uint32_t length;   /* of a row, at most */
    uint32_t n_map;    /* tokens of the head */
    uint32_t *map;     /* their ids, ascending */
    float *x;          /* [max_tokens][width]: embeddings */
    uint32_t *start;   /* [max_tokens] */
    float *cos, *sin;  /* [length][pairs] */
    uint32_t *guesses; /* [max_tokens] */
    float *logits;     /* [max_tokens]: the guesses' */
    bool *mapped;      /* [vocab]: the head has the token */
    float *rare;       /* [CONTEXT_ROWS][width]: rows of the text's tokens that it lacks */
};

/* Bytes that student_init will take. */
size_t student_bytes(const struct target *t, uint32_t layers, uint32_t n_map, uint32_t max_tokens,
                     uint32_t length);
/* Weights are zero; map (n_map ascending ids) is copied. Fails only where the CPU has no kernels. */
enum status student_init(struct student *s, const struct target *t, uint32_t layers,
                         const uint32_t *map, uint32_t n_map, uint32_t max_tokens, uint32_t length,
                         struct error *err);
void student_release(struct student *s);
/* Reads a draft's file (export.h), which must be one for this target. */
enum status student_read(struct student *s, const struct target *t, const char *path,
                         uint32_t length, struct error *err);

/* The weights of a draft made before, of as many layers and the same widths. */
enum status student_weights(struct student *s, const char *path, struct error *err);

/* Forward pass over rows · length tokens whose embeddings and starts are in x and start. */
struct net_batch student_batch(const struct student *s, uint32_t rows, uint32_t length);
/* guesses[i]: the token that the student expects behind tokens[0 … i], for n ≤ s->length tokens, of its head's and
 * of those (core/model/context_rows.h), as the worker has it. */
const uint32_t *student_guess(struct student *s, const uint32_t *tokens, uint32_t n);

/* The student's guesses for tokens [from, n) of a text, and those of lookup first, then the
 * student. */
void student_measure(struct student *s, const uint32_t *tokens, uint32_t from, uint32_t n,
                     struct acceptance *alone, struct acceptance *with_lookup);

#endif
