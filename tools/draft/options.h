/* options.h: what `tokenring draft` was asked for. */
#ifndef TOOLS_DRAFT_OPTIONS_H
#define TOOLS_DRAFT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/draft/trainer.h"

struct draft_options {
    const char *model, *output;
    const char *from;    /* a draft to begin with, instead of the target's layers */
    const char *measure; /* prompts to measure a draft on, instead of making one */
    uint32_t requantise; /* 4, 5: the whole target in Q4_0, Q5_0, instead of training; 0: no */
    double minutes;      /* of all */
    uint64_t tokens;     /* of the corpus */
    uint64_t steps;      /* of training; 0: as many as the minutes give */
    uint32_t n_layers, layers[TRAINER_LAYERS]; /* 0 layers: the first and the last one */
    uint32_t head_tokens;
    uint32_t threads, slots;
    const char *tier; /* of the kernels; NULL: the best */
    double rate;
    uint64_t seed;
    bool resume, keep;
};

/* 0: go on; else the exit status + 1, after a message. */
int draft_options_parse(int argc, char **argv, struct draft_options *o);

#endif
