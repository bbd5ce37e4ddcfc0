#include "core/worker/engine.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/readahead.h"
#include "core/base/xalloc.h"
#include "core/kernels/select.h"
#include "core/model/context_rows.h"
#include "core/spec/model_drafter.h"
#include "core/spec/ngram.h"
#include "core/spec/spec.h"
#include "core/spec/store.h"

/* Compute threads run as SCHED_BATCH with this niceness, so that loop and nginx come first. */
#define COMPUTE_NICE 1
/* Of the model file: fetched from the disk before anything is known about it, in pieces. */
#define FIRST_BYTES (UINT64_C(64) << 20)
#define FIRST_PIECE (UINT64_C(4) << 20)
/* The least that is planned for KV pages: the arena wants several slabs even of a tiny model. */
#define KV_LEAST (UINT64_C(8) << 20)

void engine_init(struct engine *e, const struct options *options)
{
    memset(e, 0, sizeof(*e));
    e->options = options;
    if (*options->model == '\0')
        return;
    const char *slash = strrchr(options->model, '/');
    snprintf(e->id, sizeof(e->id), "%s", slash != NULL ? slash + 1 : options->model);
    size_t n = strlen(e->id);
    if (n > 5 && strcmp(e->id + n - 5, ".gguf") == 0)
        e->id[n - 5] = '\0';
    snprintf(e->name, sizeof(e->name), "%s", *options->alias != '\0' ? options->alias : e->id);
    e->names[0] = e->name;
    e->names[1] = e->id;
}

static bool has_draft_model(const struct engine *e)
{
    const char *draft = e->options->draft;
    return strcmp(draft, "none") != 0 && strcmp(draft, "ngram") != 0;
}

/* The draft model's header, and whether it suits the model. */
static enum status inspect_draft(struct engine *e, struct error *err)
{
    struct draft_engine *d = &e->draft;
    struct error why = {0};
    enum status status = gguf_open(e->options->draft, &d->gguf, err);
    if (status != STATUS_OK)
        return status;
    status = model_inspect_draft(d->gguf, e->gguf, &d->info, &why);
    if (status != STATUS_OK)
        return error_set(err, status, "option draft: %s: %s", e->options->draft, why.text);
    if (d->info.context < DRAFT_WINDOW + DRAFT_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "option draft: %s: a context of %u is too short, %u are needed",
                         e->options->draft, d->info.context, DRAFT_WINDOW + DRAFT_MAX);
    /* A draft's rollbacks reach any page of its text, which open pages do not allow. */
    enum kv_type type = e->geometry.type == KV_Q4 ? KV_AUTO : e->geometry.type;
    return kv_geometry_init(&d->geometry, type, d->info.layers, d->info.kv_heads, d->info.head_size,
                            err);
}

static enum status streams_option(struct engine *e, struct error *err)
{
    struct error why = {0};
    uint32_t streams = 1;
    enum status status = model_streams_parse(e->options->weight_streams, &streams, &why);
    if (status != STATUS_OK)
        return error_set(err, status, "option weight-streams: %s", why.text);
    e->kernels.streams = streams > 0 ? streams : 1;
    e->measure_streams = streams == 0;
    return STATUS_OK;
}

/* Opens and checks all that takes no time to speak of: the file's header and the options. */
static enum status inspect(struct engine *e, struct error *err)
{
    const struct options *o = e->options;
    enum kv_type type = KV_AUTO;
    enum status status = kernels_select(*o->tier != '\0' ? o->tier : NULL, &e->kernels, err);
    if (status == STATUS_OK)
        status = streams_option(e, err);
    if (status == STATUS_OK)
        status = kv_geometry_type(o->kv_type, &type, err);
    if (status == STATUS_OK)
        status = gguf_open(o->model, &e->gguf, err);
    if (status == STATUS_OK)
        status = model_inspect(e->gguf, &e->info, err);
    if (status == STATUS_OK)
        status = kv_geometry_init(&e->geometry, type, e->info.layers, e->info.kv_heads,
                                  e->info.head_size, err);
    if (status != STATUS_OK)
        return status;
    if (o->context > e->info.context)
        return error_set(err, STATUS_INVALID,
                         "option context: %" PRIu64
                         " is more than the %u that the model was made for",
                         o->context, e->info.context);
    return has_draft_model(e) ? inspect_draft(e, err) : STATUS_OK;
}

static enum status load_tokenizer(struct engine *e, struct error *err)
{
    enum status status = tokenizer_load(e->gguf, &e->tokenizer, err);
    if (status == STATUS_OK && tokenizer_n_vocab(e->tokenizer) > e->info.vocab)
        return error_set(err, STATUS_CORRUPT,
                         "%s: the vocabulary has %u tokens, the weights only %u", e->options->model,
                         tokenizer_n_vocab(e->tokenizer), e->info.vocab);
    return status;
}

enum status engine_check(const struct options *options, struct error *err)
{
    struct engine e;
    engine_init(&e, options);
    enum status status = inspect(&e, err);
    if (status == STATUS_OK)
        status = load_tokenizer(&e, err);
    engine_release(&e);
    return status;
}

static bool progress(void *data, double done)
{
    struct engine *e = data;
    atomic_store_explicit(&e->percent, (int)(done * 100), memory_order_relaxed);
    return !atomic_load_explicit(&e->cancel, memory_order_relaxed) &&
           !atomic_load_explicit(&e->tokenizer_failed, memory_order_relaxed);
}

/* The tokenizer's tables are made beside the weights: with a small model they take as long. */
struct tokenizer_job {
    struct engine *engine;
    struct error err;
};

static void *run_tokenizer_job(void *data)
{
    struct tokenizer_job *job = data;
    if (load_tokenizer(job->engine, &job->err) != STATUS_OK)
        atomic_store_explicit(&job->engine->tokenizer_failed, true, memory_order_relaxed);
    return NULL;
}

static enum status load_model(struct engine *e, const struct model_options *options,
                              struct error *err)
{
    struct tokenizer_job job = {.engine = e};
    pthread_t thread;
    bool beside = pthread_create(&thread, NULL, run_tokenizer_job, &job) == 0;
    if (!beside)
        run_tokenizer_job(&job);
    enum status status = model_load(e->gguf, options, &e->model, err);
    if (beside)
        pthread_join(thread, NULL);
    if (job.err.status != STATUS_OK && (status == STATUS_OK || status == STATUS_CANCELLED)) {
        *err = job.err;
        status = job.err.status;
    }
    return status;
}

static void measure_streams(struct engine *e)
{
    double seconds[3];
    model_choose_streams(e->model, &e->kernels, seconds);
    if (seconds[0] > 0)
        log_info(
            "engine: weights are read in %u stream(s) a thread: 1, 2 and 4 took %.2f, %.2f and "
            "%.2f ms",
            e->kernels.streams, seconds[0] * 1e3, seconds[1] * 1e3, seconds[2] * 1e3);
}

static uint32_t context_of(const struct engine *e)
{
    return e->options->context > 0 ? (uint32_t)e->options->context : e->info.context;
}

static enum status make_plan(struct engine *e, struct error *err)
{
    const struct options *o = e->options;
    e->plan.free = resources_memory(&resource_roots_default);
    e->plan.weights = e->info.weight_bytes + e->info.table_bytes;
    if (e->draft.gguf != NULL)
        e->plan.weights += model_draft_memory(&e->draft.info, DRAFT_TEXTS * CONTEXT_ROWS);
    /* open pages: two a sequence while its draft is verified, and those of the prompts of a step */
    e->plan.weights +=
        (2 * o->max_running + o->prefill_chunk / KV_TILE_POSITIONS) * e->geometry.open_page;
    e->plan.kv_wanted = o->kv_memory;
    /* one page more for each sequence and for the waste behind a slab's last page */
    e->plan.kv_useful =
        (kv_geometry_pages(context_of(e)) + 1) * o->max_running * e->geometry.page / 32 * 33;
    if (e->plan.kv_useful < KV_LEAST)
        e->plan.kv_useful = KV_LEAST;
    return memory_plan_make(&e->plan, err);
}

static enum status make_arena(struct engine *e, struct error *err)
{
    bool draft = e->draft.gguf != NULL;
    size_t sizes[] = {e->geometry.page, e->draft.geometry.page};
    struct arena_options options = {
        .limit = e->plan.kv, .page_bytes = sizes, .n_page_bytes = draft ? 2 : 1};
    return arena_create(&options, &e->arena, err);
}

/* Pools have their first pages made at once: when the weights are there and nothing is measured any more, so that the
 * CPUs are not shared. */
static enum status make_pools(struct engine *e, struct error *err)
{
    enum status status = pages_create(e->arena, e->geometry.page, &e->pages, err);
    if (status == STATUS_OK)
        pages_set_open(e->pages, e->geometry.open_page);
    if (status == STATUS_OK && e->draft.gguf != NULL)
        status = pages_create(e->arena, e->draft.geometry.page, &e->draft.pages, err);
    return status;
}

static enum status load_draft(struct engine *e, struct error *err)
{
    struct draft_engine *d = &e->draft;
    struct model_options options = {
        .kernels = &e->kernels,
        .team = e->team,
        .kv_type = d->geometry.type,
        .max_tokens = DRAFT_STEP_TOKENS,
        .context = d->info.context < DRAFT_CONTEXT ? d->info.context : DRAFT_CONTEXT,
        .target = e->model,
    };
    enum status status = model_load(d->gguf, &options, &d->model, err);
    if (status == STATUS_OK)
        log_info("engine: drafts by %s, %u layers, %u of %u tokens", e->options->draft,
                 d->info.layers, d->info.outputs, d->info.vocab);
    return status;
}

/* The pages of one slab: what the draft model may take of the arena. */
static uint32_t slab_pages(struct engine *e, const struct pages *pool)
{
    struct arena_figures figures;
    arena_figures(e->arena, &figures);
    return (uint32_t)(pages_total(pool) / figures.slabs_max);
}

static void make_spec(struct engine *e)
{
    if (strcmp(e->options->draft, "none") == 0)
        return;
    e->spec = spec_create();
    spec_add(e->spec, ngram_drafter());
    spec_add(e->spec, store_drafter());
    if (e->draft.model != NULL)
        spec_add(e->spec, model_drafter(e->draft.model, &e->kernels, e->draft.pages,
                                        slab_pages(e, e->draft.pages)));
}

/* A name for what decides the output's bits: weights, number types, tier, program. */
static void make_fingerprint(struct engine *e)
{
    char text[512];
    snprintf(text, sizeof(text), "%s %" PRIu64 " %" PRIu64 " %s %s %s", e->id,
             gguf_file_size(e->gguf), e->info.parameters, kv_type_name(e->geometry.type),
             e->kernels.tier, TOKENRING_VERSION);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *p = text; *p != '\0'; p++)
        hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    snprintf(e->fingerprint, sizeof(e->fingerprint), "fp_%010" PRIx64,
             hash & UINT64_C(0xffffffffff));
}

/* The disk reads while the header is parsed; who has it do so waits for it, hence the thread. */
struct first_bytes {
    const char *path;
    atomic_bool stop;
};

static void *fetch_first_bytes(void *data)
{
    struct first_bytes *job = data;
    struct stat st;
    int fd = open(job->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        bool is_short = readahead_is_short(fd);
        uint64_t size = (uint64_t)st.st_size < FIRST_BYTES ? (uint64_t)st.st_size : FIRST_BYTES;
        for (uint64_t at = 0; at < size && !atomic_load(&job->stop); at += FIRST_PIECE)
            readahead_fetch(fd, is_short, at, at + FIRST_PIECE < size ? at + FIRST_PIECE : size);
    }
    close(fd);
    return NULL;
}

static enum status load(struct engine *e, struct error *err)
{
    const struct options *o = e->options;
    uint64_t start = clock_ns();
    enum status status = inspect(e, err);
    if (status == STATUS_OK)
        status = make_plan(e, err);
    if (status == STATUS_OK)
        status = make_arena(e, err);
    if (status != STATUS_OK)
        return status;
    e->threads = o->threads > 0
                     ? (unsigned)o->threads
                     : resources_compute_threads(resources_cpus(&resource_roots_default));
    status = team_create(e->threads, COMPUTE_NICE, &e->team, err);
    if (status != STATUS_OK)
        return status;
    struct model_options options = {
        .kernels = &e->kernels,
        .team = e->team,
        .kv_type = e->geometry.type,
        .max_tokens = (uint32_t)(o->prefill_chunk + o->max_running),
        .context = context_of(e),
        .progress = progress,
        .progress_data = e,
    };
    status = load_model(e, &options, err);
    if (status == STATUS_OK && e->measure_streams)
        measure_streams(e);
    if (status == STATUS_OK && e->draft.gguf != NULL)
        status = load_draft(e, err);
    if (status == STATUS_OK)
        status = make_pools(e, err);
    if (status != STATUS_OK)
        return status;
    make_fingerprint(e);
    uint64_t positions = (uint64_t)pages_total(e->pages) * KV_TILE_POSITIONS;
    if (positions < context_of(e))
        log_warn("engine: the KV pages hold %" PRIu64
                 " positions, fewer than the context of %u: longer requests are "
                 "refused (--kv-memory)",
                 positions, context_of(e));
    e->context = (struct api_context){
        .tokenizer = e->tokenizer,
        .names = e->names,
        .n_names = strcmp(e->name, e->id) != 0 ? 2 : 1,
        .fingerprint = e->fingerprint,
        .created = clock_wall_ns() / 1000000000,
        .context = context_of(e),
        .max_choices =
            (uint32_t)(o->max_choices < o->max_running ? o->max_choices : o->max_running),
        .body_limit = (size_t)o->max_body,
    };
    e->load_ns = clock_ns() - start;
    atomic_store_explicit(&e->percent, 100, memory_order_relaxed);
    return STATUS_OK;
}

enum status engine_load(struct engine *e, struct error *err)
{
    struct first_bytes job = {.path = e->options->model};
    pthread_t thread;
    bool beside = pthread_create(&thread, NULL, fetch_first_bytes, &job) == 0;
    enum status status = load(e, err);
    atomic_store(&job.stop, true);
    if (beside)
        pthread_join(thread, NULL);
    return status;
}

enum status engine_begin(struct engine *e, struct stats_writer *stats, struct error *err)
{
    const struct options *o = e->options;
    uint32_t n_vocab = tokenizer_n_vocab(e->tokenizer), n_eog = 0;
    uint32_t *eog = xmalloc(n_vocab * sizeof(*eog));
    for (uint32_t id = 0; id < n_vocab; id++)
        if (tokenizer_is_eog(e->tokenizer, id))
            eog[n_eog++] = id;
    make_spec(e);
    struct sched_options options = {
        .context = e->context.context,
        .prefill_chunk = (uint32_t)o->prefill_chunk,
        .max_queue = (uint32_t)o->max_queue,
        .max_queue_tokens = o->max_queue_tokens,
        .max_running = (uint32_t)o->max_running,
        .reserve_tokens = (uint32_t)o->reserve_tokens,
        .itl_target = (double)o->itl_target,
        .pause_limit_ns = o->pause_limit * 1000000000,
        .no_cache = !o->prefix_cache,
        .cache_idle_ns = o->cache_idle * 1000000000,
        .nice = COMPUTE_NICE,
        .trace_logits = o->trace_logits,
        .other_pages = e->draft.pages != NULL ? slab_pages(e, e->pages) : 0,
        .spec = e->spec,
        .eog = eog,
        .n_eog = n_eog,
    };
    e->sched_engine = sched_engine_of(e->model, &e->kernels, e->team);
    enum status status = sched_create(&e->sched_engine, e->pages, stats, &options, &e->sched, err);
    free(eog);
    return status;
}

void engine_release(struct engine *e)
{
    sched_free(e->sched);
    spec_free(e->spec);
    pages_free(e->draft.pages);
    pages_free(e->pages);
    arena_free(e->arena);
    model_free(e->draft.model);
    model_free(e->model);
    team_free(e->team);
    tokenizer_free(e->tokenizer);
    gguf_free(e->draft.gguf);
    gguf_free(e->gguf);
    e->spec = NULL;
    e->draft = (struct draft_engine){0};
    e->sched = NULL;
    e->pages = NULL;
    e->arena = NULL;
    e->model = NULL;
    e->team = NULL;
    e->tokenizer = NULL;
    e->gguf = NULL;
}

int engine_percent(struct engine *e)
{
    return atomic_load_explicit(&e->percent, memory_order_relaxed);
}
