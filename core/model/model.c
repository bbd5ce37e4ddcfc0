#include "core/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/kernels/select.h"
#include "core/kernels/team.h"
#include "core/model/arch.h"

#define MAX_TOKENS_DEFAULT 512u

struct model {
    struct model_info info;
    struct kv_geometry geometry;
    struct team *team;
    uint32_t max_tokens, context;
    const struct arch *arch;
    void *state; /* arch's */
    struct weights weights;
    size_t scratch; /* bytes of arch's scratch */
    struct plan plan;
};

static const struct arch *const archs[] = {&arch_llama};

/* The architecture's state and a finished plan pass. */
static enum status plan_model(const struct gguf *g, const struct gguf *target,
                              struct model_info *info, const struct arch **arch, void **state,
                              struct weights *w, struct error *err)
{
    struct error found = {0};
    struct slice name = gguf_str(g, "general.architecture", slice_of(""), &found);
    if (found.status != STATUS_OK) {
        *err = found;
        return found.status;
    }
    if (name.len == 0)
        return error_set(err, STATUS_CORRUPT, "the model has no key general.architecture");
    *arch = NULL;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (slice_is(name, archs[i]->name))
            *arch = archs[i];
    int shown = (int)(name.len < 40 ? name.len : 40);
    if (*arch == NULL)
        return error_set(err, STATUS_UNSUPPORTED, "the architecture '%.*s' is not supported", shown,
                         name.ptr);
    *info = (struct model_info){0};
    snprintf(info->arch, sizeof info->arch, "%.*s", shown, name.ptr);
    struct slice title = gguf_str(g, "general.name", slice_of(""), &(struct error){0});
    snprintf(info->name, sizeof info->name, "%.*s", (int)(title.len < 95 ? title.len : 95),
             title.ptr);

    enum status status = (*arch)->read(g, target, info, state, err);
    if (status != STATUS_OK)
        return status;
    weights_plan(w, g);
    status = (*arch)->tensors(*state, w, info, err);
    if (status == STATUS_OK)
        status = weights_check_complete(w, err);
    if (status != STATUS_OK) {
        weights_release(w);
        (*arch)->free(*state);
        return status;
    }
    info->parameters = w->parameters;
    info->weight_bytes = w->used;
    info->table_bytes = w->table_bytes;
    return STATUS_OK;
}

enum status model_inspect_draft(const struct gguf *g, const struct gguf *target,
                                struct model_info *info, struct error *err)
{
    const struct arch *arch;
    void *state;
    struct weights w;
    enum status status = plan_model(g, target, info, &arch, &state, &w, err);
    if (status != STATUS_OK)
        return status;
    weights_release(&w);
    arch->free(state);
    info->output_tokens = NULL;
    return STATUS_OK;
}

enum status model_inspect(const struct gguf *g, struct model_info *info, struct error *err)
{
    return model_inspect_draft(g, NULL, info, err);
}

/* Least number of shares for each of `heads` that threads can take in equal numbers. */
static uint32_t even_shares(uint32_t threads, uint32_t heads)
{
    uint32_t a = threads, b = heads;
    while (b != 0) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return threads / a;
}

enum status model_load(const struct gguf *g, const struct model_options *options,
                       struct model **model, struct error *err)
{
    *model = NULL;
    struct model *m = xcalloc(1, sizeof *m);
    struct model_options o = *options;
    enum status status =
        plan_model(g, options->target != NULL ? options->target->weights.gguf : NULL, &m->info,
                   &m->arch, &m->state, &m->weights, err);
    if (status != STATUS_OK) {
        free(m);
        return status;
    }
    m->team = o.team;
    m->max_tokens = o.max_tokens = o.max_tokens == 0 ? MAX_TOKENS_DEFAULT : o.max_tokens;
    m->context = o.context = o.context == 0 ? m->info.context : o.context;
    plan_init(&m->plan, m->max_tokens, even_shares(team_size(m->team), m->info.kv_heads));
    if (m->context > m->info.context)
        status = error_set(err, STATUS_UNSUPPORTED,
                           "a context of %u tokens was asked for, the model was made for %u",
                           m->context, m->info.context);
    if (status == STATUS_OK)
        status = kv_geometry_init(&m->geometry, o.kv_type, m->info.layers, m->info.kv_heads,
                                  m->info.head_size, err);
    if (status == STATUS_OK)
        status = m->arch->ready(m->state, &o, &m->geometry, &m->scratch, err);
    if (status == STATUS_OK && o.target != NULL)
        m->arch->borrow(m->state, o.target->arch->embedding(o.target->state),
                        o.target->arch->head(o.target->state));
    if (status == STATUS_OK)
        status = weights_start(&m->weights, err);
    if (status == STATUS_OK)
        status = m->arch->tensors(m->state, &m->weights, &m->info, err);
    if (status == STATUS_OK)
        status = weights_load(&m->weights, o.team, o.progress, o.progress_data, err);
    if (status != STATUS_OK) {
        model_free(m);
        return status;
    }
    *model = m;
    return STATUS_OK;
}

void model_free(struct model *m)
{
    if (m == NULL)
        return;
    m->arch->free(m->state);
    weights_release(&m->weights);
    plan_release(&m->plan);
    free(m);
}

const struct model_info *model_info(const struct model *m)
{
    return &m->info;
}

const struct kv_geometry *model_kv_geometry(const struct model *m)
{
    return &m->geometry;
}

uint32_t model_max_tokens(const struct model *m)
{
    return m->max_tokens;
}

size_t model_memory(const struct model *m)
{
    return m->weights.size + m->weights.table_mapped + m->scratch;
}

uint64_t model_draft_memory(const struct model_info *info, uint64_t more_rows)
{
    uint64_t rows = (info->outputs + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS + more_rows;
    return info->weight_bytes + info->table_bytes + rows * info->head_row;
}

uint32_t model_logits_stride(const struct model *m)
{
    return (m->info.outputs + 15) / 16 * 16;
}

struct run {
    struct model *model;
    struct arch_step in;
};

static void run_step(void *arg, struct team_member *me)
{
    struct run *run = arg;
    run->model->arch->step(run->model->state, &run->in, me);
}

void model_step(struct model *m, const struct step *step, float *logits)
{
    model_step_hidden(m, step, logits, NULL);
}

void model_step_hidden(struct model *m, const struct step *step, float *logits, float *hidden)
{
    check(step->n_tokens > 0 && step->n_tokens <= m->max_tokens);
    for (uint32_t i = 0; i < step->n_sequences; i++)
        step->sequences[i].failed = false;
    for (uint32_t i = 0; i < step->n_tokens; i++)
        check(step->tokens[i].position < m->context);
    plan_make(&m->plan, step, &m->geometry, m->info.vocab);
    check(m->plan.asked.n_tokens == 0 || logits != NULL);
    struct run run = {m, {step, &m->plan, logits, model_logits_stride(m), hidden}};
    team_run(m->team, run_step, &run);
}

uint64_t model_kv_read(const struct model *m)
{
    const struct kv_geometry *g = &m->geometry;
    /* In the last layer only the tokens that want logits attend. */
    return ((g->layers - 1) * m->plan.all.pages + m->plan.asked.pages) * g->layer;
}

/* Read at a time, of parts of the weights that take turns: a part has left the caches before it is read again. */
#define STREAMS_BYTES ((size_t)10 << 20)
#define STREAMS_ROUNDS 5
#define STREAMS_WON 4 /* of them, each time by the gain: the machine may be busy with others */
#define STREAMS_GAIN 0.95
#define STREAMS_LOST 1.15 /* by so much in one round: no more are needed */

struct multiply {
    struct model *model;
    uint32_t first, layers;
};

static void run_multiply(void *arg, struct team_member *me)
{
    const struct multiply *job = arg;
    job->model->arch->multiply(job->model->state, job->first, job->layers, me);
}

/* How many layers a part of the weights is. */
static uint32_t streams_layers(const struct model_info *info)
{
    const size_t layer = info->weight_bytes / info->layers + 1;
    const uint32_t enough = (uint32_t)(STREAMS_BYTES / layer) + 1;
    const uint32_t most = info->layers < 3 ? info->layers : info->layers / 3;
    return enough < most ? enough : most;
}

void model_choose_streams(struct model *m, struct kernels *kernels, double seconds[3])
{
    struct multiply job = {m, 0, streams_layers(&m->info)};
    const unsigned parts = m->info.layers / job.layers;
    double best[3] = {INFINITY, INFINITY, INFINITY};
    unsigned chosen = 0, won[3] = {0, 0, 0};
    kernels->streams = 1;
    bool one = memcmp(kernels->streamed[0], kernels->product, sizeof kernels->product) == 0;
    bool open = !one; /* more than one may still win */
    for (unsigned round = 0; round < STREAMS_ROUNDS && open; round++) {
        double spent[3];
        for (unsigned turn = 0; turn < 3; turn++) {
            unsigned i = (round + turn) % 3; /* no number has a part of its own */
            kernels->streams = 1u << i;
            job.first = (round * 3 + turn) % parts * job.layers;
            uint64_t start = clock_ns();
            team_run(m->team, run_multiply, &job);
            spent[i] = (double)(clock_ns() - start) * 1e-9;
            best[i] = spent[i] < best[i] ? spent[i] : best[i];
        }
        for (unsigned i = 1; i < 3; i++)
            won[i] += spent[i] < spent[0] * STREAMS_GAIN;
        unsigned left = STREAMS_ROUNDS - 1 - round;
        open = (won[1] + left >= STREAMS_WON || won[2] + left >= STREAMS_WON) &&
               (spent[1] < spent[0] * STREAMS_LOST || spent[2] < spent[0] * STREAMS_LOST);
    }
    for (unsigned i = 1; i < 3; i++)
        if (won[i] >= STREAMS_WON && best[i] < best[0] * STREAMS_GAIN && best[i] < best[chosen])
            chosen = i;
    kernels->streams = 1u << chosen;
    for (unsigned i = 0; i < 3 && seconds != NULL; i++)
        seconds[i] = one ? 0 : best[i];
}

enum status model_streams_parse(const char *text, uint32_t *streams, struct error *err)
{
    static const char *const names[] = {"auto", "1", "2", "4"};
    static const uint32_t numbers[] = {0, 1, 2, 4};
    for (unsigned i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            *streams = numbers[i];
            return STATUS_OK;
        }
    return error_set(err, STATUS_INVALID, "weight streams can be auto, 1, 2 or 4, not '%s'", text);
}
