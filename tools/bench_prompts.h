/* bench_prompts.h: the request bodies of a load test: the same for the same options and seed. */
#ifndef TOOLS_BENCH_PROMPTS_H
#define TOOLS_BENCH_PROMPTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/status.h"

struct prompts {
    const char *file; /* NULL: made of words */
    uint32_t words;   /* of its own, in a made prompt */
    uint32_t shared;  /* words in front that all have in common, also with prompts of a file */
    uint64_t seed;
    bool chat;
    uint32_t max_tokens;
    const char *model; /* NULL: none is named */
    const char *
        extra; /* a JSON object whose members are put over the body's, null takes one away; or NULL */
    /* filled by prompts_load */
    json_t *lines; /* of the file: strings, lists of ids, objects */
    json_t *over;
    char *prefix;
};

/* Reads the file and checks what was given. */
enum status prompts_load(struct prompts *p, struct error *err);
void prompts_release(struct prompts *p);
/* The body of request i, to be freed by the caller. */
char *prompts_body(const struct prompts *p, uint64_t i);

#endif
