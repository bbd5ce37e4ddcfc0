#include "core/sched/queue.h"

#include "core/base/check.h"

void queue_init(struct queue *q)
{
    list_init(&q->list);
    q->count = q->n_put_back = 0;
    q->by_priority = false;
}

static bool comes_before(const struct queue *q, const struct sequence *a, const struct sequence *b)
{
    if (q->by_priority && a->priority != b->priority)
        return a->priority > b->priority;
    return a->serial < b->serial;
}

void queue_add(struct queue *q, struct sequence *s)
{
    struct list *at = &q->list;
    while (at->prev != &q->list && comes_before(q, s, queue_entry(at->prev)))
        at = at->prev;
    list_insert(at, &s->node);
    q->count++;
    q->n_put_back += s->put_back;
}

void queue_remove(struct queue *q, struct sequence *s)
{
    check(q->count > 0);
    list_remove(&s->node);
    q->count--;
    q->n_put_back -= s->put_back;
}

struct sequence *queue_first(const struct queue *q)
{
    return list_empty(&q->list) ? NULL : queue_entry(q->list.next);
}

struct sequence *queue_last(const struct queue *q)
{
    return list_empty(&q->list) ? NULL : queue_entry(q->list.prev);
}
