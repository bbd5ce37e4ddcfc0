/* writer.h: the worker's side of the stats file (format.h): create or adopt it, count, set, record.
 *
 * Counting is one relaxed atomic add in shared memory: any thread, any time, no publishing needed. A cell is a set
 * of lines that one thread writes most, so that threads do not fight for lines; any thread may still use any.
 *
 *     stats_add(w, STATS_CELL_SCHED, STAT_steps_total, 1);
 *     stats_add(w, STATS_CELL_LOOP, STAT_requests_running, -1);      a gauge, kept by adding
 *     stats_set(w, STAT_threads, 2);                                 a gauge, set by one thread
 *     stats_record(w, STATS_CELL_SCHED, STAT_step_time, ns);
 *
 * Every call takes w == NULL and does nothing then, so that libraries can be used without stats. */
#ifndef STATS_WRITER_H
#define STATS_WRITER_H

#include <stdint.h>

#include "core/base/status.h"
#include "core/stats/format.h"

enum stats_id {
#define STAT(name, kind, unit, level, group, help) STAT_##name,
#include "core/stats/counters.def"
#undef STAT
    STAT_COUNT
};

enum stats_cell {
    STATS_CELL_LOOP,
    STATS_CELL_SCHED,
    STATS_CELL_OTHER, /* front pool, loader, tests */
    STATS_CELLS
};

struct stats_writer;

/* Takes `<dir>/<name>.stats`: makes dir if it is missing (0755), makes the file under a temporary name and renames
 * it into place, or adopts the one that a dead worker left (all values start at zero again; `starts` goes up). dir
 * NULL: stats_default_dir. STATUS_INVALID: name is not [A-Za-z0-9._-]{1,48}; STATUS_IO: the system said no, or a
 * living worker has this name (err gives its pid). The lock goes with the process. */
enum status stats_writer_create(const char *dir, const char *name, struct stats_writer **out,
                                struct error *err);
/* The same without a file, for tests and tools. Never fails. */
struct stats_writer *stats_writer_anonymous(void);
/* Marks the orderly end, unmaps, gives the lock back; the file stays. NULL is fine. */
void stats_writer_free(struct stats_writer *w);
/* Path of the file, "" if anonymous. */
const char *stats_writer_path(const struct stats_writer *w);

/* Counters and gauges: n may be negative (as two's complement) for gauges. */
void stats_add(struct stats_writer *w, enum stats_cell cell, enum stats_id stat, uint64_t n);
/* Gauges, hashes, and counters mirrored from elsewhere: what holds now, for all cells together. One thread a stat,
 * and never mixed with stats_add on the same stat. */
void stats_set(struct stats_writer *w, enum stats_id stat, uint64_t value);
/* TIME: nanoseconds. SIZE: the number itself. */
void stats_record(struct stats_writer *w, enum stats_cell cell, enum stats_id stat, uint64_t value);
/* TEXT: cut to STATS_TEXT_MAX - 1 bytes at a character's border. One thread a stat. */
void stats_set_text(struct stats_writer *w, enum stats_id stat, const char *text);
/* The owner lives: heartbeat_ms, heartbeats_total. Once per loop turn or timer tick, by the loop. */
void stats_heartbeat(struct stats_writer *w);
/* Reads back the sum over the cells (tests, log lines). 0 for histograms' and texts' stats. */
uint64_t stats_value(const struct stats_writer *w, enum stats_id stat);

#endif
