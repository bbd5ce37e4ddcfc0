#define _GNU_SOURCE
#include "core/model/session.h"

#include <stdlib.h>
#include <time.h>

#include "core/base/xalloc.h"
#include "core/kernels/select.h"
#include "core/kernels/team.h"

/* Room for this many whole contexts: tests hold several sequences at once. */
#define CONTEXTS 2u
#define LIMIT_LEAST ((size_t)256 << 20)

static enum status open_pool(struct session *s, uint64_t positions, struct error *err)
{
    size_t page = model_kv_geometry(s->model)->page;
    size_t limit = (positions / KV_TILE_POSITIONS + CONTEXTS) * page * 5 / 4;
    struct arena_options options = {limit > LIMIT_LEAST ? limit : LIMIT_LEAST, &page, 1};
    enum status status = arena_create(&options, &s->arena, err);
    if (status == STATUS_OK)
        status = pages_create(s->arena, page, &s->pool, err);
    if (status == STATUS_OK)
        pages_set_open(s->pool, model_kv_geometry(s->model)->open_page);
    return status;
}

enum status session_open(struct session *s, const struct session_options *o, struct error *err)
{
    *s = (struct session){0};
    enum status status = kernels_select(o->tier, &s->kernels, err);
    if (status == STATUS_OK && o->streams > 1)
        s->kernels.streams = o->streams;
    if (status == STATUS_OK)
        status = team_create(o->threads == 0 ? 1 : o->threads, 0, &s->team, err);
    if (status == STATUS_OK)
        status = gguf_open(o->path, &s->gguf, err);
    struct model_options options = {.kernels = &s->kernels,
                                    .team = s->team,
                                    .kv_type = o->kv_type,
                                    .max_tokens = o->max_tokens,
                                    .context = o->context,
                                    .progress = o->progress,
                                    .progress_data = o->progress_data};
    if (status == STATUS_OK)
        status = model_load(s->gguf, &options, &s->model, err);
    if (status == STATUS_OK)
        s->context = o->context == 0 ? model_info(s->model)->context : o->context;
    if (status == STATUS_OK)
        status =
            open_pool(s, o->positions != 0 ? o->positions : (uint64_t)CONTEXTS * s->context, err);
    if (status != STATUS_OK) {
        session_close(s);
        return status;
    }
    block_table_init(&s->table, s->pool);
    return STATUS_OK;
}

void session_close(struct session *s)
{
    if (s->table.pool != NULL)
        session_reset(s);
    if (s->pool != NULL)
        pages_free(s->pool);
    if (s->arena != NULL)
        arena_free(s->arena);
    model_free(s->model);
    gguf_free(s->gguf);
    team_free(s->team);
    *s = (struct session){0};
}

void session_reset(struct session *s)
{
    uint32_t pages = s->table.n_pages;
    block_table_release(&s->table);
    pages_unreserve(s->pool, pages);
    block_table_init(&s->table, s->pool);
}

bool session_append(struct session *s, struct block_table *table, uint32_t count)
{
    uint32_t more = block_pages_for(table->n_positions + count) - table->n_pages;
    if (!pages_reserve(s->pool, more))
        return false;
    while (!block_table_append(table, count))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return true;
}

enum status session_feed(struct session *s, const uint32_t *tokens, uint32_t n, uint32_t chunk,
                         enum session_logits which, float *logits, struct error *err)
{
    uint32_t start = s->table.n_positions, most = model_max_tokens(s->model);
    uint32_t stride = model_logits_stride(s->model);
    chunk = chunk == 0 || chunk > most ? most : chunk;
    if (n > s->context - start || !session_append(s, &s->table, n))
        return error_set(err, STATUS_CONTEXT_LENGTH, "%u tokens do not fit a context of %u",
                         start + n, s->context);
    struct step_token *step_tokens = xreallocarray(NULL, chunk, sizeof *step_tokens);
    enum status status = STATUS_OK;
    for (uint32_t done = 0; done < n && status == STATUS_OK;) {
        uint32_t now = n - done < chunk ? n - done : chunk;
        for (uint32_t i = 0; i < now; i++)
            step_tokens[i] =
                (struct step_token){.token = tokens[done + i],
                                    .position = start + done + i,
                                    .logits = which == SESSION_LOGITS_ALL ||
                                              (which == SESSION_LOGITS_LAST && done + i == n - 1)};
        struct step_sequence sequence = session_sequence(&s->table);
        struct step step = {step_tokens, now, &sequence, 1, s->pool};
        model_step(s->model, &step, logits);
        if (sequence.failed)
            status = error_set(err, STATUS_NON_FINITE, "%s", status_text(STATUS_NON_FINITE));
        if (which == SESSION_LOGITS_ALL)
            logits += (size_t)now * stride;
        done += now;
    }
    block_table_truncate(&s->table, s->table.n_positions); /* its open pages, where there are any */
    free(step_tokens);
    return status;
}
