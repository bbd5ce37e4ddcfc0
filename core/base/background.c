#define _GNU_SOURCE
#include "core/base/background.h"

#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct sched_attr of Linux in its first version; the C library has no declaration. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

bool background_enter(int nice)
{
    const struct attributes attributes = {.size = sizeof(attributes),
                                          .policy = SCHED_BATCH,
                                          .nice = nice,
                                          .runtime = BACKGROUND_SLICE_NS};
    return syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}
