/* fields.h: typed, ranged access to the fields of a request, with errors that name field and value.
 *
 * All getters: an absent or null field leaves *out as it was (the default is already there) and is
 * STATUS_OK; a wrong type or range is STATUS_INVALID with param = the field's name. */
#ifndef API_FIELDS_H
#define API_FIELDS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/api/json_read.h"

struct fields {
    const struct json *json;
    const struct json_node *object;
    struct error *err;
};

/* The value of a field, or NULL if it is absent or null. */
const struct json_node *field_get(const struct fields *f, const char *name);

enum status field_bool(const struct fields *f, const char *name, bool *out);
/* min <= value <= max. */
enum status field_integer(const struct fields *f, const char *name, int64_t min, int64_t max,
                          int64_t *out);
/* min <= value <= max; with `above`, min < value. */
enum status field_number(const struct fields *f, const char *name, double min, bool above,
                         double max, float *out);
/* The field's node if it is an object; *out stays NULL if it is absent. */
enum status field_object(const struct fields *f, const char *name, const struct json_node **out);

/* Fills the error "PARAM must be WHAT, not VALUE" for a value of any kind. */
enum status field_mismatch(const struct fields *f, const char *param, const char *what,
                           const struct json_node *value);

/* For a field of simple values, of which one is wrong: param becomes the field, as OpenAI has it; the
 * sentence still names the element ("stop[1] must be ..."). Returns status. */
enum status field_of_list(const struct fields *f, const char *name, enum status status);

/* Appends a string's text; STATUS_INVALID naming param if it holds U+0000. The node is a string. */
enum status field_text(const struct fields *f, const char *param, const struct json_node *value,
                       struct buffer *out);

#endif
