/* list.h: an intrusive doubly linked list with a sentinel, after Linux's.
 *
 *     head <-> node <-> node <-> head        an empty list is a head that points to itself
 *
 * The list owns nothing. A node that is in no list points to itself after list_init or list_remove. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

/* Puts node before `at`: with at = head this appends. The node must be in no list. */
static inline void list_insert(struct list *at, struct list *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

static inline void list_append(struct list *head, struct list *node)
{
    list_insert(head, node);
}

static inline void list_prepend(struct list *head, struct list *node)
{
    list_insert(head->next, node);
}

/* Takes node out of its list; harmless when it is in none (initialised). */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

#define list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))
/* Walks the list; the current node may be removed. */
#define list_each(it, tmp, head)                                                                       \
    for (struct list *it = (head)->next, *tmp = it->next; it != (head); it = tmp, tmp = it->next)

#endif
