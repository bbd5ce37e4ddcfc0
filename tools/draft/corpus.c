#define _GNU_SOURCE
#include "tools/draft/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/buffer.h"
#include "core/base/xalloc.h"

#define HEADER 128u
#define TEXT 0x54584554u /* "TEXT" */
#define TEXT_MOST (1u << 20)

static const char magic[20] = "tokenring corpus 1\n";

static uint64_t text_bytes(uint32_t n, uint32_t width)
{
    uint64_t bytes = 8 + 4 * (uint64_t)n + (n + 3u) / 4 * 4 + 2 * (uint64_t)n * width;
    return (bytes + 3) / 4 * 4;
}

uint64_t corpus_bytes(uint64_t n, uint32_t width)
{
    return n * (5 + 2 * (uint64_t)width);
}

static enum status failed(struct error *err, const char *what, const char *path)
{
    return error_set(err, STATUS_IO, "%s %s: %s", what, path, strerror(errno));
}

static void make_header(char header[HEADER], uint32_t width, const char *sha256)
{
    memset(header, 0, HEADER);
    memcpy(header, magic, sizeof magic);
    memcpy(header + 20, &width, 4);
    snprintf(header + 24, HEADER - 24, "%s", sha256);
}

static void add_place(struct corpus *c, uint64_t place)
{
    if (c->n_texts == c->places_cap) {
        c->places_cap = c->places_cap == 0 ? 1024 : 2 * c->places_cap;
        c->places = xreallocarray(c->places, c->places_cap, sizeof *c->places);
    }
    c->places[c->n_texts++] = place;
}

/* Finds the texts of a file; what isn't whole at its end is cut off. */
static enum status scan(struct corpus *c, uint64_t size, struct error *err)
{
    c->size = HEADER;
    for (;;) {
        uint32_t head[2];
        ssize_t got = pread(c->fd, head, sizeof head, (off_t)c->size);
        if (got < 0)
            return failed(err, "cannot read", c->path);
        if (got < (ssize_t)sizeof head || head[0] != TEXT || head[1] == 0 || head[1] > TEXT_MOST ||
            text_bytes(head[1], c->width) > size - c->size)
            break;
        add_place(c, c->size);
        c->n_tokens += head[1];
        c->size += text_bytes(head[1], c->width);
    }
    if (ftruncate(c->fd, (off_t)c->size) != 0)
        return failed(err, "cannot shorten", c->path);
    return STATUS_OK;
}

enum status corpus_open(struct corpus *c, const char *path, uint32_t width, const char *sha256,
                        bool resume, struct error *err)
{
    char want[HEADER], have[HEADER];
    struct stat st;
    *c = (struct corpus){.path = xmemdup(path, strlen(path)), .width = width, .fd = -1};
    make_header(want, width, sha256);
    c->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0666);
    enum status status = STATUS_OK;
    if (c->fd < 0 || fstat(c->fd, &st) != 0)
        status = failed(err, "cannot open", path);
    else if (st.st_size == 0 && pwrite(c->fd, want, HEADER, 0) != HEADER)
        status = failed(err, "cannot write", path);
    else if (st.st_size != 0 &&
             (pread(c->fd, have, HEADER, 0) != HEADER || memcmp(have, want, HEADER) != 0))
        status = error_set(err, STATUS_INVALID, "%s holds no texts of this model", path);
    c->size = HEADER;
    if (status == STATUS_OK && st.st_size != 0)
        status = scan(c, (uint64_t)st.st_size, err);
    if (status != STATUS_OK)
        corpus_close(c);
    return status;
}

void corpus_close(struct corpus *c)
{
    if (c->map != NULL)
        munmap((void *)(uintptr_t)c->map, c->map_size);
    if (c->fd >= 0)
        close(c->fd);
    free(c->path);
    free(c->places);
    *c = (struct corpus){.fd = -1};
}

enum status corpus_add(struct corpus *c, uint32_t n, const uint32_t *tokens, const uint8_t *origins,
                       const uint16_t *states, struct error *err)
{
    static const char zeros[4];
    struct buffer record = {0};
    uint32_t head[2] = {TEXT, n};
    buffer_add(&record, head, sizeof head);
    buffer_add(&record, tokens, 4 * (size_t)n);
    buffer_add(&record, origins, n);
    buffer_add(&record, zeros, (size_t)(-record.len & 3));
    buffer_add(&record, states, 2 * (size_t)n * c->width);
    buffer_add(&record, zeros, (size_t)(-record.len & 3));
    ssize_t done = pwrite(c->fd, record.ptr, record.len, (off_t)c->size);
    bool whole = done == (ssize_t)record.len;
    errno = done >= 0 ? ENOSPC : errno;
    uint64_t bytes = record.len;
    buffer_release(&record);
    if (!whole)
        return failed(err, "cannot write", c->path);
    add_place(c, c->size);
    c->size += bytes;
    c->n_tokens += n;
    return STATUS_OK;
}

enum status corpus_map(struct corpus *c, struct error *err)
{
    void *map = mmap(NULL, c->size, PROT_READ, MAP_SHARED, c->fd, 0);
    if (map == MAP_FAILED)
        return failed(err, "cannot map", c->path);
    c->map = map;
    c->map_size = c->size;
    return STATUS_OK;
}

struct corpus_text corpus_text(const struct corpus *c, size_t i)
{
    const uint8_t *at = c->map + c->places[i];
    uint32_t n;
    memcpy(&n, at + 4, 4);
    const uint8_t *origins = at + 8 + 4 * (size_t)n;
    return (struct corpus_text){n, (const uint32_t *)(const void *)(at + 8), origins,
                                (const uint16_t *)(const void *)(origins + (n + 3u) / 4 * 4)};
}
