/* ring.h: one byte ring of frames, single producer, single consumer, over two mapped regions (layout.h).
 *
 *                head                    tail (published)      tail (private)
 *     ............|==frame==|==frame==|=====|....written, unseen....|........
 *                  consumer reads here       producer writes here
 *
 * The writer's view and the reader's view are separate structs in separate processes. Both keep their own index
 * privately and publish it once per turn of their loop; what they read of the peer's index is checked before use
 * (0 <= tail - head <= size, multiple of 16) and a peer that breaks this is reported, never asserted on.
 *
 * Compiled into nginx too: no allocation, no globals, no check(). */
#ifndef RING_RING_H
#define RING_RING_H

#include <stdbool.h>

#include "core/ring/layout.h"

struct ring_writer {
    uint8_t *data;                     /* the ring's bytes, in our region */
    uint64_t size;                     /* power of two */
    uint64_t control;                  /* bytes that only control frames may use */
    _Atomic uint64_t *tail_word;       /* in our region */
    const _Atomic uint64_t *head_word; /* in the peer's region */
    uint64_t tail;                     /* private: written, maybe not published */
    uint64_t published;                /* last value stored in tail_word */
    uint64_t head;                     /* last checked value of head_word */
    uint32_t reserved;                 /* payload bytes of the open reservation */
    bool open;                         /* between reserve and commit */
    bool broken;                       /* the peer's head made no sense: nothing more is written */
};

struct ring_reader {
    const uint8_t *data; /* the ring's bytes, in the peer's region: may change at any time */
    uint64_t size;
    const _Atomic uint64_t *tail_word; /* in the peer's region */
    _Atomic uint64_t *head_word;       /* in our region */
    uint64_t head;                     /* private: consumed, maybe not published */
    uint64_t published;
    uint64_t tail; /* last checked value of tail_word */
    uint32_t step; /* bytes of the frame that peek showed; 0: none */
    bool broken;
};

/* A frame as the reader sees it: the header is a private, checked copy; payload points into shared memory that
 * the peer can still change, until consume and publish. Copy it once, then look at the copy. */
struct ring_frame {
    struct frame_header header;
    const uint8_t *payload;
};

enum ring_peek { RING_EMPTY, RING_FRAME, RING_BROKEN };

/* own: our region (the ring to write). peer: the reader's region. control: bytes kept for control frames. */
void ring_writer_init(struct ring_writer *w, struct region *own, const struct region *peer,
                      uint64_t size, uint64_t control);
/* own: our region (where our head goes). peer: the writer's region (the ring to read). */
void ring_reader_init(struct ring_reader *r, struct region *own, const struct region *peer,
                      uint64_t size);

/* Room for a frame of `len` <= FRAME_PAYLOAD_MAX payload bytes: where to write them, or NULL if the ring has no
 * room now (or is broken). Control frames may use the room kept for them. A PAD frame is written on the way if
 * needed. One reservation at a time; a new one forgets the last. */
uint8_t *ring_writer_reserve(struct ring_writer *w, uint32_t len, bool control);
/* Ends the reservation with the frame's header (len at most what was reserved). Not yet visible to the reader. */
void ring_writer_commit(struct ring_writer *w, uint8_t type, uint8_t flags, uint32_t id,
                        uint32_t aux, uint32_t len);
/* Makes all committed frames visible (store-release). True if there were any. */
bool ring_writer_publish(struct ring_writer *w);
/* Has the reader consumed anything since we last looked? Looks at shared memory. */
bool ring_writer_moved(struct ring_writer *w);

/* The next frame that is not PAD, without consuming it. RING_BROKEN: the peer broke the layout; stays so. */
enum ring_peek ring_reader_peek(struct ring_reader *r, struct ring_frame *out);
/* Steps over the frame that peek showed. Its bytes stay untouched until the next publish. */
void ring_reader_consume(struct ring_reader *r);
/* Gives the consumed bytes back to the writer (store-release). True if there were any. */
bool ring_reader_publish(struct ring_reader *r);
/* Is something to read? Looks at shared memory; true also where it finds nonsense, so that peek reports it. */
bool ring_reader_ready(struct ring_reader *r);

#endif
