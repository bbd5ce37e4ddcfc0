#include "core/model/arch_llama.h"

#include <string.h>

/* A step, as one thread of the team goes through it: a series of stages (team.h). What decides the
 * series depends on the plan alone, which no thread changes. */
struct pass {
    const struct llama *l;
    const struct arch_step *in; /* NULL: products alone (llama_multiply) */
    struct team_member *me;
    uint32_t n;             /* rows of x */
    const uint32_t *tokens; /* of the step, a row */
    uint32_t threads;       /* of the team */
};

/* Steps of so many tokens are cut into halves. */
#define HALVES_FROM 128u

/* Where activations of a stage come from. */
enum source {
    SOURCE_NORM,  /* x, normed by `norm` */
    SOURCE_MIXED, /* attention's result */
    SOURCE_FFN,   /* silu(gate) · up */
    SOURCE_GATED, /* the same, packed already (gate_item) */
};

/* A set of matrices that take the same activations. */
struct product {
    const struct matrix *m;
    float *y;
    size_t ldy;
};

struct stage {
    enum source source;
    const float *norm;
    uint32_t cols; /* of the activations */
    bool add;      /* onto y */
    uint32_t n_products;
    struct product products[3];
};

/* Packs column i of the stage in each kind that its matrices take. */
static void pack_column(const struct pass *p, const struct stage *s, uint32_t i,
                        const struct llama_acts *acts)
{
    const struct llama *l = p->l;
    const struct kernels *k = l->kernels;
    bool fine = true, done[ACTS_KINDS] = {false};
    float *ffn = NULL;
    if (s->source == SOURCE_FFN) {
        ffn = l->local_ffn[p->me->index];
        k->silu_mul(ffn, l->gate + (size_t)i * l->ffn, l->up + (size_t)i * l->ffn, l->ffn);
    }
    for (uint32_t m = 0; m < s->n_products; m++) {
        enum acts_kind kind = weight_info(s->products[m].m->type)->acts;
        if (done[kind])
            continue;
        done[kind] = true;
        struct acts packed = acts_make(kind, s->cols, acts->data[kind]);
        void *column = acts_column(&packed, i);
        switch (s->source) {
        case SOURCE_NORM:
            fine &=
                k->norm_pack[kind](l->x + (size_t)i * l->width, s->norm, l->eps, s->cols, column);
            break;
        case SOURCE_MIXED:
            fine &= k->pack[kind](l->mixed + (size_t)i * s->cols, s->cols, column);
            break;
        case SOURCE_FFN:
            fine &= k->pack[kind](ffn, s->cols, column);
            break;
        case SOURCE_GATED:
            break;
        }
    }
    if (!fine && p->in != NULL)
        arch_fail(p->in->step, p->tokens[i]);
}

/* Panels [begin, end) of the stage's matrices laid end to end, n tokens from `first` on. */
static void multiply(const struct pass *p, const struct stage *s, const struct llama_acts *acts,
                     uint32_t begin, uint32_t end, uint32_t first, uint32_t n)
{
    uint32_t offset = 0;
    for (uint32_t i = 0; i < s->n_products; i++) {
        const struct product *product = &s->products[i];
        uint32_t panels = product->m->panels;
        uint32_t from = begin > offset ? begin - offset : 0;
        uint32_t to = end > offset ? end - offset : 0;
        to = to < panels ? to : panels;
        offset += panels;
        if (from >= to)
            continue;
        enum acts_kind kind = weight_info(product->m->type)->acts;
        struct acts packed = acts_make(kind, s->cols, acts->data[kind]);
        product_fn *fn = kernels_product(p->l->kernels, product->m->type, p->n);
        fn(product->m, from, to, &packed, first, n, product->y + first * product->ldy, product->ldy,
           s->add);
    }
}

/* Panels handed out at a time: few tokens want long streams of weights, many tokens even shares. */
static uint32_t panel_chunk(const struct pass *p, uint32_t panels)
{
    uint32_t shares = p->n <= 8 ? 4 : 8;
    uint32_t chunk = panels / (p->threads * shares);
    return chunk < 2 ? 2 : chunk;
}

/* Packs the activations of all tokens, a stage by itself. */
static void pack_all(const struct pass *p, const struct stage *s)
{
    uint32_t begin, end;
    while (team_next(p->me, p->n, p->n < 64 ? 1 : 8, &begin, &end))
        for (uint32_t i = begin; i < end; i++)
            pack_column(p, s, i, &p->l->acts);
}

/* Packs and multiplies. Few columns are packed by every thread for itself, when it gets its first
 * panels: cheaper than to wait for each other. */
static void run_stage(const struct pass *p, const struct stage *s)
{
    uint32_t begin, end, panels = 0;
    bool local = p->n <= LLAMA_LOCAL_TOKENS, gated = s->source == SOURCE_GATED;
    const struct llama_acts *acts = local   ? &p->l->local[p->me->index]
                                    : gated ? &p->l->gated
                                            : &p->l->acts;
    for (uint32_t i = 0; i < s->n_products; i++)
        panels += s->products[i].m->panels;
    if (!local && !gated)
        pack_all(p, s);
    bool packed = !local;
    /* Many tokens: all panels for the first half of them, then for the second, so that threads stay with their tokens. */
    const uint32_t parts = p->n < HALVES_FROM || p->threads == 1 ? 1 : 2;
    const uint32_t half = (p->n / parts + 7) / 8 * 8;
    while (team_next(p->me, parts * panels, panel_chunk(p, parts * panels), &begin, &end)) {
        for (uint32_t i = 0; i < p->n && !packed; i++)
            pack_column(p, s, i, acts);
        packed = true;
        for (uint32_t part = 0; part < parts; part++) {
            uint32_t first = part * half, n = part + 1 < parts ? half : p->n - first;
            uint32_t from = begin > part * panels ? begin - part * panels : 0;
            uint32_t to = end > part * panels ? end - part * panels : 0;
            to = to < panels ? to : panels;
            if (from < to)
                multiply(p, s, acts, from, to, first, n);
        }
    }
}

/* Gate and up of many tokens, cut into items of some rows of both and some tokens. What an item multiplies goes
 * through silu and is packed by the same thread, while it lies in its second-level cache. */
struct cut {
    uint32_t tokens; /* of an item, at most */
    uint32_t across; /* items of the same rows */
    uint32_t down;   /* of the same tokens, one after the other */
    uint32_t items;
};

/* False: not enough items for even shares. */
static bool cut_ffn(const struct pass *p, struct cut *c)
{
    c->down = (p->l->ffn + LLAMA_GATED_ROWS - 1) / LLAMA_GATED_ROWS;
    /* More tokens read and unpack weights less often, less of them end together. */
    for (c->tokens = LLAMA_GATED_TOKENS; c->tokens >= LLAMA_GATED_TOKENS / 2; c->tokens /= 2) {
        c->across = (p->n + c->tokens - 1) / c->tokens;
        c->items = c->down * c->across;
        if (c->items >= 16 * p->threads)
            return true;
    }
    return false;
}

/* `rows` rows of a matrix, a matrix; `row` begins a panel. */
static struct matrix rows_of(const struct matrix *m, uint32_t row, uint32_t rows)
{
    struct matrix some = *m;
    some.rows = rows;
    some.panels = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
    some.data += row / PANEL_ROWS * m->panel_bytes;
    return some;
}

/* Item i of gate and up (the stage s), packed for `down`. */
static void gate_item(const struct pass *p, const struct stage *s, const struct matrix *down,
                      const struct cut *c, uint32_t i)
{
    const struct llama *l = p->l;
    const struct kernels *k = l->kernels;
    const uint32_t row = i % c->down * LLAMA_GATED_ROWS, part = i / c->down;
    const uint32_t rows = l->ffn - row < LLAMA_GATED_ROWS ? l->ffn - row : LLAMA_GATED_ROWS;
    /* Whole tiles of 8 tokens, as even as they allow. */
    const uint32_t eights = (p->n + 7) / 8, first = eights * part / c->across * 8;
    uint32_t n = eights * (part + 1) / c->across * 8 - first;
    n = n < p->n - first ? n : p->n - first;
    const enum acts_kind kind = weight_info(down->type)->acts;
    const struct acts packed = acts_make(kind, l->ffn, l->gated.data[kind]);
    float *gate = l->local_gated[p->me->index], *up = gate + (size_t)n * rows, *y[2] = {gate, up};

    for (uint32_t m = 0; m < 2; m++) {
        const struct matrix some = rows_of(s->products[m].m, row, rows);
        const enum acts_kind from = weight_info(some.type)->acts;
        const struct acts x = acts_make(from, s->cols, l->acts.data[from]);
        k->product[some.type](&some, 0, some.panels, &x, first, n, y[m], rows, false);
    }
    k->silu_mul(gate, gate, up, n * rows);
    for (uint32_t t = 0; t < n; t++) {
        uint8_t *column = acts_column(&packed, first + t);
        if (!k->pack[kind](gate + (size_t)t * rows, rows, column + acts_stride(kind, row)))
            arch_fail(p->in->step, p->tokens[first + t]);
    }
}

static void run_ffn(const struct pass *p, const struct llama_layer *layer)
{
    const struct llama *l = p->l;
    const struct stage gate = {
        .source = SOURCE_NORM,
        .norm = layer->ffn_norm,
        .cols = l->width,
        .n_products = 2,
        .products = {{&layer->gate, l->gate, l->ffn}, {&layer->up, l->up, l->ffn}}};
    struct stage down = {.source = SOURCE_FFN,
                         .cols = l->ffn,
                         .add = true,
                         .n_products = 1,
                         .products = {{&layer->down, l->x, l->width}}};
    struct cut cut;
    uint32_t begin, end;
    if (p->n < LLAMA_GATED_TOKENS / 2 || !cut_ffn(p, &cut))
        run_stage(p, &gate);
    else {
        pack_all(p, &gate);
        while (team_next(p->me, cut.items, 1, &begin, &end))
            gate_item(p, &gate, &layer->down, &cut, begin);
        down.source = SOURCE_GATED;
    }
    run_stage(p, &down);
}

/* The rows of the embedding and the angles of the positions. */
static void embed(const struct pass *p)
{
    const struct llama *l = p->l;
    uint32_t begin, end;
    while (team_next(p->me, p->n, 4, &begin, &end))
        for (uint32_t i = begin; i < end; i++) {
            const struct step_token *t = &p->in->step->tokens[i];
            embedding_row(&l->embedding, t->token, l->x + (size_t)i * l->width);
            rope_table(&l->rope, t->position, l->cos + (size_t)i * l->rope.pairs,
                       l->sin + (size_t)i * l->rope.pairs);
        }
}

/* RoPE of a KV head's keys and of its group's queries, then K and V into the page. */
static void rotate_and_store(const struct pass *p, uint32_t layer, uint32_t span_index,
                             uint32_t head)
{
    const struct llama *l = p->l;
    const struct kernels *k = l->kernels;
    const struct kv_geometry *g = l->geometry;
    const struct plan_span *span = &p->in->plan->spans[span_index];
    uint32_t dim = l->head_size, group = l->heads / l->kv_heads, q_cols = llama_q_cols(l);
    size_t row = q_cols + 2 * (size_t)llama_kv_cols(l);
    float *first = l->qkv + span->first * row;
    float *keys = first + q_cols + (size_t)head * dim, *values = keys + llama_kv_cols(l);
    for (uint32_t i = 0; i < span->n; i++) {
        const float *cos = l->cos + (size_t)(span->first + i) * l->rope.pairs;
        const float *sin = l->sin + (size_t)(span->first + i) * l->rope.pairs;
        k->rope_norm(first + i * row + (size_t)head * group * dim, group, dim, cos, sin,
                     l->rope.pairs);
        k->rope_norm(keys + i * row, 1, dim, cos, sin, l->rope.pairs);
        for (uint32_t h = 0; h < group && g->open_page > 0; h++)
            k->hadamard(first + i * row + ((size_t)head * group + h) * dim, dim);
        attention_prepare(&l->attention, span->first + i, head,
                          first + i * row + (size_t)head * group * dim);
        if (g->open_page == 0)
            continue;
        k->hadamard(keys + i * row, dim);
        k->hadamard(values + i * row, dim);
    }
    k->store_k[g->type](kv_geometry_k(g, span->page, layer, head), span->at, span->n, keys, row,
                        dim);
    k->store_v[g->type](kv_geometry_v(g, span->page, layer, head), span->at, span->n, values, row,
                        dim);
    if (g->open_page == 0)
        return;
    k->store_k[KV_F16](kv_geometry_open_k(g, span->open, layer, head), span->at, span->n, keys, row,
                       dim);
    k->store_v[KV_F16](kv_geometry_open_v(g, span->open, layer, head), span->at, span->n, values,
                       row, dim);
}

/* Writes K and V of all tokens, then lets `queries` attend. */
static void attend(const struct pass *p, uint32_t layer, const struct plan_queries *queries)
{
    const struct llama *l = p->l;
    const struct plan *plan = p->in->plan;
    uint32_t begin, end, q_cols = llama_q_cols(l);
    const struct attention_layer operands = {
        .step = p->in->step,
        .queries = queries,
        .layer = layer,
        .q = l->qkv,
        .ldq = q_cols + 2 * (size_t)llama_kv_cols(l),
        .out = l->mixed,
        .ldo = q_cols,
    };
    /* Where no token sees another one of this step, writing and attending are one stage; there, a span and a block
     * are a token each. */
    bool alone =
        queries->n_blocks == plan->n_spans && queries->n_tokens == p->n && plan->n_spans == p->n;
    if (alone && !attention_splits(&l->attention, queries)) {
        while (team_next(p->me, queries->n_items * l->kv_heads, 1, &begin, &end)) {
            const struct plan_item *item = &queries->items[begin / l->kv_heads];
            for (uint32_t i = item->first; i < item->first + item->n; i++)
                rotate_and_store(p, layer, queries->blocks[i].first, begin % l->kv_heads);
            attention_item(&l->attention, &operands, begin / l->kv_heads, begin % l->kv_heads,
                           p->me->index);
        }
        return;
    }
    while (team_next(p->me, plan->n_spans * l->kv_heads, 1, &begin, &end))
        rotate_and_store(p, layer, begin / l->kv_heads, begin % l->kv_heads);
    if (queries->n_tokens > 0)
        attention_stages(&l->attention, &operands, p->me);
}

/* From here on only the tokens that want logits go on: their rows move to the front. */
static void keep_asked(struct pass *p)
{
    const struct llama *l = p->l;
    const struct plan_queries *asked = &p->in->plan->asked;
    uint32_t begin, end, q_cols = llama_q_cols(l);
    while (team_next(p->me, 1, 1, &begin, &end))
        for (uint32_t i = 0; i < asked->n_tokens; i++) {
            size_t from = asked->tokens[i];
            if (from == i)
                continue;
            memcpy(l->x + i * (size_t)l->width, l->x + from * l->width, l->width * sizeof *l->x);
            memcpy(l->mixed + i * (size_t)q_cols, l->mixed + from * q_cols,
                   q_cols * sizeof *l->mixed);
        }
    p->n = asked->n_tokens;
    p->tokens = asked->tokens;
}

/* Attention; behind the last layer's, only rows whose logits are wanted go on. */
static void attend_layer(struct pass *p, uint32_t i)
{
    const struct plan *plan = p->in->plan;
    bool last = i + 1 == p->l->layers && plan->asked.n_tokens < p->n;
    attend(p, i, last ? &plan->asked : &plan->all);
    if (last)
        keep_asked(p);
}

static void run_layer(struct pass *p, uint32_t i)
{
    const struct llama *l = p->l;
    const struct llama_layer *layer = &l->layer[i];
    uint32_t q = llama_q_cols(l), kv = llama_kv_cols(l);
    size_t row = q + 2 * (size_t)kv;
    run_stage(p, &(struct stage){.source = SOURCE_NORM,
                                 .norm = layer->attn_norm,
                                 .cols = l->width,
                                 .n_products = 3,
                                 .products = {{&layer->q, l->qkv, row},
                                              {&layer->k, l->qkv + q, row},
                                              {&layer->v, l->qkv + q + kv, row}}});
    if (p->in != NULL)
        attend_layer(p, i);
    if (p->n == 0)
        return;
    run_stage(p, &(struct stage){.source = SOURCE_MIXED,
                                 .cols = q,
                                 .add = true,
                                 .n_products = 1,
                                 .products = {{&layer->output, l->x, l->width}}});
    run_ffn(p, layer);
}

void llama_step(void *state, const struct arch_step *in, struct team_member *me)
{
    const struct llama *l = state;
    struct pass p = {l, in, me, in->step->n_tokens, in->plan->all.tokens, l->threads};
    uint32_t begin, end;
    embed(&p);
    for (uint32_t i = 0; i < l->layers; i++)
        run_layer(&p, i);
    if (p.n == 0)
        return;
    run_stage(&p, &(struct stage){.source = SOURCE_NORM,
                                  .norm = l->output_norm,
                                  .cols = l->width,
                                  .n_products = 1,
                                  .products = {{&l->head, in->logits, in->logits_stride}}});
    while (in->hidden != NULL && team_next(me, p.n, 1, &begin, &end))
        l->kernels->rmsnorm(in->hidden + begin * (size_t)l->width, l->x + begin * (size_t)l->width,
                            l->output_norm, l->eps, l->width);
    while (team_next(me, p.n, 1, &begin, &end))
        if (!l->kernels->finite(in->logits + begin * in->logits_stride, l->head.rows))
            arch_fail(in->step, p.tokens[begin]);
}

void llama_multiply(void *state, uint32_t layers, struct team_member *me)
{
    const struct llama *l = state;
    struct pass p = {l, NULL, me, 1, NULL, l->threads};
    uint32_t begin, end;
    while (team_next(me, 1, 1, &begin, &end)) {
        memset(l->x, 0, l->width * sizeof *l->x);
        memset(l->mixed, 0, llama_q_cols(l) * sizeof *l->mixed);
    }
    for (uint32_t i = 0; i < layers; i++)
        run_layer(&p, i);
}
