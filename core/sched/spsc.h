/* spsc.h: a bounded queue of equal elements from one thread to another.
 *
 *     consumer: head --v                 v-- tail: published      v-- put: written, not yet seen
 *     ... | free | elem | elem | elem | elem | elem | elem | elem | free | ...
 *
 * Indices run freely and are masked. The producer writes elements and publishes them together; each
 * index has one writer and a cache line of its own. */
#ifndef SCHED_SPSC_H
#define SCHED_SPSC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"

struct spsc {
    unsigned char *elements;
    uint32_t size; /* of an element */
    uint32_t cap;  /* power of two */
    _Alignas(64) _Atomic uint32_t head;
    uint32_t known_tail; /* the consumer's copy */
    _Alignas(64) _Atomic uint32_t tail;
    uint32_t put;        /* the producer's own */
    uint32_t known_head; /* the producer's copy */
};

/* An empty queue of at least n elements. */
static inline void spsc_init(struct spsc *q, uint32_t n, uint32_t size)
{
    *q = (struct spsc){.size = size, .cap = 1};
    while (q->cap < n)
        q->cap *= 2;
    q->elements = xmalloc((size_t)q->cap * size);
}

static inline void spsc_release(struct spsc *q)
{
    free(q->elements);
}

/* Producer: elements that can be put now. */
static inline uint32_t spsc_room(struct spsc *q)
{
    q->known_head = atomic_load_explicit(&q->head, memory_order_acquire);
    return q->cap - (q->put - q->known_head);
}

/* Producer: the place of the next element, to be filled before spsc_publish; the queue must not be
 * full. */
static inline void *spsc_put(struct spsc *q)
{
    check(q->put - q->known_head < q->cap || spsc_room(q) > 0);
    return q->elements + (size_t)(q->put++ & (q->cap - 1)) * q->size;
}

/* Producer: shows everything put so far; false if there was nothing new. */
static inline bool spsc_publish(struct spsc *q)
{
    if (atomic_load_explicit(&q->tail, memory_order_relaxed) == q->put)
        return false;
    atomic_store_explicit(&q->tail, q->put, memory_order_release);
    return true;
}

/* Consumer: the oldest element, or NULL; it stays valid until spsc_drop. */
static inline void *spsc_peek(struct spsc *q)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    if (head == q->known_tail) {
        q->known_tail = atomic_load_explicit(&q->tail, memory_order_acquire);
        if (head == q->known_tail)
            return NULL;
    }
    return q->elements + (size_t)(head & (q->cap - 1)) * q->size;
}

/* Consumer: done with the oldest element. */
static inline void spsc_drop(struct spsc *q)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    atomic_store_explicit(&q->head, head + 1, memory_order_release);
}

#endif
