#include "tools/sse_reply.h"

#include <ctype.h>
#include <stdlib.h>
#include <strings.h>

void sse_reply_init(struct sse_reply *r, void (*event)(void *arg, struct slice data), void *arg)
{
    *r = (struct sse_reply){.event = event, .arg = arg};
}

void sse_reply_release(struct sse_reply *r)
{
    buffer_release(&r->frame);
    buffer_release(&r->line);
    buffer_release(&r->data);
    buffer_release(&r->text);
}

/* ---- events --------------------------------------------------------------------------------------------- */

static void event_line(struct sse_reply *r, struct slice line)
{
    if (line.len > 0 && line.ptr[line.len - 1] == '\r')
        line.len--;
    if (line.len == 0) {
        if (r->data.len > 0)
            r->event(r->arg, slice_make(r->data.ptr, r->data.len - 1));
        buffer_clear(&r->data);
    } else if (slice_starts(line, slice_of("data:"))) {
        size_t skip = line.len > 5 && line.ptr[5] == ' ' ? 6 : 5;
        buffer_add(&r->data, line.ptr + skip, line.len - skip);
        buffer_add_byte(&r->data, '\n');
    }
}

static enum status body(struct sse_reply *r, const char *bytes, size_t n, struct error *err)
{
    if (!r->events) {
        size_t room = SSE_TEXT_MAX - r->text.len;
        buffer_add(&r->text, bytes, n < room ? n : room);
        return STATUS_OK;
    }
    while (n > 0) {
        const char *end = memchr(bytes, '\n', n);
        size_t part = end != NULL ? (size_t)(end - bytes) : n;
        if (r->line.len + r->data.len + part > SSE_EVENT_MAX)
            return error_set(err, STATUS_CORRUPT, "an event is longer than %u bytes",
                             SSE_EVENT_MAX);
        buffer_add(&r->line, bytes, part);
        if (end == NULL)
            break;
        event_line(r, buffer_slice(&r->line));
        buffer_clear(&r->line);
        bytes += part + 1;
        n -= part + 1;
    }
    return STATUS_OK;
}

/* ---- head and framing ----------------------------------------------------------------------------------- */

/* The value of a header line with this name, else NULL. The line is NUL-terminated. */
static const char *header_value(const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    line += n + 1;
    return line + strspn(line, " \t");
}

/* A line of the head, without its end; the empty line ends it. */
static enum status head_line(struct sse_reply *r, const char *line, struct error *err)
{
    const char *value;
    if (r->status == 0) {
        if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12 || line[8] != ' ' ||
            (r->status = (unsigned)strtoul(line + 9, NULL, 10)) < 100 || r->status > 599) {
            r->status = 0;
            return error_set(err, STATUS_CORRUPT, "no HTTP response: '%.60s'", line);
        }
        r->left = UINT64_MAX;
        r->close = line[7] == '0';
        return STATUS_OK;
    }
    if (*line == '\0') {
        if (r->status < 200)
            r->status = 0; /* 100 Continue: the real head follows */
        else if (r->chunked)
            r->part = SSE_CHUNK_SIZE;
        else if (r->status == 204 || r->status == 304 || r->left == 0)
            r->part = SSE_COMPLETE;
        else
            r->part = r->left == UINT64_MAX ? SSE_CLOSE : SSE_LENGTH;
        return STATUS_OK;
    }
    if ((value = header_value(line, "Content-Type")) != NULL)
        r->events = strncasecmp(value, "text/event-stream", 17) == 0;
    else if ((value = header_value(line, "Transfer-Encoding")) != NULL)
        r->chunked = strcasecmp(value, "chunked") == 0;
    else if ((value = header_value(line, "Content-Length")) != NULL)
        r->left = strtoull(value, NULL, 10);
    else if ((value = header_value(line, "Connection")) != NULL)
        r->close |= strncasecmp(value, "close", 5) == 0;
    return STATUS_OK;
}

/* A complete line of the head or between chunks is in r->frame. */
static enum status frame_line(struct sse_reply *r, struct error *err)
{
    char *line = r->frame.ptr, *end;
    if (r->frame.len > 0 && line[r->frame.len - 1] == '\r')
        line[r->frame.len - 1] = '\0';
    switch (r->part) {
    case SSE_HEAD:
        return head_line(r, line, err);
    case SSE_CHUNK_SIZE:
        r->left = strtoull(line, &end, 16);
        if (!isxdigit((unsigned char)*line) || (*end != '\0' && *end != ';' && *end != ' '))
            return error_set(err, STATUS_CORRUPT, "no size of a chunk: '%.60s'", line);
        r->part = r->left > 0 ? SSE_CHUNK : SSE_TRAILER;
        return STATUS_OK;
    case SSE_CHUNK_END:
        if (*line != '\0')
            return error_set(err, STATUS_CORRUPT, "a chunk does not end where it should");
        r->part = SSE_CHUNK_SIZE;
        return STATUS_OK;
    default: /* SSE_TRAILER */
        if (*line == '\0')
            r->part = SSE_COMPLETE;
        return STATUS_OK;
    }
}

static enum status framing(struct sse_reply *r, const char *bytes, size_t n, size_t *used,
                           struct error *err)
{
    const char *end = memchr(bytes, '\n', n);
    *used = end != NULL ? (size_t)(end - bytes) + 1 : n;
    if (r->frame.len + *used > SSE_HEAD_MAX)
        return error_set(err, STATUS_CORRUPT, "a line of the response is too long");
    buffer_add(&r->frame, bytes, end != NULL ? *used - 1 : *used);
    if (end == NULL)
        return STATUS_OK;
    enum status status = frame_line(r, err);
    buffer_clear(&r->frame);
    return status;
}

enum status sse_reply_feed(struct sse_reply *r, const char *bytes, size_t n, struct error *err)
{
    enum status status = STATUS_OK;
    while (n > 0 && status == STATUS_OK && r->part != SSE_COMPLETE) {
        size_t used = n;
        switch (r->part) {
        case SSE_CHUNK:
        case SSE_LENGTH:
            used = r->left < n ? (size_t)r->left : n;
            r->left -= used;
            status = body(r, bytes, used, err);
            if (r->left == 0)
                r->part = r->part == SSE_CHUNK ? SSE_CHUNK_END : SSE_COMPLETE;
            break;
        case SSE_CLOSE:
            status = body(r, bytes, n, err);
            break;
        default:
            status = framing(r, bytes, n, &used, err);
        }
        bytes += used;
        n -= used;
    }
    return status;
}

bool sse_reply_end(struct sse_reply *r)
{
    if (r->part == SSE_CLOSE) {
        r->part = SSE_COMPLETE;
        r->close = true;
    }
    return r->part == SSE_COMPLETE;
}
