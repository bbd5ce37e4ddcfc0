/* A draft model that knows nothing is given up after 32 guesses at most, and asked on trial only from
 * there on; the target as its own draft is never wrong. What is counted are passes and tokens, not time: a
 * step is said to have taken as long as PASSES passes of the draft, however long these take. */
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
#include "core/spec/spec.h"
#include "tests/unit/model/toy.h"

#define TOKENS 300u
#define CONTEXT 512u
#define OFF_AFTER 32u
#define PASSES 16 /* of the draft model take as long as a step */

/* The draft: one narrow layer of random weights, quick enough to be worth a try. */
static struct model *load_random(const struct session *m, struct gguf_builder *b,
                                 struct gguf **file)
{
    struct toy toy = {.layers = 1,
                      .width = 32,
                      .heads = 1,
                      .kv_heads = 1,
                      .head_size = 32,
                      .ffn = 32,
                      .vocab = model_info(m->model)->vocab,
                      .context = CONTEXT,
                      .tied = true};
    struct model_options o = {.kernels = &m->kernels,
                              .team = m->team,
                              .kv_type = KV_F16,
                              .max_tokens = DRAFT_STEP_TOKENS,
                              .target = m->model};
    struct model *draft = NULL;
    struct error err = {0};
    *file = toy_open(&toy, b);
    if (model_load(*file, &o, &draft, &err) != STATUS_OK) {
        fprintf(stderr, "the draft: %s\n", err.text);
        exit(1);
    }
    return draft;
}

/* What the target writes behind the first n_prompt tokens. */
static void write_text(const struct session *m, const struct sample_params *sampling,
                       uint32_t *text, uint32_t n_prompt)
{
    struct sched_options o = {
        .prefill_chunk = 64, .context = CONTEXT, .max_queue = 1, .no_cache = true};
    struct sched_engine engine = sched_engine_of(m->model, &m->kernels, m->team);
    struct sched *s = NULL;
    struct error err = {0};
    struct sched_event e;
    uint32_t *prompt = xmalloc(n_prompt * sizeof(*prompt)), n = n_prompt;
    check(sched_create(&engine, m->pool, NULL, &o, &s, &err) == STATUS_OK);
    memcpy(prompt, text, n_prompt * sizeof(*prompt));
    struct generation *g = generation_new(1, prompt, n_prompt);
    g->max_tokens = TOKENS;
    g->ignore_eos = true;
    g->sampling = *sampling;
    check(sched_submit(s, g, NULL, &err) == STATUS_OK);
    for (bool done = false; !done;) {
        struct pollfd p = {.fd = sched_event_fd(s), .events = POLLIN};
        while (!done && sched_next_event(s, &e)) {
            check(e.kind != SCHED_FAILED);
            if (e.kind == SCHED_TOKEN)
                text[n++] = e.token.token;
            done = e.kind == SCHED_DONE;
        }
        if (!done)
            poll(&p, 1, -1);
    }
    check(n == n_prompt + TOKENS);
    sched_free(s);
}

struct counts {
    uint32_t steps, drafted;
    uint32_t guessed, guessed_right; /* by the draft model, not by a lookup behind its guess */
    uint64_t passes;
};

/* Lives through a text with these drafts, where a step takes step_ns; counts of the first OFF_AFTER tokens and of the rest. */
static void live(struct spec *spec, const struct sample_params *sampling, const uint32_t *text,
                 uint32_t n_prompt, double step_ns, struct counts counts[2])
{
    struct draft_text *t = spec_join(spec, (struct siphash){{1, 2}}, sampling);
    memset(counts, 0, 2 * sizeof(*counts));
    for (uint32_t n = n_prompt + 1; n < n_prompt + TOKENS;) {
        struct counts *c = &counts[n >= n_prompt + 1 + OFF_AFTER];
        uint64_t passes = spec->controller.passes;
        uint32_t left = n_prompt + TOKENS - n - 1, right = 0;
        t->tokens = text;
        t->n_tokens = n;
        t->n_prompt = n_prompt;
        t->most = left < DRAFT_MAX ? left : DRAFT_MAX;
        spec_propose(spec, &t, 1, SPEC_STEP_MAX);
        uint32_t drafted = t->draft.n;
        while (right < drafted && t->draft.tokens[right] == text[n + right])
            right++;
        for (uint32_t k = 0; k < drafted && k <= right; k++) {
            c->guessed += t->draft.kinds[k] >= DRAFT_MODEL;
            c->guessed_right += t->draft.kinds[k] >= DRAFT_MODEL && k < right;
        }
        c->steps++;
        c->drafted += drafted;
        c->passes += spec->controller.passes - passes;
        spec_learn(spec, t, right);
        spec_settle(spec, 1, drafted, right + 1, step_ns * (1 + 0.06 * drafted), true);
        n += right + 1;
    }
    spec_leave(spec, t);
}

static int test_draft(const struct session *m, struct model *draft, bool drawn, bool own)
{
    struct error err = {0};
    struct arena *arena = NULL;
    struct pages *pool = NULL;
    uint32_t text[8 + TOKENS], n_prompt = 8;
    struct counts c[2];
    struct sample_params sampling = sample_params_default();
    sampling.temperature = drawn ? 1 : 0;
    sampling.seed = 5;
    for (uint32_t i = 0; i < n_prompt; i++)
        text[i] = i == 0 ? 1 : 300 + 7 * i;
    write_text(m, &sampling, text, n_prompt);
    size_t page = model_kv_geometry(draft)->page;
    struct arena_options a = {.limit = 8 << 20, .page_bytes = &page, .n_page_bytes = 1};
    check(arena_create(&a, &arena, &err) == STATUS_OK);
    check(pages_create(arena, page, &pool, &err) == STATUS_OK);
    while (!pages_want(pool, 1)) /* where no page is there yet, nothing is guessed */
        poll(NULL, 0, 1);
    struct spec *spec = spec_create();
    spec_add(spec, model_drafter(draft, &m->kernels, pool, pages_total(pool)));
    spec->controller.always = 1;
    live(spec, &sampling, text, n_prompt, 1e6, c);
    double step_ns = PASSES * cost_of(&spec->controller.model, 1);
    spec->controller = (struct controller){0};
    live(spec, &sampling, text, n_prompt, step_ns, c);
    for (int i = 0; i < 2; i++)
        printf("%s, %s, %s: %u steps, %lu passes, %u drafted; %u of the %u guesses right\n",
               own ? "its own draft" : "random draft", drawn ? "drawn" : "greedy",
               i == 0 ? "at first" : "then", c[i].steps, (unsigned long)c[i].passes, c[i].drafted,
               c[i].guessed_right, c[i].guessed);
    int bad = 0;
    uint32_t trials = TOKENS / CONTROLLER_PROBE + 1;
    if (own) /* drawn: but for tokens that are less than a thousandth as likely as others */
        bad =
            c[0].guessed + c[1].guessed == 0 ||
            c[0].guessed_right + c[1].guessed_right + (drawn ? 2 : 0) < c[0].guessed + c[1].guessed;
    else
        bad = c[0].passes == 0 || c[0].passes + c[1].passes > OFF_AFTER + trials ||
              c[0].drafted + c[1].drafted > OFF_AFTER + trials;
    printf("%s", bad ? "FAIL\n" : "");
    spec_free(spec);
    pages_free(pool);
    arena_free(arena);
    return bad;
}

int main(void)
{
    const char *shared = getenv("TOKENRING_SHARED");
    char path[4096];
    struct stat st;
    if (shared == NULL || stat(shared, &st) != 0) {
        printf("SKIP: draft_models: no shared data folder\n");
        return 77;
    }
    snprintf(path, sizeof(path), "%s/data/models/stories260K/stories260K-f32.gguf", shared);
    struct session m;
    struct error err = {0};
    struct session_options o = {.path = path, .threads = 1};
    check(session_open(&m, &o, &err) == STATUS_OK);
    struct gguf_builder builder;
    struct gguf *file;
    struct model *draft = load_random(&m, &builder, &file);
    struct model_options same = {.kernels = &m.kernels,
                                 .team = m.team,
                                 .kv_type = model_kv_geometry(m.model)->type,
                                 .max_tokens = DRAFT_STEP_TOKENS,
                                 .target = m.model};
    struct model *own = NULL;
    check(model_load(m.gguf, &same, &own, &err) == STATUS_OK);
    int bad = 0;
    for (int drawn = 0; drawn < 2; drawn++)
        bad += test_draft(&m, draft, drawn, false) + test_draft(&m, own, drawn, true);
    model_free(own);
    model_free(draft);
    gguf_free(file);
    builder_release(&builder);
    session_close(&m);
    return bad != 0;
}
