/* Dequantised tensors of random-256 equal the SHA-256 (of little-endian f32) and the first values
 * in dequantised.json; all types there are supported. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sha256.h"
#include "core/base/xalloc.h"
#include "core/gguf/gguf.h"
#include "core/kernels/weights.h"
#include "tests/shared.h"

static bool compare(const char *file, const char *name, const struct gguf_tensor *t,
                    enum weight_type type, json_t *want)
{
    uint32_t cols = (uint32_t)t->dims[0], rows = (uint32_t)t->dims[1];
    float *values = xreallocarray(NULL, (size_t)rows * cols, sizeof *values);
    char hex[65];
    for (uint32_t r = 0; r < rows; r++)
        dequantise_row(type, (const char *)t->data + r * weight_row_bytes(type, cols), cols,
                       values + (size_t)r * cols);
    sha256(values, (size_t)rows * cols * sizeof *values, hex);
    bool fine = strcmp(hex, json_string_value(json_object_get(want, "sha256"))) == 0;
    json_t *first = json_object_get(want, "first");
    for (size_t i = 0; i < json_array_size(first); i++)
        fine &= values[i] == (float)json_number_value(json_array_get(first, i));
    printf("%s %s %s %s\n", fine ? "ok  " : "FAIL", file, name, weight_info(type)->name);
    free(values);
    return fine;
}

int main(void)
{
    const char *shared = shared_folder("dequantised");
    char hex[65], path[4096];
    json_error_t why;
    unsigned compared = 0;
    bool fine = true;
    if (shared == NULL)
        return 77;
    sha256("abc", 3, hex);
    if (strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") != 0)
        return 1;
    json_t *all =
        json_load_file(shared_path(shared, "data/models/random-256/dequantised.json"), 0, &why);
    if (all == NULL) {
        fprintf(stderr, "dequantised.json: %s\n", why.text);
        return 1;
    }
    const char *file, *name;
    json_t *tensors, *want;
    json_object_foreach(all, file, tensors)
    {
        struct gguf *g;
        struct error err = {0};
        snprintf(path, sizeof path, "%s/data/models/random-256/%s", shared, file);
        if (gguf_open(path, &g, &err) != STATUS_OK || gguf_map(g, &err) != STATUS_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        json_object_foreach(tensors, name, want)
        {
            const struct gguf_tensor *t = gguf_tensor(g, name);
            enum weight_type type;
            if (t == NULL) {
                fprintf(stderr, "%s has no tensor %s\n", path, name);
                return 1;
            }
            if (!weight_type_from_gguf(t->type, &type)) {
                fprintf(stderr, "%s: %s is not supported\n", path, tensor_type_name(t->type));
                return 1;
            }
            fine &= compare(file, name, t, type, want);
            compared++;
        }
        gguf_free(g);
    }
    json_decref(all);
    printf("%u tensors\n", compared);
    return fine && compared >= 51 ? 0 : 1;
}
