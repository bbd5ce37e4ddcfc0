/* layout.h: the ABI between nginx and tokenringd. Everything here is seen by two programs built apart.
 *
 * A channel is one unix stream socket and two shared regions, one made by each side. A region is written by
 * its maker alone and mapped read-only by the peer:
 *
 *     client (nginx) region                      server (tokenringd) region
 *     +---------------------------+              +---------------------------+
 *     | 0    struct region_header |              | 0    struct region_header |
 *     | 128  tail of the up ring  |              | 128  tail of the down ring|
 *     | 256  head of the down ring|              | 256  head of the up ring  |
 *     | 384  wake word            |              | 384  wake word            |
 *     | 512  requests turned away |              | 512  gate                 |
 *     | 4096 up ring   (frames)   |              | 4096 down ring  (frames)  |
 *     +---------------------------+              +---------------------------+
 *       RW in nginx, RO in worker                  RW in worker, RO in nginx
 *
 * So every shared word has one writer and stands 128 bytes from the next (one line, and the line that the
 * hardware fetches beside it). Indices are u64, count bytes, run freely and never wrap in practice.
 *
 * A ring holds frames: a 16-byte header, then the payload, padded to 16. A frame is contiguous; where it would
 * cross the end of the ring, a PAD frame fills the rest and the frame starts at offset 0.
 *
 * The socket carries one struct hello in each direction, each with one memfd, and from then on bytes whose only
 * meaning is "look at the rings" (doorbells). Its end is the death of the peer. */
#ifndef RING_LAYOUT_H
#define RING_LAYOUT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* "TOKNRING" read as a little-endian u64. */
#define LAYOUT_MAGIC 0x474e49524e4b4f54ull
/* Changes with anything in this file that the peer can notice. */
#define LAYOUT_VERSION 1u
/* Names this build to the peer and to people; the ring's compatibility is LAYOUT_VERSION's and LAYOUT_WORD's. */
#define LAYOUT_BUILD "tokenring 0.1.0"

/* Feature bits of the hello: a frame type or meaning beyond the base is used only if both sides have its bit. */
#define FEATURE_JOURNAL (1ull << 0) /* JOURNAL frames may come down */
#define FEATURE_GATE                                                                               \
    (1ull << 1) /* the server says in its gate word what the client may refuse by itself */
#define FEATURES_KNOWN (FEATURE_JOURNAL | FEATURE_GATE)

/* ---- sizes ---------------------------------------------------------------------------------------------- */

#define LAYOUT_LINE 128u                /* distance of two shared words */
#define LAYOUT_PAGE 4096u               /* the ring begins here in its region */
#define FRAME_ALIGN 16u                 /* of every frame; the header's size too */
#define FRAME_PAYLOAD_MAX 16384u        /* bytes of payload in one frame */
#define RING_UP_DEFAULT (512u << 10)    /* bytes, nginx to worker */
#define RING_DOWN_DEFAULT (1024u << 10) /* bytes, worker to nginx */
#define RING_SIZE_MIN (128u << 10)      /* a ring's size is a power of two in [MIN, MAX] */
#define RING_SIZE_MAX (64u << 20)
#define SLOTS_DEFAULT 1024u /* streams at a time in a channel */
#define SLOTS_MAX 4096u     /* 12 bits of the stream id */
/* Of each ring this much per slot is kept for control frames (CANCEL, CREDIT, RESET: 16 bytes each). */
#define CONTROL_ROOM_PER_SLOT 32u
/* Byte credits: DATA payload that a stream may have under way, per direction. */
#define WINDOW_UP_DEFAULT (64u << 10)
#define WINDOW_DOWN_DEFAULT (32u << 10)
#define WINDOW_MIN 1024u
#define WINDOW_MAX (1u << 20)

/* ---- frames --------------------------------------------------------------------------------------------- */

enum frame_type {
    FRAME_PAD = 1, /* fills the end of the ring; no stream */
    FRAME_REQUEST, /* up: opens a stream; method, target, pairs (message.h); flag OPEN, and FIN if no body */
    FRAME_DATA,    /* both: body bytes; up raw, down whole or partial SSE events or one JSON body */
    FRAME_HEAD,    /* down: status and pairs (message.h), once, before any DATA; FIN if no body */
    FRAME_CANCEL,  /* up, control: the client wants no more of this stream */
    FRAME_CREDIT,  /* both, control: aux more bytes of DATA may be sent */
    FRAME_RESET,   /* down, control: the stream ends without its FIN; aux = enum reset_code */
    FRAME_JOURNAL, /* down: opaque to nginx, what it takes to resume; only with FEATURE_JOURNAL */
    FRAME_TRAILER, /* down: pairs known only at the end (message.h, as HEAD), for nginx's log; always FIN */
    FRAME_TYPES
};

#define FRAME_OPEN 0x01u      /* REQUEST only, always set there: first frame of a stream */
#define FRAME_FIN 0x02u       /* last frame of this direction of the stream */
#define FRAME_EVENT_END 0x04u /* DATA down: the payload ends with the end of an SSE event */
#define FRAME_FLAGS (FRAME_OPEN | FRAME_FIN | FRAME_EVENT_END)

/* Why a stream was reset. Values are ABI. */
enum reset_code {
    RESET_INTERNAL = 1, /* the worker failed this request */
    RESET_REFUSED,      /* not begun: another worker may have it */
    RESET_DRAINING,     /* the worker is going away */
    RESET_NO_MEMORY,
    RESET_PROTOCOL, /* the request's frames made no sense */
    RESET_CODES
};

struct frame_header {
    uint32_t len; /* payload bytes, without padding */
    uint8_t type;
    uint8_t flags;
    uint16_t reserved; /* 0 */
    uint32_t id;       /* stream_id(); 0 in PAD */
    uint32_t aux;      /* CREDIT: bytes; RESET: code; else 0 */
};

/* A stream id is a slot (low 12 bits) and the generation of that slot's user (high 20 bits, wraps), so that
 * frames which come late for an earlier user of the slot are told apart and dropped. */
#define STREAM_SLOT_BITS 12u
#define STREAM_GENERATION_MASK 0xfffffu

static inline uint32_t stream_id(uint32_t slot, uint32_t generation)
{
    return (generation & STREAM_GENERATION_MASK) << STREAM_SLOT_BITS | slot;
}

static inline uint32_t stream_slot(uint32_t id)
{
    return id & ((1u << STREAM_SLOT_BITS) - 1);
}

static inline uint32_t stream_generation(uint32_t id)
{
    return id >> STREAM_SLOT_BITS;
}

/* Bytes that a frame with this payload takes in the ring. */
static inline uint32_t frame_size(uint32_t payload)
{
    return FRAME_ALIGN + ((payload + FRAME_ALIGN - 1) & ~(FRAME_ALIGN - 1));
}

/* ---- regions -------------------------------------------------------------------------------------------- */

/* Wake word of the region's owner. 0: awake. Else (count of sleeps << 2) | bits: asleep, ring me. The count makes
 * every sleep a new value, so that the peer can ring once per sleep without ever writing here. */
#define WAKE_DATA 1u /* ring when frames were published */
#define WAKE_ROOM 2u /* ring when frames of mine were consumed, too */

/* Gate word of the server. 0: open. Else the server would refuse every new generation: GATE_FULL | (seconds of
 * Retry-After << 8, 16 bits) | (requests that wait << 32). A hint that may be late in both directions: the client may
 * refuse with it, the server refuses by itself what comes all the same. The client's word at the same place counts
 * what it refused so, and runs freely. */
#define GATE_FULL 1u /* the queue is full */

struct region_header {
    uint64_t magic;
    uint32_t version;
    uint32_t layout;
    uint64_t ring_size;
};

struct region {
    struct region_header header; /* written before the hello, constant */
    char pad0[LAYOUT_LINE - sizeof(struct region_header)];
    _Atomic uint64_t tail; /* of the ring below: bytes published */
    char pad1[LAYOUT_LINE - sizeof(uint64_t)];
    _Atomic uint64_t head; /* of the PEER's ring: bytes consumed */
    char pad2[LAYOUT_LINE - sizeof(uint64_t)];
    _Atomic uint64_t wake;
    char pad3[LAYOUT_LINE - sizeof(uint64_t)];
    _Atomic uint64_t gate; /* the server's; the client's: requests turned away */
    char pad4[LAYOUT_PAGE - 4 * LAYOUT_LINE - sizeof(uint64_t)];
    /* uint8_t ring[header.ring_size] */
};

/* Bytes of the memfd for a ring of this size. */
static inline uint64_t region_bytes(uint64_t ring_size)
{
    return LAYOUT_PAGE + ring_size;
}

/* ---- hello ---------------------------------------------------------------------------------------------- */

enum hello_kind {
    HELLO_OFFER = 1, /* client to server, with the client's memfd */
    HELLO_ANSWER,    /* server to client, with the server's memfd: the final geometry */
    HELLO_REFUSAL    /* server to client, no memfd: text says why */
};

/* 512 bytes in every version, and everything up to and including `text` stays where it is for ever, so that
 * two unlike builds can still tell each other why they part. Texts are NUL-terminated. */
struct hello {
    uint64_t magic;
    uint32_t size; /* 512 */
    uint32_t version;
    uint32_t kind;
    uint32_t pid; /* of the sender, for people */
    char build[64];
    char text[256]; /* HELLO_REFUSAL: one sentence */

    uint32_t layout; /* LAYOUT_WORD */
    uint32_t slots;
    uint64_t features; /* offered; in the answer: those of the offer that both have */
    uint64_t up_size;  /* ring bytes */
    uint64_t down_size;
    uint32_t up_window; /* credit bytes per stream */
    uint32_t down_window;
    char reserved[128]; /* 0 */
};

/* One number made from everything that the peer could lay out differently. */
#define LAYOUT_WORD                                                                                \
    ((uint32_t)(sizeof(struct frame_header) + 31u * offsetof(struct frame_header, id) +            \
                31u * 31u * offsetof(struct region, head) + 7919u * sizeof(struct region) +        \
                104729u * (FRAME_TYPES + 16u * RESET_CODES) + 611953u * FRAME_PAYLOAD_MAX / 64u +  \
                3571u * CONTROL_ROOM_PER_SLOT + 1299709u * STREAM_SLOT_BITS))

static_assert(sizeof(struct frame_header) == FRAME_ALIGN, "frame header");
static_assert(offsetof(struct frame_header, type) == 4 &&
                  offsetof(struct frame_header, flags) == 5 &&
                  offsetof(struct frame_header, reserved) == 6 &&
                  offsetof(struct frame_header, id) == 8 &&
                  offsetof(struct frame_header, aux) == 12,
              "frame header fields");
static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2,
              "shared words are lock-free");
static_assert(offsetof(struct region, tail) == 128 && offsetof(struct region, head) == 256 &&
                  offsetof(struct region, wake) == 384 && offsetof(struct region, gate) == 512 &&
                  sizeof(struct region) == LAYOUT_PAGE,
              "region");
static_assert(sizeof(struct hello) == 512 && offsetof(struct hello, build) == 24 &&
                  offsetof(struct hello, text) == 88 && offsetof(struct hello, layout) == 344,
              "hello");
static_assert(SLOTS_MAX == 1u << STREAM_SLOT_BITS && STREAM_SLOT_BITS + 20 == 32, "stream id");
static_assert(FRAME_PAYLOAD_MAX % FRAME_ALIGN == 0, "payload");
/* Any frame, with the PAD before it, fits an empty ring beside the control room. */
static_assert(RING_SIZE_MIN / 2 >= 2 * (FRAME_PAYLOAD_MAX + FRAME_ALIGN), "smallest ring");

#endif
