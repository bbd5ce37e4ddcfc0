/* default_model.h: where the default model is on this machine; header only. */
#ifndef TESTS_GOLDEN_DEFAULT_MODEL_H
#define TESTS_GOLDEN_DEFAULT_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* TOKENRING_MODEL, or the file in the cache folder that `make serve` fills; NULL (after a line
 * "SKIP: …") if there is none. */
static inline const char *default_model(const char *test)
{
    static char path[4096];
    const char *named = getenv("TOKENRING_MODEL"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (named != NULL && named[0] != '\0')
        snprintf(path, sizeof path, "%s", named);
    else
        snprintf(path, sizeof path, "%s%s/tokenring/SmolLM2-135M-Instruct.Q4_1.gguf",
                 cache != NULL && cache[0] != '\0' ? cache
                 : home != NULL                    ? home
                                                   : "",
                 cache != NULL && cache[0] != '\0' ? "" : "/.cache");
    if (access(path, R_OK) == 0)
        return path;
    printf("SKIP: %s: the default model (%s) is not there\n", test, path);
    return NULL;
}

#endif
