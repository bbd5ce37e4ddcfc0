#include "core/model/ahead.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "core/base/xalloc.h"

/* Ordered at a time: enough for the disk, little to wait for at the end. */
#define PIECE_BYTES ((uint64_t)4 << 20)

struct ahead {
    const struct gguf *gguf;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    uint64_t wanted; /* guarded by mutex, as is stop */
    bool stop;
};

static void *run(void *data)
{
    struct ahead *a = data;
    uint64_t ordered = 0;
    pthread_mutex_lock(&a->mutex);
    while (!a->stop) {
        if (ordered >= a->wanted) {
            pthread_cond_wait(&a->more, &a->mutex);
            continue;
        }
        uint64_t to = ordered + PIECE_BYTES < a->wanted ? ordered + PIECE_BYTES : a->wanted;
        pthread_mutex_unlock(&a->mutex);
        gguf_fetch(a->gguf, ordered, to);
        ordered = to;
        pthread_mutex_lock(&a->mutex);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

struct ahead *ahead_start(const struct gguf *g)
{
    struct ahead *a = xcalloc(1, sizeof(*a));
    a->gguf = g;
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->more, NULL);
    if (pthread_create(&a->thread, NULL, run, a) == 0)
        return a;
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->mutex);
    free(a);
    return NULL;
}

void ahead_want(struct ahead *a, uint64_t to)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->mutex);
    if (to > a->wanted) {
        a->wanted = to;
        pthread_cond_signal(&a->more);
    }
    pthread_mutex_unlock(&a->mutex);
}

void ahead_stop(struct ahead *a)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->mutex);
    a->stop = true;
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&a->mutex);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}
