/* resources.h: what this machine gives the worker: CPUs and memory, with the limits of its cgroups
 * obeyed.
 *
 *     cpus   = min(affinity, ceil(quota / period) of every cgroup above us)
 *     memory = min(MemAvailable, limit - (usage - file cache that can go) of every cgroup above us)
 *
 * Control groups of version 2 (one hierarchy, cpu.max, memory.max) and version 1 (cpu.cfs_quota_us,
 * memory.limit_in_bytes) are read; a file that is missing means "no limit". All paths hang below
 * two roots so that tests can point them at fixtures. */
#ifndef WORKER_RESOURCES_H
#define WORKER_RESOURCES_H

#include <stdint.h>

#include "core/base/status.h"

/* Where to look; resource_roots_default is the running system. */
struct resource_roots {
    const char *proc;   /* "/proc" */
    const char *cgroup; /* "/sys/fs/cgroup" */
};
extern const struct resource_roots resource_roots_default;

/* No limit, in CPUs or bytes. */
#define RESOURCE_UNLIMITED UINT64_MAX

/* The smallest CPU quota above this process, rounded up to whole CPUs; RESOURCE_UNLIMITED without
 * one. */
uint64_t resources_cpu_quota(const struct resource_roots *roots);
/* CPUs that this process can use: affinity and quota; at least 1. */
unsigned resources_cpus(const struct resource_roots *roots);
/* Compute threads (the scheduler counts as one) for n CPUs: n up to 2, else n - 1 (the last one for
 * loop and nginx). */
unsigned resources_compute_threads(unsigned n_cpus);
/* Bytes that can still be allocated; RESOURCE_UNLIMITED if neither meminfo nor a cgroup says. */
uint64_t resources_memory(const struct resource_roots *roots);

/* What a model needs and what there is; all in bytes. */
struct memory_plan {
    uint64_t free;      /* resources_memory() before anything was loaded */
    uint64_t weights;   /* what the weights will take, repacked */
    uint64_t kv_wanted; /* --kv-memory, or 0: choose */
    uint64_t kv_useful; /* KV of max-running sequences at full context: more would lie idle */
    uint64_t kv;        /* result */
};
/* Fills plan->kv: the wanted size, or a quarter of what the weights leave, at most kv_useful.
 * STATUS_NO_MEMORY with all figures in the text if weights, or weights and KV, don't fit. */
enum status memory_plan_make(struct memory_plan *plan, struct error *err);

#endif
