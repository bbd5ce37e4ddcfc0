/* fuzz_sse.c: a server that answers what it likes, against the reader of responses that load clients use. The first two
 * bytes of an input choose where it is cut in pieces; the rest is the response. In pieces or whole, the outcome must be
 * the same: status, events, text and whether it is complete.
 *
 * sources: tools/sse_reply.c core/base/buffer.c core/base/check.c core/base/status.c core/base/xalloc.c
 * covers: tools/sse_reply.c
 */
#include <string.h>

#include "core/base/check.h"
#include "tools/sse_reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct outcome {
    struct sse_reply reply;
    struct buffer events; /* each with a 0 behind it */
    enum status status;
    bool whole;
};

static void event(void *arg, struct slice data)
{
    struct outcome *o = arg;
    check(data.len <= SSE_EVENT_MAX);
    buffer_add_slice(&o->events, data);
    buffer_add(&o->events, "", 1);
}

/* Pieces of a, b, a, b, … bytes. */
static void run(struct outcome *o, const uint8_t *data, size_t size, size_t a, size_t b)
{
    struct error err = {0};
    memset(o, 0, sizeof(*o));
    sse_reply_init(&o->reply, event, o);
    for (size_t at = 0, turn = 0; at < size && o->status == STATUS_OK; turn++) {
        size_t n = turn % 2 == 0 ? a : b;
        n = n < size - at ? n : size - at;
        o->status = sse_reply_feed(&o->reply, (const char *)data + at, n, &err);
        at += n;
    }
    check(o->status == STATUS_OK || (o->status == STATUS_CORRUPT && err.text[0] != '\0'));
    o->whole = o->status == STATUS_OK && sse_reply_end(&o->reply);
    check(o->reply.text.len <= SSE_TEXT_MAX && o->reply.frame.len <= SSE_HEAD_MAX + 1);
}

static void end(struct outcome *o)
{
    sse_reply_release(&o->reply);
    buffer_release(&o->events);
}

static bool same(const struct buffer *a, const struct buffer *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->ptr, b->ptr, a->len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct outcome whole, pieces;
    if (size < 3)
        return 0;
    run(&whole, data + 2, size - 2, size, size);
    run(&pieces, data + 2, size - 2, data[0] % 32 + 1u, data[1] + 1u);
    check(whole.status == pieces.status && whole.whole == pieces.whole);
    check(whole.reply.status == pieces.reply.status && same(&whole.events, &pieces.events));
    check(whole.status != STATUS_OK || same(&whole.reply.text, &pieces.reply.text));
    end(&whole);
    end(&pieces);
    return 0;
}
