/* fuzz_ring.c: a peer that writes what it likes into its region, against our side of the channel and the decoders.
 * The first byte of an input chooses our role and the features; then come steps: a byte that says what the peer or we
 * do next, and its arguments. Nothing may be read outside of the region (it ends where memory ends), nothing may hang,
 * and our own books must stay in order.
 *
 * sources: core/ring/ring.c core/ring/message.c core/ring/channel.c core/ring/doorbell.c core/base/status.c core/base/check.c
 * covers: core/ring/ring.c core/ring/message.c core/ring/channel.c core/ring/doorbell.c
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/ring/channel_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SLOTS 8u
#define SIZE RING_SIZE_MIN

static struct region *own, *peer;
static struct channel c;
static const uint8_t *at, *end;
static uint64_t peer_tail; /* what the peer would say if it were honest */
static uint64_t dirty;     /* bytes of its ring that it may have written, from the start */
static uint32_t last_id;   /* of the last stream, so that inputs hit live ones */

static uint64_t take(unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes && at < end; i++)
        value |= (uint64_t)*at++ << 8 * i;
    return value;
}

static uint8_t *ring_at(uint64_t offset)
{
    return (uint8_t *)peer + LAYOUT_PAGE + (offset & (SIZE - 1));
}

/* The peer writes a frame with this header; its payload begins with so many bytes of the input. */
static void peer_frame(struct frame_header h, uint32_t from_input)
{
    uint32_t size = frame_size(h.len > FRAME_PAYLOAD_MAX ? 0 : h.len);
    uint64_t to_end = SIZE - (peer_tail & (SIZE - 1));
    if (size > to_end) {
        struct frame_header pad = {.len = (uint32_t)to_end - FRAME_ALIGN, .type = FRAME_PAD};
        memcpy(ring_at(peer_tail), &pad, sizeof(pad));
        peer_tail += to_end;
    }
    memcpy(ring_at(peer_tail), &h, sizeof(h));
    for (uint32_t i = 0; i < from_input && i < size - FRAME_ALIGN; i++)
        *ring_at(peer_tail + FRAME_ALIGN + i) = (uint8_t)take(1);
    peer_tail += size;
    dirty = peer_tail <= SIZE && dirty < SIZE ? (peer_tail > dirty ? peer_tail : dirty) : SIZE;
    atomic_store(&peer->tail, peer_tail);
}

static void peer_message(uint8_t type)
{
    struct message_request m = {.method = slice_of("POST"),
                                .target = slice_of("/v1/chat/completions")};
    struct message_head head = {.status = 200};
    unsigned char buf[256];
    size_t len = 0;
    if (type == FRAME_REQUEST) {
        message_add_pair(m.pairs, &m.n_pairs, slice_of("content-type"),
                         slice_of("application/json"));
        check(message_request_encode(&m, buf, sizeof(buf), &len, NULL) == STATUS_OK);
        last_id = stream_id((uint32_t)take(1) % SLOTS, (uint32_t)take(1));
    } else {
        message_add_pair(head.pairs, &head.n_pairs, slice_of("x-a"), slice_of(""));
        check(message_head_encode(&head, buf, sizeof(buf), &len, NULL) == STATUS_OK);
    }
    struct frame_header h = {.len = (uint32_t)len, .type = type, .id = last_id};
    h.flags = type == FRAME_REQUEST ? FRAME_OPEN : 0;
    const uint8_t *keep = at, *keep_end = end;
    at = buf, end = buf + len;
    peer_frame(h, (uint32_t)len);
    at = keep, end = keep_end;
}

/* Decodes and touches everything that a frame claims to hold. */
static void look(const struct channel_frame *f)
{
    static struct message_request request;
    static struct message_head head;
    struct error err;
    uint32_t n = 0, sum = 0;
    const struct message_pair *pairs = NULL;
    if (f->type == FRAME_REQUEST &&
        message_request_decode(f->payload, f->len, &request, &err) == STATUS_OK)
        pairs = request.pairs, n = request.n_pairs;
    if (f->type == FRAME_HEAD && message_head_decode(f->payload, f->len, &head, &err) == STATUS_OK)
        pairs = head.pairs, n = head.n_pairs;
    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < pairs[i].value.len; k++)
            sum += (unsigned char)pairs[i].value.ptr[k];
    message_find(pairs, n, "content-type");
    for (uint32_t i = 0; i < f->len; i++)
        sum += f->payload[i];
    check(f->stream >= c.streams && f->stream < c.streams + SLOTS && sum != 1u << 31);
}

static void we_read(void)
{
    struct channel_frame f;
    struct error err;
    enum channel_event event;
    unsigned n = 0;
    while ((event = channel_next(&c, &f, &err)) == CHANNEL_FRAME) {
        look(&f);
        check(++n <= SIZE / FRAME_ALIGN);
        if (f.type == FRAME_DATA && (f.aux == 0))
            channel_consumed(&c, f.stream, f.len);
        if (f.type == FRAME_REQUEST)
            last_id = f.stream->id;
    }
    check(event != CHANNEL_BROKEN || (err.status == STATUS_PEER && err.text[0] != '\0'));
}

static void we_write(unsigned what)
{
    static char bytes[20000];
    struct message_request m = {.method = slice_of("GET"), .target = slice_of("/")};
    struct message_head head = {.status = 200};
    struct channel_stream *s = channel_find(&c, last_id);
    size_t taken;
    enum channel_send sent = SEND_DONE;
    if (what == 0 && c.role == CHANNEL_CLIENT) {
        if ((s = channel_open(&c, NULL)) != NULL) {
            last_id = s->id;
            sent = channel_send_request(&c, s, &m, 0, NULL);
        }
    } else if (s == NULL) {
        return;
    } else if (what == 0) {
        sent = channel_send_head(&c, s, &head, 0, NULL);
    } else if (what == 1) {
        sent = channel_send_data(&c, s, bytes, (size_t)take(2) % sizeof(bytes),
                                 (unsigned)take(1) & FRAME_FLAGS, &taken);
    } else if (what == 2) {
        sent = channel_send_journal(&c, s, bytes, (size_t)take(1));
    } else if (what == 4 && c.role == CHANNEL_SERVER) {
        sent = channel_send_trailer(&c, s, &head, NULL);
    } else if (c.role == CHANNEL_CLIENT) {
        channel_close(&c, s);
    } else {
        channel_reset(&c, s, RESET_INTERNAL);
    }
    check(sent <= SEND_INVALID);
}

static void step(void)
{
    struct frame_header h;
    uint64_t place;
    struct channel_gate gate;
    switch (take(1) % 15) {
    case 0:
        h = (struct frame_header){(uint32_t)take(2), (uint8_t)take(1),  (uint8_t)take(1),
                                  (uint16_t)take(2), (uint32_t)take(4), (uint32_t)take(4)};
        peer_frame(h, 300);
        break;
    case 1: /* nearly right: for a live stream */
        h = (struct frame_header){.len = (uint32_t)take(2) & 0x3fff,
                                  .type = (uint8_t)(take(1) % FRAME_TYPES),
                                  .flags = (uint8_t)take(1) & FRAME_FLAGS,
                                  .id = last_id,
                                  .aux = (uint32_t)take(2)};
        peer_frame(h, 300);
        break;
    case 2:
        peer_message(c.role == CHANNEL_SERVER ? FRAME_REQUEST : FRAME_HEAD);
        break;
    case 3:
        peer_frame((struct frame_header){.len = (uint32_t)take(2) & 0x3fff,
                                         .type = FRAME_DATA,
                                         .id = last_id},
                   0);
        break;
    case 4:
        atomic_store(&peer->tail, peer_tail + take(8));
        break;
    case 5: /* all that we wrote, or a lie */
        atomic_store(&peer->head, take(1) & 3 ? atomic_load(&own->tail) : take(8));
        break;
    case 6: /* changes what we may be looking at */
        place = take(3) & (SIZE - 1);
        dirty = place < dirty ? dirty : place + 1;
        *ring_at(place) = (uint8_t)take(1);
        break;
    case 7:
        atomic_store(&peer->wake, take(1));
        break;
    case 8:
    case 9:
        we_read();
        break;
    case 10:
    case 11:
        we_write((unsigned)take(1) % 5);
        break;
    case 12:
        channel_publish(&c);
        channel_take_room(&c);
        break;
    case 13:
        atomic_store(&peer->gate, take(8));
        gate = channel_look_at_gate(&c);
        check(gate.retry_after <= GATE_RETRY_MAX && (gate.retry_after > 0 || gate.waiting == 0));
        check(channel_take_turned_away(&c) <= 1u << 20);
        channel_set_gate(&c, &(struct channel_gate){(uint32_t)take(4), (uint32_t)take(4)});
        channel_turned_away(&c);
        break;
    default:
        channel_has_work(&c);
        if (!channel_sleep(&c))
            channel_awake(&c);
        break;
    }
}

/* What holds whatever the peer does. */
static void audit(void)
{
    uint32_t open = 0, i = 0, listed = 0;
    while (channel_each(&c, &i) != NULL)
        open++;
    check(open == c.open);
    for (uint32_t s = c.free_head; s != 0; s = c.streams[s - 1].next)
        check(!(c.streams[s - 1].bits & (STREAM_OPEN | STREAM_QUEUED)) && ++listed <= SLOTS);
    check(c.role == CHANNEL_SERVER || listed + open + c.n_waiting >= SLOTS);
    uint32_t waiting = 0;
    for (uint32_t s = c.wait_head; s != 0; s = c.streams[s - 1].next)
        check((c.streams[s - 1].bits & STREAM_QUEUED) && ++waiting <= SLOTS);
    check(waiting == c.n_waiting);
    for (i = 0; i < SLOTS; i++)
        check(c.streams[i].send_credit <= c.send_window &&
              c.streams[i].receive_left + c.streams[i].consumed <= c.receive_window);
    check(c.writer.tail - c.writer.head <= SIZE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    if (own == NULL) { /* exactly as long as a region: the sanitizer sees a read behind it */
        own = aligned_alloc(LAYOUT_PAGE, region_bytes(SIZE));
        peer = aligned_alloc(LAYOUT_PAGE, region_bytes(SIZE));
        memset(own, 0, region_bytes(SIZE));
        memset(peer, 0, region_bytes(SIZE));
    }
    memset(own, 0, LAYOUT_PAGE);
    memset(peer, 0, LAYOUT_PAGE);
    memset(&c, 0, sizeof(c));
    c.fd = -1;
    c.role = data[0] & 1 ? CHANNEL_CLIENT : CHANNEL_SERVER;
    c.own = own;
    c.peer = peer;
    struct hello agreed = {.slots = SLOTS,
                           .up_size = SIZE,
                           .down_size = SIZE,
                           .up_window = WINDOW_UP_DEFAULT,
                           .down_window = 16u << 10,
                           .features = (data[0] & 2 ? FEATURE_JOURNAL : 0) |
                                       (data[0] & 8 ? FEATURE_GATE : 0)};
    if (data[0] & 4) /* the writer's side comes to its limits sooner */
        agreed.up_window = agreed.down_window = WINDOW_MAX;
    check(channel_begin(&c, &agreed, NULL) == STATUS_OK);
    peer_tail = 0;
    dirty = 0;
    last_id = 0;
    at = data + 1;
    end = data + size;
    while (at < end) {
        step();
        audit();
    }
    we_read();
    audit();
    memset(ring_at(0), 0, dirty);
    free(c.streams);
    free(c.scratch);
    return 0;
}
