#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "core/stats/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/stats/reader.h"

/* Six steps a decade, 0.1 ms to 100 s: fine enough that a median of 9 or 11 ms reads as such. */
static const uint64_t time_bounds[] = {
#define DECADE(unit) 1 * (unit), 3 * (unit) / 2, 2 * (unit), 3 * (unit), 5 * (unit), 7 * (unit)
    DECADE(100000ull),     DECADE(1000000ull),     DECADE(10000000ull), DECADE(100000000ull),
    DECADE(1000000000ull), DECADE(10000000000ull), 100000000000ull,
#undef DECADE
};
static const uint64_t size_bounds[] = {1,    2,    3,    4,    6,     8,     12,    16,    24,
                                       32,   48,   64,   96,   128,   192,   256,   384,   512,
                                       1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};

#define N_TIME (sizeof(time_bounds) / sizeof(time_bounds[0]))
#define N_SIZE (sizeof(size_bounds) / sizeof(size_bounds[0]))

static const struct {
    const char *name, *unit, *group, *help;
    uint8_t kind, level;
} stats[STAT_COUNT] = {
#define STAT(name, kind, unit, level, group, help)                                                 \
    {#name, unit, group, help, STATS_##kind, STATS_##level},
#include "core/stats/counters.def"
#undef STAT
};

/* Every text fits its field with its NUL. */
#define STAT(name, kind, unit, level, group, help)                                                 \
    static_assert(sizeof(#name) <= STATS_NAME_MAX && sizeof(unit) <= STATS_UNIT_MAX &&             \
                      sizeof(group) <= STATS_GROUP_MAX && sizeof(help) <= STATS_HELP_MAX,          \
                  #name);
#include "core/stats/counters.def"
#undef STAT

/* Where everything stands; the same for every file that this build makes. */
struct plan {
    struct stats_header header;
    uint32_t index[STAT_COUNT];
};

struct stats_writer {
    struct plan plan;
    unsigned char *base;
    int fd; /* holds the lock; -1: anonymous */
    char path[4096];
};

static unsigned n_bounds_of(enum stats_id stat)
{
    return stats[stat].kind == STATS_TIME ? N_TIME : stats[stat].kind == STATS_SIZE ? N_SIZE : 0;
}

static uint32_t round64(uint64_t n)
{
    return (uint32_t)((n + 63) & ~(uint64_t)63);
}

static void plan_make(struct plan *p)
{
    uint32_t words = 0, texts = 0;
    memset(p, 0, sizeof(*p));
    for (unsigned i = 0; i < STAT_COUNT; i++) {
        if (stats[i].kind == STATS_TEXT) {
            p->index[i] = texts++;
            continue;
        }
        p->index[i] = words;
        words += n_bounds_of((enum stats_id)i) != 0 ? n_bounds_of((enum stats_id)i) + 3 : 1;
    }
    struct stats_header *h = &p->header;
    h->version = STATS_FORMAT_VERSION;
    h->layout = STATS_LAYOUT_WORD;
    h->n_points = STAT_COUNT;
    h->points_at = round64(sizeof(*h));
    h->n_bounds = N_TIME + N_SIZE;
    h->bounds_at = round64(h->points_at + STAT_COUNT * sizeof(struct stats_point_desc));
    h->n_texts = texts;
    h->texts_at = round64(h->bounds_at + h->n_bounds * 8);
    h->n_cells = STATS_CELLS;
    h->cells_at = round64(h->texts_at + texts * sizeof(struct stats_text));
    h->cell_words = (words + 15) & ~15u;
    h->file_bytes = h->cells_at + (uint64_t)h->n_cells * h->cell_words * 8;
    h->heartbeat_at = h->cells_at + (uint64_t)p->index[STAT_heartbeat_ms] * 8;
}

static _Atomic uint64_t *word(const struct stats_writer *w, unsigned cell, uint32_t index)
{
    return (_Atomic uint64_t *)(void *)(w->base + w->plan.header.cells_at) +
           (size_t)cell * w->plan.header.cell_words + index;
}

static struct stats_header *header(const struct stats_writer *w)
{
    return (struct stats_header *)(void *)w->base;
}

/* Fills the mapped file (new or adopted) under an odd epoch, so that no reader takes a mixture for a state. */
static void fill(struct stats_writer *w, const char *name)
{
    struct stats_header *h = header(w);
    uint64_t epoch = h->magic == STATS_MAGIC ? h->epoch | 1 : 1;
    uint32_t starts = h->magic == STATS_MAGIC ? h->starts : 0;
    atomic_store(&h->epoch, epoch);
    atomic_thread_fence(memory_order_seq_cst);

    memset(w->base + sizeof(*h), 0, w->plan.header.file_bytes - sizeof(*h));
    struct stats_point_desc *d =
        (struct stats_point_desc *)(void *)(w->base + w->plan.header.points_at);
    for (unsigned i = 0; i < STAT_COUNT; i++, d++) {
        snprintf(d->name, sizeof(d->name), "%s", stats[i].name);
        snprintf(d->unit, sizeof(d->unit), "%s", stats[i].unit);
        snprintf(d->group, sizeof(d->group), "%s", stats[i].group);
        snprintf(d->help, sizeof(d->help), "%s", stats[i].help);
        d->kind = stats[i].kind;
        d->level = stats[i].level;
        d->n_bounds = (uint16_t)n_bounds_of((enum stats_id)i);
        d->bounds = stats[i].kind == STATS_SIZE ? N_TIME : 0;
        d->index = w->plan.index[i];
    }
    unsigned char *bounds = w->base + w->plan.header.bounds_at;
    memcpy(bounds, time_bounds, sizeof(time_bounds));
    memcpy(bounds + sizeof(time_bounds), size_bounds, sizeof(size_bounds));

    struct stats_header fresh = w->plan.header;
    fresh.epoch = epoch;
    fresh.starts = starts + 1;
    fresh.pid = (uint64_t)getpid();
    fresh.start_ms = clock_wall_ns() / 1000000;
    snprintf(fresh.name, sizeof(fresh.name), "%s", name);
    memcpy((char *)h + sizeof(h->magic), (char *)&fresh + sizeof(h->magic),
           sizeof(fresh) - sizeof(h->magic));
    atomic_thread_fence(memory_order_seq_cst);
    h->magic = STATS_MAGIC;
    atomic_store(&h->epoch, epoch + 1);
}

static enum status map(struct stats_writer *w, int fd, struct error *err)
{
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *base = mmap(NULL, w->plan.header.file_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED)
        return error_set(err, STATUS_IO, "cannot map %s: %s", w->path, strerror(errno));
    w->base = base;
    return STATUS_OK;
}

/* True if we have the write lock now. */
static bool lock(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &l) == 0;
}

/* A directory in /tmp may have been laid out for us by somebody else: it must be ours, and only ours to write. */
static enum status make_dir(const char *dir, struct error *err)
{
    struct stat st;
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return error_set(err, STATUS_IO, "cannot make the directory %s: %s", dir, strerror(errno));
    if (strncmp(dir, "/tmp/", 5) != 0)
        return STATUS_OK;
    if (lstat(dir, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
        return error_set(err, STATUS_IO, "%s is not a directory of this user", dir);
    return STATUS_OK;
}

/* Makes the file under a temporary name, ready and locked, then gives it its name: by link, which fails where there
 * is one already (*taken), or by rename over `replaced`, a file of another layout that we hold the lock of. */
static enum status make_file(struct stats_writer *w, const char *name, bool replace, bool *taken,
                             struct error *err)
{
    char temporary[4200];
    snprintf(temporary, sizeof(temporary), "%s.%ld.new", w->path, (long)getpid());
    unlink(temporary); /* of a namesake that died here; a live process with our pid is ourselves */
    int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return error_set(err, STATUS_IO, "cannot make %s: %s", temporary, strerror(errno));
    enum status status = STATUS_OK;
    int rc = posix_fallocate(fd, 0, (off_t)w->plan.header.file_bytes);
    if (rc != 0)
        status = error_set(err, STATUS_IO, "cannot make %s: %s", temporary, strerror(rc));
    else if (!lock(fd))
        status = error_set(err, STATUS_IO, "cannot lock %s: %s", temporary, strerror(errno));
    else
        status = map(w, fd, err);
    if (status == STATUS_OK) {
        fill(w, name);
        if (replace ? rename(temporary, w->path) != 0 : link(temporary, w->path) != 0) {
            *taken = !replace && errno == EEXIST;
            status = error_set(err, STATUS_IO, "cannot make %s: %s", w->path, strerror(errno));
        }
    }
    unlink(temporary);
    if (status != STATUS_OK) {
        if (w->base != NULL)
            munmap(w->base, w->plan.header.file_bytes);
        w->base = NULL;
        close(fd);
        return status;
    }
    w->fd = fd;
    return STATUS_OK;
}

/* Is the file behind fd laid out exactly as ours would be? */
static bool same_layout(const struct stats_writer *w, int fd)
{
    struct stats_header h;
    struct stat st;
    const struct stats_header *p = &w->plan.header;
    return pread(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h) && h.magic == STATS_MAGIC &&
           h.version == p->version && h.layout == p->layout && h.file_bytes == p->file_bytes &&
           fstat(fd, &st) == 0 && (uint64_t)st.st_size == p->file_bytes &&
           (uint64_t)st.st_blocks * 512 >= p->file_bytes;
}

static enum status held_by_another(const struct stats_writer *w, int fd, const char *name,
                                   struct error *err)
{
    struct stats_header h = {0};
    if (pread(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h))
        h.pid = 0;
    return error_set(err, STATUS_IO,
                     "a living worker (pid %llu) already has the name '%s' (%.200s)",
                     (unsigned long long)h.pid, name, w->path);
}

/* One try at the name; *again: somebody else was faster somewhere, look anew. */
static enum status try_name(struct stats_writer *w, const char *name, bool *again,
                            struct error *err)
{
    struct stat by_fd, by_path;
    *again = false;
    int fd = open(w->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return make_file(w, name, false, again, err);
    if (fd < 0)
        return error_set(err, STATUS_IO, "cannot open %s: %s", w->path, strerror(errno));
    if (!lock(fd)) {
        enum status status = held_by_another(w, fd, name, err);
        close(fd);
        return status;
    }
    /* The lock is worth nothing on a file that lost its name while we were at it. */
    if (fstat(fd, &by_fd) != 0 || lstat(w->path, &by_path) != 0 || by_fd.st_ino != by_path.st_ino ||
        by_fd.st_dev != by_path.st_dev) {
        *again = true;
        close(fd);
        return STATUS_IO;
    }
    if (!S_ISREG(by_fd.st_mode)) {
        close(fd);
        return error_set(err, STATUS_IO, "%s is not a regular file", w->path);
    }
    if (!same_layout(w, fd)) {
        bool taken;
        enum status status = make_file(w, name, true, &taken, err);
        close(fd);
        return status;
    }
    enum status status = map(w, fd, err);
    if (status != STATUS_OK) {
        close(fd);
        return status;
    }
    w->fd = fd;
    fill(w, name);
    return STATUS_OK;
}

enum status stats_writer_create(const char *dir, const char *name, struct stats_writer **out,
                                struct error *err)
{
    char standard[4096];
    *out = NULL;
    if (dir == NULL) {
        if (!stats_default_dir(standard, sizeof(standard)))
            return error_set(err, STATUS_INVALID, "the path of the stats directory is too long");
        dir = standard;
    }
    struct stats_writer *w = xcalloc(1, sizeof(*w));
    w->fd = -1;
    plan_make(&w->plan);
    enum status status = STATUS_OK;
    if (!stats_path(dir, name, w->path, sizeof(w->path)))
        status = error_set(err, STATUS_INVALID,
                           "the name '%.64s' is not 1 to 48 of the characters A-Z a-z 0-9 . _ - "
                           "(the first no dot)",
                           name);
    else
        status = make_dir(dir, err);
    for (bool again = status == STATUS_OK; again;)
        status = try_name(w, name, &again, err);
    if (status != STATUS_OK) {
        free(w);
        return status;
    }
    *out = w;
    return STATUS_OK;
}

struct stats_writer *stats_writer_anonymous(void)
{
    struct stats_writer *w = xcalloc(1, sizeof(*w));
    w->fd = -1;
    plan_make(&w->plan);
    check(map(w, -1, NULL) == STATUS_OK);
    fill(w, "");
    return w;
}

void stats_writer_free(struct stats_writer *w)
{
    if (w == NULL)
        return;
    header(w)->stop_ms = clock_wall_ns() / 1000000;
    munmap(w->base, w->plan.header.file_bytes);
    if (w->fd >= 0)
        close(w->fd);
    free(w);
}

const char *stats_writer_path(const struct stats_writer *w)
{
    return w != NULL ? w->path : "";
}

/* ---- figures -------------------------------------------------------------------------------------------- */

static bool is_number(enum stats_id stat)
{
    return stats[stat].kind == STATS_COUNTER || stats[stat].kind == STATS_GAUGE ||
           stats[stat].kind == STATS_HASH;
}

void stats_add(struct stats_writer *w, enum stats_cell cell, enum stats_id stat, uint64_t n)
{
    if (w == NULL)
        return;
    check(is_number(stat) && cell < STATS_CELLS);
    atomic_fetch_add_explicit(word(w, cell, w->plan.index[stat]), n, memory_order_relaxed);
}

void stats_set(struct stats_writer *w, enum stats_id stat, uint64_t value)
{
    if (w == NULL)
        return;
    check(is_number(stat));
    atomic_store_explicit(word(w, 0, w->plan.index[stat]), value, memory_order_relaxed);
}

static unsigned bucket_of(const uint64_t *bounds, unsigned n, uint64_t value)
{
    unsigned low = 0, high = n;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (value <= bounds[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void stats_record(struct stats_writer *w, enum stats_cell cell, enum stats_id stat, uint64_t value)
{
    if (w == NULL)
        return;
    unsigned n = n_bounds_of(stat);
    check(n != 0 && cell < STATS_CELLS);
    const uint64_t *bounds = stats[stat].kind == STATS_TIME ? time_bounds : size_bounds;
    _Atomic uint64_t *at = word(w, cell, w->plan.index[stat]);
    atomic_fetch_add_explicit(&at[bucket_of(bounds, n, value)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&at[n + 1], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&at[n + 2], value, memory_order_relaxed);
}

void stats_set_text(struct stats_writer *w, enum stats_id stat, const char *text)
{
    if (w == NULL)
        return;
    check(stats[stat].kind == STATS_TEXT);
    struct stats_text *t =
        (struct stats_text *)(void *)(w->base + w->plan.header.texts_at) + w->plan.index[stat];
    size_t len = strlen(text);
    if (len > STATS_TEXT_MAX - 1)
        for (len = STATS_TEXT_MAX - 1; len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80;)
            len--;
    atomic_fetch_add(&t->sequence, 1);
    memset(t->text, 0, sizeof(t->text));
    memcpy(t->text, text, len);
    atomic_fetch_add(&t->sequence, 1);
}

void stats_heartbeat(struct stats_writer *w)
{
    stats_set(w, STAT_heartbeat_ms, clock_wall_ns() / 1000000);
    stats_add(w, STATS_CELL_LOOP, STAT_heartbeats_total, 1);
}

uint64_t stats_value(const struct stats_writer *w, enum stats_id stat)
{
    uint64_t sum = 0;
    if (w == NULL || !is_number(stat))
        return 0;
    for (unsigned cell = 0; cell < STATS_CELLS; cell++)
        sum += atomic_load_explicit(word(w, cell, w->plan.index[stat]), memory_order_relaxed);
    return sum;
}
