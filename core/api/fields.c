#include "core/api/fields.h"

#include <stdio.h>

const struct json_node *field_get(const struct fields *f, const char *name)
{
    const struct json_node *node = json_get(f->json, f->object, name);
    return node != NULL && node->type == JSON_NULL ? NULL : node;
}

/* A value for an error message: short scalars as they are, else their kind. */
static void describe(const struct fields *f, const struct json_node *value, char *out, size_t size)
{
    struct slice raw = json_raw(f->json, value);
    int len = (int)raw.len;
    switch (value->type) {
    case JSON_NULL:
    case JSON_TRUE:
    case JSON_FALSE:
        snprintf(out, size, "%.*s", len, raw.ptr);
        break;
    case JSON_NUMBER:
        snprintf(out, size, "%.*s%s", raw.len > 40 ? 40 : len, raw.ptr, raw.len > 40 ? "..." : "");
        break;
    case JSON_STRING:
        if (raw.len <= 40)
            snprintf(out, size, "the string \"%.*s\"", len, raw.ptr);
        else
            snprintf(out, size, "a string of %zu bytes", raw.len);
        break;
    case JSON_ARRAY:
        snprintf(out, size, value->count == 0 ? "an empty array" : "an array");
        break;
    default:
        snprintf(out, size, "an object");
    }
}

enum status field_mismatch(const struct fields *f, const char *param, const char *what,
                           const struct json_node *value)
{
    char text[80];
    describe(f, value, text, sizeof(text));
    return error_param(f->err, STATUS_INVALID, param, "%s must be %s, not %s", param, what, text);
}

enum status field_bool(const struct fields *f, const char *name, bool *out)
{
    const struct json_node *node = field_get(f, name);
    if (node == NULL)
        return STATUS_OK;
    if (node->type != JSON_TRUE && node->type != JSON_FALSE)
        return field_mismatch(f, name, "true or false", node);
    *out = node->type == JSON_TRUE;
    return STATUS_OK;
}

enum status field_integer(const struct fields *f, const char *name, int64_t min, int64_t max,
                          int64_t *out)
{
    const struct json_node *node = field_get(f, name);
    if (node == NULL)
        return STATUS_OK;
    int64_t value;
    if (node->type == JSON_NUMBER && json_int64(f->json, node, &value) && value >= min &&
        value <= max) {
        *out = value;
        return STATUS_OK;
    }
    char what[80];
    snprintf(what, sizeof(what), "a whole number from %lld to %lld", (long long)min,
             (long long)max);
    return field_mismatch(f, name, what, node);
}

enum status field_number(const struct fields *f, const char *name, double min, bool above,
                         double max, float *out)
{
    const struct json_node *node = field_get(f, name);
    if (node == NULL)
        return STATUS_OK;
    double value = node->type == JSON_NUMBER ? json_double(f->json, node) : 0;
    if (node->type == JSON_NUMBER && value >= min && value <= max &&
        !(above && (float)value <= min)) {
        *out = (float)value;
        return STATUS_OK;
    }
    char what[64];
    snprintf(what, sizeof(what), above ? "a number above %g, at most %g" : "a number from %g to %g",
             min, max);
    return field_mismatch(f, name, what, node);
}

enum status field_object(const struct fields *f, const char *name, const struct json_node **out)
{
    const struct json_node *node = field_get(f, name);
    if (node != NULL && node->type != JSON_OBJECT)
        return field_mismatch(f, name, "an object", node);
    *out = node;
    return STATUS_OK;
}

enum status field_of_list(const struct fields *f, const char *name, enum status status)
{
    if (status != STATUS_OK)
        snprintf(f->err->param, sizeof(f->err->param), "%s", name);
    return status;
}

enum status field_text(const struct fields *f, const char *param, const struct json_node *value,
                       struct buffer *out)
{
    if (json_string(f->json, value, out))
        return STATUS_OK;
    return error_param(f->err, STATUS_INVALID, param, "%s contains the character U+0000", param);
}
