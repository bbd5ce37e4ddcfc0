#define _GNU_SOURCE /* qsort_r, madvise */
#include "core/gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/readahead.h"
#include "core/base/xalloc.h"
#include "core/gguf/gguf_priv.h"

/* The shortest key (empty name, a one-byte value) and tensor (one dimension) that a file can hold:
 * they bound how many of them its bytes can be. */
#define MIN_KEY_BYTES (8 + 4 + 1)
#define MIN_TENSOR_BYTES (8 + 4 + 8 + 4 + 8)
#define MAX_KEY_NAME 65535
#define MAX_TENSOR_NAME 64
#define DEFAULT_ALIGNMENT 32
#define MAX_ALIGNMENT (1u << 20)
/* What comes before the data is read in pieces of this: a multiple of the system's pages. */
#define PIECE_BYTES ((uint64_t)1 << 20)
/* Bytes of one call of pread, at most: the system's limit is under 2 GiB. */
#define READ_MOST ((uint64_t)1 << 30)

/* A place in the file; every read is checked against its end. */
struct reader {
    struct gguf *g;
    uint64_t at;
    struct error *err;
    int failed; /* errno of a read that the system refused */
};

static uint64_t left(const struct reader *r)
{
    return r->g->size - r->at;
}

/* Fills the error with path, place and a sentence about it. `at`: where the bad bytes are. */
__attribute__((format(printf, 4, 5))) static enum status
fault(const struct reader *r, enum status status, uint64_t at, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set(r->err, status, "%s: %s (byte %llu of %llu)", r->g->path, text,
                     (unsigned long long)at, (unsigned long long)r->g->size);
}

static enum status truncated(const struct reader *r, const char *what)
{
    if (r->failed != 0)
        return fault(r, STATUS_IO, r->at, "%s cannot be read: %s", what, strerror(r->failed));
    return fault(r, STATUS_CORRUPT, r->at, "the file ends inside %s", what);
}

/* Reads [from, from + len), or up to where the file ends now; bytes that came, or -1. */
static int64_t read_some(int fd, uint64_t from, void *dst, uint64_t len)
{
    uint64_t done = 0;
    while (done < len) {
        uint64_t want = len - done < READ_MOST ? len - done : READ_MOST;
        ssize_t n = pread(fd, (char *)dst + done, want, (off_t)(from + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (uint64_t)n;
    }
    return (int64_t)done;
}

/* Are the next n bytes there? Reads them, with what follows, if they are on disk yet. */
static bool need(struct reader *r, uint64_t n)
{
    struct gguf *g = r->g;
    if (n > left(r))
        return false;
    if (r->at + n <= g->have)
        return true;
    uint64_t to = (r->at + n + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    to = to < g->size ? to : g->size;
    char *at = (char *)(uintptr_t)g->bytes + g->have;
    int64_t got = -1;
    /* `have` is the size or a multiple of the pieces, so of pages */
    if (mprotect(at, to - g->have, PROT_READ | PROT_WRITE) == 0) {
        /* All pages at once: reading into them would have the system make them one by one, which was half the time of
         * gguf_open. Kernels before 5.14 refuse, and do that. */
        (void)madvise(at, to - g->have, MADV_POPULATE_WRITE);
        got = read_some(g->fd, g->have, at, to - g->have);
    }
    if (got < 0) {
        r->failed = errno;
        return false;
    }
    g->have += (uint64_t)got;
    if (g->have < to)
        g->size = g->have; /* it has become shorter since it was opened */
    return n <= left(r);
}

static bool read_u32(struct reader *r, uint32_t *value)
{
    if (!need(r, sizeof(*value)))
        return false;
    memcpy(value, r->g->bytes + r->at, sizeof(*value));
    r->at += sizeof(*value);
    return true;
}

static bool read_u64(struct reader *r, uint64_t *value)
{
    if (!need(r, sizeof(*value)))
        return false;
    memcpy(value, r->g->bytes + r->at, sizeof(*value));
    r->at += sizeof(*value);
    return true;
}

/* A length and that many bytes. `what` names it in messages. */
static enum status read_string(struct reader *r, const char *what, uint64_t max, struct slice *s)
{
    uint64_t start = r->at, len;
    if (!read_u64(r, &len))
        return truncated(r, what);
    if (len > max)
        return fault(r, STATUS_CORRUPT, start, "%s has an impossible length, %llu bytes", what,
                     (unsigned long long)len);
    if (len > left(r))
        return fault(r, STATUS_CORRUPT, start, "%s has %llu bytes, but the file only %llu more",
                     what, (unsigned long long)len, (unsigned long long)left(r));
    if (!need(r, len))
        return truncated(r, what);
    *s = slice_make(r->g->bytes + r->at, (size_t)len);
    r->at += len;
    return STATUS_OK;
}

static enum status read_array(struct reader *r, struct gguf_key *key, const char *name)
{
    uint64_t start = r->at, count;
    uint32_t element;
    if (!read_u32(r, &element) || !read_u64(r, &count))
        return truncated(r, "an array's header");
    if (element == GGUF_ARRAY)
        return fault(r, STATUS_UNSUPPORTED, start,
                     "key '%s' is an array of arrays, which is not supported", name);
    if (element >= GGUF_TYPE_COUNT)
        return fault(r, STATUS_CORRUPT, start, "key '%s' is an array of the unknown type %u", name,
                     element);
    key->element = (enum gguf_type)element;
    key->count = count;
    key->value = r->g->bytes + r->at;
    uint64_t size = element == GGUF_STRING ? sizeof(uint64_t) : gguf_type_size(element);
    if (count > left(r) / size)
        return fault(r, STATUS_CORRUPT, start,
                     "key '%s' is an array of %llu elements, more than the file's bytes", name,
                     (unsigned long long)count);
    if (element != GGUF_STRING) {
        if (!need(r, count * size))
            return truncated(r, "an array");
        r->at += count * size;
        return STATUS_OK;
    }
    for (uint64_t i = 0; i < count; i++) {
        char what[GGUF_QUOTE + 48];
        uint64_t at = r->at, len;
        if (!read_u64(r, &len) || !need(r, len)) {
            bool ends = r->failed != 0 || r->g->size - at < sizeof(len);
            r->at = at;
            snprintf(what, sizeof(what), "element %llu of the key '%s'", (unsigned long long)i,
                     name);
            return ends ? truncated(r, what)
                        : fault(r, STATUS_CORRUPT, at, "%s has an impossible length", what);
        }
        r->at += len;
    }
    return STATUS_OK;
}

static enum status read_key(struct reader *r, uint64_t index, struct gguf_key *key)
{
    char what[GGUF_QUOTE + 48], name[GGUF_QUOTE];
    uint64_t start = r->at;
    uint32_t type;
    snprintf(what, sizeof(what), "the name of key %llu", (unsigned long long)index);
    enum status status = read_string(r, what, MAX_KEY_NAME, &key->name);
    if (status != STATUS_OK)
        return status;
    if (key->name.len == 0)
        return fault(r, STATUS_CORRUPT, start, "key %llu has no name", (unsigned long long)index);
    gguf_quote(key->name, name);
    snprintf(what, sizeof(what), "the value of key '%s'", name);
    uint64_t type_at = r->at;
    if (!read_u32(r, &type))
        return truncated(r, what);
    if (type >= GGUF_TYPE_COUNT)
        return fault(r, STATUS_CORRUPT, type_at, "key '%s' has the unknown value type %u", name,
                     type);
    key->type = (enum gguf_type)type;
    if (type == GGUF_ARRAY)
        return read_array(r, key, name);
    if (type == GGUF_STRING) {
        struct slice text;
        status = read_string(r, what, UINT64_MAX, &text);
        key->value = (const uint8_t *)text.ptr;
        key->count = text.len;
        return status;
    }
    if (!need(r, gguf_type_size(type)))
        return truncated(r, what);
    key->value = r->g->bytes + r->at;
    if (type == GGUF_BOOL && *key->value > 1)
        return fault(r, STATUS_CORRUPT, r->at, "key '%s' is a bool with the value %u", name,
                     *key->value);
    r->at += gguf_type_size(type);
    return STATUS_OK;
}

/* Name, shape, type and offset; data and whether it lies in the file are checked when the data's
 * start is known. */
static enum status read_tensor(struct reader *r, uint64_t index, struct gguf_tensor *t)
{
    char what[64], name[GGUF_QUOTE];
    uint64_t start = r->at, elements = 1;
    snprintf(what, sizeof(what), "the name of tensor %llu", (unsigned long long)index);
    enum status status = read_string(r, what, MAX_TENSOR_NAME, &t->name);
    if (status != STATUS_OK)
        return status;
    if (t->name.len == 0)
        return fault(r, STATUS_CORRUPT, start, "tensor %llu has no name",
                     (unsigned long long)index);
    gguf_quote(t->name, name);
    uint64_t dims_at = r->at;
    if (!read_u32(r, &t->n_dims))
        return truncated(r, "a tensor's shape");
    if (t->n_dims < 1 || t->n_dims > 4)
        return fault(r, STATUS_CORRUPT, dims_at,
                     "tensor '%s' has %u dimensions; 1 to 4 are possible", name, t->n_dims);
    for (uint32_t i = 0; i < 4; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims && !read_u64(r, &t->dims[i]))
            return truncated(r, "a tensor's shape");
        if (t->dims[i] == 0)
            return fault(r, STATUS_CORRUPT, dims_at, "tensor '%s' has a dimension of 0", name);
        if (__builtin_mul_overflow(elements, t->dims[i], &elements) || elements > INT64_MAX)
            return fault(r, STATUS_CORRUPT, dims_at,
                         "tensor '%s' has more elements than fit 63 bits", name);
    }
    uint64_t type_at = r->at;
    uint32_t type;
    if (!read_u32(r, &type) || !read_u64(r, &t->offset))
        return truncated(r, "a tensor's type and offset");
    uint32_t block = tensor_type_block(type);
    if (block == 0)
        return fault(r, STATUS_CORRUPT, type_at, "tensor '%s' has the unknown type %u", name, type);
    t->type = (enum tensor_type)type;
    if (t->dims[0] % block != 0)
        return fault(r, STATUS_CORRUPT, dims_at,
                     "tensor '%s' has rows of %llu elements, no multiple of %s's block of %u", name,
                     (unsigned long long)t->dims[0], tensor_type_name(type), block);
    if (__builtin_mul_overflow(elements / block, (uint64_t)tensor_type_bytes(type), &t->bytes))
        return fault(r, STATUS_CORRUPT, dims_at, "tensor '%s' has more bytes than fit 64 bits",
                     name);
    return STATUS_OK;
}

static int compare_names(struct slice a, struct slice b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = memcmp(a.ptr, b.ptr, n);
    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_keys(const void *a, const void *b, void *keys)
{
    const struct gguf_key *k = keys;
    return compare_names(k[*(const uint32_t *)a].name, k[*(const uint32_t *)b].name);
}

static int compare_tensors(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *t = tensors;
    return compare_names(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static int compare_offsets(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *x = (const struct gguf_tensor *)tensors + *(const uint32_t *)a;
    const struct gguf_tensor *y = (const struct gguf_tensor *)tensors + *(const uint32_t *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static uint32_t *sorted_index(uint64_t n, void *base,
                              int (*compare)(const void *, const void *, void *))
{
    uint32_t *index = xreallocarray(NULL, n + 1, sizeof(*index));
    for (uint64_t i = 0; i < n; i++)
        index[i] = (uint32_t)i;
    qsort_r(index, n, sizeof(*index), compare, base);
    return index;
}

static enum status read_keys(struct reader *r, struct gguf *g)
{
    char name[GGUF_QUOTE];
    g->keys = xcalloc(g->n_keys + 1, sizeof(*g->keys));
    for (uint64_t i = 0; i < g->n_keys; i++) {
        enum status status = read_key(r, i, &g->keys[i]);
        if (status != STATUS_OK)
            return status;
    }
    g->keys_by_name = sorted_index(g->n_keys, g->keys, compare_keys);
    for (uint64_t i = 1; i < g->n_keys; i++) {
        const struct gguf_key *key = &g->keys[g->keys_by_name[i]];
        if (slice_equal(g->keys[g->keys_by_name[i - 1]].name, key->name))
            return fault(r, STATUS_CORRUPT, (uint64_t)((const uint8_t *)key->name.ptr - g->bytes),
                         "key '%s' occurs twice", gguf_quote(key->name, name));
    }
    return STATUS_OK;
}

/* Puts the tensors where the data begins and checks that each lies in the file, aligned, clear of
 * the others. */
static enum status place_tensors(struct reader *r, struct gguf *g, uint64_t alignment)
{
    char name[GGUF_QUOTE], other[GGUF_QUOTE];
    uint64_t data = (r->at + alignment - 1) / alignment * alignment;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        gguf_quote(t->name, name);
        if (t->offset % alignment != 0)
            return fault(r, STATUS_CORRUPT, r->at,
                         "tensor '%s' has the offset %llu, no multiple of the alignment %llu", name,
                         (unsigned long long)t->offset, (unsigned long long)alignment);
        uint64_t end;
        if (__builtin_add_overflow(data, t->offset, &t->offset) ||
            __builtin_add_overflow(t->offset, t->bytes, &end) || end > g->size)
            return fault(r, STATUS_CORRUPT, r->at,
                         "tensor '%s' (%s, %llu bytes) lies outside the file", name,
                         tensor_type_name(t->type), (unsigned long long)t->bytes);
        t->data = g->fd < 0 ? g->bytes + t->offset : NULL;
    }
    uint32_t *by_offset = sorted_index(g->n_tensors, g->tensors, compare_offsets);
    enum status status = STATUS_OK;
    for (uint64_t i = 1; i < g->n_tensors && status == STATUS_OK; i++) {
        const struct gguf_tensor *a = &g->tensors[by_offset[i - 1]], *b = &g->tensors[by_offset[i]];
        if (a->offset + a->bytes > b->offset)
            status = fault(r, STATUS_CORRUPT, b->offset, "tensors '%s' and '%s' overlap",
                           gguf_quote(a->name, name), gguf_quote(b->name, other));
    }
    free(by_offset);
    return status;
}

static enum status read_tensors(struct reader *r, struct gguf *g)
{
    char name[GGUF_QUOTE];
    struct error type_error = {0};
    uint32_t alignment = gguf_u32(g, "general.alignment", DEFAULT_ALIGNMENT, &type_error);
    if (type_error.status != STATUS_OK || alignment == 0 || alignment > MAX_ALIGNMENT ||
        (alignment & (alignment - 1)) != 0)
        return fault(r, STATUS_CORRUPT, r->at,
                     "key 'general.alignment' is no power of two up to %u", MAX_ALIGNMENT);
    g->tensors = xcalloc(g->n_tensors + 1, sizeof(*g->tensors));
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        enum status status = read_tensor(r, i, &g->tensors[i]);
        if (status != STATUS_OK)
            return status;
    }
    g->tensors_by_name = sorted_index(g->n_tensors, g->tensors, compare_tensors);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[g->tensors_by_name[i]];
        if (slice_equal(g->tensors[g->tensors_by_name[i - 1]].name, t->name))
            return fault(r, STATUS_CORRUPT, (uint64_t)((const uint8_t *)t->name.ptr - g->bytes),
                         "tensor '%s' occurs twice", gguf_quote(t->name, name));
    }
    return place_tensors(r, g, alignment);
}

static enum status parse(struct gguf *g, struct error *err)
{
    struct reader r = {.g = g, .err = err};
    if (g->size == 0)
        return fault(&r, STATUS_CORRUPT, 0, "the file is empty");
    if (!need(&r, 4) || memcmp(g->bytes, "GGUF", 4) != 0)
        return fault(&r, STATUS_CORRUPT, 0, "this is no GGUF file: it does not begin with 'GGUF'");
    r.at = 4;
    if (!read_u32(&r, &g->version))
        return truncated(&r, "the version");
    if (g->version != 0 && (g->version & 0xffff) == 0)
        return fault(&r, STATUS_VERSION, 4,
                     "this is a big-endian GGUF file; only little-endian ones are supported");
    if (g->version != 2 && g->version != 3)
        return fault(&r, STATUS_VERSION, 4, "GGUF version %u is not supported; 2 and 3 are",
                     g->version);
    if (!read_u64(&r, &g->n_tensors) || !read_u64(&r, &g->n_keys))
        return truncated(&r, "the header");
    if (g->n_tensors > left(&r) / MIN_TENSOR_BYTES || g->n_tensors >= UINT32_MAX)
        return fault(&r, STATUS_CORRUPT, 8,
                     "the file says that it has %llu tensors, more than its bytes can hold",
                     (unsigned long long)g->n_tensors);
    if (g->n_keys > left(&r) / MIN_KEY_BYTES || g->n_keys >= UINT32_MAX)
        return fault(&r, STATUS_CORRUPT, 16,
                     "the file says that it has %llu keys, more than its bytes can hold",
                     (unsigned long long)g->n_keys);
    enum status status = read_keys(&r, g);
    return status == STATUS_OK ? read_tensors(&r, g) : status;
}

/* The last part of a path too long for a message. */
static char *short_path(const char *path)
{
    size_t len = strlen(path);
    return len <= 100 ? xmemdup(path, len) : xmemdup(path + len - 100, 100);
}

static enum status finish_open(struct gguf *g, struct gguf **out, struct error *err)
{
    enum status status = parse(g, err);
    if (status != STATUS_OK) {
        gguf_free(g);
        g = NULL;
    }
    *out = g;
    return status;
}

enum status gguf_open(const char *path, struct gguf **g, struct error *err)
{
    struct stat st;
    *g = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, STATUS_IO, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return error_set(err, STATUS_IO, "%s: is no regular file", path);
    }
    struct gguf *new = xcalloc(1, sizeof(*new));
    new->path = short_path(path);
    new->size = (uint64_t)st.st_size;
    new->fd = fd;
    new->fetch_fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    new->read_short = readahead_is_short(fd);
    if (new->size != 0) {
        void *bytes = mmap(NULL, (size_t) new->size, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (bytes == MAP_FAILED) {
            enum status status = error_set(err, STATUS_NO_MEMORY, "%s: no addresses for it: %s",
                                           path, strerror(errno));
            gguf_free(new);
            return status;
        }
        new->bytes = bytes;
        new->reserved = (size_t) new->size;
    }
    enum status status = finish_open(new, g, err);
    if (status != STATUS_OK)
        return status;
    /* The addresses behind what was read go back. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), kept = (new->have + page - 1) / page * page;
    if (kept < new->reserved) {
        munmap((char *)(uintptr_t) new->bytes + kept, new->reserved - kept);
        new->reserved = kept;
    }
    mprotect((void *)(uintptr_t) new->bytes, new->reserved, PROT_READ);
    return STATUS_OK;
}

enum status gguf_open_memory(const void *bytes, size_t len, const char *name, struct gguf **g,
                             struct error *err)
{
    struct gguf *new = xcalloc(1, sizeof(*new));
    new->path = short_path(name);
    new->bytes = bytes;
    new->size = new->have = len;
    new->fd = new->fetch_fd = -1;
    return finish_open(new, g, err);
}

void gguf_free(struct gguf *g)
{
    if (g == NULL)
        return;
    if (g->reserved != 0)
        munmap((void *)(uintptr_t)g->bytes, g->reserved);
    if (g->map != NULL)
        munmap((void *)(uintptr_t)g->map, (size_t)g->size);
    if (g->fd >= 0)
        close(g->fd);
    if (g->fetch_fd >= 0)
        close(g->fetch_fd);
    free(g->keys);
    free(g->tensors);
    free(g->keys_by_name);
    free(g->tensors_by_name);
    free(g->path);
    free(g);
}

enum status gguf_read(const struct gguf *g, uint64_t from, void *dst, size_t len, struct error *err)
{
    uint64_t to;
    if (__builtin_add_overflow(from, len, &to) || to > g->size)
        return error_set(err, STATUS_INVALID, "%s: there are no bytes %llu to %llu", g->path,
                         (unsigned long long)from, (unsigned long long)to);
    if (g->fd < 0) {
        memcpy(dst, g->bytes + from, len);
        return STATUS_OK;
    }
    int64_t got = read_some(g->fd, from, dst, len);
    if (got < 0)
        return error_set(err, STATUS_IO, "%s: bytes %llu to %llu cannot be read: %s", g->path,
                         (unsigned long long)from, (unsigned long long)to, strerror(errno));
    if ((uint64_t)got == len)
        return STATUS_OK;
    struct stat st;
    uint64_t end = fstat(g->fd, &st) == 0 ? (uint64_t)st.st_size : from + (uint64_t)got;
    return error_set(err, STATUS_CORRUPT,
                     "%s: the file ends at byte %llu, bytes up to %llu are needed: it has become "
                     "shorter since it was opened",
                     g->path, (unsigned long long)end, (unsigned long long)to);
}

void gguf_fetch(const struct gguf *g, uint64_t from, uint64_t to)
{
    to = to < g->size ? to : g->size;
    if (g->fetch_fd >= 0 && from < to)
        readahead_fetch(g->fetch_fd, g->read_short, from, to);
}

enum status gguf_map(struct gguf *g, struct error *err)
{
    if (g->fd < 0 || g->map != NULL)
        return STATUS_OK;
    void *map = mmap(NULL, (size_t)g->size, PROT_READ, MAP_PRIVATE, g->fd, 0);
    if (map == MAP_FAILED)
        return error_set(err, STATUS_IO, "%s: cannot be mapped: %s", g->path, strerror(errno));
    g->map = map;
    for (uint64_t i = 0; i < g->n_tensors; i++)
        g->tensors[i].data = (const char *)map + g->tensors[i].offset;
    return STATUS_OK;
}

void gguf_forget(const struct gguf *g, uint64_t from, uint64_t to)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (g->map == NULL)
        return;
    to = (to < g->size ? to : g->size) / page * page;
    from = (from + page - 1) / page * page;
    if (from < to)
        madvise((char *)(uintptr_t)g->map + from, (size_t)(to - from), MADV_DONTNEED);
}
