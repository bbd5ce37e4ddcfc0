/* doorbell.h: wakes a thread that sleeps on a descriptor, and costs nothing while it is awake.
 *
 *     sleeper: arm, look again for work, sleep          ringer: publish work, ring
 *
 * Both sides exchange the same word, and exchanges of one word have one order: either the ringer's
 * comes later and finds it armed, or the sleeper's comes later and thereby sees the work published
 * before the ring. Any thread may ring. */
#ifndef SCHED_DOORBELL_H
#define SCHED_DOORBELL_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct doorbell {
    int fd;
    _Atomic bool armed;
};

/* Armed from the start. False if the system has no descriptor left. */
static inline bool doorbell_init(struct doorbell *d)
{
    atomic_init(&d->armed, true);
    d->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return d->fd >= 0;
}

static inline void doorbell_release(struct doorbell *d)
{
    if (d->fd >= 0)
        close(d->fd);
}

/* To be called after the work was published. */
static inline void doorbell_ring(struct doorbell *d)
{
    if (!atomic_exchange(&d->armed, false))
        return;
    uint64_t one = 1;
    while (write(d->fd, &one, sizeof(one)) < 0)
        ;
}

/* Asks to be rung. The caller looks for work once more before it sleeps. */
static inline void doorbell_arm(struct doorbell *d)
{
    uint64_t n;
    (void)!read(d->fd, &n, sizeof(n));
    atomic_exchange(&d->armed, true);
}

/* The caller found work after arming and stays awake. */
static inline void doorbell_disarm(struct doorbell *d)
{
    atomic_store(&d->armed, false);
}

/* Sleeps until rung or timeout_ms (-1: for ever) passed. */
static inline void doorbell_wait(struct doorbell *d, int timeout_ms)
{
    struct pollfd p = {.fd = d->fd, .events = POLLIN};
    (void)poll(&p, 1, timeout_ms);
}

#endif
