/* mailbox.h: commands to the scheduler, from any thread, without a bound (each is one small
 * allocation).
 *
 * Senders push on a stack with one compare-and-swap; the owner takes the whole stack at once and
 * turns it round, so every sender's letters come in the order in which it sent them. */
#ifndef SCHED_MAILBOX_H
#define SCHED_MAILBOX_H

#include <stdatomic.h>
#include <stddef.h>

struct letter {
    struct letter *next;
};

struct mailbox {
    _Atomic(struct letter *) top;
};

/* Hands the letter over. */
static inline void mailbox_send(struct mailbox *m, struct letter *letter)
{
    letter->next = atomic_load_explicit(&m->top, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&m->top, &letter->next, letter,
                                                  memory_order_release, memory_order_relaxed))
        ;
}

/* Everything sent so far, oldest first, linked by next; NULL if there is nothing. One thread. */
static inline struct letter *mailbox_take(struct mailbox *m)
{
    if (atomic_load_explicit(&m->top, memory_order_relaxed) == NULL)
        return NULL;
    struct letter *stack = atomic_exchange_explicit(&m->top, NULL, memory_order_acquire),
                  *first = NULL;
    while (stack != NULL) {
        struct letter *next = stack->next;
        stack->next = first;
        first = stack;
        stack = next;
    }
    return first;
}

#endif
