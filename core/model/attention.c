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
    size_t queries = group * PLAN_ITEM_TOKENS;
    return round_up(queries * sizeof(struct attention_query)) +
           round_up(queries * sizeof(struct state)) + round_up(queries * dim * sizeof(float));
}

static bool quantised(const struct kv_geometry *g)
{
    return g->type == KV_Q8_0 || g->type == KV_Q4;
}

/* Blocks of a head's query. */
static uint32_t query_blocks(const struct kv_geometry *g)
{
    return quantised(g) ? (g->dim + 31) / 32 : 0;
}

static size_t blocks_bytes(const struct kv_geometry *g, uint32_t group, uint32_t tokens)
{
    return round_up((size_t)tokens * g->heads * group * query_blocks(g) *
                    sizeof(struct query_block));
}

size_t attention_scratch(const struct kv_geometry *geometry, uint32_t group, uint32_t tokens,
                         uint32_t threads)
{
    size_t n_parts = parts(group, threads), dim = geometry->dim;
    return threads * thread_bytes(group, geometry->dim) + blocks_bytes(geometry, group, tokens) +
           2 * round_up(n_parts * sizeof(float)) + round_up(n_parts * dim * sizeof(float));
}

void attention_init(struct attention *a, const struct kernels *kernels,
                    const struct kv_geometry *geometry, uint32_t group, float scale,
                    uint32_t tokens, uint32_t threads, void *scratch)
{
    size_t queries = group * PLAN_ITEM_TOKENS;
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
    a->n_blocks = query_blocks(geometry);
    a->blocks = (struct query_block *)at;
    at += blocks_bytes(geometry, group, tokens);
    a->part_max = (float *)at;
    at += round_up(a->parts_cap * sizeof(float));
    a->part_sum = (float *)at;
    at += round_up(a->parts_cap * sizeof(float));
    a->part_outs = (float *)at;
}

/* A query's quantised form. */
static struct query_block *blocks_of(const struct attention *a, uint32_t token, size_t head)
{
    return a->blocks + (token * (size_t)a->geometry->heads * a->group + head) * a->n_blocks;
}

void attention_prepare(const struct attention *a, uint32_t token, uint32_t head, const float *q)
{
    size_t dim = a->geometry->dim, first = (size_t)head * a->group;
    for (uint32_t h = 0; h < a->group && a->n_blocks > 0; h++)
        a->kernels->quantise_query(q + h * dim, (uint32_t)dim, blocks_of(a, token, first + h));
}

/* Positions of run r that a token at `position` sees: up to its own, or up to its page. */
static uint32_t seen(const struct kv_geometry *g, uint32_t position, uint32_t r)
{
    uint32_t before = r * KV_RUN_POSITIONS;
    uint32_t end = g->open_page > 0 ? position - position % KV_TILE_POSITIONS : position + 1;
    if (end <= before)
        return 0;
    return end - before < KV_RUN_POSITIONS ? end - before : KV_RUN_POSITIONS;
}

/* The open page of the token at `position`, as a run of its own. */
static void describe_open(const struct attention *a, const struct attention_layer *l,
                          const struct step_sequence *sequence, uint32_t position, uint32_t head,
                          struct attention_run *run)
{
    const struct kv_geometry *g = a->geometry;
    void *open = sequence->open[position / KV_TILE_POSITIONS - sequence->open_first];
    *run = (struct attention_run){.dim = g->dim, .scale = a->scale, .tiles = 1};
    run->k[0] = kv_geometry_open_k(g, open, l->layer, head);
    run->v[0] = kv_geometry_open_v(g, open, l->layer, head);
}

/* The outcome of a head, all runs folded. */
static void finish(const struct attention *a, float *out, float sum)
{
    a->kernels->attention_finish(out, sum, a->geometry->dim);
    if (a->geometry->open_page > 0)
        a->kernels->hadamard(out, a->geometry->dim);
}

/* Pages of run r that the block reads. */
static uint32_t pages_of(const struct plan_block *block, uint32_t r)
{
    uint32_t before = r * KV_RUN_TILES, n = block->n_pages > before ? block->n_pages - before : 0;
    return n < KV_RUN_TILES ? n : KV_RUN_TILES;
}

static void describe_run(const struct attention *a, const struct attention_layer *l,
                         const struct plan_block *block, uint32_t head, uint32_t r,
                         struct attention_run *run)
{
    const struct kv_geometry *g = a->geometry;
    *run = (struct attention_run){.dim = g->dim, .scale = a->scale, .tiles = pages_of(block, r)};
    for (uint32_t i = 0; i < run->tiles; i++) {
        void *page = block->pages[r * KV_RUN_TILES + i];
        run->k[i] = kv_geometry_k(g, page, l->layer, head);
        run->v[i] = kv_geometry_v(g, page, l->layer, head);
    }
}

/* The tiles of one head in a block's run r, to be brought near; 0 behind the last run. */
static uint32_t tiles_of(const struct attention *a, const struct attention_layer *l,
                         const struct plan_block *block, uint32_t head, uint32_t r,
                         struct attention_piece pieces[2 * KV_RUN_TILES])
{
    const struct kv_geometry *g = a->geometry;
    uint32_t pages = pages_of(block, r), n = 0;
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
    uint32_t pages = pages_of(block, r), n = 0;
    for (uint32_t i = pages * head / g->heads; i < pages * (head + 1) / g->heads; i++) {
        void *page = block->pages[r * KV_RUN_TILES + i];
        pieces[n++] = (struct attention_piece){kv_geometry_k(g, page, l->layer, 0), g->layer};
    }
    return n;
}

/* How many blocks from `first` on, of the item's up to `end`, read run r together: 0 if that block has no such run. */
static uint32_t together(const struct plan_block *blocks, uint32_t first, uint32_t end, uint32_t r)
{
    uint32_t n = blocks[first].runs > r;
    while (n > 0 && first + n < end && blocks[first + n].shared > r)
        n++;
    return n;
}

/* What an item reads after the blocks before `next` have read run r: the next ones' share of the run, or the first
 * one's next run. */
static uint32_t what_follows(const struct attention *a, const struct attention_layer *l,
                             const struct plan_item *item, uint32_t next, uint32_t head, uint32_t r,
                             struct attention_piece pieces[2 * KV_RUN_TILES])
{
    const struct plan_block *blocks = l->queries->blocks;
    while (next < item->first + item->n && blocks[next].runs <= r)
        next++;
    return next < item->first + item->n ? tiles_of(a, l, &blocks[next], head, r, pieces)
                                        : tiles_of(a, l, &blocks[item->first], head, r + 1, pieces);
}

/* Queries of the tokens of n blocks from `first` on, all heads of KV head `head`, for run r. Their outputs: rows of
 * the layer's, or one after the other at `outs`. Returns how many. */
static uint32_t gather(const struct attention *a, const struct attention_layer *l, uint32_t first,
                       uint32_t n, uint32_t head, uint32_t r, float *outs,
                       struct attention_query *queries)
{
    size_t dim = a->geometry->dim;
    uint32_t i = 0;
    for (const struct plan_block *block = &l->queries->blocks[first]; n > 0; block++, n--)
        for (uint32_t t = 0; t < block->n; t++)
            for (uint32_t h = 0; h < a->group; h++, i++) {
                uint32_t token = block->first + t;
                size_t column = (head * a->group + h) * dim;
                queries[i].q = l->q + token * l->ldq + column;
                queries[i].blocks = blocks_of(a, token, head * a->group + h);
                queries[i].out = outs == NULL ? l->out + token * l->ldo + column : outs + i * dim;
                queries[i].count = seen(a->geometry, l->step->tokens[token].position, r);
            }
    return i;
}

/* Folds the outcome of a later run into the states of the same queries. */
static void fold_run(const struct attention *a, const struct attention_layer *l, uint32_t first,
                     uint32_t n, uint32_t head, struct state *states,
                     const struct attention_query *queries)
{
    size_t dim = a->geometry->dim;
    for (const struct plan_block *block = &l->queries->blocks[first]; n > 0; block++, n--)
        for (uint32_t t = 0; t < block->n; t++)
            for (uint32_t h = 0; h < a->group; h++, states++, queries++)
                if (queries->count > 0)
                    a->kernels->attention_merge(
                        &states->max, &states->sum,
                        l->out + (block->first + t) * l->ldo + (head * a->group + h) * dim,
                        queries->max, queries->sum, queries->out, (uint32_t)dim);
}

/* The open pages of a block's tokens, those of one page together, folded into the states of its queries. */
static void attend_open(const struct attention *a, const struct attention_layer *l,
                        const struct plan_block *block, uint32_t head, struct state *states,
                        float *outs, struct attention_query *queries)
{
    const struct step_token *tokens = l->step->tokens;
    size_t dim = a->geometry->dim;
    for (uint32_t t = block->first, end = t + block->n, from = t; t < end; from = t) {
        uint32_t page = tokens[t].position / KV_TILE_POSITIONS, n = 0;
        struct attention_run run;
        describe_open(a, l, block->sequence, tokens[t].position, head, &run);
        for (; t < end && tokens[t].position / KV_TILE_POSITIONS == page; t++)
            for (uint32_t h = 0; h < a->group; h++, n++)
                queries[n] =
                    (struct attention_query){.q = l->q + t * l->ldq + (head * a->group + h) * dim,
                                             .out = outs + n * dim,
                                             .count = tokens[t].position % KV_TILE_POSITIONS + 1};
        a->kernels->attention[KV_F16](&run, queries, n);
        for (uint32_t i = 0; i < n; i++, states++)
            a->kernels->attention_merge(
                &states->max, &states->sum,
                l->out + (from + i / a->group) * l->ldo + (head * a->group + i % a->group) * dim,
                queries[i].max, queries[i].sum, queries[i].out, (uint32_t)dim);
    }
}

void attention_item(const struct attention *a, const struct attention_layer *l, uint32_t index,
                    uint32_t head, uint32_t thread)
{
    const struct plan_item *item = &l->queries->items[index];
    const struct plan_block *blocks = l->queries->blocks;
    uint8_t *scratch = a->scratch + thread * a->thread_bytes;
    struct attention_query *queries = (struct attention_query *)scratch;
    struct state *states = (struct state *)(scratch + a->states_at);
    float *outs = (float *)(scratch + a->outs_at);
    uint32_t end = item->first + item->n, count;
    struct attention_run run;
    struct attention_piece ahead[2 * KV_RUN_TILES];
    for (uint32_t r = 0; r < item->runs; r++)
        for (uint32_t b = item->first, at = 0, n; b < end; b += n, at += count) {
            n = together(blocks, b, end, r);
            count = blocks[b].n * a->group;
            if (n == 0) {
                n = 1;
                continue;
            }
            describe_run(a, l, &blocks[b], head, r, &run);
            run.cold = r == 0 && b == item->first;
            run.ahead = ahead;
            run.n_ahead = what_follows(a, l, item, b + n, head, r, ahead);
            /* The first run's output is the state that later ones are folded into. */
            count = gather(a, l, b, n, head, r, r == 0 ? NULL : outs, queries);
            a->kernels->attention[a->geometry->type](&run, queries, count);
            if (r > 0)
                fold_run(a, l, b, n, head, states + at, queries);
            for (uint32_t i = 0; i < count && r == 0; i++)
                states[at + i] = (struct state){queries[i].max, queries[i].sum};
        }
    for (uint32_t b = item->first, i = 0; b < end; b++) {
        if (a->geometry->open_page > 0)
            attend_open(a, l, &blocks[b], head, states + i, outs, queries);
        for (uint32_t t = 0; t < blocks[b].n; t++)
            for (uint32_t h = 0; h < a->group; h++, i++)
                finish(a,
                       l->out + (blocks[b].first + t) * l->ldo +
                           (head * a->group + h) * a->geometry->dim,
                       states[i].sum);
    }
}

/* Run r of n blocks of an item that read it together; its results go to the parts. */
static void run_blocks(const struct attention *a, const struct attention_layer *l, uint32_t first,
                       uint32_t n, uint32_t head, uint32_t r, uint32_t thread)
{
    const struct plan_block *blocks = l->queries->blocks;
    struct attention_query *queries =
        (struct attention_query *)(a->scratch + thread * a->thread_bytes);
    size_t dim = a->geometry->dim;
    uint32_t heads = a->geometry->heads * a->group, runs = l->queries->most_runs;
    struct attention_run run;
    struct attention_piece ahead[2 * KV_RUN_TILES];
    describe_run(a, l, &blocks[first], head, r, &run);
    run.ahead = ahead;
    run.n_ahead = share_of(a, l, &blocks[first], head, r + a->threads, ahead);
    uint32_t count = gather(a, l, first, n, head, r, a->part_outs, queries), i = 0;
    for (uint32_t b = first; b < first + n; b++)
        for (uint32_t j = 0; j < blocks[b].n * a->group; j++, i++) {
            size_t h = head * a->group + j % a->group;
            size_t part = ((size_t)(blocks[b].query + j / a->group) * heads + h) * runs + r;
            queries[i].out = a->part_outs + part * dim;
        }
    a->kernels->attention[a->geometry->type](&run, queries, count);
    for (i = 0; i < count; i++) {
        size_t part = (size_t)(queries[i].out - a->part_outs) / dim;
        a->part_max[part] = queries[i].max;
        a->part_sum[part] = queries[i].sum;
    }
}

/* One run of one item. */
static void run_item(const struct attention *a, const struct attention_layer *l,
                     const struct plan_item *item, uint32_t head, uint32_t r, uint32_t thread)
{
    uint32_t end = item->first + item->n;
    for (uint32_t b = item->first, n; b<end; b += n> 0 ? n : 1) {
        n = together(l->queries->blocks, b, end, r);
        if (n > 0)
            run_blocks(a, l, b, n, head, r, thread);
    }
}

/* Folds the parts of one query's head, in the order of attention_item. */
static void fold(const struct attention *a, const struct attention_layer *l, uint32_t query,
                 uint32_t h, float *open_out)
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
    if (a->geometry->open_page > 0) {
        const struct step_token *t = &l->step->tokens[token];
        struct attention_query q = {.q = l->q + token * l->ldq + (size_t)h * dim,
                                    .out = open_out,
                                    .count = t->position % KV_TILE_POSITIONS + 1};
        struct attention_run run;
        describe_open(a, l, &l->step->sequences[t->sequence], t->position, h / a->group, &run);
        a->kernels->attention[KV_F16](&run, &q, 1);
        a->kernels->attention_merge(&max, &sum, out, q.max, q.sum, q.out, dim);
    }
    finish(a, out, sum);
}

bool attention_splits(const struct attention *a, const struct plan_queries *queries)
{
    uint32_t heads = a->geometry->heads * a->group, items = queries->n_items * a->geometry->heads;
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
    uint32_t items = queries->n_items * kv_heads, runs = queries->most_runs;
    if (!attention_splits(a, queries)) {
        while (team_next(me, items, 1, &begin, &end))
            attention_item(a, l, begin / kv_heads, begin % kv_heads, me->index);
        return;
    }
    /* All heads of a run together read memory in its order; where that makes too few shares, each by itself. */
    uint32_t some = queries->n_items * runs < ITEMS_A_THREAD * a->threads ? 1 : kv_heads;
    while (team_next(me, items * runs, some, &begin, &end))
        for (uint32_t i = begin; i < end; i++)
            run_item(a, l, &queries->items[i / runs / kv_heads], i % kv_heads, i / kv_heads % runs,
                     me->index);
    while (team_next(me, queries->n_tokens * heads, 1, &begin, &end))
        fold(a, l, begin / heads, begin % heads,
             (float *)(a->scratch + me->index * a->thread_bytes + a->outs_at));
}
