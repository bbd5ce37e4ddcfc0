#include "core/api/json_read.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/text/utf8.h"

/* One run of the parser. The stack holds the open containers' node numbers. */
struct reader {
    struct json *j;
    const unsigned char *p, *end, *begin;
    uint32_t stack[JSON_DEPTH_MAX];
    unsigned depth;
    struct error *err;
};

/* Writes the path of the value that is being read ("messages[2].content") into out. */
static void value_path(const struct reader *r, const struct json_node *member, char *out,
                       size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (unsigned level = 0; level < r->depth && used < size; level++) {
        const struct json_node *box = &r->j->nodes[r->stack[level]];
        int n;
        if (box->type == JSON_ARRAY) {
            n = snprintf(out + used, size - used, "[%u]", box->count - 1);
        } else {
            const struct json_node *inner =
                level + 1 < r->depth ? &r->j->nodes[r->stack[level + 1]] : member;
            if (inner == NULL)
                break;
            int len = inner->key_len < 40 ? (int)inner->key_len : 40;
            n = snprintf(out + used, size - used, "%s%.*s", used > 0 ? "." : "", len,
                         r->j->text.ptr + inner->key_start);
        }
        used += n > 0 ? (size_t)n : 0;
    }
}

static enum status fail(struct reader *r, const char *path, const char *what)
{
    unsigned line = 1, column = 1;
    for (const unsigned char *q = r->begin; q < r->p; q++) {
        column++;
        if (*q == '\n') {
            line++;
            column = 1;
        }
    }
    return error_param(r->err, STATUS_INVALID_JSON, path,
                       "the body is not valid JSON: line %u, column %u: %s", line, column, what);
}

static enum status fail_value(struct reader *r, const struct json_node *member, const char *what)
{
    char path[sizeof(r->err->param)];
    value_path(r, member, path, sizeof(path));
    return fail(r, path, what);
}

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
        r->p++;
}

/* Four hex digits at p; -1 if there are none. */
static int hex4(const unsigned char *p, const unsigned char *end)
{
    int value = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int c = p[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* What is wrong with the escape at r->p (a backslash), or NULL after stepping over it. */
static const char *scan_escape(struct reader *r)
{
    if (r->end - r->p < 2)
        return "a string has no end";
    switch (r->p[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        r->p += 2;
        return NULL;
    case 'u':
        break;
    default:
        return "unknown escape in a string";
    }
    int unit = hex4(r->p + 2, r->end);
    if (unit < 0)
        return "\\u needs four hex digits";
    if (unit >= 0xdc00 && unit <= 0xdfff)
        return "a low surrogate without a high one before it is no character";
    if (unit >= 0xd800 && unit <= 0xdbff) {
        int low =
            r->end - r->p >= 8 && r->p[6] == '\\' && r->p[7] == 'u' ? hex4(r->p + 8, r->end) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return "a high surrogate without a low one after it is no character";
        r->p += 6;
    }
    r->p += 6;
    return NULL;
}

/* Steps over the string whose first quote is at r->p. NULL, or what is wrong at r->p. */
static const char *scan_string(struct reader *r, uint32_t *start, uint32_t *len, bool *escaped)
{
    r->p++;
    *start = (uint32_t)(r->p - r->begin);
    *escaped = false;
    while (r->p < r->end) {
        unsigned char c = *r->p;
        if (c == '"') {
            *len = (uint32_t)(r->p - r->begin) - *start;
            r->p++;
            return NULL;
        }
        if (c == '\\') {
            *escaped = true;
            const char *wrong = scan_escape(r);
            if (wrong != NULL)
                return wrong;
        } else if (c < 0x20) {
            return c == 0 ? "a NUL byte in a string"
                          : "a control character in a string must be escaped";
        } else if (c < 0x80) {
            r->p++;
        } else {
            size_t n;
            if (utf8_step((const char *)r->p, (size_t)(r->end - r->p), &n) != UTF8_CHARACTER)
                return "a string is not valid UTF-8";
            r->p += n;
        }
    }
    return "a string has no end";
}

static bool digits(struct reader *r)
{
    const unsigned char *first = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
        r->p++;
    return r->p > first;
}

/* Steps over a number by the grammar of RFC 8259; false if it is none. */
static bool scan_number(struct reader *r)
{
    if (*r->p == '-')
        r->p++;
    if (r->p < r->end && *r->p == '0')
        r->p++;
    else if (!digits(r))
        return false;
    if (r->p < r->end && *r->p == '.') {
        r->p++;
        if (!digits(r))
            return false;
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-'))
            r->p++;
        if (!digits(r))
            return false;
    }
    return true;
}

static bool scan_word(struct reader *r, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(r->end - r->p) < len || memcmp(r->p, word, len) != 0)
        return false;
    r->p += len;
    return true;
}

static struct json_node *add_node(struct reader *r)
{
    struct json *j = r->j;
    if (j->n == j->cap) {
        j->cap = j->cap == 0 ? 64 : j->cap * 2;
        j->nodes = xreallocarray(j->nodes, j->cap, sizeof(*j->nodes));
    }
    struct json_node *node = &j->nodes[j->n++];
    *node = (struct json_node){.span = 1};
    return node;
}

/* Reads the beginning of a value at r->p: all of it, or a container's bracket, which is pushed. The
 * node has its key already. */
static enum status read_value(struct reader *r, struct json_node *node)
{
    node->start = (uint32_t)(r->p - r->begin);
    if (r->p == r->end)
        return fail(r, "", "it ends where a value should be");
    bool good = true;
    switch (*r->p) {
    case '{':
    case '[':
        if (r->depth == JSON_DEPTH_MAX)
            return fail(r, "", "more than 128 levels of brackets");
        node->type = *r->p == '{' ? JSON_OBJECT : JSON_ARRAY;
        r->stack[r->depth++] = (uint32_t)(node - r->j->nodes);
        r->p++;
        return STATUS_OK;
    case '"': {
        node->type = JSON_STRING;
        const char *wrong = scan_string(r, &node->start, &node->len, &node->escaped);
        return wrong == NULL ? STATUS_OK : fail_value(r, node, wrong);
    }
    case 't':
        node->type = JSON_TRUE;
        good = scan_word(r, "true");
        break;
    case 'f':
        node->type = JSON_FALSE;
        good = scan_word(r, "false");
        break;
    case 'n':
        node->type = JSON_NULL;
        good = scan_word(r, "null");
        break;
    default:
        node->type = JSON_NUMBER;
        if (*r->p != '-' && (*r->p < '0' || *r->p > '9'))
            return fail(r, "", "a value was expected");
        if (!scan_number(r))
            return fail_value(r, node, "not a number as JSON writes it");
    }
    if (!good)
        return fail(r, "", "a value was expected");
    node->len = (uint32_t)(r->p - r->begin) - node->start;
    return STATUS_OK;
}

/* Reads one more element of the innermost container, its key first if it is an object's. */
static enum status read_element(struct reader *r)
{
    struct json_node *box = &r->j->nodes[r->stack[r->depth - 1]];
    bool object = box->type == JSON_OBJECT;
    if (r->j->n == JSON_NODES_MAX)
        return fail(r, "", "more than 2097152 values");
    box->count++;
    struct json_node *node = add_node(r);
    if (object) {
        if (r->p == r->end || *r->p != '"')
            return fail(r, "", "a key in double quotes was expected");
        const char *wrong = scan_string(r, &node->key_start, &node->key_len, &node->key_escaped);
        if (wrong != NULL)
            return fail_value(r, NULL, wrong);
        skip_space(r);
        if (r->p == r->end || *r->p != ':')
            return fail(r, "", "':' was expected after a key");
        r->p++;
        skip_space(r);
    }
    return read_value(r, node);
}

/* After a value: closes containers as long as they end here. True at a ',' that was stepped over,
 * false when the outermost container is closed; *status tells when neither is there. */
static bool close_containers(struct reader *r, enum status *status)
{
    *status = STATUS_OK;
    while (r->depth > 0) {
        uint32_t index = r->stack[r->depth - 1];
        struct json_node *box = &r->j->nodes[index];
        bool object = box->type == JSON_OBJECT;
        skip_space(r);
        if (r->p < r->end && *r->p == (object ? '}' : ']')) {
            r->p++;
            r->depth--;
            box->span = r->j->n - index;
            box->len = (uint32_t)(r->p - r->begin) - box->start;
        } else if (box->count == 0) {
            return true;
        } else if (r->p < r->end && *r->p == ',') {
            r->p++;
            skip_space(r);
            return true;
        } else {
            *status = fail(r, "", object ? "',' or '}' was expected" : "',' or ']' was expected");
            return false;
        }
    }
    return false;
}

enum status json_parse(struct json *j, struct slice text, struct error *err)
{
    struct reader r = {.j = j, .err = err};
    *j = (struct json){.text = text};
    r.begin = r.p = (const unsigned char *)text.ptr;
    r.end = r.p + text.len;
    if (text.len >= UINT32_MAX)
        return error_set(err, STATUS_TOO_LARGE, "the body has %zu bytes", text.len);
    skip_space(&r);
    if (r.p == r.end)
        return error_set(err, STATUS_INVALID_JSON, "the body is empty; a JSON object was expected");
    enum status status = read_value(&r, add_node(&r));
    while (status == STATUS_OK && close_containers(&r, &status))
        status = read_element(&r);
    if (status != STATUS_OK)
        return status;
    skip_space(&r);
    if (r.p != r.end)
        return fail(&r, "", "something follows after the end of the value");
    return STATUS_OK;
}

void json_release(struct json *j)
{
    free(j->nodes);
    *j = (struct json){0};
}

/* Resolves the escapes of a string that the parser has accepted. */
static bool unescape(const char *p, size_t len, bool escaped, struct buffer *out)
{
    const char *end = p + len;
    bool clean = true;
    while (escaped && p < end) {
        const char *slash = memchr(p, '\\', (size_t)(end - p));
        if (slash == NULL)
            break;
        buffer_add(out, p, (size_t)(slash - p));
        p = slash + 2;
        switch (slash[1]) {
        case 'b':
            buffer_add_byte(out, '\b');
            break;
        case 'f':
            buffer_add_byte(out, '\f');
            break;
        case 'n':
            buffer_add_byte(out, '\n');
            break;
        case 'r':
            buffer_add_byte(out, '\r');
            break;
        case 't':
            buffer_add_byte(out, '\t');
            break;
        case 'u': {
            unsigned c = (unsigned)hex4((const unsigned char *)p, (const unsigned char *)end);
            p += 4;
            if (c >= 0xd800 && c <= 0xdbff) {
                unsigned low =
                    (unsigned)hex4((const unsigned char *)p + 2, (const unsigned char *)end);
                c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
                p += 6;
            }
            clean = clean && c != 0;
            char bytes[4];
            buffer_add(out, bytes, utf8_put(c, bytes));
            break;
        }
        default:
            buffer_add_byte(out, slash[1]);
        }
    }
    buffer_add(out, p, (size_t)(end - p));
    return clean;
}

bool json_string(const struct json *j, const struct json_node *node, struct buffer *out)
{
    return unescape(j->text.ptr + node->start, node->len, node->escaped, out);
}

bool json_key(const struct json *j, const struct json_node *member, struct buffer *out)
{
    return unescape(j->text.ptr + member->key_start, member->key_len, member->key_escaped, out);
}

static bool text_is(const char *p, size_t len, bool escaped, const char *text)
{
    if (!escaped)
        return slice_is(slice_make(p, len), text);
    struct buffer plain = {0};
    unescape(p, len, true, &plain);
    bool same = slice_is(buffer_slice(&plain), text);
    buffer_release(&plain);
    return same;
}

bool json_string_is(const struct json *j, const struct json_node *node, const char *text)
{
    return node->type == JSON_STRING &&
           text_is(j->text.ptr + node->start, node->len, node->escaped, text);
}

const struct json_node *json_get(const struct json *j, const struct json_node *object,
                                 const char *key)
{
    const struct json_node *found = NULL, *member = json_child(object);
    for (uint32_t i = 0; i < object->count; i++, member = json_next(member))
        if (text_is(j->text.ptr + member->key_start, member->key_len, member->key_escaped, key))
            found = member;
    return found;
}

double json_double(const struct json *j, const struct json_node *node)
{
    char small[64];
    struct slice raw = json_raw(j, node);
    if (raw.len < sizeof(small)) {
        memcpy(small, raw.ptr, raw.len);
        small[raw.len] = '\0';
        return strtod(small, NULL);
    }
    char *copy = xmemdup(raw.ptr, raw.len);
    double value = strtod(copy, NULL);
    free(copy);
    return value;
}

bool json_int64(const struct json *j, const struct json_node *node, int64_t *out)
{
    struct slice raw = json_raw(j, node);
    char small[24];
    bool whole = raw.len < sizeof(small);
    for (size_t i = 0; whole && i < raw.len; i++)
        whole = raw.ptr[i] == '-' || (raw.ptr[i] >= '0' && raw.ptr[i] <= '9');
    if (whole) {
        memcpy(small, raw.ptr, raw.len);
        small[raw.len] = '\0';
        errno = 0;
        *out = strtoll(small, NULL, 10);
        return errno == 0;
    }
    double value = json_double(j, node);
    if (!(fabs(value) <= 9007199254740992.0) || value != floor(value))
        return false;
    *out = (int64_t)value;
    return true;
}
