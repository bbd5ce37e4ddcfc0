#include "core/model/attention.h"


/* Items for each thread below which runs become items of their own. */
#define ITEMS_A_THREAD 4u
/* Runs that a step can keep apart for each of those items. */
#define PARTS_AN_ITEM 64u

struct state {
    float max, sum;
};

static size_t round_up(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static uint32_t parts(uint32_t group, uint32_t threads)
{
    return ITEMS_A_THREAD * threads * PARTS_AN_ITEM * group;
}

static size_t thread_bytes(uint32_t group, uint32_t dim)
{
    size_t queries = group * PLAN_BLOCK_TOKENS;
    return round_up(queries * sizeof(struct attention_query)) +
           round_up(queries * sizeof(struct state)) + round_up(queries * dim * sizeof(float));
}

size_t attention_scratch(uint32_t group, uint32_t dim, uint32_t threads)
{
    size_t n_parts = parts(group, threads);
    return threads * thread_bytes(group, dim) + 2 * round_up(n_parts * sizeof(float)) +
           round_up(n_parts * dim * sizeof(float));
}

void attention_init(struct attention *a, const struct kernels *kernels,
                    const struct kv_geometry *geometry, uint32_t group, float scale,
                    uint32_t threads, void *scratch)
{
    size_t queries = group * PLAN_BLOCK_TOKENS;
    *a = (struct attention){.kernels = kernels,
                            .geometry = geometry,
                            .group = group,
                            .scale = scale,
                            .threads = threads,
                            .parts_cap = parts(group, threads)};
    a->scratch = scratch;
    a->thread_bytes = thread_bytes(group, geometry->dim);
    a->states_at = round_up(queries * sizeof(struct attention_query));
    a->outs_at = a->states_at + round_up(queries * sizeof(struct state));
    uint8_t *at = a->scratch + threads * a->thread_bytes;
    a->part_max = (float *)at;
    at += round_up(a->parts_cap * sizeof(float));
    a->part_sum = (float *)at;
    at += round_up(a->parts_cap * sizeof(float));
    a->part_outs = (float *)at;
}

/* Positions of run r that a token at `position` sees. */
static uint32_t seen(uint32_t position, uint32_t r)
{
    uint32_t before = r * KV_RUN_POSITIONS;
    if (position < before)
        return 0;
    uint32_t n = position - before + 1;
    return n < KV_RUN_POSITIONS ? n : KV_RUN_POSITIONS;
}

static void describe_run(const struct attention *a, const struct attention_layer *l,
                         const struct plan_block *block, uint32_t head, uint32_t r,
                         struct attention_run *run)
{
    const struct kv_geometry *g = a->geometry;
    uint32_t last = l->step->tokens[block->first + block->n - 1].position;
    *run = (struct attention_run){0};
    run->dim = g->dim;
    run->scale = a->scale;
    run->tiles = (seen(last, r) + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS;
    for (uint32_t i = 0; i < run->tiles; i++) {
        void *page = block->pages[r * KV_RUN_TILES + i];
        run->k[i] = kv_geometry_k(g, page, l->layer, head);
        run->v[i] = kv_geometry_v(g, page, l->layer, head);
    }
}

/* Pages of run r that the block reads. */
static uint32_t pages_of(const struct attention_layer *l, const struct plan_block *block, uint32_t r)
{
    uint32_t last = l->step->tokens[block->first + block->n - 1].position;
    return (seen(last, r) + KV_TILE_POSITIONS - 1) / KV_TILE_POSITIONS;
}

/* The tiles of one head in run r, to be brought near; 0 behind the last run. */
static uint32_t tiles_of(const struct attention *a, const struct attention_layer *l,
                         const struct plan_block *block, uint32_t head, uint32_t r,
                         struct attention_piece pieces[2 * KV_RUN_TILES])
{
    const struct kv_geometry *g = a->geometry;
    uint32_t pages = pages_of(l, block, r), n = 0;
    for (uint32_t i = 0; i < pages; i++) {
        void *page = block->pages[r * KV_RUN_TILES + i];
        pieces[n++] = (struct attention_piece){kv_geometry_k(g, page, l->layer, head), g->tile};
        pieces[n++] = (struct attention_piece){kv_geometry_v(g, page, l->layer, head), g->tile};
    }
    return n;
}

/* A share of run r, all heads: as many pages as fall to one head if each head brings some. */
static uint32_t share_of(const struct attention *a, const struct attention_layer *l,
                         const struct plan_block *block, uint32_t head, uint32_t r,
                         struct attention_piece pieces[2 * KV_RUN_TILES])
{
    const struct kv_geometry *g = a->geometry;
    uint32_t pages = pages_of(l, block, r), n = 0;
    for (uint32_t i = pages * head / g->heads; i < pages * (head + 1) / g->heads; i++) {
        void *page = block->pages[r * KV_RUN_TILES + i];
        pieces[n++] = (struct attention_piece){kv_geometry_k(g, page, l->layer, 0), g->layer};
    }
    return n;
}

void attention_item(const struct attention *a, const struct attention_layer *l, uint32_t item,
                    uint32_t head, uint32_t thread)
{
    const struct plan_block *block = &l->queries->blocks[item];
    uint8_t *scratch = a->scratch + thread * a->thread_bytes;
    struct attention_query *queries = (struct attention_query *)scratch;
    struct state *states = (struct state *)(scratch + a->states_at);
    float *outs = (float *)(scratch + a->outs_at);
    size_t dim = a->geometry->dim;
    struct attention_run run;
    struct attention_piece ahead[2 * KV_RUN_TILES];
    uint32_t n = block->n * a->group;
    for (uint32_t r = 0; r < block->runs; r++) {
        describe_run(a, l, block, head, r, &run);
        run.ahead = ahead;
        run.n_ahead = tiles_of(a, l, block, head, r + 1, ahead);
        for (uint32_t t = 0, i = 0; t < block->n; t++)
            for (uint32_t h = 0; h < a->group; h++, i++) {
                uint32_t token = block->first + t;
                size_t column = (head * a->group + h) * dim;
                /* The first run's output is the state that later ones are folded into. */
                queries[i].q = l->q + token * l->ldq + column;
                queries[i].out = r == 0 ? l->out + token * l->ldo + column : outs + i * dim;
                queries[i].count = seen(l->step->tokens[token].position, r);
            }
        a->kernels->attention[a->geometry->type](&run, queries, n);
        for (uint32_t i = 0; i < n; i++) {
            float *out = l->out + (block->first + i / a->group) * l->ldo +
                         (head * a->group + i % a->group) * dim;
            if (r == 0)
                states[i] = (struct state){queries[i].max, queries[i].sum};
            else if (queries[i].count > 0)
                a->kernels->attention_merge(&states[i].max, &states[i].sum, out, queries[i].max,
                                            queries[i].sum, queries[i].out, (uint32_t)dim);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        a->kernels->attention_finish(l->out + (block->first + i / a->group) * l->ldo +
                                         (head * a->group + i % a->group) * dim,
                                     states[i].sum, (uint32_t)dim);
}

/* One run of one item; its results go to the parts. */
static void run_item(const struct attention *a, const struct attention_layer *l,
                     const struct plan_block *block, uint32_t head, uint32_t r, uint32_t thread)
{
    struct attention_query *queries =
        (struct attention_query *)(a->scratch + thread * a->thread_bytes);
    size_t dim = a->geometry->dim;
    uint32_t heads = a->geometry->heads * a->group, runs = l->queries->most_runs, n = 0;
    struct attention_run run;
    struct attention_piece ahead[2 * KV_RUN_TILES];
    describe_run(a, l, block, head, r, &run);
    run.ahead = ahead;
    run.n_ahead = share_of(a, l, block, head, r + a->threads, ahead);
    for (uint32_t t = 0; t < block->n; t++)
        for (uint32_t h = head * a->group; h < (head + 1) * a->group; h++) {
            uint32_t token = block->first + t;
            size_t part = ((size_t)(block->query + t) * heads + h) * runs + r;
            queries[n].q = l->q + token * l->ldq + h * dim;
            queries[n].out = a->part_outs + part * dim;
            queries[n++].count = seen(l->step->tokens[token].position, r);
        }
    a->kernels->attention[a->geometry->type](&run, queries, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t query = block->query + i / a->group, h = head * a->group + i % a->group;
        size_t part = ((size_t)query * heads + h) * runs + r;
        a->part_max[part] = queries[i].max;
        a->part_sum[part] = queries[i].sum;
    }
}

/* Folds the parts of one query's head, in the order of attention_item. */
static void fold(const struct attention *a, const struct attention_layer *l, uint32_t query,
                 uint32_t h)
{
    uint32_t token = l->queries->tokens[query];
    uint32_t dim = a->geometry->dim, heads = a->geometry->heads * a->group;
    uint32_t runs = l->step->tokens[token].position / KV_RUN_POSITIONS + 1;
    size_t part = ((size_t)query * heads + h) * l->queries->most_runs;
    float *out = l->out + token * l->ldo + (size_t)h * dim;
    float max = a->part_max[part], sum = a->part_sum[part];
    for (uint32_t i = 0; i < dim; i++)
        out[i] = a->part_outs[part * dim + i];
    for (uint32_t r = 1; r < runs; r++)
        a->kernels->attention_merge(&max, &sum, out, a->part_max[part + r], a->part_sum[part + r],
                                    a->part_outs + (part + r) * dim, dim);
    a->kernels->attention_finish(out, sum, dim);
}

bool attention_splits(const struct attention *a, const struct plan_queries *queries)
{
    uint32_t heads = a->geometry->heads * a->group, items = queries->n_blocks * a->geometry->heads;
    /* An item's own order of runs needs no parts in memory: one or two equal shares a thread do without, too. */
    bool fair = items % a->threads == 0 || items >= ITEMS_A_THREAD * a->threads;
    return a->threads > 1 && queries->most_runs > 1 && !fair &&
           (uint64_t)queries->n_tokens * heads * queries->most_runs <= a->parts_cap;
}

void attention_stages(const struct attention *a, const struct attention_layer *l,
                      struct team_member *me)
{
    const struct plan_queries *queries = l->queries;
    uint32_t kv_heads = a->geometry->heads, heads = kv_heads * a->group, begin, end;
    uint32_t items = queries->n_blocks * kv_heads, runs = queries->most_runs;
    if (!attention_splits(a, queries)) {
        while (team_next(me, items, 1, &begin, &end))
            attention_item(a, l, begin / kv_heads, begin % kv_heads, me->index);
        return;
    }
    while (team_next(me, items * runs, kv_heads, &begin, &end))
        for (uint32_t i = begin; i < end; i++) {
            const struct plan_block *block = &queries->blocks[i / runs / kv_heads];
            if (i / kv_heads % runs < block->runs)
                run_item(a, l, block, i % kv_heads, i / kv_heads % runs, me->index);
        }
    while (team_next(me, queries->n_tokens * heads, 1, &begin, &end))
        fold(a, l, begin / heads, begin % heads);
}
