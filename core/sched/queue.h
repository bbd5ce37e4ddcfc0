/* queue.h: sequences in order of arrival: those that wait, and those that run, the latter by priority
 * first. Owns nothing. */
#ifndef SCHED_QUEUE_H
#define SCHED_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/list.h"
#include "core/sched/sequence.h"

struct queue {
    struct list list; /* oldest (lowest serial) first */
    uint32_t count;
    uint32_t n_put_back; /* of them, those that had run before */
    bool by_priority;    /* the highest first, among equals the oldest */
};

void queue_init(struct queue *q);
/* Puts it where its priority and serial belong. */
void queue_add(struct queue *q, struct sequence *s);
void queue_remove(struct queue *q, struct sequence *s);
/* The first and the last, or NULL. */
struct sequence *queue_first(const struct queue *q);
struct sequence *queue_last(const struct queue *q);

#define queue_each(it, tmp, q) list_each(it, tmp, &(q)->list)
#define queue_entry(it) list_entry(it, struct sequence, node)

#endif
