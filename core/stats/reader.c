#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "core/stats/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- places --------------------------------------------------------------------------------------------- */

static bool printed(int n, size_t cap)
{
    return n > 0 && (size_t)n < cap;
}

bool stats_default_dir(char *out, size_t cap)
{
    const char *dir = getenv("RUNTIME_DIRECTORY");
    if (dir != NULL && *dir != '\0')
        return printed(snprintf(out, cap, "%.*s", (int)strcspn(dir, ":"), dir), cap);
    if (geteuid() == 0)
        return printed(snprintf(out, cap, "/run/tokenring"), cap);
    dir = getenv("XDG_RUNTIME_DIR");
    if (dir == NULL || *dir == '\0')
        dir = "/tmp";
    return printed(snprintf(out, cap, "%s/tokenring-%u", dir, (unsigned)geteuid()), cap);
}

static bool name_is_fine(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= 48 && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

bool stats_path(const char *dir, const char *name, char *out, size_t cap)
{
    char standard[4096];
    if (!name_is_fine(name))
        return false;
    if (dir == NULL) {
        if (!stats_default_dir(standard, sizeof(standard)))
            return false;
        dir = standard;
    }
    return printed(snprintf(out, cap, "%s/%s" STATS_SUFFIX, dir, name), cap);
}

enum status stats_open(const char *path, int *fd, struct error *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY);
    if (*fd < 0)
        return error_set(err, errno == ENOENT || errno == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO,
                         "cannot open %s: %s", path, strerror(errno));
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode))
        return STATUS_OK;
    close(*fd);
    *fd = -1;
    return error_set(err, STATUS_IO, "%s is not a regular file", path);
}

/* ---- snapshot ------------------------------------------------------------------------------------------- */

static size_t read_at(int fd, void *buf, size_t len, size_t offset)
{
    size_t got = 0;
    while (got < len) {
        ssize_t n = pread(fd, (char *)buf + got, len - got, (off_t)(offset + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    return got;
}

size_t stats_file_bytes(int fd)
{
    struct stats_header h;
    if (read_at(fd, &h, sizeof(h), 0) != sizeof(h) || h.magic != STATS_MAGIC ||
        h.file_bytes > STATS_FILE_MAX)
        return 0;
    return (size_t)h.file_bytes;
}

/* Does a table of n entries of this size lie within the file, aligned? */
static bool table_fits(uint64_t at, uint64_t n, uint64_t size, uint64_t bytes)
{
    return at % 64 == 0 && at >= sizeof(struct stats_header) && at <= bytes &&
           n <= (bytes - at) / size;
}

static bool is_histogram(unsigned kind)
{
    return kind == STATS_TIME || kind == STATS_SIZE;
}

static bool terminated(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static const struct stats_point_desc *desc_at(const struct stats_snapshot *s, unsigned i)
{
    return (const struct stats_point_desc *)(const void *)(s->data + s->header.points_at) + i;
}

static bool desc_is_fine(const struct stats_header *h, const struct stats_point_desc *d)
{
    if (!terminated(d->name, sizeof(d->name)) || !terminated(d->unit, sizeof(d->unit)) ||
        !terminated(d->group, sizeof(d->group)) || !terminated(d->help, sizeof(d->help)) ||
        d->name[0] == '\0')
        return false;
    if (d->kind == 0 || d->kind >= STATS_KINDS || d->level < STATS_BASIC || d->level > STATS_DETAIL)
        return false;
    if (d->kind == STATS_TEXT)
        return d->index < h->n_texts && d->n_bounds == 0;
    uint32_t words = 1;
    if (is_histogram(d->kind)) {
        if (d->n_bounds == 0 || d->n_bounds > STATS_BOUNDS_MAX || d->bounds > h->n_bounds ||
            d->n_bounds > h->n_bounds - d->bounds)
            return false;
        words = d->n_bounds + 3u;
    } else if (d->n_bounds != 0) {
        return false;
    }
    return d->index < h->cell_words && words <= h->cell_words - d->index;
}

static enum status corrupt(struct error *err, const char *what)
{
    return error_set(err, STATUS_CORRUPT, "the stats file is damaged: %s", what);
}

enum status stats_snapshot_pread(int fd, void *buf, size_t cap, struct stats_snapshot *out,
                                 struct error *err)
{
    struct stats_header h;
    size_t got = read_at(fd, &h, sizeof(h), 0);
    if (got != sizeof(h) || h.magic != STATS_MAGIC)
        return error_set(err, STATUS_CORRUPT, "this is no stats file, or one that was truncated");
    if (h.version != STATS_FORMAT_VERSION || h.layout != STATS_LAYOUT_WORD)
        return error_set(err, STATUS_VERSION,
                         "the stats file has format %u (layout %08x), this program reads format %u "
                         "(layout %08x)",
                         h.version, h.layout, STATS_FORMAT_VERSION, STATS_LAYOUT_WORD);
    if (h.file_bytes > STATS_FILE_MAX || h.file_bytes < sizeof(h))
        return corrupt(err, "its size makes no sense");
    if (h.file_bytes > cap)
        return error_set(err, STATUS_TOO_LARGE,
                         "the stats file has %llu bytes, there is room for %zu",
                         (unsigned long long)h.file_bytes, cap);
    size_t bytes = (size_t)h.file_bytes;
    if (read_at(fd, buf, bytes, 0) != bytes)
        return corrupt(err, "it ends early");
    *out = (struct stats_snapshot){.data = buf, .len = bytes};
    memcpy(&out->header, buf,
           sizeof(h)); /* this read's own header: only this one is used from here */
    h = out->header;
    if (h.magic != STATS_MAGIC || h.version != STATS_FORMAT_VERSION ||
        h.layout != STATS_LAYOUT_WORD || h.file_bytes != bytes || (h.epoch & 1) != 0)
        return error_set(err, STATUS_LOADING, "a worker is just taking the stats file over");
    if (h.n_points == 0 || h.n_points > STATS_POINTS_MAX || h.n_cells == 0 ||
        h.n_cells > STATS_CELLS_MAX || h.cell_words == 0 || !terminated(h.name, sizeof(h.name)))
        return corrupt(err, "its header makes no sense");
    if (!table_fits(h.points_at, h.n_points, sizeof(struct stats_point_desc), bytes) ||
        !table_fits(h.bounds_at, h.n_bounds, 8, bytes) ||
        !table_fits(h.texts_at, h.n_texts, sizeof(struct stats_text), bytes) ||
        !table_fits(h.cells_at, (uint64_t)h.n_cells * h.cell_words, 8, bytes) ||
        h.heartbeat_at % 8 != 0 || h.heartbeat_at < sizeof(h) || h.heartbeat_at > bytes - 8)
        return corrupt(err, "a table lies outside of it");
    for (unsigned i = 0; i < h.n_points; i++)
        if (!desc_is_fine(&h, desc_at(out, i)))
            return corrupt(err, "the description of a figure makes no sense");
    return STATUS_OK;
}

/* ---- points --------------------------------------------------------------------------------------------- */

static uint64_t word_at(const struct stats_snapshot *s, size_t at)
{
    uint64_t value;
    memcpy(&value, s->data + at, sizeof(value));
    return value;
}

static uint64_t cell_sum(const struct stats_snapshot *s, uint32_t index)
{
    uint64_t sum = 0;
    for (uint32_t cell = 0; cell < s->header.n_cells; cell++)
        sum += word_at(s, s->header.cells_at + ((size_t)cell * s->header.cell_words + index) * 8);
    return sum;
}

bool stats_point_at(const struct stats_snapshot *s, unsigned i, struct stats_point *out)
{
    if (i >= s->header.n_points)
        return false;
    const struct stats_point_desc *d = desc_at(s, i);
    out->name = d->name;
    out->unit = d->unit;
    out->group = d->group;
    out->help = d->help;
    out->kind = (enum stats_kind)d->kind;
    out->level = (enum stats_level)d->level;
    out->text = NULL;
    out->n_bounds = 0;
    out->sum = out->value = 0;
    if (d->kind == STATS_TEXT) {
        const struct stats_text *t =
            (const struct stats_text *)(const void *)(s->data + s->header.texts_at) + d->index;
        /* Caught in the middle of being written, or never terminated: nothing rather than half of it. */
        out->text = (t->sequence & 1) == 0 && terminated(t->text, sizeof(t->text)) ? t->text : "";
    } else if (is_histogram(d->kind)) {
        out->n_bounds = d->n_bounds;
        for (uint32_t b = 0; b < d->n_bounds; b++)
            out->bounds[b] = word_at(s, s->header.bounds_at + ((size_t)d->bounds + b) * 8);
        for (uint32_t b = 0; b <= d->n_bounds; b++)
            out->buckets[b] = cell_sum(s, d->index + b);
        out->value = cell_sum(s, d->index + d->n_bounds + 1);
        out->sum = cell_sum(s, d->index + d->n_bounds + 2);
    } else {
        out->value = cell_sum(s, d->index);
    }
    return true;
}

bool stats_point_find(const struct stats_snapshot *s, const char *name, struct stats_point *out)
{
    for (unsigned i = 0; i < s->header.n_points; i++)
        if (strcmp(desc_at(s, i)->name, name) == 0)
            return stats_point_at(s, i, out);
    return false;
}

uint64_t stats_number(const struct stats_snapshot *s, const char *name, uint64_t missing)
{
    for (unsigned i = 0; i < s->header.n_points; i++) {
        const struct stats_point_desc *d = desc_at(s, i);
        if (strcmp(d->name, name) == 0 && d->kind != STATS_TEXT && !is_histogram(d->kind))
            return cell_sum(s, d->index);
    }
    return missing;
}

double stats_quantile(const struct stats_point *p, double q)
{
    double total = 0, below = 0;
    for (unsigned b = 0; b <= p->n_bounds && p->n_bounds != 0; b++)
        total += (double)p->buckets[b];
    if (total == 0)
        return 0;
    for (unsigned b = 0; b < p->n_bounds; b++) {
        double in = (double)p->buckets[b];
        if (in > 0 && below + in >= q * total) {
            double from = b == 0 ? 0 : (double)p->bounds[b - 1];
            return from + ((double)p->bounds[b] - from) * ((q * total - below) / in);
        }
        below += in;
    }
    return (double)p->bounds[p->n_bounds - 1];
}

/* ---- the owner ------------------------------------------------------------------------------------------ */

/* The state letter of /proc/<pid>/stat, which stands behind the command's closing parenthesis; 0 if there is none. */
static char process_state(uint64_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%llu/stat", (unsigned long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    size_t n = read_at(fd, text, sizeof(text) - 1, 0);
    close(fd);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    return end != NULL && end[1] == ' ' ? end[2] : 0;
}

enum stats_life stats_life_of(int fd, uint64_t pid)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
        return STATS_DEAD;
    char state = process_state(pid);
    return state == 'T' || state == 't' ? STATS_STOPPED : STATS_LIVE;
}

uint64_t stats_last_seen_ms(const struct stats_snapshot *s)
{
    uint64_t seen = s->header.start_ms;
    uint64_t beat = word_at(s, (size_t)s->header.heartbeat_at);
    if (beat > seen)
        seen = beat;
    return s->header.stop_ms > seen ? s->header.stop_ms : seen;
}
