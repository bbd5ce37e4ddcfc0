#include "core/ring/message.h"

#include <string.h>

/* Reads from a private copy; never past end. */
struct cursor {
    const unsigned char *at, *end;
};

static bool take(struct cursor *c, void *out, size_t n)
{
    if ((size_t)(c->end - c->at) < n)
        return false;
    memcpy(out, c->at, n);
    c->at += n;
    return true;
}

static bool take_slice(struct cursor *c, size_t n, struct slice *out)
{
    if ((size_t)(c->end - c->at) < n)
        return false;
    *out = slice_make(c->at, n);
    c->at += n;
    return true;
}

static void put(unsigned char **at, const void *from, size_t n)
{
    if (n != 0)
        memcpy(*at, from, n);
    *at += n;
}

/* RFC 9110 token characters; upper case only where allowed. */
static bool is_token(struct slice s, bool upper)
{
    for (size_t i = 0; i < s.len; i++) {
        char ch = s.ptr[i];
        bool ok = (ch >= 'a' && ch <= 'z') || (ch >= '0' && ch <= '9') ||
                  (upper && ch >= 'A' && ch <= 'Z') ||
                  (ch != '\0' && strchr("!#$%&'*+-.^_`|~", ch) != NULL);
        if (!ok)
            return false;
    }
    return s.len != 0;
}

static bool is_clean(struct slice s, bool tab)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char ch = (unsigned char)s.ptr[i];
        if ((ch < 0x20 && !(tab && ch == '\t')) || ch == 0x7f)
            return false;
    }
    return true;
}

static enum status check_pairs(const struct message_pair *pairs, uint32_t n, struct error *err)
{
    if (n > MESSAGE_PAIRS_MAX)
        return error_set(err, STATUS_TOO_LARGE, "%u header fields, at most %u are carried", n,
                         MESSAGE_PAIRS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        if (pairs[i].name.len > MESSAGE_NAME_MAX)
            return error_set(err, STATUS_TOO_LARGE,
                             "header name %u is %zu bytes long, at most %u are carried", i,
                             pairs[i].name.len, MESSAGE_NAME_MAX);
        if (!is_token(pairs[i].name, false))
            return error_set(err, STATUS_INVALID,
                             "header name %u is empty or has a byte that no name may have", i);
        if (!is_clean(pairs[i].value, true))
            return error_set(err, STATUS_INVALID,
                             "the value of header %u (%.*s) has a control byte", i,
                             (int)pairs[i].name.len, pairs[i].name.ptr);
    }
    return STATUS_OK;
}

static enum status check_request(const struct message_request *m, struct error *err)
{
    if (m->method.len > MESSAGE_METHOD_MAX)
        return error_set(err, STATUS_TOO_LARGE,
                         "the method is %zu bytes long, at most %u are carried", m->method.len,
                         MESSAGE_METHOD_MAX);
    if (!is_token(m->method, true))
        return error_set(err, STATUS_INVALID,
                         "the method is empty or has a byte that no method may have");
    if (m->target.len == 0 || m->target.ptr[0] != '/' || !is_clean(m->target, false))
        return error_set(err, STATUS_INVALID,
                         "the target does not begin with '/' or has a control byte");
    return check_pairs(m->pairs, m->n_pairs, err);
}

static enum status check_head(const struct message_head *m, struct error *err)
{
    if (m->status < 200 || m->status > 599)
        return error_set(err, STATUS_INVALID, "status %u is outside 200..599", m->status);
    return check_pairs(m->pairs, m->n_pairs, err);
}

static size_t pairs_size(const struct message_pair *pairs, uint32_t n)
{
    size_t size = 0;
    for (uint32_t i = 0; i < n && i < MESSAGE_PAIRS_MAX; i++)
        size += 6 + pairs[i].name.len + pairs[i].value.len;
    return size;
}

size_t message_request_size(const struct message_request *m)
{
    return 8 + m->method.len + m->target.len + pairs_size(m->pairs, m->n_pairs);
}

size_t message_head_size(const struct message_head *m)
{
    return 4 + pairs_size(m->pairs, m->n_pairs);
}

static void put_pairs(unsigned char **at, const struct message_pair *pairs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t name = (uint16_t)pairs[i].name.len;
        uint32_t value = (uint32_t)pairs[i].value.len;
        put(at, &name, sizeof(name));
        put(at, &value, sizeof(value));
        put(at, pairs[i].name.ptr, name);
        put(at, pairs[i].value.ptr, value);
    }
}

static enum status check_room(size_t size, size_t cap, struct error *err)
{
    if (size > cap)
        return error_set(err, STATUS_TOO_LARGE,
                         "the header is %zu bytes long, at most %zu are carried", size, cap);
    return STATUS_OK;
}

enum status message_request_encode(const struct message_request *m, void *out, size_t cap,
                                   size_t *len, struct error *err)
{
    enum status status = check_request(m, err);
    if (status != STATUS_OK)
        return status;
    *len = message_request_size(m);
    if ((status = check_room(*len, cap, err)) != STATUS_OK)
        return status;
    unsigned char *at = out;
    uint16_t method = (uint16_t)m->method.len, n = (uint16_t)m->n_pairs;
    uint32_t target = (uint32_t)m->target.len;
    put(&at, &method, sizeof(method));
    put(&at, &n, sizeof(n));
    put(&at, &target, sizeof(target));
    put(&at, m->method.ptr, method);
    put(&at, m->target.ptr, target);
    put_pairs(&at, m->pairs, n);
    return STATUS_OK;
}

enum status message_head_encode(const struct message_head *m, void *out, size_t cap, size_t *len,
                                struct error *err)
{
    enum status status = check_head(m, err);
    if (status != STATUS_OK)
        return status;
    *len = message_head_size(m);
    if ((status = check_room(*len, cap, err)) != STATUS_OK)
        return status;
    unsigned char *at = out;
    uint16_t code = (uint16_t)m->status, n = (uint16_t)m->n_pairs;
    put(&at, &code, sizeof(code));
    put(&at, &n, sizeof(n));
    put_pairs(&at, m->pairs, n);
    return STATUS_OK;
}

static enum status too_short(struct error *err)
{
    return error_set(err, STATUS_PEER, "the message is shorter than its own lengths say");
}

static enum status take_pairs(struct cursor *c, struct message_pair *pairs, uint32_t n,
                              struct error *err)
{
    if (n > MESSAGE_PAIRS_MAX)
        return error_set(err, STATUS_PEER, "%u header fields, at most %u are carried", n,
                         MESSAGE_PAIRS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t name;
        uint32_t value;
        if (!take(c, &name, sizeof(name)) || !take(c, &value, sizeof(value)) ||
            !take_slice(c, name, &pairs[i].name) || !take_slice(c, value, &pairs[i].value))
            return too_short(err);
    }
    if (c->at != c->end)
        return error_set(err, STATUS_PEER, "%td bytes follow the last header field",
                         c->end - c->at);
    return STATUS_OK;
}

/* What the sender's own checks would have refused comes from a peer that has none: the same text, another status. */
static enum status as_peer(enum status status, struct error *err)
{
    if (status != STATUS_OK && err != NULL)
        err->status = STATUS_PEER;
    return status == STATUS_OK ? STATUS_OK : STATUS_PEER;
}

enum status message_request_decode(const void *payload, size_t len, struct message_request *out,
                                   struct error *err)
{
    struct cursor c = {payload, (const unsigned char *)payload + len};
    uint16_t method, n;
    uint32_t target;
    if (!take(&c, &method, sizeof(method)) || !take(&c, &n, sizeof(n)) ||
        !take(&c, &target, sizeof(target)) || !take_slice(&c, method, &out->method) ||
        !take_slice(&c, target, &out->target))
        return too_short(err);
    out->n_pairs = n;
    enum status status = take_pairs(&c, out->pairs, n, err);
    return status != STATUS_OK ? status : as_peer(check_request(out, err), err);
}

enum status message_head_decode(const void *payload, size_t len, struct message_head *out,
                                struct error *err)
{
    struct cursor c = {payload, (const unsigned char *)payload + len};
    uint16_t code, n;
    if (!take(&c, &code, sizeof(code)) || !take(&c, &n, sizeof(n)))
        return too_short(err);
    out->status = code;
    out->n_pairs = n;
    enum status status = take_pairs(&c, out->pairs, n, err);
    return status != STATUS_OK ? status : as_peer(check_head(out, err), err);
}

struct slice message_find(const struct message_pair *pairs, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (slice_is(pairs[i].name, name))
            return pairs[i].value;
    return (struct slice){NULL, 0};
}
