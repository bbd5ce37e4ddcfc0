/* queue.h: sequences in order of arrival: those that wait, and those that run. Owns nothing. */
#ifndef SCHED_QUEUE_H
#define SCHED_QUEUE_H

#include <stdint.h>

#include "core/base/list.h"
#include "core/sched/sequence.h"

struct queue {
    struct list list; /* oldest (lowest serial) first */
    uint32_t count;
};

void queue_init(struct queue *q);
/* Puts it where its serial belongs: at the end, unless it was preempted. */
void queue_add(struct queue *q, struct sequence *s);
void queue_remove(struct queue *q, struct sequence *s);
/* The oldest and the youngest, or NULL. */
struct sequence *queue_first(const struct queue *q);
struct sequence *queue_last(const struct queue *q);

#define queue_each(it, tmp, q) list_each(it, tmp, &(q)->list)
#define queue_entry(it) list_entry(it, struct sequence, node)

#endif
