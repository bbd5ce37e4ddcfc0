#include "core/worker/resources.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/worker/options.h"

/* A limit so large that it means none (version 1 writes 2^63 rounded down to pages). */
#define V1_NO_LIMIT (UINT64_C(1) << 60)

const struct resource_roots resource_roots_default = {"/proc", "/sys/fs/cgroup"};

/* Reads the start of a small file as text; false if there is none. */
static bool read_text(const char *dir, const char *name, char *text, size_t cap)
{
    char path[1024];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
        return false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t n = fread(text, 1, cap - 1, file);
    text[n] = '\0';
    fclose(file);
    return n > 0;
}

static bool read_number(const char *dir, const char *name, uint64_t *value)
{
    char text[64], *end;
    if (!read_text(dir, name, text, sizeof(text)) || *text < '0' || *text > '9')
        return false;
    *value = strtoull(text, &end, 10);
    return end != text;
}

/* The number behind a key at the start of a line ("key 123" or "key: 123 kB"). */
static bool find_number(const char *text, const char *key, uint64_t *value)
{
    size_t n = strlen(key);
    for (const char *p = text; p != NULL && *p != '\0';) {
        if (strncmp(p, key, n) == 0 && (p[n] == ' ' || p[n] == ':')) {
            p += n + (p[n] == ':');
            p += strspn(p, " \t");
            char *end;
            *value = strtoull(p, &end, 10);
            return end != p;
        }
        p = strchr(p, '\n');
        if (p != NULL)
            p++;
    }
    return false;
}

static uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Bytes that a group leaves: limit - usage, where file cache that can be dropped is no usage. */
static uint64_t memory_left(const char *dir, bool v2)
{
    uint64_t limit, usage, cache, part;
    char stat[8192];
    if (!read_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes", &limit))
        return RESOURCE_UNLIMITED;
    if (!v2 && limit >= V1_NO_LIMIT)
        return RESOURCE_UNLIMITED;
    if (!read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes", &usage))
        usage = 0;
    cache = 0;
    if (read_text(dir, "memory.stat", stat, sizeof(stat))) {
        if (find_number(stat, v2 ? "inactive_file" : "total_inactive_file", &part))
            cache += part;
        if (find_number(stat, v2 ? "active_file" : "total_active_file", &part))
            cache += part;
    }
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

static uint64_t cpu_quota(const char *dir, bool v2)
{
    uint64_t quota, period = 0;
    if (v2) {
        char text[64], *end;
        if (!read_text(dir, "cpu.max", text, sizeof(text)) || *text < '0' || *text > '9')
            return RESOURCE_UNLIMITED; /* "max 100000" */
        quota = strtoull(text, &end, 10);
        period = strtoull(end, NULL, 10);
    } else {
        if (!read_number(dir, "cpu.cfs_quota_us", &quota)) /* -1: none */
            return RESOURCE_UNLIMITED;
        read_number(dir, "cpu.cfs_period_us", &period);
    }
    if (period == 0)
        period = 100000;
    return quota == 0 ? RESOURCE_UNLIMITED : (quota + period - 1) / period;
}

/* The smallest answer of `ask` over a group and all above it; path is where the process sits below
 * base. A path that isn't there (a cgroup namespace shows only its own part of the tree) leaves the
 * base itself. */
static uint64_t walk(const char *base, const char *path, bool v2,
                     uint64_t (*ask)(const char *dir, bool v2))
{
    char dir[1024];
    size_t floor = strlen(base);
    if ((size_t)snprintf(dir, sizeof(dir), "%s%s", base, path) >= sizeof(dir) ||
        strstr(path, "/..") != NULL)
        snprintf(dir, sizeof(dir), "%s", base);
    uint64_t best = RESOURCE_UNLIMITED;
    for (;;) {
        best = min64(best, ask(dir, v2));
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= floor || slash == NULL || (size_t)(slash - dir) < floor)
            return best;
        *slash = '\0';
    }
}

static bool has_controller(const char *list, size_t len, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p < list + len;) {
        size_t item = strcspn(p, ",:");
        if (item == n && strncmp(p, name, n) == 0)
            return true;
        p += item + 1;
    }
    return false;
}

/* Asks every hierarchy that has the controller (version 1) and the unified one (version 2). */
static uint64_t ask_groups(const struct resource_roots *roots, const char *controller,
                           uint64_t (*ask)(const char *dir, bool v2))
{
    char self[256], text[4096], base[512];
    uint64_t best = RESOURCE_UNLIMITED;
    snprintf(self, sizeof(self), "%s/self", roots->proc);
    if (!read_text(self, "cgroup", text, sizeof(text)))
        return best;
    char *save;
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':');
        char *path = list != NULL ? strchr(list + 1, ':') : NULL;
        if (path == NULL)
            continue;
        size_t len = (size_t)(path - list - 1);
        if (len == 0) {
            best = min64(best, walk(roots->cgroup, path + 1, true, ask));
        } else if (has_controller(list + 1, len, controller)) {
            snprintf(base, sizeof(base), "%s/%.*s", roots->cgroup, (int)len, list + 1);
            if (access(base, F_OK) != 0) /* "cpu,cpuacct" is often mounted as "cpu" alone */
                snprintf(base, sizeof(base), "%s/%s", roots->cgroup, controller);
            best = min64(best, walk(base, path + 1, false, ask));
        }
    }
    return best;
}

uint64_t resources_cpu_quota(const struct resource_roots *roots)
{
    return ask_groups(roots, "cpu", cpu_quota);
}

unsigned resources_cpus(const struct resource_roots *roots)
{
    cpu_set_t set;
    uint64_t n = 1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = (uint64_t)CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0)
        n = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    n = min64(n, resources_cpu_quota(roots));
    return n > 0 ? (unsigned)n : 1;
}

unsigned resources_compute_threads(unsigned n_cpus)
{
    return n_cpus <= 2 ? n_cpus : n_cpus - 1;
}

uint64_t resources_memory(const struct resource_roots *roots)
{
    char text[4096];
    uint64_t kib, best = RESOURCE_UNLIMITED;
    if (read_text(roots->proc, "meminfo", text, sizeof(text)) &&
        find_number(text, "MemAvailable", &kib))
        best = kib * 1024;
    return min64(best, ask_groups(roots, "memory", memory_left));
}

enum status memory_plan_make(struct memory_plan *plan, struct error *err)
{
    char free_text[32], weights_text[32], kv_text[32];
    options_format_size(plan->free, free_text);
    options_format_size(plan->weights, weights_text);
    options_format_size(plan->kv_wanted, kv_text);
    if (plan->weights > plan->free)
        return error_set(err, STATUS_NO_MEMORY,
                         "the weights take %s, but only %s of memory are free", weights_text,
                         free_text);
    uint64_t left = plan->free - plan->weights;
    if (plan->kv_wanted > left)
        return error_set(
            err, STATUS_NO_MEMORY,
            "the weights take %s and --kv-memory %s, together more than the %s that are free",
            weights_text, kv_text, free_text);
    plan->kv = plan->kv_wanted > 0 ? plan->kv_wanted : min64(left / 4, plan->kv_useful);
    return STATUS_OK;
}
