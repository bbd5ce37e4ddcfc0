/* The malformed files of the shared data: each is refused with its fault named, without allocating
 * for what is not there; and every whole model file is accepted. */
#include <glob.h>
#include <string.h>
#include <sys/resource.h>

#include "core/gguf/gguf.h"
#include "tests/shared.h"

static const struct {
    const char *name, *word;
} bad[] = {
    {"array-len-huge", "'tokenizer.ggml.tokens' is an array of 1152921504606846976 elements"},
    {"array-of-array", "'tokenizer.ggml.tokens' is an array of arrays"},
    {"bad-tensor-type", "'token_embd.weight' has the unknown type 999"},
    {"bad-value-type", "'general.architecture' has the unknown value type 77"},
    {"bigendian-version", "big-endian"},
    {"dim-huge", "'token_embd.weight'"},
    {"dim-zero", "'token_embd.weight' has a dimension of 0"},
    {"empty", "empty"},
    {"keylen-huge", "the name of key 0 has an impossible length"},
    {"magic", "no GGUF file"},
    {"ndims9", "'token_embd.weight' has 9 dimensions"},
    {"nkv-huge", "2305843009213693952 keys"},
    {"ntensors-huge", "4611686018427387904 tensors"},
    {"offset-huge", "'token_embd.weight'"},
    {"trunc-data", "lies outside the file"},
    {"trunc-header", "the file ends inside the header"},
    {"trunc-infos", "tensor"},
    {"trunc-kv", "tokenizer.ggml"},
    {"unaligned-offset", "'token_embd.weight' has the offset 7"},
    {"version0", "version 0"},
    {"version99", "version 99"},
};

int main(void)
{
    const char *shared = shared_folder("gguf_bad");
    size_t n_bad = sizeof(bad) / sizeof(bad[0]);
    char pattern[4096];
    int failed = 0;
    glob_t files;
    if (shared == NULL)
        return 77;
#ifndef __SANITIZE_ADDRESS__
    struct rlimit limit = {1u << 28, 1u << 28};
    setrlimit(RLIMIT_AS, &limit);
#endif
    snprintf(pattern, sizeof(pattern), "%s/data/models/bad/*.gguf", shared);
    if (glob(pattern, 0, NULL, &files) != 0 || files.gl_pathc != n_bad) {
        fprintf(stderr, "%s: expected %zu files\n", pattern, n_bad);
        return 1;
    }
    globfree(&files);
    for (size_t i = 0; i < n_bad; i++) {
        struct gguf *g;
        struct error err = {0};
        snprintf(pattern, sizeof(pattern), "%s/data/models/bad/%s.gguf", shared, bad[i].name);
        enum status status = gguf_open(pattern, &g, &err);
        if (status == STATUS_OK || g != NULL || strstr(err.text, bad[i].word) == NULL) {
            fprintf(stderr, "%s: status %s, expected \"%s\": %s\n", bad[i].name,
                    status_name(status), bad[i].word, err.text);
            failed = 1;
        }
        gguf_free(g);
    }
    snprintf(pattern, sizeof(pattern), "%s/data/models/[!b]*/*.gguf", shared);
    if (glob(pattern, 0, NULL, &files) != 0 || files.gl_pathc < 10) {
        fprintf(stderr, "%s: files are missing\n", pattern);
        return 1;
    }
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct gguf *g;
        struct error err = {0};
        if (gguf_open(files.gl_pathv[i], &g, &err) != STATUS_OK) {
            fprintf(stderr, "%s\n", err.text);
            failed = 1;
        }
        gguf_free(g);
    }
    globfree(&files);
    return failed;
}
