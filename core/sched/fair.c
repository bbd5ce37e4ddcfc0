#include "core/sched/fair.h"

#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"

void fair_release(struct fair *f)
{
    uint64_t key;
    size_t i = 0;
    struct tenant *t;
    while ((t = map_next(&f->tenants, &i, &key)) != NULL)
        free(t);
    map_release(&f->tenants);
}

/* What a tenant that comes begins with at least. */
static uint64_t floor_of(const struct fair *f)
{
    uint64_t key, least = UINT64_MAX;
    size_t i = 0;
    struct tenant *t;
    while ((t = map_next(&f->tenants, &i, &key)) != NULL)
        if (t->living > 0 && t->served < least)
            least = t->served;
    return least != UINT64_MAX ? least : f->last_left;
}

/* Forgets all that have nothing to do. */
static void forget(struct fair *f)
{
    struct map kept = {0};
    uint64_t key;
    size_t i = 0;
    struct tenant *t;
    while ((t = map_next(&f->tenants, &i, &key)) != NULL) {
        if (t->living > 0)
            map_set(&kept, key, t);
        else
            free(t);
    }
    map_release(&f->tenants);
    f->tenants = kept;
}

void fair_join(struct fair *f, struct sequence *s)
{
    uint64_t key = s->generation->tenant;
    struct tenant *t = map_get(&f->tenants, key);
    if (t == NULL) {
        if (f->tenants.count >= FAIR_TENANTS)
            forget(f);
        t = xcalloc(1, sizeof(*t));
        t->key = key;
        map_set(&f->tenants, key, t);
    }
    if (t->living == 0) {
        uint64_t least = floor_of(f);
        t->served = t->served > least ? t->served : least;
    }
    t->living++;
    s->tenant = t;
}

void fair_leave(struct fair *f, struct sequence *s)
{
    check(s->tenant->living > 0);
    s->tenant->living--;
    f->last_left = s->tenant->served;
    s->tenant = NULL;
}

void fair_serve(struct sequence *s, uint32_t n, bool made)
{
    s->tenant->served += (uint64_t)n * (made ? FAIR_MADE : 1);
}

void fair_rank(struct sequence *s, uint64_t now_ns)
{
    uint64_t arrival = s->generation->arrival_ns;
    uint64_t age = now_ns > arrival ? (now_ns - arrival) / FAIR_AGE_NS : 0;
    uint64_t level = s->priority + age;
    s->level = level < SCHED_PRIORITY_MAX ? (uint32_t)level : SCHED_PRIORITY_MAX;
    s->served = s->tenant->served / FAIR_QUANTUM;
}

/* Order of rank alone: < 0 if a comes first. */
static int compare(const struct sequence *a, const struct sequence *b)
{
    if (a->level != b->level)
        return a->level > b->level ? -1 : 1;
    if ((a->n_made > 0) != (b->n_made > 0))
        return a->n_made > 0 ? -1 : 1;
    return a->served < b->served ? -1 : a->served > b->served;
}

bool fair_before(const struct sequence *a, const struct sequence *b)
{
    int order = compare(a, b);
    return order != 0 ? order < 0 : a->serial < b->serial;
}

struct sequence *fair_next(struct queue *waiting, uint64_t now_ns)
{
    struct sequence *first = NULL;
    queue_each(it, tmp, waiting)
    {
        struct sequence *s = queue_entry(it);
        if (s->paused)
            continue;
        fair_rank(s, now_ns);
        if (first == NULL || fair_before(s, first))
            first = s;
    }
    if (first == NULL || first->passed >= FAIR_PASSES)
        return first;
    struct sequence *best = first;
    uint32_t most = 0, seen = 0;
    queue_each(it, tmp, waiting)
    {
        struct sequence *s = queue_entry(it);
        if (s->paused || s->serial < first->serial || compare(s, first) != 0)
            continue;
        uint32_t pages = sequence_cached_pages(s);
        if (pages > most) {
            best = s;
            most = pages;
        }
        if (++seen == FAIR_WINDOW)
            break;
    }
    return best;
}

void fair_admitted(struct queue *waiting, const struct sequence *admitted)
{
    queue_each(it, tmp, waiting)
    {
        struct sequence *s = queue_entry(it);
        s->passed += !s->paused && fair_before(s, admitted);
    }
}
