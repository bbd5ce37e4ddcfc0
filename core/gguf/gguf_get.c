#include <math.h>
#include <stdio.h>

#include "core/base/check.h"
#include "core/gguf/gguf_priv.h"

static const struct {
    const char *name;
    uint32_t size;
} value_types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},       [GGUF_U32] = {"u32", 4},     [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},       [GGUF_BOOL] = {"bool", 1},   [GGUF_U64] = {"u64", 8},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

static const struct {
    const char *name;
    uint32_t block, bytes;
} tensor_types[TENSOR_TYPE_END] = {
#define TENSOR_TYPE(name, id, block, bytes) [id] = {#name, block, bytes},
#include "core/gguf/tensor_types.def"
#undef TENSOR_TYPE
};

uint32_t gguf_type_size(uint32_t type)
{
    return type < GGUF_TYPE_COUNT ? value_types[type].size : 0;
}

const char *gguf_type_name(uint32_t type)
{
    return type < GGUF_TYPE_COUNT ? value_types[type].name : "unknown";
}

const char *tensor_type_name(uint32_t type)
{
    return type < TENSOR_TYPE_END ? tensor_types[type].name : NULL;
}

uint32_t tensor_type_block(uint32_t type)
{
    return type < TENSOR_TYPE_END ? tensor_types[type].block : 0;
}

uint32_t tensor_type_bytes(uint32_t type)
{
    return type < TENSOR_TYPE_END ? tensor_types[type].bytes : 0;
}

uint64_t tensor_row_bytes(enum tensor_type type, uint64_t n)
{
    uint32_t block = tensor_type_block(type);
    check(block != 0 && n % block == 0);
    return n / block * tensor_type_bytes(type);
}

const char *gguf_quote(struct slice name, char out[GGUF_QUOTE])
{
    size_t n = 0;
    while (n < name.len && n < GGUF_QUOTE - 4) {
        char c = name.ptr[n];
        out[n++] = c >= ' ' && c <= '~' ? c : '?';
    }
    snprintf(out + n, GGUF_QUOTE - n, "%s", n < name.len ? "..." : "");
    return out;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

uint64_t gguf_file_size(const struct gguf *g)
{
    return g->size;
}

static int order(struct slice a, struct slice b)
{
    int by_bytes = memcmp(a.ptr, b.ptr, a.len < b.len ? a.len : b.len);
    return by_bytes != 0 ? by_bytes : (a.len > b.len) - (a.len < b.len);
}

const struct gguf_key *gguf_find_key(const struct gguf *g, struct slice name)
{
    uint64_t low = 0, high = g->n_keys;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const struct gguf_key *key = &g->keys[g->keys_by_name[middle]];
        int by_name = order(name, key->name);
        if (by_name == 0)
            return key;
        if (by_name < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    struct slice wanted = slice_of(name);
    uint64_t low = 0, high = g->n_tensors;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const struct gguf_tensor *t = &g->tensors[g->tensors_by_name[middle]];
        int by_name = order(wanted, t->name);
        if (by_name == 0)
            return t;
        if (by_name < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const struct gguf_tensor *gguf_tensors(const struct gguf *g, uint64_t *count)
{
    *count = g->n_tensors;
    return g->tensors;
}

uint64_t gguf_key_count(const struct gguf *g)
{
    return g->n_keys;
}

struct slice gguf_key_name(const struct gguf *g, uint64_t i, enum gguf_type *type)
{
    check(i < g->n_keys);
    *type = g->keys[i].type;
    return g->keys[i].name;
}

struct slice gguf_key_bytes(const struct gguf *g, uint64_t i)
{
    check(i < g->n_keys);
    const struct gguf_key *key = &g->keys[i];
    const char *value = (const char *)key->value;
    if (key->type == GGUF_STRING) /* u64 length in front */
        return slice_make(value - 8, 8 + key->count);
    if (key->type != GGUF_ARRAY)
        return slice_make(value, gguf_type_size(key->type));
    size_t bytes = key->count * gguf_type_size(key->element);
    struct gguf_array strings = {key->element, key->count, value};
    if (key->element == GGUF_STRING)
        for (uint64_t n = bytes = 0; n < key->count; n++)
            gguf_array_string(&strings, &bytes);
    return slice_make(value - 12, 12 + bytes); /* u32 type, u64 count in front */
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return gguf_find_key(g, slice_of(key)) != NULL;
}

/* The key, or NULL if it is absent or an earlier getter has failed. */
static const struct gguf_key *look_up(const struct gguf *g, const char *key,
                                      const struct error *err)
{
    return err->status != STATUS_OK ? NULL : gguf_find_key(g, slice_of(key));
}

static void wrong_type(const struct gguf *g, const struct gguf_key *key, const char *wanted,
                       struct error *err)
{
    char name[GGUF_QUOTE];
    error_set(err, STATUS_CORRUPT, "%s: key '%s' is of type %s, but must be %s", g->path,
              gguf_quote(key->name, name), gguf_type_name(key->type), wanted);
}

/* A whole number as magnitude and sign; false if the type is none. */
static bool integer(enum gguf_type type, const uint8_t *value, uint64_t *magnitude, bool *negative)
{
    int64_t wide = 0;
    uint64_t unsign = 0;
    bool is_signed = true;
    switch (type) {
#define READ(id, ctype, field, sign)                                                               \
    case id: {                                                                                     \
        ctype v;                                                                                   \
        memcpy(&v, value, sizeof(v));                                                              \
        field = v;                                                                                 \
        is_signed = sign;                                                                          \
        break;                                                                                     \
    }
        READ(GGUF_U8, uint8_t, unsign, false)
        READ(GGUF_BOOL, uint8_t, unsign, false)
        READ(GGUF_U16, uint16_t, unsign, false)
        READ(GGUF_U32, uint32_t, unsign, false)
        READ(GGUF_U64, uint64_t, unsign, false)
        READ(GGUF_I8, int8_t, wide, true)
        READ(GGUF_I16, int16_t, wide, true)
        READ(GGUF_I32, int32_t, wide, true)
        READ(GGUF_I64, int64_t, wide, true)
#undef READ
    default:
        return false;
    }
    *negative = is_signed && wide < 0;
    *magnitude = is_signed ? (uint64_t)wide : unsign;
    return true;
}

static bool real(enum gguf_type type, const uint8_t *value, float *result)
{
    if (type == GGUF_F32) {
        memcpy(result, value, sizeof(*result));
        return true;
    }
    if (type == GGUF_F64) {
        double wide;
        memcpy(&wide, value, sizeof(wide));
        *result = (float)wide;
        return true;
    }
    return false;
}

/* Checks that a value is a whole number 0..max. */
static uint64_t number(const struct gguf *g, const struct gguf_key *key, enum gguf_type type,
                       const uint8_t *value, uint64_t max, uint64_t fallback, struct error *err)
{
    uint64_t magnitude;
    bool negative;
    char name[GGUF_QUOTE];
    if (type == GGUF_BOOL || !integer(type, value, &magnitude, &negative)) {
        wrong_type(g, key, "a whole number", err);
        return fallback;
    }
    if (negative || magnitude > max) {
        error_set(err, STATUS_CORRUPT, "%s: key '%s' is %s%llu, but must be 0 to %llu", g->path,
                  gguf_quote(key->name, name), negative ? "-" : "",
                  (unsigned long long)(negative ? 0 - magnitude : magnitude),
                  (unsigned long long)max);
        return fallback;
    }
    return magnitude;
}

uint64_t gguf_u64(const struct gguf *g, const char *name, uint64_t fallback, struct error *err)
{
    const struct gguf_key *key = look_up(g, name, err);
    return key == NULL ? fallback
                       : number(g, key, key->type, key->value, UINT64_MAX, fallback, err);
}

uint32_t gguf_u32(const struct gguf *g, const char *name, uint32_t fallback, struct error *err)
{
    const struct gguf_key *key = look_up(g, name, err);
    return key == NULL ? fallback
                       : (uint32_t)number(g, key, key->type, key->value, UINT32_MAX, fallback, err);
}

float gguf_f32(const struct gguf *g, const char *name, float fallback, struct error *err)
{
    const struct gguf_key *key = look_up(g, name, err);
    char quoted[GGUF_QUOTE];
    float value;
    if (key == NULL)
        return fallback;
    if (!real(key->type, key->value, &value)) {
        wrong_type(g, key, "f32", err);
        return fallback;
    }
    if (!isfinite(value)) {
        error_set(err, STATUS_CORRUPT, "%s: key '%s' is no finite number", g->path,
                  gguf_quote(key->name, quoted));
        return fallback;
    }
    return value;
}

bool gguf_bool(const struct gguf *g, const char *name, bool fallback, struct error *err)
{
    const struct gguf_key *key = look_up(g, name, err);
    if (key == NULL)
        return fallback;
    if (key->type != GGUF_BOOL) {
        wrong_type(g, key, "bool", err);
        return fallback;
    }
    return *key->value != 0;
}

struct slice gguf_str(const struct gguf *g, const char *name, struct slice fallback,
                      struct error *err)
{
    const struct gguf_key *key = look_up(g, name, err);
    if (key == NULL)
        return fallback;
    if (key->type != GGUF_STRING) {
        wrong_type(g, key, "a string", err);
        return fallback;
    }
    return slice_make(key->value, (size_t)key->count);
}

static bool present(const struct gguf *g, const char *name, struct error *err)
{
    if (err->status != STATUS_OK)
        return false;
    if (gguf_has(g, name))
        return true;
    error_set(err, STATUS_CORRUPT, "%s: the file has no key '%s'", g->path, name);
    return false;
}

uint32_t gguf_need_u32(const struct gguf *g, const char *name, struct error *err)
{
    return present(g, name, err) ? gguf_u32(g, name, 0, err) : 0;
}

float gguf_need_f32(const struct gguf *g, const char *name, struct error *err)
{
    return present(g, name, err) ? gguf_f32(g, name, 0, err) : 0;
}

uint32_t gguf_u32_at(const struct gguf *g, const char *name, uint64_t index, uint32_t fallback,
                     struct error *err)
{
    const struct gguf_key *key = look_up(g, name, err);
    char quoted[GGUF_QUOTE];
    if (key == NULL)
        return fallback;
    if (key->type != GGUF_ARRAY)
        return (uint32_t)number(g, key, key->type, key->value, UINT32_MAX, fallback, err);
    if (index >= key->count) {
        error_set(err, STATUS_CORRUPT, "%s: key '%s' has %llu elements, but number %llu is needed",
                  g->path, gguf_quote(key->name, quoted), (unsigned long long)key->count,
                  (unsigned long long)index);
        return fallback;
    }
    return (uint32_t)number(g, key, key->element, key->value + index * gguf_type_size(key->element),
                            UINT32_MAX, fallback, err);
}

bool gguf_array(const struct gguf *g, const char *name, struct gguf_array *array, struct error *err)
{
    const struct gguf_key *key = look_up(g, name, err);
    *array = (struct gguf_array){0};
    if (key == NULL)
        return false;
    if (key->type != GGUF_ARRAY) {
        wrong_type(g, key, "an array", err);
        return false;
    }
    *array = (struct gguf_array){key->element, key->count, key->value};
    return true;
}

uint64_t gguf_array_u64(const struct gguf_array *array, uint64_t i)
{
    uint64_t magnitude;
    bool negative;
    check(i < array->count);
    check(integer(array->type, (const uint8_t *)array->data + i * gguf_type_size(array->type),
                  &magnitude, &negative));
    return magnitude;
}

float gguf_array_f32(const struct gguf_array *array, uint64_t i)
{
    float value;
    check(i < array->count);
    check(
        real(array->type, (const uint8_t *)array->data + i * gguf_type_size(array->type), &value));
    return value;
}

struct slice gguf_array_string(const struct gguf_array *array, size_t *at)
{
    uint64_t len;
    const uint8_t *next = (const uint8_t *)array->data + *at;
    check(array->type == GGUF_STRING);
    memcpy(&len, next, sizeof(len));
    *at += sizeof(len) + (size_t)len;
    return slice_make(next + sizeof(len), (size_t)len);
}
