/* The draft model's guesses with a trimmed head, and the rows of the text's own tokens beside it. */
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/block_table.h"
#include "core/base/xalloc.h"
#include "core/kernels/select.h"
#include "core/kernels/team.h"
#include "core/model/context_rows.h"
#include "core/spec/controller.h"
#include "core/spec/model_drafter.h"
#include "tests/unit/model/toy.h"
#include "tests/check_main.h"

enum { VOCAB = 700, MAPPED = 16, LENGTH = 40 };

static struct toy small_toy(enum weight_type type)
{
    struct toy t = toy_default();
    t.layers = 1;
    t.vocab = VOCAB;
    t.head = type;
    t.q = t.k = t.v = t.output = t.gate = t.up = t.down = WEIGHT_Q4_0;
    return t;
}

/* Every 43rd token from 5 on. */
static uint32_t mapped(uint32_t i)
{
    return 5 + 43 * i;
}

static bool is_mapped(uint32_t token)
{
    return token >= 5 && (token - 5) % 43 == 0 && (token - 5) / 43 < MAPPED;
}

static void add_map(struct gguf_builder *b)
{
    uint32_t map[MAPPED];
    for (uint32_t i = 0; i < MAPPED; i++)
        map[i] = mapped(i);
    builder_array(b, "tokenring.draft.token_map", GGUF_I32, map, MAPPED, sizeof *map);
}

/* A toy as the draft of itself. */
struct bench {
    struct gguf_builder builder, target_builder;
    struct gguf *gguf, *target;
    struct kernels kernels;
    struct team *team;
    struct model *model, *target_model;
    struct arena *arena;
    struct pages *pool;
    struct drafter *drafter;
    struct controller controller;
};

enum head { WHOLE, TRIMMED, OWN }; /* OWN: trimmed, of the draft's own table */

static void bench_open(struct bench *b, struct toy t, enum head head)
{
    struct error err = {0};
    memset(b, 0, sizeof *b);
    b->controller.always = DRAFT_MAX;
    b->target = toy_open(&t, &b->target_builder);
    t.more = head == WHOLE ? NULL : add_map;
    t.tied = head != OWN;
    t.skip = head == OWN ? NULL : "token_embd.weight";
    b->gguf = toy_open(&t, &b->builder);
    ck_assert_int_eq(kernels_select(NULL, &b->kernels, &err), STATUS_OK);
    ck_assert_int_eq(team_create(1, 0, &b->team, &err), STATUS_OK);
    struct model_options o = {.kernels = &b->kernels,
                              .team = b->team,
                              .kv_type = KV_F16,
                              .max_tokens = DRAFT_STEP_TOKENS};
    enum status status = model_load(b->target, &o, &b->target_model, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
    o.target = b->target_model;
    status = model_load(b->gguf, &o, &b->model, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
    size_t page = model_kv_geometry(b->model)->page;
    struct arena_options arena = {(size_t)64 << 20, &page, 1};
    ck_assert_int_eq(arena_create(&arena, &b->arena, &err), STATUS_OK);
    ck_assert_int_eq(pages_create(b->arena, page, &b->pool, &err), STATUS_OK);
    while (!pages_want(b->pool, 64))
        poll(NULL, 0, 1);
    b->drafter = model_drafter(b->model, &b->kernels, b->pool, pages_total(b->pool));
}

static void bench_close(struct bench *b)
{
    b->drafter->free(b->drafter);
    model_free(b->model);
    model_free(b->target_model);
    pages_free(b->pool);
    arena_free(b->arena);
    team_free(b->team);
    gguf_free(b->gguf);
    gguf_free(b->target);
    builder_release(&b->builder);
    builder_release(&b->target_builder);
}

static struct draft guess(struct bench *b, const uint32_t *tokens, uint32_t n, uint32_t most,
                          const struct sample_params *sampling)
{
    struct draft_text text = {.tokens = tokens, .n_tokens = n, .most = most, .sampling = sampling},
                      *texts[] = {&text};
    b->drafter->propose(b->drafter, texts, 1, &b->controller);
    b->drafter->finish(b->drafter, &text);
    ck_assert_uint_eq(text.draft.n, most);
    return text.draft;
}

static bool stands(const uint32_t *tokens, uint32_t n, uint32_t token)
{
    while (n > 0 && tokens[n - 1] != token)
        n--;
    return n > 0;
}

/* What the whole head would guess is guessed if it stands in the text, and nothing that neither the head nor
 * the text has. */
START_TEST(a_rare_token_of_the_text_is_proposed)
{
    struct bench whole, trimmed;
    struct sample_params sampling = sample_params_default();
    uint32_t tokens[LENGTH], found = 0;
    uint64_t seed = 3;
    sampling.temperature = _i == 0 ? 0 : 0.8f;
    sampling.seed = 77;
    bench_open(&whole, small_toy(WEIGHT_Q8_0), WHOLE);
    bench_open(&trimmed, small_toy(WEIGHT_Q8_0), TRIMMED);
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < LENGTH; i++)
            tokens[i] = toy_random(&seed) % VOCAB;
        uint32_t wanted = guess(&whole, tokens, LENGTH, 1, &sampling).tokens[0];
        uint32_t got = guess(&trimmed, tokens, LENGTH, 1, &sampling).tokens[0];
        ck_assert(is_mapped(got) || stands(tokens, LENGTH, got));
        if (is_mapped(wanted))
            continue;
        /* The window has the same tokens: so has the model's state, and its whole head the same guess. */
        uint32_t longer[LENGTH + DRAFT_WINDOW];
        for (uint32_t i = 0; i < DRAFT_WINDOW; i++)
            longer[LENGTH + i] = tokens[i % LENGTH];
        for (uint32_t i = 0; i < LENGTH; i++)
            longer[i] = mapped(i % MAPPED);
        wanted = guess(&whole, longer, LENGTH + DRAFT_WINDOW, 1, &sampling).tokens[0];
        if (is_mapped(wanted))
            continue;
        longer[3] = wanted;
        ck_assert_uint_eq(guess(&trimmed, longer, LENGTH + DRAFT_WINDOW, 1, &sampling).tokens[0],
                          wanted);
        found += !stands(longer + LENGTH, DRAFT_WINDOW, wanted);
    }
    ck_assert_uint_gt(found, 5);
    bench_close(&whole);
    bench_close(&trimmed);
}
END_TEST

/* Texts of one pass have rows of their own. */
START_TEST(texts_do_not_lend_each_other_rows)
{
    enum { TEXTS = 5 };
    struct bench b;
    struct sample_params sampling = sample_params_default();
    uint32_t tokens[TEXTS][LENGTH];
    struct draft alone[TEXTS];
    struct draft_text texts[TEXTS], *list[TEXTS];
    uint64_t seed = 9;
    sampling.temperature = 0;
    bench_open(&b, small_toy(WEIGHT_Q4_1), TRIMMED);
    for (uint32_t i = 0; i < TEXTS; i++) {
        for (uint32_t k = 0; k < LENGTH; k++)
            tokens[i][k] = toy_random(&seed) % VOCAB;
        texts[i] = (struct draft_text){
            .tokens = tokens[i], .n_tokens = LENGTH, .most = 4, .sampling = &sampling};
        list[i] = &texts[i];
        alone[i] = guess(&b, tokens[i], LENGTH, 4, &sampling);
    }
    b.drafter->propose(b.drafter, list, TEXTS, &b.controller);
    for (uint32_t i = 0; i < TEXTS; i++) {
        ck_assert_uint_eq(texts[i].draft.n, 4);
        ck_assert_mem_eq(texts[i].draft.tokens, alone[i].tokens, 4 * sizeof(uint32_t));
        b.drafter->finish(b.drafter, &texts[i]);
    }
    struct pages_counts counts;
    pages_counts(b.pool, &counts);
    ck_assert_uint_eq(counts.used + counts.reserved, 0);
    bench_close(&b);
}
END_TEST

/* A draft with tables of its own proposes what its map has. */
START_TEST(a_head_of_its_own)
{
    struct bench b;
    struct sample_params sampling = sample_params_default();
    uint32_t tokens[LENGTH], other = 0;
    uint64_t seed = 5;
    sampling.temperature = 0;
    bench_open(&b, small_toy(WEIGHT_Q8_0), OWN);
    for (int round = 0; round < 10; round++) {
        for (uint32_t i = 0; i < LENGTH; i++)
            tokens[i] = toy_random(&seed) % VOCAB;
        struct draft draft = guess(&b, tokens, LENGTH, 2, &sampling);
        ck_assert(is_mapped(draft.tokens[0]) && is_mapped(draft.tokens[1]));
        other += draft.tokens[0] != mapped(0);
    }
    ck_assert_uint_gt(other, 0);
    bench_close(&b);
}
END_TEST

/* For every type of weights: the whole head's bits, also after the first rows went. */
START_TEST(rows_are_the_heads)
{
    enum { COLS = 256, ADDED = CONTEXT_ROWS + 37 };
    enum weight_type type = (enum weight_type)_i;
    struct kernels k;
    struct error err = {0};
    struct toy t = small_toy(type);
    struct gguf_builder builder;
    struct gguf *g = toy_open(&t, &builder);
    struct matrix head;
    struct context_rows rows;
    ck_assert_int_eq(kernels_select(NULL, &k, &err), STATUS_OK);
    kernels_enter_thread();
    ck_assert_int_eq(gguf_map(g, &err), STATUS_OK);
    void *memory = xaligned(matrix_bytes(type, VOCAB, COLS));
    matrix_init(&head, type, VOCAB, COLS, memory, &err);
    ck_assert_int_eq(
        matrix_repack(&head, gguf_tensor(g, "output.weight")->data, 0, head.panels, &err),
        STATUS_OK);

    float hidden[COLS], *all = xaligned(VOCAB * sizeof *all), some[CONTEXT_ROWS];
    for (uint32_t i = 0; i < COLS; i++)
        hidden[i] = (float)((int)(i * 37 % 101) - 50) * 0.013f;
    struct acts acts = acts_make(weight_info(type)->acts, COLS,
                                 xaligned(acts_stride(weight_info(type)->acts, COLS)));
    ck_assert(k.pack[acts.kind](hidden, COLS, acts_column(&acts, 0)));
    k.product[type](&head, 0, head.panels, &acts, 0, 1, all, VOCAB, false);

    context_rows_init(&rows, &head);
    ck_assert(context_rows_logits(&rows, &k, hidden, acts.data, some));
    for (uint32_t n = 0; n < ADDED; n++) {
        context_rows_add(&rows, n * 11 % VOCAB);
        context_rows_add(&rows, n * 11 % VOCAB); /* is there */
        if (n % 31 != 5 && n + 1 != ADDED)
            continue;
        ck_assert_uint_eq(rows.set.n, n + 1 < CONTEXT_ROWS ? n + 1 : CONTEXT_ROWS);
        ck_assert(context_rows_logits(&rows, &k, hidden, acts.data, some));
        for (uint32_t i = 0; i < rows.set.n; i++) {
            ck_assert(stands(rows.set.tokens, rows.set.n, (n - i) * 11 % VOCAB));
            ck_assert(memcmp(&some[i], &all[rows.set.tokens[i]], sizeof *some) == 0);
        }
    }
    context_rows_release(&rows);
    free(acts.data);
    free(memory);
    free(all);
    gguf_free(g);
    builder_release(&builder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model drafter");
    TCase *cases = tcase_create("model drafter");
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, a_rare_token_of_the_text_is_proposed, 0, 2);
    tcase_add_test(cases, texts_do_not_lend_each_other_rows);
    tcase_add_test(cases, a_head_of_its_own);
    tcase_add_loop_test(cases, rows_are_the_heads, 0, WEIGHT_TYPES);
    suite_add_tcase(suite, cases);
    return check_run(suite);
}
