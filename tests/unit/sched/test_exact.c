/* Exactness with a real model: tokens and logits hashes of a generation are the same alone, among
 * 16 others, for every prefill chunk and number of threads, with a cold and a warm prefix cache,
 * when it was preempted, as a choice among several, and with drafts that are right, wrong or both.
 *
 * TOKENRING_SHORT, for sanitizers: what takes the same way through the code with other numbers is left out: the second
 * thread, the chunks between the least and the largest, and drafts that are all right or all wrong. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/model/session.h"
#include "core/sched/sched.h"
#include "core/spec/model_drafter.h"
#include "core/spec/ngram.h"
#include "core/spec/spec.h"
#include "core/spec/store.h"
#include "core/stats/writer.h"

#define STREAMS 17
#define TOKENS 40
#define CONTEXT 512
#define FEW_PAGES 114u /* of the pool whose memory runs short */

struct stream {
    uint32_t n;
    uint32_t tokens[CONTEXT];
    struct sched_end end;
};

static bool is_short; /* TOKENRING_SHORT */

static struct generation *make(uint64_t id, uint32_t vocab)
{
    uint32_t n = 1 + (uint32_t)(id * 37 % 100), *tokens = xmalloc(n * sizeof(*tokens));
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i == 0 ? 1 : 3 + (uint32_t)(id * 7919 + i * 104729 + i * i) % (vocab - 3);
    struct generation *g = generation_new(id, tokens, n);
    g->max_tokens = 8 + (uint32_t)(id * 13 % (TOKENS - 8));
    g->ignore_eos = true;
    g->n_top = id % 3 == 0 ? 5 : -1;
    g->sampling.temperature = id % 2 == 0 ? 0 : 1;
    g->sampling.seed = id + 99;
    if (id % 4 == 1)
        g->sampling.frequency_penalty = 0.3f;
    if (id % 5 == 1)
        g->sampling.top_k = 20;
    if (id % 5 == 2)
        g->sampling.presence_penalty = 0.5f;
    if (id % 7 == 3)
        g->sampling.top_p = 0.9f;
    if (id % 7 == 5)
        g->sampling.min_p = 0.05f;
    if (id % 6 == 4) {
        g->sampling.repetition_penalty = 1.2f;
        g->sampling.last_n = 16;
    }
    if (id % 8 == 3) {
        g->n_bias = 1;
        g->bias = xmalloc(sizeof(*g->bias));
        *g->bias = (struct logit_bias){.token = 7, .bias = 2};
    }
    return g;
}

#define CHOICES 4
#define GROUPS (STREAMS / CHOICES)

/* The generation that choice `id` is one of. */
static struct generation *make_group(uint64_t id, uint32_t vocab)
{
    return make(id / CHOICES * CHOICES + 1, vocab);
}

/* A drafter that knows how the streams go on when they run alone, and is wrong now and then. */
struct seer {
    struct drafter drafter;
    const struct stream *alone;
    bool of_choices; /* the streams are choices of groups */
    uint32_t vocab, wrong_every, n_asked;
};

static void see(struct drafter *d, struct draft_text **texts, uint32_t n, struct controller *c)
{
    struct seer *seer = (struct seer *)d;
    (void)c;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_text *t = texts[i];
        for (uint64_t id = 0; id < STREAMS && t->draft.n == 0; id++) {
            struct generation *g =
                seer->of_choices ? make_group(id, seer->vocab) : make(id, seer->vocab);
            const struct stream *s = &seer->alone[id];
            uint32_t made = t->n_tokens - t->n_prompt;
            bool same = g->n_tokens == t->n_prompt && made <= s->n &&
                        memcmp(t->tokens, g->tokens, t->n_prompt * sizeof(*g->tokens)) == 0 &&
                        memcmp(t->tokens + t->n_prompt, s->tokens, made * sizeof(*g->tokens)) == 0;
            for (uint32_t k = made; same && k < s->n && t->draft.n < t->most; k++)
                draft_add(&t->draft,
                          seer->n_asked++ % seer->wrong_every == 0 ? s->tokens[k] ^ 1
                                                                   : s->tokens[k],
                          draft_kind_text(4, DRAFT_ALONE));
            generation_free(g);
        }
    }
}

static void free_seer(struct drafter *d)
{
    free(d);
}

/* One that is right all the time but for one token in wrong_every; 0: the lookup in texts. */
static struct spec *make_spec(const struct stream *alone, uint32_t vocab, uint32_t wrong_every)
{
    struct spec *spec = spec_create();
    spec->controller.always = DRAFT_MAX;
    if (wrong_every == 0) {
        spec_add(spec, ngram_drafter());
        spec_add(spec, store_drafter());
        return spec;
    }
    struct seer *seer = xcalloc(1, sizeof(*seer));
    *seer = (struct seer){.drafter = {.name = "seer", .propose = see, .free = free_seer},
                          .alone = alone,
                          .vocab = vocab,
                          .wrong_every = wrong_every,
                          .n_asked = 1};
    spec_add(spec, &seer->drafter);
    return spec;
}

static struct spec *make_spec_of_choices(const struct stream *alone, uint32_t vocab)
{
    struct spec *spec = make_spec(alone, vocab, 3);
    ((struct seer *)spec->drafters[0])->of_choices = true;
    return spec;
}

static void sleep_on_events(struct sched *s)
{
    struct pollfd p = {.fd = sched_event_fd(s), .events = POLLIN};
    check(poll(&p, 1, 60000) == 1);
}

/* Collects until n streams have ended. */
static void collect(struct sched *s, struct stream *streams, uint32_t n)
{
    struct sched_event e;
    for (;;) {
        while (sched_next_event(s, &e)) {
            struct stream *stream = &streams[e.id + e.choice];
            if (e.kind == SCHED_TOKEN)
                stream->tokens[stream->n++] = e.token.token;
            if (e.kind == SCHED_FAILED)
                fprintf(stderr, "stream %u failed: %s\n", (unsigned)e.id, e.end.text);
            check(e.kind != SCHED_FAILED);
            if (e.kind == SCHED_DONE) {
                stream->end = e.end;
                n--;
            }
        }
        if (n == 0)
            return;
        sleep_on_events(s);
    }
}

struct plan {
    struct pages *pool;
    uint32_t chunk;
    bool together; /* all at once, or one after the other */
    bool grows;    /* no max_tokens: up to the end of the context */
    bool warm;     /* every generation twice; the second time counts */
    bool no_cache;
    struct stats_writer *stats;
    struct spec *spec;
};

static void run(struct session *m, const struct plan *plan, struct stream *streams)
{
    const uint32_t eog[] = {2};
    struct sched_options o = {.prefill_chunk = plan->chunk,
                              .context = CONTEXT,
                              .max_queue = STREAMS,
                              .reserve_tokens = 32,
                              .no_cache = plan->no_cache,
                              .spec = plan->spec,
                              .trace_logits = true,
                              .eog = eog,
                              .n_eog = 1};
    struct sched_engine engine = sched_engine_of(m->model, &m->kernels, m->team);
    struct sched *s = NULL;
    struct error err = {0};
    memset(streams, 0, STREAMS * sizeof(*streams));
    check(sched_create(&engine, plan->pool, plan->stats, &o, &s, &err) == STATUS_OK);
    for (int round = 0; round <= plan->warm; round++) {
        memset(streams, 0, STREAMS * sizeof(*streams));
        for (uint64_t id = 0; id < STREAMS; id++) {
            struct generation *g = make(id, model_info(m->model)->vocab);
            if (plan->grows)
                g->max_tokens = SCHED_REST;
            check(sched_submit(s, g, NULL, &err) == STATUS_OK);
            if (!plan->together)
                collect(s, streams, 1);
        }
        if (plan->together)
            collect(s, streams, STREAMS);
    }
    for (int i = 0; i < STREAMS && plan->warm; i++)
        check(streams[i].end.cached_tokens == (streams[i].end.prompt_tokens - 1) / 32 * 32);
    sched_free(s);
}

/* Generations of CHOICES choices each; apart: every choice is one of its own. */
static void run_choices(struct session *m, const struct plan *plan, bool apart,
                        struct stream *streams)
{
    struct sched_options o = {.prefill_chunk = plan->chunk,
                              .context = CONTEXT,
                              .max_queue = STREAMS,
                              .spec = plan->spec,
                              .trace_logits = true};
    struct sched_engine engine = sched_engine_of(m->model, &m->kernels, m->team);
    struct sched *s = NULL;
    struct error err = {0};
    memset(streams, 0, STREAMS * sizeof(*streams));
    check(sched_create(&engine, plan->pool, plan->stats, &o, &s, &err) == STATUS_OK);
    for (uint32_t id = 0; id < GROUPS * CHOICES; id += apart ? 1 : CHOICES) {
        struct generation *g = make_group(id, model_info(m->model)->vocab);
        g->id = id;
        g->sampling.choice = id % CHOICES;
        g->n_choices = apart ? 1 : CHOICES;
        check(sched_submit(s, g, NULL, &err) == STATUS_OK);
        if (apart)
            collect(s, streams, 1);
    }
    if (!apart)
        collect(s, streams, GROUPS * CHOICES);
    sched_free(s);
}

static void open_model(struct session *m, const char *path, enum kv_type type, uint32_t threads)
{
    struct error err = {0};
    struct session_options o = {.path = path, .threads = threads, .kv_type = type};
    if (session_open(m, &o, &err) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", path, err.text);
        exit(1);
    }
}

static int compare(const struct stream *alone, const struct stream *streams, const char *what)
{
    int bad = 0;
    for (int i = 0; i < STREAMS; i++) {
        bool same = alone[i].n == streams[i].n &&
                    alone[i].end.logits_hash == streams[i].end.logits_hash &&
                    memcmp(alone[i].tokens, streams[i].tokens, sizeof(alone[i].tokens)) == 0;
        if (!same)
            printf("FAIL: %s: stream %d differs from its run alone\n", what, i);
        bad += !same;
    }
    printf("%s: %d of %d streams equal\n", what, STREAMS - bad, STREAMS);
    return bad;
}

/* With drafts: verified among all others, alone after one another, with a cold and a warm cache. */
static int test_drafts(struct session *m, const struct stream *alone, const char *type_name)
{
    static const uint32_t wrong_every[] = {0, 1, 3, 1000000};
    static struct stream streams[STREAMS];
    int bad = 0;
    for (unsigned w = 0; w < 4; w++) {
        if (is_short && w % 2 == 1) /* all wrong, all right */
            continue;
        for (int together = 0; together < 2; together++) {
            char what[128];
            struct plan plan = {.pool = m->pool,
                                .chunk = 64,
                                .together = together,
                                .warm = w == 2,
                                .stats = stats_writer_anonymous(),
                                .spec =
                                    make_spec(alone, model_info(m->model)->vocab, wrong_every[w])};
            run(m, &plan, streams);
            uint64_t drafted = stats_value(plan.stats, STAT_draft_tokens_total);
            uint64_t right = stats_value(plan.stats, STAT_draft_accepted_total);
            snprintf(what, sizeof(what), "kv %s, drafts with one in %u wrong, %llu of %llu, %s",
                     type_name, wrong_every[w], (unsigned long long)right,
                     (unsigned long long)drafted, together ? "together" : "alone");
            bad += compare(alone, streams, what);
            if (drafted == 0 || (wrong_every[w] == 1000000) != (right == drafted)) {
                printf("FAIL: %s\n", what);
                bad++;
            }
            uint64_t all = 0, accepted = 0;
            for (int i = 0; i < STREAMS; i++) {
                all += streams[i].end.drafted_tokens;
                accepted += streams[i].end.accepted_tokens;
            }
            check(plan.warm || (all == drafted && accepted == right));
            stats_writer_free(plan.stats);
            spec_free(plan.spec);
        }
    }
    return bad;
}

/* A sequence that is left out of a step for want of a page comes with the same text again, and gets the
 * same guesses. */
static int test_same_text_again(struct spec *spec, uint32_t vocab)
{
    int bad = 0;
    for (uint64_t id = 0; id < STREAMS; id++) {
        struct generation *g = make(id, vocab);
        struct draft_text *t = spec_join(spec, g->salt, &g->sampling);
        t->tokens = g->tokens;
        t->n_tokens = t->n_prompt = g->n_tokens;
        t->most = 4;
        spec_propose(spec, &t, 1, DRAFT_MAX);
        struct draft first = t->draft;
        spec_propose(spec, &t, 1, DRAFT_MAX);
        if (first.n != 4 || t->draft.n != 4 ||
            memcmp(first.tokens, t->draft.tokens, 4 * sizeof(first.tokens[0])) != 0) {
            printf("FAIL: text %d is guessed on in another way\n", (int)id);
            bad++;
        }
        spec_leave(spec, t);
        generation_free(g);
    }
    return bad;
}

/* The model as its own draft: what penalties and bias do not change it foresees without a fault. */
static int test_own_draft(struct session *m, const struct stream *alone, const char *type_name)
{
    static struct stream streams[STREAMS];
    struct error err = {0};
    struct model *draft = NULL;
    struct arena *arena = NULL;
    struct pages *pool = NULL;
    struct model_options o = {.kernels = &m->kernels,
                              .team = m->team,
                              .kv_type = model_kv_geometry(m->model)->type,
                              .max_tokens = DRAFT_STEP_TOKENS,
                              .target = m->model};
    check(model_load(m->gguf, &o, &draft, &err) == STATUS_OK);
    size_t page = model_kv_geometry(draft)->page;
    struct arena_options a = {.limit = 8 << 20, .page_bytes = &page, .n_page_bytes = 1};
    check(arena_create(&a, &arena, &err) == STATUS_OK);
    check(pages_create(arena, page, &pool, &err) == STATUS_OK);
    while (!pages_want(pool, 1)) /* where no page is there yet, nothing is guessed */
        poll(NULL, 0, 1);
    int bad = 0;
    for (int together = 0; together < 2; together++) {
        char what[96];
        struct spec *spec = spec_create();
        spec->controller.always = DRAFT_MAX;
        spec_add(spec, model_drafter(draft, &m->kernels, pool, pages_total(pool)));
        struct plan plan = {.pool = m->pool, .chunk = 64, .together = together, .spec = spec};
        run(m, &plan, streams);
        snprintf(what, sizeof(what), "kv %s, its own draft, %s", type_name,
                 together ? "together" : "alone");
        bad += compare(alone, streams, what);
        uint32_t all = 0, right = 0;
        for (uint64_t id = 0; id < STREAMS; id++) {
            struct generation *g = make(id, model_info(m->model)->vocab);
            const struct sample_params *p = &g->sampling;
            bool plain = !sample_needs_state(p) && g->n_bias == 0 && p->temperature <= 0;
            /* The draft sees a shorter past where the prompt is longer than its window. */
            if (plain && g->n_tokens < DRAFT_WINDOW) {
                all += streams[id].end.drafted_tokens;
                right += streams[id].end.accepted_tokens;
            }
            generation_free(g);
        }
        printf("%s: %u of %u accepted\n", what, right, all);
        if (right != all || (!together && all == 0)) {
            printf("FAIL: %s\n", what);
            bad++;
        }
        bad += test_same_text_again(spec, model_info(m->model)->vocab);
        spec_free(spec);
        struct pages_counts counts;
        pages_counts(pool, &counts);
        check(counts.used == 0 && counts.reserved == 0);
    }
    pages_free(pool);
    arena_free(arena);
    model_free(draft);
    return bad;
}

static int test_file(const char *path, enum kv_type type, const char *type_name)
{
    static const uint32_t chunks[] = {1, 7, 64, 512};
    static struct stream alone[STREAMS], streams[STREAMS], choices[STREAMS];
    int bad = 0;
    for (uint32_t threads = 1; threads <= (is_short ? 1 : 2); threads++) {
        struct session m;
        char what[128];
        open_model(&m, path, type, threads);
        if (threads == 1) {
            run(&m, &(struct plan){.pool = m.pool, .chunk = 512, .no_cache = true}, alone);
            for (int i = 0; i < STREAMS; i++)
                for (int k = 0; k < i; k++)
                    check(alone[i].end.logits_hash != alone[k].end.logits_hash);
        }
        for (unsigned c = 0; c < 4; c += is_short ? 3 : 1) {
            struct plan plan = {.pool = m.pool, .chunk = chunks[c], .together = true};
            run(&m, &plan, streams);
            snprintf(what, sizeof(what), "kv %s, %u threads, chunk %u, together", type_name,
                     threads, chunks[c]);
            bad += compare(alone, streams, what);
        }
        for (int together = 0; together < 2; together++) {
            struct plan plan = {.pool = m.pool, .chunk = 64, .together = together, .warm = true};
            run(&m, &plan, streams);
            snprintf(what, sizeof(what), "kv %s, %u threads, warm, %s", type_name, threads,
                     together ? "together" : "alone");
            bad += compare(alone, streams, what);
        }
        run_choices(&m, &(struct plan){.pool = m.pool, .chunk = 512}, true, choices);
        run_choices(&m, &(struct plan){.pool = m.pool, .chunk = 7}, false, streams);
        check(choices[0].end.logits_hash != choices[1].end.logits_hash);
        snprintf(what, sizeof(what), "kv %s, %u threads, choices", type_name, threads);
        bad += compare(choices, streams, what);
        struct plan drafted = {.pool = m.pool,
                               .chunk = 64,
                               .stats = stats_writer_anonymous(),
                               .spec = make_spec_of_choices(choices, model_info(m.model)->vocab)};
        run_choices(&m, &drafted, false, streams);
        snprintf(what, sizeof(what), "kv %s, %u threads, choices with drafts", type_name, threads);
        bad += compare(choices, streams, what) +
               (stats_value(drafted.stats, STAT_draft_accepted_total) == 0);
        spec_free(drafted.spec);
        stats_writer_free(drafted.stats);
        bad += test_drafts(&m, alone, type_name);
        if (type != KV_Q4) /* a draft's KV type is another one then */
            bad += test_own_draft(&m, alone, type_name);
        session_close(&m);
    }
    return bad;
}

/* Streams that grow to the end of the context in a pool that holds less than half of them: some are
 * put back, and come to the same end. */
static int test_preemption(const char *path, enum kv_type type)
{
    static struct stream alone[STREAMS], streams[STREAMS];
    struct session m;
    struct error err = {0};
    struct arena *arena = NULL;
    struct plan plan = {.chunk = 64, .grows = true};
    open_model(&m, path, type, is_short ? 1 : 2);
    size_t page = model_kv_geometry(m.model)->page;
    struct arena_options o = {.limit = 8 << 20, .page_bytes = &page, .n_page_bytes = 1};
    check(arena_create(&o, &arena, &err) == STATUS_OK);
    check(pages_create(arena, page, &plan.pool, &err) == STATUS_OK);
    pages_set_open(plan.pool, model_kv_geometry(m.model)->open_page);
    check(pages_reserve(plan.pool, pages_total(plan.pool) - FEW_PAGES)); /* nobody gets those */
    plan.no_cache = true;
    run(&m, &plan, alone);
    plan.no_cache = false;
    plan.together = true;
    plan.stats = stats_writer_anonymous();
    run(&m, &plan, streams);
    uint64_t preempted = stats_value(plan.stats, STAT_preemptions_total);
    printf("%u pages, %llu preemptions\n", pages_total(plan.pool), (unsigned long long)preempted);
    int bad = compare(alone, streams, "preempted") + (preempted == 0);
    bad += stats_value(plan.stats, STAT_kv_read_bytes_total) < page;
    /* All guesses wrong: as many steps; some right: streams that end early leave room for others. */
    for (uint32_t wrong_every = is_short ? 8 : 1; wrong_every <= 8; wrong_every += 7) {
        plan.spec = make_spec(alone, model_info(m.model)->vocab, wrong_every);
        run(&m, &plan, streams);
        bad += compare(alone, streams, "preempted, with drafts");
        spec_free(plan.spec);
    }
    preempted = stats_value(plan.stats, STAT_preemptions_total) - preempted;
    printf("with drafts %llu preemptions\n", (unsigned long long)preempted);
    bad += preempted == 0;
    stats_writer_free(plan.stats);
    pages_unreserve(plan.pool, pages_total(plan.pool) - FEW_PAGES);
    pages_free(plan.pool);
    arena_free(arena);
    session_close(&m);
    return bad;
}

int main(void)
{
    const char *shared = getenv("TOKENRING_SHARED");
    char f32[4096], q8[4096];
    struct stat st;
    if (shared == NULL || stat(shared, &st) != 0) {
        printf("SKIP: exact: no shared data folder\n");
        return 77;
    }
    is_short = getenv("TOKENRING_SHORT") != NULL;
    int bad = 0;
    snprintf(f32, sizeof(f32), "%s/data/models/stories260K/stories260K-f32.gguf", shared);
    snprintf(q8, sizeof(q8), "%s/data/models/stories260K/stories260K-q8_0.gguf", shared);
    /* Valgrind looks at memory, for which one type that is quantised and one that isn't do; each takes minutes there. */
    const bool valgrind = getenv("TOKENRING_VALGRIND") != NULL;
    bad += valgrind ? 0 : test_file(f32, KV_F32, "f32");
    bad += test_preemption(f32, KV_F32);
    bad += valgrind ? 0 : test_preemption(f32, KV_Q4);
    bad += valgrind ? 0 : test_file(q8, KV_F16, "f16");
    bad += test_file(q8, KV_Q8_0, "q8_0");
    bad += valgrind ? 0 : test_file(q8, KV_Q4, "q4");
    return bad != 0;
}
