/* format.h: the stats file. It carries its own description, so a reader needs this header and no counters.def.
 *
 *     0              struct stats_header
 *     points_at      struct stats_point_desc [n_points]
 *     bounds_at      u64 [n_bounds]                bucket bounds of the histograms, all tables in a row
 *     texts_at       struct stats_text [n_texts]
 *     cells_at       u64 [cell_words]  x n_cells   one cell a group of threads, each on lines of its own
 *
 * A number is the sum of its word over all cells, modulo 2^64 (so a gauge may be kept by adding and subtracting
 * in different threads). A histogram of b bounds takes b + 3 words: b + 1 buckets (bucket i counts values <= bound i,
 * the last one those above all bounds), the count, the sum.
 *
 * The file is `<dir>/<name>.stats`. The living owner holds an open-file-description write lock on its first byte;
 * that lock, not a pid, says whether there is one, also when it is stopped. The file stays when the owner dies. */
#ifndef STATS_FORMAT_H
#define STATS_FORMAT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* "TOKNSTAT" read as a little-endian u64. */
#define STATS_MAGIC 0x544154534e4b4f54ull
#define STATS_FORMAT_VERSION 1u
#define STATS_LAYOUT_WORD                                                                          \
    ((uint32_t)(sizeof(struct stats_header) + 31u * sizeof(struct stats_point_desc) +              \
                961u * sizeof(struct stats_text) + 29791u * offsetof(struct stats_header, epoch)))
#define STATS_NAME_MAX 48u
#define STATS_UNIT_MAX 16u
#define STATS_GROUP_MAX 16u
#define STATS_HELP_MAX 104u
#define STATS_TEXT_MAX 248u
#define STATS_BOUNDS_MAX 64u /* of one histogram */
#define STATS_POINTS_MAX 512u
#define STATS_CELLS_MAX 64u
#define STATS_FILE_MAX (1u << 20) /* a reader refuses more */
#define STATS_SUFFIX ".stats"

enum stats_kind {
    STATS_COUNTER = 1,
    STATS_GAUGE,
    STATS_TIME, /* histogram, nanoseconds */
    STATS_SIZE, /* histogram, plain numbers */
    STATS_HASH, /* 64 bits, for equality */
    STATS_TEXT,
    STATS_KINDS
};

enum stats_level { STATS_BASIC = 1, STATS_DETAIL };

struct stats_point_desc {
    char name[STATS_NAME_MAX]; /* these four are NUL-terminated */
    char unit[STATS_UNIT_MAX];
    char group[STATS_GROUP_MAX];
    char help[STATS_HELP_MAX];
    uint8_t kind, level;
    uint16_t n_bounds; /* histograms; else 0 */
    uint32_t bounds;   /* first index in the bounds table */
    uint32_t index;    /* word within a cell; STATS_TEXT: index in the texts */
    uint32_t reserved;
};

struct stats_text {
    _Atomic uint32_t sequence; /* odd while being written */
    uint32_t reserved;
    char text[STATS_TEXT_MAX]; /* NUL-terminated */
};

struct stats_header {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t layout;
    uint64_t file_bytes;
    uint32_t n_points, points_at; /* the _at are byte offsets, multiples of 64 */
    uint32_t n_bounds, bounds_at;
    uint32_t n_texts, texts_at;
    uint32_t n_cells, cells_at;
    uint32_t cell_words;    /* multiple of 16 */
    uint32_t starts;        /* workers that have used this file, this one included */
    _Atomic uint64_t epoch; /* odd while a worker takes the file over */
    uint64_t pid;
    uint64_t start_ms;     /* unix time of the owner's start */
    uint64_t stop_ms;      /* unix time of its orderly end; 0: none (running, or killed) */
    uint64_t heartbeat_at; /* byte offset of the word with the unix ms of the last sign of life */
    char name[64];
};

static_assert(sizeof(struct stats_point_desc) == 200, "point");
static_assert(sizeof(struct stats_text) == 256, "text");
static_assert(sizeof(struct stats_header) == 168 && offsetof(struct stats_header, epoch) == 64,
              "header");

#endif
