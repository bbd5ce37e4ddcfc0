/* Loading and its refusals; the step: the same bits whatever shares it, however it is cut, in every
 * tier; a sequence with a number that is not finite harms no other. */
#define _GNU_SOURCE /* mkstemp, truncate */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/block_table.h"
#include "core/base/xalloc.h"
#include "core/kernels/select.h"
#include "core/kernels/team.h"
#include "core/model/hash.h"
#include "core/model/session.h"
#include "tests/unit/model/toy.h"
#include "tests/check_main.h"

/* ---- geometry and hash ---- */

START_TEST(geometry)
{
    struct error err = {0};
    struct kv_geometry g;
    char *page = NULL;
    ck_assert_int_eq(kv_geometry_init(&g, KV_F16, 3, 2, 20, &err), STATUS_OK);
    ck_assert_uint_eq(g.tile, 1280);
    ck_assert_uint_eq(g.layer, 4 * 1280);
    ck_assert_uint_eq(g.page, 3 * 4 * 1280);
    ck_assert_ptr_eq(kv_geometry_k(&g, page, 0, 0), page);
    ck_assert_ptr_eq(kv_geometry_k(&g, page, 2, 1), page + 2 * g.layer + g.tile);
    ck_assert_ptr_eq(kv_geometry_v(&g, page, 1, 1), page + g.layer + 3 * g.tile);
    ck_assert_int_eq(kv_geometry_init(&g, KV_F32, 1, 1, 1, &err), STATUS_OK);
    ck_assert_uint_eq(g.tile, 128);
    ck_assert_int_eq(kv_geometry_init(&g, KV_F32, 0, 1, 1, &err), STATUS_UNSUPPORTED);
    ck_assert_int_eq(kv_geometry_init(&g, KV_F32, 60000, 60000, 1000, &err), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "1 GiB"));
    ck_assert_uint_eq(kv_geometry_pages(0), 0);
    ck_assert_uint_eq(kv_geometry_pages(32), 1);
    ck_assert_uint_eq(kv_geometry_pages(33), 2);

    enum kv_type type;
    ck_assert_int_eq(kv_geometry_type("f16", &type, &err), STATUS_OK);
    ck_assert_int_eq(type, KV_F16);
    ck_assert_int_eq(kv_geometry_type("q8_0", &type, &err), STATUS_OK);
    ck_assert_int_eq(type, KV_Q8_0);
    ck_assert_int_eq(kv_geometry_type("auto", &type, &err), STATUS_OK);
    ck_assert_int_eq(kv_geometry_init(&g, type, 3, 2, 31, &err), STATUS_OK);
    ck_assert_int_eq(g.type, KV_F16);
    ck_assert_int_eq(kv_geometry_init(&g, type, 3, 2, 32, &err), STATUS_OK);
    ck_assert_int_eq(g.type, KV_Q8_0);
    ck_assert_uint_eq(g.tile, kv_tile_bytes(KV_Q8_0, 32));
    ck_assert_int_eq(kv_geometry_type("q4", &type, &err), STATUS_OK);
    ck_assert_int_eq(kv_geometry_init(&g, type, 3, 2, 32, &err), STATUS_OK);
    ck_assert_uint_eq(g.tile, kv_tile_bytes(KV_Q4, 32));
    ck_assert_uint_eq(g.open_page, 3 * 2 * 2 * kv_tile_bytes(KV_F16, 32));
    ck_assert_ptr_eq(kv_geometry_open_v(&g, page, 2, 1), page + 11 * g.open_tile);
    ck_assert_int_eq(kv_geometry_type("f64", &type, &err), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "'f64'"));
}
END_TEST

START_TEST(hash)
{
    /* FNV-1a 64 of "", of the bytes 61 62 63 64 ("abcd"), and −0 as +0. */
    float abcd;
    memcpy(&abcd, "abcd", 4);
    ck_assert(logits_hash(LOGITS_HASH_START, NULL, 0) == 0xcbf29ce484222325u);
    ck_assert(logits_hash(LOGITS_HASH_START, &abcd, 1) == 0xfc179f83ee0724ddu);
    ck_assert(logits_hash(1, (float[]){-0.0f}, 1) == logits_hash(1, (float[]){0.0f}, 1));
    float row[] = {1, 2, 3};
    ck_assert(logits_hash(logits_hash(9, row, 1), row + 1, 2) == logits_hash(9, row, 3));
}
END_TEST

/* ---- refusals ---- */

static void expect_refusal(const struct toy *t, enum status status, const char *words)
{
    struct gguf_builder b;
    struct gguf *g = toy_open(t, &b);
    struct model_info info;
    struct error err = {0};
    ck_assert_int_eq(model_inspect(g, &info, &err), status);
    ck_assert_msg(strstr(err.text, words) != NULL, "'%s' does not say '%s'", err.text, words);
    gguf_free(g);
    builder_release(&b);
}

static void add_experts(struct gguf_builder *b)
{
    builder_u32(b, "llama.expert_count", 8);
}

static void add_bias(struct gguf_builder *b)
{
    builder_tensor(b, "blk.0.attn_q.bias", TENSOR_F32, 1, (uint64_t[]){256}, NULL, 1024);
}

static void add_longrope(struct gguf_builder *b)
{
    builder_str(b, "llama.rope.scaling.type", "longrope");
}

static void add_value_length(struct gguf_builder *b)
{
    builder_u32(b, "llama.attention.value_length", 32);
}

static void add_wide_rope(struct gguf_builder *b)
{
    builder_u32(b, "llama.rope.dimension_count", 66);
}

static void add_bad_base(struct gguf_builder *b)
{
    builder_f32(b, "llama.rope.freq_base", 0);
}

static void add_short_freqs(struct gguf_builder *b)
{
    builder_tensor(b, "rope_freqs.weight", TENSOR_F32, 1, (uint64_t[]){31}, NULL, 124);
}

static void add_zero_freqs(struct gguf_builder *b)
{
    builder_tensor(b, "rope_freqs.weight", TENSOR_F32, 1, (uint64_t[]){32}, NULL, 128);
}

START_TEST(refusals)
{
    static const char *const layer_parts[] = {"attn_norm", "attn_q",      "attn_k",
                                              "attn_v",    "attn_output", "ffn_norm",
                                              "ffn_gate",  "ffn_up",      "ffn_down"};
    for (size_t i = 0; i < sizeof layer_parts / sizeof *layer_parts; i++) {
        char name[64], words[128];
        struct toy t = toy_default();
        snprintf(name, sizeof name, "blk.1.%s.weight", layer_parts[i]);
        snprintf(words, sizeof words, "the model has no tensor %s", name);
        t.skip = name;
        expect_refusal(&t, STATUS_CORRUPT, words);
        t.skip = NULL;
        t.misfit = name;
        snprintf(words, sizeof words, "tensor %s has shape [%s", name,
                 strstr(name, "norm") != NULL ? "257], expected [256]" : "256, ");
        expect_refusal(&t, STATUS_CORRUPT, words);
    }
    struct toy t = toy_default();
    t.skip = "token_embd.weight";
    expect_refusal(&t, STATUS_CORRUPT, "no tensor token_embd.weight");
    t = toy_default();
    t.misfit = "output.weight";
    expect_refusal(&t, STATUS_CORRUPT,
                   "tensor output.weight has shape [256, 98], expected [256, 97]");
    t = toy_default();
    t.misfit = "blk.0.attn_k.weight";
    expect_refusal(&t, STATUS_CORRUPT, "[256, 129], expected [256, 128]");
    t = toy_default();
    t.retype = "blk.1.ffn_down.weight";
    t.type = 21;          /* IQ3_S */
    t.down = WEIGHT_Q3_K; /* the same block size */
    expect_refusal(&t, STATUS_UNSUPPORTED, "tensor blk.1.ffn_down.weight has type IQ3_S");

    static const char *const keys[] = {"llama.block_count", "llama.embedding_length",
                                       "llama.feed_forward_length", "llama.attention.head_count",
                                       "llama.context_length"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        t = toy_default();
        t.skip_key = keys[i];
        expect_refusal(&t, STATUS_CORRUPT, keys[i]);
    }
    t = toy_default();
    t.layers = 0;
    expect_refusal(&t, STATUS_CORRUPT, "llama.block_count is 0");
    t = toy_default();
    t.kv_heads = 3;
    expect_refusal(&t, STATUS_CORRUPT, "head_count 4 is no multiple of head_count_kv 3");

    static const struct {
        void (*more)(struct gguf_builder *b);
        enum status status;
        const char *words;
    } extras[] = {
        {add_experts, STATUS_UNSUPPORTED, "llama.expert_count is 8"},
        {add_bias, STATUS_UNSUPPORTED, "tensor blk.0.attn_q.bias"},
        {add_longrope, STATUS_UNSUPPORTED, "llama.rope.scaling.type 'longrope'"},
        {add_value_length, STATUS_UNSUPPORTED, "value_length 32 unlike key_length 64"},
        {add_wide_rope, STATUS_CORRUPT, "llama.rope.dimension_count 66"},
        {add_bad_base, STATUS_CORRUPT, "llama.rope.freq_base 0"},
        {add_short_freqs, STATUS_CORRUPT, "rope_freqs.weight has 31 numbers, expected 32"},
        {add_zero_freqs, STATUS_CORRUPT, "rope_freqs.weight: number 0"},
    };
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++) {
        t = toy_default();
        t.more = extras[i].more;
        expect_refusal(&t, extras[i].status, extras[i].words);
    }
}
END_TEST

START_TEST(other_architecture)
{
    struct gguf_builder b = {0};
    struct error err = {0};
    struct model_info info;
    builder_str(&b, "general.architecture", "mamba");
    struct gguf *g = builder_open(&b);
    ck_assert_int_eq(model_inspect(g, &info, &err), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "'mamba'"));
    gguf_free(g);
    builder_release(&b);
}
END_TEST

/* ---- a loaded toy with a pool ---- */

struct bench {
    struct gguf_builder builder;
    struct gguf *gguf;
    struct session s; /* without a file: filled by hand */
};

/* b->gguf is open, all else zero. */
static void bench_load(struct bench *b, const struct toy *t, const char *tier, uint32_t threads,
                       enum kv_type kv)
{
    struct error err = {0};
    ck_assert_int_eq(kernels_select(tier, &b->s.kernels, &err), STATUS_OK);
    ck_assert_int_eq(team_create(threads, 0, &b->s.team, &err), STATUS_OK);
    struct model_options options = {
        .kernels = &b->s.kernels, .team = b->s.team, .kv_type = kv, .max_tokens = 512};
    enum status status = model_load(b->gguf, &options, &b->s.model, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
    size_t page = model_kv_geometry(b->s.model)->page;
    struct arena_options arena = {(size_t)128 << 20, &page, 1};
    status = arena_create(&arena, &b->s.arena, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
    ck_assert_int_eq(pages_create(b->s.arena, page, &b->s.pool, &err), STATUS_OK);
    pages_set_open(b->s.pool, model_kv_geometry(b->s.model)->open_page);
    block_table_init(&b->s.table, b->s.pool);
    b->s.context = t->context;
}

static void bench_open(struct bench *b, const struct toy *t, const char *tier, uint32_t threads,
                       enum kv_type kv)
{
    memset(b, 0, sizeof *b);
    b->gguf = toy_open(t, &b->builder);
    bench_load(b, t, tier, threads, kv);
}

static void bench_close(struct bench *b)
{
    session_close(&b->s);
    gguf_free(b->gguf);
    builder_release(&b->builder);
}

static float *rows_of(const struct bench *b, uint32_t n)
{
    return xaligned((size_t)n * model_logits_stride(b->s.model) * sizeof(float));
}

/* Logits of every token of a text, fed in chunks. */
static float *feed(struct bench *b, const uint32_t *tokens, uint32_t n, uint32_t chunk)
{
    struct error err = {0};
    float *rows = rows_of(b, n);
    session_reset(&b->s);
    ck_assert_int_eq(session_feed(&b->s, tokens, n, chunk, SESSION_LOGITS_ALL, rows, &err),
                     STATUS_OK);
    return rows;
}

static void make_text(uint32_t *tokens, uint32_t n, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = toy_random(&seed) % vocab;
}

static struct toy mixed_toy(void)
{
    struct toy t = toy_default();
    t.embedding = WEIGHT_Q5_1;
    t.q = WEIGHT_Q4_0;
    t.k = WEIGHT_Q4_1;
    t.v = WEIGHT_F16;
    t.output = WEIGHT_Q5_0;
    t.gate = WEIGHT_Q4_K;
    t.up = WEIGHT_Q5_K;
    t.down = WEIGHT_Q6_K;
    t.head = WEIGHT_Q8_0;
    return t;
}

/* The types with tables and with two and three bits. */
static struct toy small_types_toy(void)
{
    struct toy t = toy_default();
    t.embedding = WEIGHT_Q2_K;
    t.q = WEIGHT_IQ4_NL;
    t.k = t.v = WEIGHT_MXFP4;
    t.output = t.head = WEIGHT_IQ4_XS;
    t.gate = t.up = WEIGHT_Q2_K;
    t.down = WEIGHT_Q3_K;
    return t;
}

/* Small, of types with fast kernels. */
static struct toy quick_toy(void)
{
    struct toy t = toy_default();
    t.width = t.ffn = 64;
    t.head_size = 16;
    t.q = t.k = t.v = t.output = WEIGHT_Q4_1;
    t.gate = t.up = WEIGHT_Q4_0;
    t.down = t.head = WEIGHT_Q8_0;
    return t;
}

enum { TEXT = 300 }; /* two runs of attention */

static void assert_same(const struct bench *b, const float *want, const float *have, uint32_t n)
{
    uint32_t stride = model_logits_stride(b->s.model), vocab = model_info(b->s.model)->vocab;
    for (uint32_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(want + i * stride, have + i * stride, vocab * sizeof(float)) == 0,
                      "row %u", i);
}

static const enum kv_type rounded[] = {KV_F16, KV_Q8_0, KV_Q4};

START_TEST(same_bits_however_cut)
{
    static const uint32_t chunks[] = {1, 7, 64, 512};
    static const char *const tiers[] = {"scalar", "avx2", "avxvnni", "avx512", "amx"};
    struct toy t = _i == 0 ? mixed_toy() : small_types_toy();
    uint32_t tokens[TEXT];
    t.layers = 1;
    float *want = NULL;
    make_text(tokens, TEXT, t.vocab, 5);
    for (size_t tier = 0; tier < sizeof(tiers) / sizeof(tiers[0]); tier++)
        for (uint32_t threads = 1; threads <= 2; threads++) {
            if (!kernels_tier_present(tiers[tier]))
                continue;
            struct bench b;
            bench_open(&b, &t, tiers[tier], threads, rounded[_i]);
            for (size_t c = 0; c < 4; c++) {
                /* The scalar tier is slow: once is enough for its cut and its threads. */
                if (tier == 0 && want != NULL && !(threads == 2 && c == 2))
                    continue;
                float *rows = feed(&b, tokens, TEXT, chunks[c]);
                if (want != NULL) {
                    assert_same(&b, want, rows, TEXT);
                    free(rows);
                } else {
                    want = rows;
                }
            }
            bench_close(&b);
        }
    free(want);
}
END_TEST

/* Long steps multiply gate and up by rows and tokens and pack them at once, short ones do not: as many rows as that takes
 * with two threads, the last ones fewer than an item's, for every kind of activations. */
START_TEST(same_bits_of_gated_rows)
{
    static const struct {
        enum weight_type down;
        uint32_t ffn;
    } cases[] = {{WEIGHT_Q4_1, 1632}, {WEIGHT_Q6_K, 1792}, {WEIGHT_F16, 1632}};
    static const char *const tiers[] = {"avx2", "avx512", "amx"};
    struct toy t = quick_toy();
    uint32_t tokens[TEXT];
    t.layers = 1;
    t.down = cases[_i].down;
    t.ffn = cases[_i].ffn;
    make_text(tokens, TEXT, t.vocab, 6);
    for (size_t tier = 0; tier < sizeof(tiers) / sizeof(tiers[0]); tier++)
        for (uint32_t threads = 1; threads <= 2; threads++) {
            if (tier > 0 && !kernels_tier_present(tiers[tier]))
                continue;
            struct bench b;
            bench_open(&b, &t, kernels_tier_present(tiers[tier]) ? tiers[tier] : "scalar", threads,
                       KV_F16);
            float *want = feed(&b, tokens, TEXT, 50);
            float *rows = feed(&b, tokens, TEXT, 512);
            assert_same(&b, want, rows, TEXT);
            free(want);
            free(rows);
            bench_close(&b);
        }
}
END_TEST

/* Five runs of attention, runs as items of their own, and steps where only some tokens want logits. */
START_TEST(long_context)
{
    enum { LONG = 1024 };
    struct toy t = quick_toy();
    struct bench one, two;
    struct error err = {0};
    uint32_t tokens[LONG];
    make_text(tokens, LONG, t.vocab, 8);
    bench_open(&one, &t, NULL, 1, rounded[_i]);
    bench_open(&two, &t, NULL, 2, rounded[_i]);
    float *want = feed(&one, tokens, LONG, 512), *have = feed(&two, tokens, LONG, 37);
    assert_same(&one, want, have, LONG);
    free(have);
    have = feed(&two, tokens, LONG, 1);
    assert_same(&one, want, have, LONG);

    float *row = rows_of(&two, 1);
    uint32_t stride = model_logits_stride(two.s.model), vocab = t.vocab;
    session_reset(&two.s);
    for (uint32_t done = 0, n = 1; done < LONG; done += n, n = n * 3 % 509) {
        n = n < LONG - done ? n : LONG - done;
        enum session_logits which = n % 4 == 1 ? SESSION_LOGITS_NONE : SESSION_LOGITS_LAST;
        ck_assert_int_eq(session_feed(&two.s, tokens + done, n, 0, which, row, &err), STATUS_OK);
        if (which == SESSION_LOGITS_LAST)
            ck_assert(memcmp(row, want + (size_t)(done + n - 1) * stride, vocab * sizeof(float)) ==
                      0);
    }
    free(row);
    free(want);
    free(have);
    bench_close(&one);
    bench_close(&two);
}
END_TEST

/* One sequence among others: prefill chunks, decodes and a fork in the same steps. */
START_TEST(same_bits_whatever_shares_the_step)
{
    enum { OTHERS = 16 };
    struct toy t = quick_toy();
    uint32_t tokens[TEXT], other[TEXT];
    struct bench b;
    make_text(tokens, TEXT, t.vocab, 5);
    make_text(other, TEXT, t.vocab, 6);
    bench_open(&b, &t, NULL, 2, rounded[_i]);
    uint32_t stride = model_logits_stride(b.s.model);
    float *want = feed(&b, tokens, TEXT, 512);
    float *rows = rows_of(&b, OTHERS + 1), *have = rows_of(&b, TEXT);
    struct block_table tables[OTHERS + 1];
    uint64_t seed = 3;
    for (uint32_t s = 0; s <= OTHERS; s++)
        block_table_init(&tables[s], b.s.pool);
    for (uint32_t done = 0; done < TEXT;) {
        struct step_token step_tokens[512];
        struct step_sequence sequences[OTHERS + 1];
        uint32_t n = 0, mine = 1 + toy_random(&seed) % 3;
        mine = mine < TEXT - done ? mine : TEXT - done;
        uint32_t place = toy_random(&seed) % (OTHERS + 1), row = 0, my_row = 0;
        for (uint32_t s = 0; s <= OTHERS; s++) {
            bool me = s == place;
            struct block_table *table = &tables[me ? OTHERS : s < place ? s : s - 1];
            uint32_t count = me ? mine : toy_random(&seed) % 4 == 0 ? 9 : toy_random(&seed) % 2;
            if (!me && table->n_positions + count > TEXT)
                block_table_truncate(
                    table, rounded[_i] == KV_Q4 ? 32 : 40); /* q4: no page half way back */
            ck_assert(session_append(&b.s, table, count));
            for (uint32_t i = 0; i < count; i++) {
                uint32_t position = table->n_positions - count + i;
                bool wanted = me ? i == count - 1 : toy_random(&seed) % 3 == 0 && i == 0;
                step_tokens[n++] = (struct step_token){me ? tokens[position] : other[position],
                                                       position, s, wanted};
                my_row = me && wanted ? row : my_row;
                row += wanted;
            }
            sequences[s] = session_sequence(table);
            sequences[s].failed = true;
        }
        struct step step = {step_tokens, n, sequences, OTHERS + 1, b.s.pool};
        model_step(b.s.model, &step, rows);
        for (uint32_t s = 0; s <= OTHERS; s++)
            ck_assert(!sequences[s].failed);
        done += mine;
        ck_assert(memcmp(rows + (size_t)my_row * stride, want + (size_t)(done - 1) * stride,
                         t.vocab * sizeof(float)) == 0);
    }
    for (uint32_t s = 0; s <= OTHERS; s++)
        block_table_release(&tables[s]);
    free(want);
    free(have);
    free(rows);
    bench_close(&b);
}
END_TEST

/* Attention variants and shapes that are no multiple of anything. */
/* ---- shared pages ---- */

enum { FAMILY = 10, LONGEST = 1100 };

/* Feeds tokens [from, to) of a text to a sequence, without logits. */
static void advance(struct bench *b, struct block_table *table, const uint32_t *text, uint32_t from,
                    uint32_t to)
{
    struct step_token tokens[512];
    ck_assert(session_append(&b->s, table, to - from));
    while (from < to) {
        uint32_t n = to - from < 512 ? to - from : 512;
        for (uint32_t i = 0; i < n; i++)
            tokens[i] = (struct step_token){.token = text[from + i], .position = from + i};
        struct step_sequence sequence = session_sequence(table);
        struct step step = {tokens, n, &sequence, 1, b->s.pool};
        model_step(b->s.model, &step, NULL);
        from += n;
    }
}

/* A sequence begins with the first `common` tokens of another one and goes on by itself to `length`. */
struct relative {
    uint32_t of, common, length;
};

/* Pages that the last tokens read in a step of one thread: of the whole runs before its last one, a sequence reads
 * those that no relative read. */
static uint64_t pages_read(const struct block_table *tables, uint32_t n)
{
    uint64_t pages = 0;
    for (uint32_t s = 0; s < n; s++) {
        uint32_t runs = (tables[s].n_positions - 1) / KV_RUN_POSITIONS, most = 0;
        for (uint32_t other = 0; other < s; other++) {
            uint32_t its = (tables[other].n_positions - 1) / KV_RUN_POSITIONS, same = 0;
            while (same < runs && same < its &&
                   memcmp(tables[s].ids + 8 * same, tables[other].ids + 8 * same,
                          8 * sizeof(uint32_t)) == 0)
                same++;
            most = same > most ? same : most;
        }
        pages += tables[s].n_pages - 8 * most;
    }
    return pages;
}

/* Decoding sequences that share pages reads them once, and gives the bits that each gives alone. */
START_TEST(shared_pages_are_read_once)
{
    static const struct relative family[FAMILY] = {
        {0, 0, 620},   {0, 608, 625}, {0, 608, 1100}, {2, 992, 1001}, {2, 992, 1060},
        {0, 256, 300}, {0, 0, 40},    {7, 0, 700},    {7, 672, 690},  {0, 608, 609},
    };
    static const uint32_t threads[] = {1, 2, 3};
    struct toy t = quick_toy();
    struct bench b;
    uint32_t texts[FAMILY][LONGEST];
    t.context = LONGEST;
    bench_open(&b, &t, NULL, threads[_i % 3], rounded[_i / 3]);
    const struct kv_geometry *g = model_kv_geometry(b.s.model);
    uint32_t stride = model_logits_stride(b.s.model);
    float *want = rows_of(&b, FAMILY), *rows = rows_of(&b, FAMILY);
    struct block_table tables[FAMILY];
    struct step_token tokens[FAMILY];
    struct step_sequence sequences[FAMILY];
    uint64_t alone = 0;
    for (uint32_t s = 0; s < FAMILY; s++) {
        const struct relative *r = &family[s];
        make_text(texts[s], LONGEST, t.vocab, 20 + s);
        memcpy(texts[s], texts[r->of], r->common * sizeof(uint32_t));
        block_table_init(&tables[s], b.s.pool);
        for (uint32_t i = 0; i < r->common / KV_TILE_POSITIONS; i++)
            block_table_adopt(&tables[s], tables[r->of].ids[i]);
        advance(&b, &tables[s], texts[s], r->common, r->length - 1);
        ck_assert(session_append(&b.s, &tables[s], 1));
        tokens[s] = (struct step_token){texts[s][r->length - 1], r->length - 1, s, true};
        sequences[s] = session_sequence(&tables[s]);
    }
    for (uint32_t s = 0; s < FAMILY; s++) { /* without the others, which share its pages */
        float *row = feed(&b, texts[s], family[s].length, 512);
        memcpy(want + s * stride, row + (family[s].length - 1) * (size_t)stride,
               stride * sizeof(float));
        free(row);
        struct step_token token = tokens[s];
        token.sequence = 0;
        struct step step = {&token, 1, &sequences[s], 1, b.s.pool};
        model_step(b.s.model, &step, rows);
        alone += model_kv_read(b.s.model);
    }
    for (uint32_t n = 2; n <= FAMILY; n++) {
        struct step step = {tokens, n, sequences, n, b.s.pool};
        model_step(b.s.model, &step, rows);
        assert_same(&b, want, rows, n);
        if (threads[_i % 3] == 1)
            ck_assert_uint_eq(model_kv_read(b.s.model), pages_read(tables, n) * g->page);
    }
    ck_assert_uint_lt(model_kv_read(b.s.model), alone);
    for (uint32_t s = 0; s < FAMILY; s++)
        block_table_release(&tables[s]);
    free(want);
    free(rows);
    bench_close(&b);
}
END_TEST

/* The head times the hidden rows is the logits, but for the rounding of activations to 8 bits; only
 * wanted tokens have rows. */
/* Streams of weights change no bit of steps with one, two or three tokens; the measured number is one of them. */
START_TEST(same_bits_in_every_number_of_streams)
{
    struct toy t = _i == 0 ? mixed_toy() : small_types_toy();
    struct bench b;
    uint32_t tokens[12], number = 9;
    struct error err = {0};
    double seconds[3] = {-1, -1, -1};
    make_text(tokens, 12, t.vocab, 5);
    bench_open(&b, &t, NULL, 2, KV_F16);
    ck_assert_uint_eq(b.s.kernels.streams, 1);
    float *want = feed(&b, tokens, 12, 12);
    for (uint32_t streams = 1; streams <= 4; streams *= 2)
        for (uint32_t chunk = 1; chunk <= 3; chunk++) {
            b.s.kernels.streams = streams;
            float *rows = feed(&b, tokens, 12, chunk);
            assert_same(&b, want, rows, 12);
            free(rows);
        }
    model_choose_streams(b.s.model, &b.s.kernels, seconds);
    ck_assert(b.s.kernels.streams == 1 || b.s.kernels.streams == 2 || b.s.kernels.streams == 4);
    for (int i = 0; i < 3; i++)
        ck_assert(kernels_tier_present("avx2") ? seconds[i] > 0 : seconds[i] == 0);
    float *rows = feed(&b, tokens, 12, 1); /* nothing is left of the measuring */
    assert_same(&b, want, rows, 12);
    free(rows);
    ck_assert_int_eq(model_streams_parse("auto", &number, &err), STATUS_OK);
    ck_assert_uint_eq(number, 0);
    ck_assert_int_eq(model_streams_parse("4", &number, &err), STATUS_OK);
    ck_assert_uint_eq(number, 4);
    ck_assert_int_eq(model_streams_parse("3", &number, &err), STATUS_INVALID);
    free(want);
    bench_close(&b);

    t.no_epsilon = true; /* norms of the zeros that are multiplied are no numbers */
    bench_open(&b, &t, NULL, 2, KV_F16);
    model_choose_streams(b.s.model, &b.s.kernels, seconds);
    bench_close(&b);

    bench_open(&b, &t, "scalar", 1, KV_F16); /* has but one */
    model_choose_streams(b.s.model, &b.s.kernels, seconds);
    ck_assert(b.s.kernels.streams == 1 && seconds[0] == 0 && seconds[2] == 0);
    bench_close(&b);
}
END_TEST

START_TEST(hidden_states)
{
    enum { TOKENS = 9, EVERY = 3, ROWS = TOKENS / EVERY };
    struct toy t = quick_toy();
    t.tied = true;
    struct bench b;
    bench_open(&b, &t, "scalar", 2, KV_F16);
    struct step_token tokens[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] =
            (struct step_token){.token = i * 5, .position = i, .logits = i % EVERY == EVERY - 1};
    ck_assert(session_append(&b.s, &b.s.table, TOKENS));
    struct step_sequence sequence = session_sequence(&b.s.table);
    struct step step = {tokens, TOKENS, &sequence, 1, b.s.pool};
    uint32_t stride = model_logits_stride(b.s.model);
    float *logits = rows_of(&b, ROWS), *same = rows_of(&b, ROWS);
    float hidden[ROWS + 1][64], row[64];
    hidden[ROWS][0] = 12345;
    model_step_hidden(b.s.model, &step, logits, hidden[0]);
    model_step(b.s.model, &step, same);
    assert_same(&b, same, logits, ROWS);
    ck_assert_float_eq(hidden[ROWS][0], 12345);
    const struct gguf_tensor *head = gguf_tensor(b.gguf, "token_embd.weight");
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t v = 0; v < t.vocab; v++) {
            float dot = 0;
            dequantise_row(t.embedding, (const uint8_t *)head->data + v * head->bytes / t.vocab, 64,
                           row);
            for (uint32_t i = 0; i < 64; i++)
                dot += row[i] * hidden[r][i];
            ck_assert_float_eq_tol(dot, logits[r * stride + v], 2e-3f);
        }
    free(logits);
    free(same);
    bench_close(&b);
}
END_TEST

START_TEST(odd_shapes)
{
    static const struct {
        uint32_t heads, kv_heads, head_size, width, ffn;
        bool tied;
    } shapes[] = {{4, 4, 16, 64, 96, true},   /* multi-head */
                  {6, 1, 20, 96, 160, false}, /* multi-query */
                  {5, 5, 10, 50, 70, false},
                  {9, 3, 64, 576, 64, true}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct toy t = toy_default();
        t.heads = shapes[i].heads;
        t.kv_heads = shapes[i].kv_heads;
        t.head_size = shapes[i].head_size;
        t.width = shapes[i].width;
        t.ffn = shapes[i].ffn;
        t.tied = shapes[i].tied;
        t.vocab = 33;
        uint32_t tokens[70];
        float *want = NULL;
        make_text(tokens, 70, t.vocab, i);
        for (int tier = 0; tier < 2; tier++) {
            struct bench b;
            bench_open(&b, &t, tier == 0 ? "scalar" : NULL, 2, _i == 0 ? KV_F32 : KV_Q8_0);
            float *rows = feed(&b, tokens, 70, tier == 0 ? 1 : 70);
            if (want != NULL)
                assert_same(&b, want, rows, 70);
            bench_close(&b);
            if (tier == 0)
                want = rows;
            else
                free(rows);
        }
        free(want);
    }
}
END_TEST

/* An embedding row that is not finite fails its sequence alone. */
START_TEST(failure_stays_in_its_sequence)
{
    struct toy t = quick_toy();
    struct bench b;
    uint32_t tokens[40];
    make_text(tokens, 40, 90, 9);
    t.bad_row = 95;
    bench_open(&b, &t, NULL, 2, KV_F32);
    uint32_t stride = model_logits_stride(b.s.model);
    float *want = feed(&b, tokens, 40, 40);
    for (uint32_t n = 1; n <= 6; n += 5) { /* packed by each thread, and together */
        struct step_token step_tokens[82];
        struct step_sequence sequences[2 * 6];
        struct block_table tables[2 * 6];
        float *rows = rows_of(&b, 12);
        for (uint32_t s = 0; s < 2 * n; s++) {
            block_table_init(&tables[s], b.s.pool);
            ck_assert(session_append(&b.s, &tables[s], 40));
            for (uint32_t i = 0; i < 40; i++) {
                step_tokens[0] = (struct step_token){tokens[i], i, 0, false};
                sequences[0] = session_sequence(&tables[s]);
                if (i == 39)
                    continue;
                struct step one = {step_tokens, 1, sequences, 1, b.s.pool};
                model_step(b.s.model, &one, NULL);
                ck_assert(!sequences[0].failed);
            }
        }
        for (uint32_t s = 0; s < 2 * n; s++) {
            step_tokens[s] = (struct step_token){s % 2 ? 95 : tokens[39], 39, s, true};
            sequences[s] = session_sequence(&tables[s]);
        }
        struct step step = {step_tokens, 2 * n, sequences, 2 * n, b.s.pool};
        model_step(b.s.model, &step, rows);
        for (uint32_t s = 0; s < 2 * n; s++) {
            ck_assert(sequences[s].failed == (s % 2 == 1));
            if (s % 2 == 0)
                ck_assert(memcmp(rows + s * stride, want + 39 * stride, t.vocab * sizeof(float)) ==
                          0);
            block_table_release(&tables[s]);
        }
        free(rows);
    }
    free(want);
    bench_close(&b);
}
END_TEST

static bool count_progress(void *data, double done)
{
    double *last = data;
    ck_assert(done >= last[0] && done <= 1);
    last[0] = done;
    last[1]++;
    return last[2] == 0 || done < last[2];
}

START_TEST(progress_and_cancel)
{
    struct toy t = mixed_toy();
    t.vocab = 3000;
    struct gguf_builder builder;
    struct gguf *g = toy_open(&t, &builder);
    struct kernels kernels;
    struct team *team;
    struct model *model;
    struct error err = {0};
    double seen[3] = {0, 0, 0};
    ck_assert_int_eq(kernels_select(NULL, &kernels, &err), STATUS_OK);
    ck_assert_int_eq(team_create(2, 0, &team, &err), STATUS_OK);
    struct model_options options = {
        .kernels = &kernels, .team = team, .progress = count_progress, .progress_data = seen};
    ck_assert_int_eq(model_load(g, &options, &model, &err), STATUS_OK);
    ck_assert(seen[0] > 0.99 && seen[1] >= 50);
    const struct model_info *info = model_info(model);
    ck_assert_str_eq(info->arch, "llama");
    ck_assert_uint_eq(info->vocab, 3000);
    ck_assert_uint_eq(info->parameters,
                      2 * 3000 * 256 + 256 +
                          2 * (2 * 256 + 3 * 256 * 256 + 2 * 128 * 256 + 2 * 256 * 256));
    ck_assert_uint_ge(model_memory(model), info->weight_bytes);
    model_free(model);

    seen[0] = seen[1] = 0;
    seen[2] = 0.5;
    ck_assert_int_eq(model_load(g, &options, &model, &err), STATUS_CANCELLED);
    ck_assert_ptr_null(model);
    seen[0] = seen[2] = 0;
    options.context = 1025;
    ck_assert_int_eq(model_load(g, &options, &model, &err), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "1025"));
    team_free(team);
    gguf_free(g);
    builder_release(&builder);
}
END_TEST

static bool shorten(void *path, double done)
{
    if (done > 0.3)
        ck_assert_int_eq(truncate(path, 3000), 0);
    return true;
}

/* A file that becomes shorter during the load is refused with tensor and place; when it is loaded,
 * nothing of the file is needed. */
START_TEST(a_file_that_becomes_shorter)
{
    struct toy t = mixed_toy();
    t.tied = _i == 1;
    t.vocab = 3000;
    struct bench memory, file = {0};
    struct error err = {0};
    struct model *model;
    char path[] = "/tmp/test_model.XXXXXX", text[100];
    uint32_t tokens[40];
    make_text(tokens, 40, t.vocab, 11);
    bench_open(&memory, &t, NULL, 2, KV_F32);
    int fd = mkstemp(path);
    struct buffer *bytes = &memory.builder.out;
    ck_assert_int_eq(write(fd, bytes->ptr, bytes->len), (ssize_t)bytes->len);
    ck_assert_int_eq(gguf_open(path, &file.gguf, &err), STATUS_OK);
    bench_load(&file, &t, NULL, 2, KV_F32);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    float *want = feed(&memory, tokens, 40, 40), *have = feed(&file, tokens, 40, 40);
    assert_same(&memory, want, have, 40);
    free(want);
    free(have);
    bench_close(&file);

    ck_assert_int_eq(pwrite(fd, bytes->ptr, bytes->len, 0), (ssize_t)bytes->len);
    ck_assert_int_eq(gguf_open(path, &file.gguf, &err), STATUS_OK);
    struct model_options options = {.kernels = &memory.s.kernels,
                                    .team = memory.s.team,
                                    .progress = shorten,
                                    .progress_data = path};
    ck_assert_int_eq(model_load(file.gguf, &options, &model, &err), STATUS_CORRUPT);
    snprintf(text, sizeof text, "%s: the file ends at byte 3000,", path);
    ck_assert_msg(strstr(err.text, text) != NULL && strncmp(err.text, "tensor ", 7) == 0, "%s",
                  err.text);
    gguf_free(file.gguf);
    bench_close(&memory);
    close(fd);
    unlink(path);
}
END_TEST

/* A scale that is not finite is found while repacking, and named. */
START_TEST(bad_weights)
{
    struct toy t = mixed_toy();
    struct gguf_builder builder;
    struct gguf *g = toy_open(&t, &builder);
    uint8_t *data = (uint8_t *)(uintptr_t)gguf_tensor(g, "blk.1.attn_q.weight")->data;
    memcpy(data + 18 * 100, (uint16_t[]){0x7e00}, 2);
    struct kernels kernels;
    struct team *team;
    struct model *model;
    struct error err = {0};
    ck_assert_int_eq(kernels_select(NULL, &kernels, &err), STATUS_OK);
    ck_assert_int_eq(team_create(2, 0, &team, &err), STATUS_OK);
    struct model_options options = {.kernels = &kernels, .team = team};
    ck_assert_int_eq(model_load(g, &options, &model, &err), STATUS_CORRUPT);
    ck_assert_msg(strstr(err.text, "tensor blk.1.attn_q.weight: ") != NULL, "%s", err.text);
    team_free(team);
    gguf_free(g);
    builder_release(&builder);
}
END_TEST

/* A draft's head is not planned with its other weights, but its rows are the vocabulary's, too. */
START_TEST(a_draft_with_another_head)
{
    struct toy t = mixed_toy();
    struct gguf_builder builder, short_builder;
    struct gguf *target = toy_open(&t, &builder);
    t.tied = false;
    t.misfit = "output.weight";
    struct gguf *draft = toy_open(&t, &short_builder);
    struct kernels kernels;
    struct team *team;
    struct model *model, *its;
    struct error err = {0};
    ck_assert_int_eq(kernels_select(NULL, &kernels, &err), STATUS_OK);
    ck_assert_int_eq(team_create(1, 0, &team, &err), STATUS_OK);
    struct model_options options = {.kernels = &kernels, .team = team};
    ck_assert_int_eq(model_load(target, &options, &its, &err), STATUS_OK);
    options.target = its;
    ck_assert_int_eq(model_load(draft, &options, &model, &err), STATUS_CORRUPT);
    ck_assert_msg(strstr(err.text, "98 rows for 97 tokens") != NULL, "%s", err.text);
    model_free(its);
    team_free(team);
    gguf_free(draft);
    gguf_free(target);
    builder_release(&short_builder);
    builder_release(&builder);
}
END_TEST

/* What a draft's head takes is what its type takes: the target's where the draft has no own tables. */
START_TEST(memory_of_a_draft)
{
    const struct {
        enum weight_type type;
        uint32_t row; /* bytes of 256 numbers in panels */
    } heads[] = {{WEIGHT_F32, 1024}, {WEIGHT_F16, 512}, {WEIGHT_Q8_0, 272}, {WEIGHT_Q4_0, 144}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (int own = 0; own < 2; own++) {
            struct toy t = mixed_toy();
            struct gguf_builder builder, draft_builder;
            struct model_info info;
            struct error err = {0};
            t.tied = false;
            t.head = heads[i].type;
            struct gguf *target = toy_open(&t, &builder);
            t.skip = own ? NULL : "token_embd.weight";
            if (!own)
                t.head = WEIGHT_Q4_0; /* left aside */
            struct gguf *draft = toy_open(&t, &draft_builder);
            ck_assert_int_eq(model_inspect_draft(draft, target, &info, &err), STATUS_OK);
            ck_assert_uint_eq(info.head_row, heads[i].row);
            size_t others = info.weight_bytes + info.table_bytes;
            /* 97 tokens are 112 rows of whole panels */
            ck_assert_uint_eq(model_draft_memory(&info, 32), others + 144u * heads[i].row);
            gguf_free(draft);
            gguf_free(target);
            builder_release(&draft_builder);
            builder_release(&builder);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model");
    TCase *c = tcase_create("model"), *slow = tcase_create("slow");
    tcase_set_timeout(c, 60);
    tcase_set_timeout(slow, 60);
    tcase_set_tags(slow, "slow"); /* left out under ThreadSanitizer, where they take a minute */
    tcase_add_test(c, geometry);
    tcase_add_test(c, hash);
    tcase_add_test(slow, refusals);
    tcase_add_test(c, other_architecture);
    tcase_add_loop_test(slow, same_bits_however_cut, 0, 3);
    tcase_add_loop_test(slow, same_bits_of_gated_rows, 0, 3);
    tcase_add_loop_test(c, long_context, 0, 3);
    tcase_add_loop_test(c, same_bits_whatever_shares_the_step, 0, 3);
    tcase_add_loop_test(c, shared_pages_are_read_once, 0, 9);
    tcase_add_loop_test(c, same_bits_in_every_number_of_streams, 0, 2);
    tcase_add_test(c, hidden_states);
    tcase_add_loop_test(slow, odd_shapes, 0, 2);
    tcase_add_test(c, failure_stays_in_its_sequence);
    tcase_add_test(c, progress_and_cancel);
    tcase_add_test(c, bad_weights);
    tcase_add_loop_test(c, a_file_that_becomes_shorter, 0, 2);
    tcase_add_test(c, a_draft_with_another_head);
    tcase_add_test(c, memory_of_a_draft);
    suite_add_tcase(suite, c);
    suite_add_tcase(suite, slow);
    return check_run(suite);
}
