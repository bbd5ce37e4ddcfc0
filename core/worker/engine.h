/* engine.h: the served model and all that hangs on it: file, tokenizer, kernels, team, weights, KV pages, scheduler.
 *
 *     loop: engine_init ─▶ pool's thread: engine_load ─▶ loop: engine_begin ─▶ serving ─▶ engine_release
 *
 * Until engine_load has returned, the loop looks at `percent` alone and may set `cancel`. After it the struct is
 * constant but for what is inside the scheduler, and front pool threads may read it.
 *
 * Memory is planned before anything large is loaded: weights and KV pages must fit what the machine and its cgroups
 * leave, or the model is refused with the figures. */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/arena.h"
#include "alloc/pages.h"
#include "core/api/api.h"
#include "core/base/status.h"
#include "core/gguf/gguf.h"
#include "core/kernels/kernels.h"
#include "core/kernels/team.h"
#include "core/model/model.h"
#include "core/sched/sched.h"
#include "core/text/tokenizer.h"
#include "core/worker/options.h"
#include "core/worker/resources.h"

struct spec;
struct stats_writer;

struct engine {
    const struct options *options;
    char name[128]; /* the first name under which the model is served; "" without a model */
    char id[128];   /* the file's name without .gguf */
    const char *names[2];
    char fingerprint[32];

    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct kernels kernels;
    bool measure_streams; /* --weight-streams auto */
    struct team *team;
    struct model_info info;
    struct model *model;
    struct kv_geometry geometry;
    struct arena *arena;
    struct pages *pages;
    struct spec *spec; /* NULL: no drafts */
    struct draft_engine {
        struct gguf *gguf; /* all NULL without a draft model */
        struct model *model;
        struct pages *pages;
        struct model_info info;
        struct kv_geometry geometry;
    } draft;
    struct sched *sched; /* NULL until engine_begin */
    struct sched_engine sched_engine;
    struct api_context context;
    struct memory_plan plan;
    unsigned threads;
    uint64_t load_ns;

    _Atomic int percent;
    _Atomic bool cancel;           /* end the load soon */
    _Atomic bool tokenizer_failed; /* the load is in vain */
};

/* Names, from the options alone. */
void engine_init(struct engine *e, const struct options *options);
/* What -t does: file, header, tokenizer, options; loads no weights. */
enum status engine_check(const struct options *options, struct error *err);
/* Loads everything but the scheduler. Any thread. On failure the engine is releasable. */
enum status engine_load(struct engine *e, struct error *err);
/* Starts the scheduler. */
enum status engine_begin(struct engine *e, struct stats_writer *stats, struct error *err);
/* Frees everything; ends what still runs. */
void engine_release(struct engine *e);
/* Progress of the load, 0 to 100. */
int engine_percent(struct engine *e);

#endif
