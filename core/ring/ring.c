#include "core/ring/ring.h"

#include <string.h>

void ring_writer_init(struct ring_writer *w, struct region *own, const struct region *peer,
                      uint64_t size, uint64_t control)
{
    *w = (struct ring_writer){
        .data = (uint8_t *)own + LAYOUT_PAGE,
        .size = size,
        .control = control,
        .tail_word = &own->tail,
        .head_word = &peer->head,
    };
}

void ring_reader_init(struct ring_reader *r, struct region *own, const struct region *peer,
                      uint64_t size)
{
    *r = (struct ring_reader){
        .data = (const uint8_t *)peer + LAYOUT_PAGE,
        .size = size,
        .tail_word = &peer->tail,
        .head_word = &own->head,
    };
}

/* Takes over the peer's head if it makes sense: it only grows, and not past what we published. */
static void writer_look(struct ring_writer *w)
{
    uint64_t head = atomic_load_explicit(w->head_word, memory_order_acquire);
    if (head - w->head > w->published - w->head || head % FRAME_ALIGN != 0)
        w->broken = true;
    else
        w->head = head;
}

static bool writer_fits(const struct ring_writer *w, uint64_t need)
{
    return need <= w->size - (w->tail - w->head);
}

uint8_t *ring_writer_reserve(struct ring_writer *w, uint32_t len, bool control)
{
    w->open = false;
    if (w->broken || len > FRAME_PAYLOAD_MAX)
        return NULL;
    uint64_t to_end = w->size - (w->tail & (w->size - 1));
    uint64_t need = frame_size(len);
    uint64_t pad = to_end < need ? to_end : 0;
    uint64_t total = pad + need + (control ? 0 : w->control);
    if (!writer_fits(w, total)) {
        writer_look(w);
        if (w->broken || !writer_fits(w, total))
            return NULL;
    }
    if (pad != 0) {
        struct frame_header h = {.len = (uint32_t)(pad - FRAME_ALIGN), .type = FRAME_PAD};
        memcpy(w->data + (w->tail & (w->size - 1)), &h, sizeof(h));
        w->tail += pad;
    }
    w->open = true;
    w->reserved = len;
    return w->data + (w->tail & (w->size - 1)) + FRAME_ALIGN;
}

void ring_writer_commit(struct ring_writer *w, uint8_t type, uint8_t flags, uint32_t id,
                        uint32_t aux, uint32_t len)
{
    if (!w->open || len > w->reserved) {
        w->broken = true; /* a bug on our side: stop rather than write over what the peer reads */
        return;
    }
    struct frame_header h = {.len = len, .type = type, .flags = flags, .id = id, .aux = aux};
    memcpy(w->data + (w->tail & (w->size - 1)), &h, sizeof(h));
    w->tail += frame_size(len);
    w->open = false;
}

bool ring_writer_publish(struct ring_writer *w)
{
    if (w->tail == w->published)
        return false;
    w->published = w->tail;
    atomic_store_explicit(w->tail_word, w->tail, memory_order_release);
    return true;
}

bool ring_writer_moved(struct ring_writer *w)
{
    return atomic_load_explicit(w->head_word, memory_order_acquire) != w->head;
}

static enum ring_peek reader_broken(struct ring_reader *r)
{
    r->broken = true;
    r->step = 0;
    return RING_BROKEN;
}

/* The header is read as two 8-byte loads, once: whatever the peer writes meanwhile, the checks and the caller
 * see the same 16 bytes. */
static struct frame_header reader_header(const struct ring_reader *r)
{
    const _Atomic uint64_t *at =
        (const _Atomic uint64_t *)(const void *)(r->data + (r->head & (r->size - 1)));
    uint64_t raw[2] = {atomic_load_explicit(&at[0], memory_order_relaxed),
                       atomic_load_explicit(&at[1], memory_order_relaxed)};
    struct frame_header h;
    memcpy(&h, raw, sizeof(h));
    return h;
}

enum ring_peek ring_reader_peek(struct ring_reader *r, struct ring_frame *out)
{
    if (r->broken)
        return RING_BROKEN;
    for (;;) {
        if (r->head == r->tail) {
            uint64_t tail = atomic_load_explicit(r->tail_word, memory_order_acquire);
            /* Against what we published, not what we consumed: the peer cannot know more. */
            if (tail - r->published > r->size || tail - r->published < r->head - r->published ||
                tail % FRAME_ALIGN != 0)
                return reader_broken(r);
            r->tail = tail;
            if (r->head == r->tail)
                return RING_EMPTY;
        }
        struct frame_header h = reader_header(r);
        uint64_t to_end = r->size - (r->head & (r->size - 1));
        if (h.type == 0 || h.type >= FRAME_TYPES || h.reserved != 0 ||
            (h.flags & ~FRAME_FLAGS) != 0 || h.len > FRAME_PAYLOAD_MAX)
            return reader_broken(r);
        uint32_t size = frame_size(h.len);
        if (size > to_end || size > r->tail - r->head)
            return reader_broken(r);
        if (h.type == FRAME_PAD) {
            if (size != to_end || h.len % FRAME_ALIGN != 0 || h.flags != 0 || h.id != 0 ||
                h.aux != 0)
                return reader_broken(r);
            r->head += size;
            continue;
        }
        r->step = size;
        out->header = h;
        out->payload = r->data + (r->head & (r->size - 1)) + FRAME_ALIGN;
        return RING_FRAME;
    }
}

void ring_reader_consume(struct ring_reader *r)
{
    r->head += r->step;
    r->step = 0;
}

bool ring_reader_publish(struct ring_reader *r)
{
    if (r->head == r->published)
        return false;
    r->published = r->head;
    atomic_store_explicit(r->head_word, r->head, memory_order_release);
    return true;
}

bool ring_reader_ready(struct ring_reader *r)
{
    return !r->broken && (r->head != r->tail ||
                          atomic_load_explicit(r->tail_word, memory_order_acquire) != r->head);
}
