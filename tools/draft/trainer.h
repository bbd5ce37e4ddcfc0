/* trainer.h: the student learns from the corpus.
 *
 *     texts, shuffled anew each time round ─▶ rows of LENGTH tokens, a text after the other, each
 *     seeing itself alone ─▶ forward, loss against the target's stored states, backward, AdamW
 *
 * A position's weight: 1 where the target answers, ½ where it plays the user, 0.1 in forced text;
 * a quarter of that where lookup (lookup.h) gives the token for nothing. Every 25th text is held
 * out, for measuring.
 *
 * The state (weights, AdamW's means, place in the corpus, what has been done so far) is a file,
 * written beside its place and renamed. */
#ifndef TOOLS_DRAFT_TRAINER_H
#define TOOLS_DRAFT_TRAINER_H

#include "tools/draft/adam.h"
#include "tools/draft/corpus.h"
#include "tools/draft/random.h"
#include "tools/draft/student.h"

#define TRAINER_ROWS 4u
#define TRAINER_LENGTH 320u
#define TRAINER_LAYERS STUDENT_LAYERS

struct trainer {
    struct student student;
    const struct corpus *corpus;
    uint32_t n_layers, layers[TRAINER_LAYERS]; /* of the target */
    struct adam adam;
    float *teacher, *weight, *dh;

    size_t n_train, n_held;
    uint32_t *train, *held; /* texts; train is in today's order */
    size_t at_text;         /* in train */
    uint32_t at_token;
    struct random random;
    uint64_t rounds, seen; /* times through the corpus; tokens */
    double began, seconds; /* of work before training, and of all, in all runs: the caller's */
};

/* The ids of the n most frequent tokens of the corpus (n at most the vocabulary), ascending. */
void trainer_map(const struct corpus *corpus, uint32_t vocab, uint32_t n, uint32_t *map);

size_t trainer_bytes(const struct target *t, uint32_t n_layers, uint32_t n_map);
/* Starts from the target's layers. corpus: mapped; borrowed, as the target is. */
enum status trainer_init(struct trainer *t, const struct target *target,
                         const struct corpus *corpus, const uint32_t *layers, uint32_t n_layers,
                         const uint32_t *map, uint32_t n_map, uint64_t seed, struct error *err);
void trainer_release(struct trainer *t);

/* One step; the loss (mean divergence in nats) before it. Not finite: the weights are as before. */
float trainer_step(struct trainer *t, double rate);
/* Acceptance in at most `most` held-out texts, at the tokens that the target took greedily. */
void trainer_measure(struct trainer *t, uint32_t most, struct acceptance *alone,
                     struct acceptance *with_lookup);

enum status trainer_save(const struct trainer *t, const char *path, struct error *err);
/* Initialises from a state, which must be of this target. *there: false (and STATUS_OK) if there is
 * no such file. */
enum status trainer_load(struct trainer *t, const struct target *target,
                         const struct corpus *corpus, const char *path, bool *there,
                         struct error *err);

#endif
