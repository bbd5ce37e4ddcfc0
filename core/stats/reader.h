/* reader.h: reads a stats file (format.h) into a private snapshot and explains it. For tools and for nginx.
 *
 * A snapshot is one pread into memory of the caller, everything in it checked against its size before use; so a
 * truncated, overwritten or half-written file gives STATUS_CORRUPT and nothing worse. No mapping, no check(), no
 * allocation, no blocking but for the disk's own (the file lives on tmpfs or is in the page cache).
 *
 *     char buf[...STATS_FILE_MAX]; struct stats_snapshot s; struct stats_point p;
 *     if (stats_snapshot_pread(fd, buf, sizeof(buf), &s, &err) == STATUS_OK)
 *         for (unsigned i = 0; stats_point_at(&s, i, &p); i++) ...
 *
 * stats_file_bytes tells how large the buffer must be; it is the same for the life of the file. */
#ifndef STATS_READER_H
#define STATS_READER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/status.h"
#include "core/stats/format.h"

/* The directory of stats files when none is given: $RUNTIME_DIRECTORY (first entry), else as root /run/tokenring,
 * else ${XDG_RUNTIME_DIR:-/tmp}/tokenring-$UID. False if it does not fit. */
bool stats_default_dir(char *out, size_t cap);
/* "<dir>/<name>.stats"; dir NULL: the default. False if it does not fit or the name is not [A-Za-z0-9._-]{1,48}. */
bool stats_path(const char *dir, const char *name, char *out, size_t cap);

/* Opens read-only, never blocking, never following a final link, regular files only. *fd is the caller's.
 * STATUS_NOT_FOUND: no such file; STATUS_IO otherwise. */
enum status stats_open(const char *path, int *fd, struct error *err);

struct stats_snapshot {
    const unsigned char *data;
    size_t len;
    struct stats_header header; /* a checked copy */
};

/* Bytes that a snapshot of this file needs; 0 if it cannot be told (not a stats file). */
size_t stats_file_bytes(int fd);
/* Reads the file into buf[cap] (8-byte aligned) and checks it. STATUS_CORRUPT: damaged, truncated or not a stats
 * file; STATUS_VERSION: of another format version; STATUS_TOO_LARGE: cap is too small; STATUS_LOADING: a worker
 * is just taking the file over: try again. The snapshot points into buf. */
enum status stats_snapshot_pread(int fd, void *buf, size_t cap, struct stats_snapshot *out,
                                 struct error *err);

struct stats_point {
    const char *name, *unit, *group, *help; /* point into the snapshot's buffer */
    enum stats_kind kind;
    enum stats_level level;
    uint64_t value;   /* counter, gauge, hash; histograms: the count */
    const char *text; /* TEXT, else NULL */
    /* histograms */
    unsigned n_bounds;                 /* buckets are n_bounds + 1 */
    uint64_t bounds[STATS_BOUNDS_MAX]; /* upper bounds, ascending; nanoseconds or numbers */
    uint64_t buckets[STATS_BOUNDS_MAX + 1];
    uint64_t sum;
};

/* The i-th point, false past the last. Values are summed over the cells. */
bool stats_point_at(const struct stats_snapshot *s, unsigned i, struct stats_point *out);
/* By name; false if the file has none of that name. */
bool stats_point_find(const struct stats_snapshot *s, const char *name, struct stats_point *out);
/* A counter or gauge by name; `missing` if there is none. */
uint64_t stats_number(const struct stats_snapshot *s, const char *name, uint64_t missing);
/* A histogram's quantile q in [0, 1], linear within its bucket; 0 when it is empty. In the point's own unit
 * (nanoseconds or numbers). Above the last bound: that bound. */
double stats_quantile(const struct stats_point *p, double q);

enum stats_life {
    STATS_LIVE,
    STATS_STOPPED, /* the owner has the lock, but is stopped (SIGSTOP, debugger) */
    STATS_DEAD     /* nobody has the lock */
};

/* Whether the file's owner lives, by its lock, and is stopped, by /proc. */
enum stats_life stats_life_of(int fd, uint64_t pid);
/* Unix ms of the owner's last sign of life (heartbeat, orderly end or start: the latest). */
uint64_t stats_last_seen_ms(const struct stats_snapshot *s);

#endif
