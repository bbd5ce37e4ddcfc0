/* json_read.h: a JSON text as an array of nodes over the text itself; nothing is copied.
 *
 *     {"a":[1,2],"b":"x"}      nodes   object  array  1  2  string
 *                              span    5       3      1  1  1
 *
 * A node's children follow it; `span` counts the node and all below it, so the next sibling of a
 * node stands span further. Members of an object carry their key.
 *
 * Accepts exactly RFC 8259, any value at the top, with these limits: JSON_DEPTH_MAX levels,
 * JSON_NODES_MAX values, texts under 4 GiB; strings must be valid UTF-8 with paired surrogates. A
 * byte order mark is refused. Equal keys are all kept; json_get finds the last.
 *
 * Why not a library: errors must name the field (`messages[2].content`) also for numbers that fit
 * no type and for invalid UTF-8, and U+0000 must be readable, to be refused by name later. */
#ifndef API_JSON_READ_H
#define API_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/slice.h"
#include "core/base/status.h"

enum { JSON_DEPTH_MAX = 128, JSON_NODES_MAX = 1 << 21 };

enum json_type {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
};

struct json_node {
    uint32_t start, len;         /* in the text; strings without their quotes */
    uint32_t key_start, key_len; /* of a member of an object, without quotes */
    uint32_t span;               /* nodes of this subtree */
    uint32_t count;              /* children */
    uint8_t type;                /* enum json_type */
    bool escaped, key_escaped;   /* has a backslash */
};

struct json {
    struct slice text; /* borrowed: must stay as long as the nodes are used */
    struct json_node *nodes;
    uint32_t n, cap;
};

/* Parses text into *j (zeroed before). STATUS_INVALID_JSON: err says what was expected where, by
 * line and column, and names the field if a string or number is at fault. Release *j in either
 * case. */
enum status json_parse(struct json *j, struct slice text, struct error *err);
void json_release(struct json *j);

static inline const struct json_node *json_root(const struct json *j)
{
    return j->nodes;
}

/* The first child; only for count > 0. */
static inline const struct json_node *json_child(const struct json_node *node)
{
    return node + 1;
}

/* The next sibling; only if there is one: callers count. */
static inline const struct json_node *json_next(const struct json_node *node)
{
    return node + node->span;
}

/* The last member of that name, or NULL. */
const struct json_node *json_get(const struct json *j, const struct json_node *object,
                                 const char *key);

/* The raw text of a value: a number's characters, a string between its quotes. */
static inline struct slice json_raw(const struct json *j, const struct json_node *node)
{
    return (struct slice){j->text.ptr + node->start, node->len};
}

/* Appends the string with its escapes resolved; true if it has no U+0000. */
bool json_string(const struct json *j, const struct json_node *node, struct buffer *out);
/* The same for a member's key. */
bool json_key(const struct json *j, const struct json_node *member, struct buffer *out);
/* True if the node is that string. */
bool json_string_is(const struct json *j, const struct json_node *node, const char *text);

/* The number as a double; an infinity if it is too large for one. */
double json_double(const struct json *j, const struct json_node *node);
/* The number as int64; false if it is not whole or does not fit. 5.0 and 5e0 are whole. */
bool json_int64(const struct json *j, const struct json_node *node, int64_t *out);

#endif
