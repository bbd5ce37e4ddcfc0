#include "core/model/weights.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/kernels/team.h"
#include "core/model/ahead.h"
#include "core/model/huge.h"

/* The file is asked for that many bytes before they are repacked: enough for the disk to work while
 * the CPUs do. */
#define AHEAD_BYTES ((uint64_t)128 << 20)
/* Repacked between two reports, at most. */
#define SLICE_BYTES ((size_t)8 << 20)
/* Read at a time by a thread: a part of what its second-level cache holds. */
#define STAGE_BYTES ((size_t)256 << 10)
/* Pages of the block are touched in runs of about that much. */
#define TOUCH_BYTES ((size_t)8 << 20)

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

void weights_plan(struct weights *w, const struct gguf *g)
{
    *w = (struct weights){.gguf = g};
    gguf_tensors(g, &w->n_tensors);
    w->seen = xcalloc(w->n_tensors + 1, sizeof *w->seen);
}

enum status weights_check_complete(const struct weights *w, struct error *err)
{
    uint64_t n;
    const struct gguf_tensor *tensors = gguf_tensors(w->gguf, &n);
    for (uint64_t i = 0; i < n; i++)
        if (!w->seen[i])
            return error_set(
                err, STATUS_UNSUPPORTED,
                "tensor %.*s belongs to no part of this architecture that is supported",
                (int)(tensors[i].name.len < 100 ? tensors[i].name.len : 100), tensors[i].name.ptr);
    return STATUS_OK;
}

enum status weights_start(struct weights *w, struct team *team,
                          bool (*progress)(void *data, double done), void *progress_data,
                          struct error *err)
{
    check(w->block == NULL);
    w->block = huge_map(w->used, &w->size);
    if (w->block == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for %zu MiB of weights", w->used >> 20);
    w->team = team;
    w->progress = progress;
    w->progress_data = progress_data;
    w->total = w->used;
    w->slice = w->total / 100 + 1;
    w->slice = w->slice < SLICE_BYTES ? w->slice : SLICE_BYTES;
    w->used = 0;
    w->stage_bytes = round_up(w->panel_most > STAGE_BYTES ? w->panel_most : STAGE_BYTES, 64);
    w->stage = xaligned(w->stage_bytes * team_size(team));
    w->ahead = ahead_start(w->gguf);
    return STATUS_OK;
}

void weights_finish(struct weights *w)
{
    ahead_stop(w->ahead);
    free(w->stage);
    w->ahead = NULL;
    w->stage = NULL;
}

void weights_release(struct weights *w)
{
    weights_finish(w);
    huge_unmap(w->block, w->size);
    huge_unmap(w->table, w->table_mapped);
    free(w->seen);
    *w = (struct weights){0};
}

static void shape_text(char *text, size_t size, const uint64_t *dims, uint32_t n)
{
    size_t len = 0;
    for (uint32_t i = 0; i < n && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%llu", i > 0 ? ", " : "",
                                (unsigned long long)dims[i]);
}

/* The tensor of that name with exactly these dimensions and a type that we can compute with. */
static enum status find(struct weights *w, const char *name, const uint64_t *dims, uint32_t n_dims,
                        const struct gguf_tensor **tensor, enum weight_type *type,
                        struct error *err)
{
    const struct gguf_tensor *t = gguf_tensor(w->gguf, name);
    if (t == NULL)
        return error_set(err, STATUS_CORRUPT, "the model has no tensor %s", name);
    bool same = t->n_dims == n_dims;
    for (uint32_t i = 0; i < n_dims && same; i++)
        same = t->dims[i] == dims[i];
    if (!same) {
        char have[100], want[100];
        shape_text(have, sizeof have, t->dims, t->n_dims);
        shape_text(want, sizeof want, dims, n_dims);
        return error_set(err, STATUS_CORRUPT, "tensor %s has shape [%s], expected [%s]", name, have,
                         want);
    }
    if (!weight_type_from_gguf(t->type, type))
        return error_set(err, STATUS_UNSUPPORTED, "tensor %s has type %s, which is not supported",
                         name, tensor_type_name(t->type));
    bool *seen = &w->seen[t - gguf_tensors(w->gguf, &w->n_tensors)];
    if (!*seen)
        w->parameters += dims[0] * (n_dims == 2 ? dims[1] : 1);
    *seen = true;
    *tensor = t;
    return STATUS_OK;
}

static void *give(struct weights *w, size_t bytes)
{
    size_t at = w->used;
    w->used += round_up(bytes, 64);
    if (w->block == NULL)
        return NULL;
    check(w->used <= w->size);
    return w->block + at;
}

static enum status report(struct weights *w, size_t done, struct error *err)
{
    if (w->progress != NULL && !w->progress(w->progress_data, (double)done / (double)w->total))
        return error_set(err, STATUS_CANCELLED, "loading was cancelled");
    return STATUS_OK;
}

/* The tensor's bytes and what follows will be needed: tensors stand in the file much as they are
 * loaded. */
static void read_ahead(struct weights *w, const struct gguf_tensor *t)
{
    ahead_want(w->ahead, t->offset + t->bytes + AHEAD_BYTES);
}

/* A part of a tensor, for all threads: panels of a matrix, or bytes of the table. */
struct job {
    struct weights *w;
    const struct gguf_tensor *tensor;
    /* Pages that nobody has touched: the system zeroes them, which two threads do faster when each has
     * its own. */
    uint8_t *fresh;
    uint32_t n_fresh;
    const struct matrix *m;
    uint32_t p0, p1;
    size_t panel_bytes; /* of the file */
    uint8_t *table;
    uint32_t n_pieces;
    atomic_int failed;
    struct error err; /* of the first chunk that failed */
};

static void fail(struct job *job, const struct error *err)
{
    if (atomic_exchange(&job->failed, 1) == 0)
        job->err = *err;
}

static void repack_run(void *arg, struct team_member *me)
{
    struct job *job = arg;
    const struct gguf_tensor *t = job->tensor;
    uint8_t *stage = job->w->stage + me->index * job->w->stage_bytes;
    uint32_t chunk = (uint32_t)(STAGE_BYTES / job->panel_bytes), begin, end;
    while (team_next(me, job->n_fresh, 1, &begin, &end))
        huge_touch(job->fresh + begin * HUGE_PAGE);
    while (team_next(me, job->p1 - job->p0, chunk > 0 ? chunk : 1, &begin, &end)) {
        uint64_t from = (job->p0 + begin) * job->panel_bytes,
                 to = (job->p0 + end) * job->panel_bytes;
        struct error err = {0};
        to = to < t->bytes ? to : t->bytes;
        if (gguf_read(job->w->gguf, t->offset + from, stage, to - from, &err) != STATUS_OK ||
            matrix_repack(job->m, stage, job->p0 + begin, job->p0 + end, &err) != STATUS_OK)
            fail(job, &err);
    }
}

static void table_run(void *arg, struct team_member *me)
{
    struct job *job = arg;
    const struct gguf_tensor *t = job->tensor;
    uint32_t begin, end;
    while (team_next(me, job->n_pieces, 1, &begin, &end)) {
        uint64_t from = (uint64_t)begin * HUGE_PAGE;
        uint64_t len = t->bytes - from < HUGE_PAGE ? t->bytes - from : HUGE_PAGE;
        struct error err = {0};
        if (gguf_read(job->w->gguf, t->offset + from, job->table + from, len, &err) != STATUS_OK)
            fail(job, &err);
    }
}

static enum status tell(struct job *job, struct error *err)
{
    if (!atomic_load(&job->failed))
        return STATUS_OK;
    return error_set(err, job->err.status, "tensor %.*s: %s", (int)job->tensor->name.len,
                     job->tensor->name.ptr, job->err.text);
}

/* Has the job touch the pages of the block up to byte `to`, and some more. */
static void touch_ahead(struct weights *w, size_t to, struct job *job)
{
    if (to <= w->touched)
        return;
    size_t end = round_up(to, HUGE_PAGE) + TOUCH_BYTES;
    end = end < w->size ? end : w->size;
    job->fresh = w->block + w->touched;
    job->n_fresh = (uint32_t)((end - w->touched) / HUGE_PAGE);
    w->touched = end;
}

enum status weights_matrix(struct weights *w, const char *name, uint32_t rows, uint32_t cols,
                           struct matrix *m, struct error *err)
{
    const struct gguf_tensor *t;
    enum weight_type type;
    enum status status = find(w, name, (uint64_t[]){cols, rows}, 2, &t, &type, err);
    if (status != STATUS_OK)
        return status;
    struct error why = {0};
    if (matrix_init(m, type, rows, cols, NULL, &why) != STATUS_OK)
        return error_set(err, why.status, "tensor %s: %s", name, why.text);
    size_t before = w->used;
    m->data = give(w, matrix_bytes(type, rows, cols));
    size_t from_file = PANEL_ROWS * weight_row_bytes(type, cols);
    w->panel_most = from_file > w->panel_most ? from_file : w->panel_most;
    if (w->block == NULL)
        return STATUS_OK;

    read_ahead(w, t);
    uint32_t step = (uint32_t)(w->slice / m->panel_bytes + 1);
    for (uint32_t p = 0; p < m->panels && status == STATUS_OK; p += step) {
        struct job job = {.w = w,
                          .tensor = t,
                          .m = m,
                          .p0 = p,
                          .p1 = p + step < m->panels ? p + step : m->panels,
                          .panel_bytes = from_file};
        touch_ahead(w, before + job.p1 * m->panel_bytes, &job);
        team_run(w->team, repack_run, &job);
        status = tell(&job, err);
        if (status == STATUS_OK)
            status = report(w, before + job.p1 * m->panel_bytes, err);
    }
    return status;
}

enum status weights_vector(struct weights *w, const char *name, uint32_t n, const float **v,
                           struct error *err)
{
    const struct gguf_tensor *t;
    enum weight_type type;
    enum status status = find(w, name, (uint64_t[]){n}, 1, &t, &type, err);
    if (status != STATUS_OK)
        return status;
    if (weight_info(type)->acts != ACTS_F32)
        return error_set(err, STATUS_UNSUPPORTED, "tensor %s has type %s; F32 is expected", name,
                         weight_info(type)->name);
    float *dst = give(w, n * sizeof *dst);
    *v = dst;
    if (w->block == NULL)
        return STATUS_OK;
    void *bytes = xmalloc(t->bytes);
    struct error why = {0};
    read_ahead(w, t);
    if (gguf_read(w->gguf, t->offset, bytes, t->bytes, &why) == STATUS_OK)
        dequantise_row(type, bytes, n, dst);
    free(bytes);
    if (why.status != STATUS_OK)
        return error_set(err, why.status, "tensor %s: %s", name, why.text);
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(dst[i]))
            return error_set(err, STATUS_CORRUPT, "tensor %s: number %u is not finite", name, i);
    return STATUS_OK;
}

enum status weights_embedding(struct weights *w, const char *name, uint32_t rows, uint32_t cols,
                              const struct matrix *same, struct embedding *e, struct error *err)
{
    const struct gguf_tensor *t;
    enum weight_type type;
    enum status status = find(w, name, (uint64_t[]){cols, rows}, 2, &t, &type, err);
    if (status != STATUS_OK)
        return status;
    *e = (struct embedding){same, type, rows, cols, NULL, weight_row_bytes(type, cols)};
    if (same != NULL)
        return STATUS_OK;
    w->table_bytes = t->bytes;
    if (w->block == NULL)
        return STATUS_OK;
    check(w->table == NULL);
    w->table = huge_map(t->bytes, &w->table_mapped);
    if (w->table == NULL)
        return error_set(err, STATUS_NO_MEMORY, "no memory for %llu MiB of embedding",
                         (unsigned long long)t->bytes >> 20);
    e->data = w->table;
    read_ahead(w, t);
    struct job job = {.w = w,
                      .tensor = t,
                      .table = w->table,
                      .n_pieces = (uint32_t)((t->bytes + HUGE_PAGE - 1) / HUGE_PAGE)};
    team_run(w->team, table_run, &job);
    return tell(&job, err);
}

void weights_skip(struct weights *w, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(w->gguf, name);
    if (t != NULL)
        w->seen[t - gguf_tensors(w->gguf, &w->n_tensors)] = true;
}

void embedding_row(const struct embedding *e, uint32_t row, float *dst)
{
    if (e->matrix != NULL) {
        matrix_row(e->matrix, row, dst);
        return;
    }
    dequantise_row(e->type, e->data + row * e->row_bytes, e->cols, dst);
}
