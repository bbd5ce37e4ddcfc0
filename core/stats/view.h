/* view.h: one worker as a reader sees it at one moment: what its stats file says and what has become of its process.
 *
 *     path ── open, one pread, lock query, /proc ──▶ struct stats_view ──▶ render.h: JSON, Prometheus, health
 *
 * Nothing here waits for the worker or speaks to it, so a view is as quickly had of a stopped or dead one. For tools
 * and for nginx: no mapping, no check(), no allocation. */
#ifndef STATS_VIEW_H
#define STATS_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "core/stats/reader.h"

enum stats_condition {
#define CONDITION(name, word, up, help) STATS_CONDITION_##name,
#include "core/stats/conditions.def"
#undef CONDITION
    STATS_CONDITIONS
};

/* A worker whose sign of life is older than this (and than four of its own intervals) is called stalled. */
#define STATS_STALL_MS 5000u

struct stats_view {
    const char *name; /* what it is called in answers; the caller's */
    const char *path; /* the caller's */
    enum stats_condition condition;
    uint64_t now_ms;                /* when it was looked at, unix time */
    bool readable;                  /* the snapshot is one; else err says why not */
    enum stats_life life;           /* of a readable file */
    struct stats_snapshot snapshot; /* points into the buffer that was given */
    struct error err;
};

/* Reads the opened file into buf[cap] (8-byte aligned; stats_file_bytes tells how much is needed) and judges it.
 * Name and path are set before and kept. A file that a worker is just taking over is read again a few times, without
 * a pause. Never fails: what was wrong stands in condition and err. */
void stats_view_read(struct stats_view *v, int fd, void *buf, size_t cap, uint64_t now_ms);
/* The view of a file that could not be opened, with this status and text. */
void stats_view_none(struct stats_view *v, const struct error *err, uint64_t now_ms);

/* "ready", "stopped", ... and whether the process runs and gives signs of life. */
const char *stats_condition_word(enum stats_condition condition);
bool stats_condition_up(enum stats_condition condition);
/* Milliseconds since the owner's last sign of life; 0 if there is no file, or the clocks disagree. */
uint64_t stats_view_age_ms(const struct stats_view *v);
/* A text by name, "" if the file has none. */
const char *stats_view_text(const struct stats_view *v, const char *name);

#endif
