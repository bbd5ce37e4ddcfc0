/* shared.h: how a test program finds the shared data folder; header only. */
#ifndef TESTS_SHARED_H
#define TESTS_SHARED_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "core/base/buffer.h"

/* The shared folder, or NULL where it does not exist (then the line "SKIP: name: why" has been
 * printed and the program must return 77, or leave these tests out if it has others). */
static inline const char *shared_folder(const char *test)
{
    const char *folder = getenv("TOKENRING_SHARED");
    struct stat st;
    if (folder != NULL && stat(folder, &st) == 0 && S_ISDIR(st.st_mode))
        return folder;
    printf("SKIP: %s: the folder of shared test data (%s) does not exist\n", test,
           folder != NULL ? folder : "../shared");
    return NULL;
}

/* "folder/name" in a static buffer; valid until the next call. */
static inline const char *shared_path(const char *folder, const char *name)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* Appends the whole file to out; a file that is missing ends the program as failed. */
static inline void shared_read(const char *path, struct buffer *out)
{
    char chunk[65536];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fprintf(stderr, "%s is missing\n", path);
        exit(1);
    }
    while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0)
        buffer_add(out, chunk, n);
    fclose(f);
}

#endif
