#define _GNU_SOURCE
#include "fake_engine.h"

#include <check.h>
#include <time.h>

#include "alloc/arena.h"
#include "core/kernels/select.h"
#include "core/model/model.h"

/* As ck_assert, which makes a system call even when all is well. */
#define expect(condition) ((condition) ? (void)0 : ck_abort_msg("%s", #condition))

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t number_of(uint32_t token, uint32_t position)
{
    return mix(((uint64_t)position << 32 | token) + 1) | 1;
}

static void row_from(uint64_t state, float *logits)
{
    for (uint32_t v = 0; v < FAKE_VOCAB; v++)
        logits[v] = (float)(mix(state + v) >> 40) / (float)(1 << 24) * 8;
}

void fake_row(const uint32_t *tokens, uint32_t n, float *logits)
{
    uint64_t state = 0;
    for (uint32_t i = 0; i < n; i++)
        state = mix(state ^ number_of(tokens[i], i));
    row_from(state, logits);
}

static uint64_t *place(const struct step *step, const struct step_sequence *s, uint32_t position)
{
    expect(position / 32 < s->n_pages);
    return (uint64_t *)pages_at(step->pool, s->pages[position / 32]) + position % 32;
}

static void fake_step(void *data, const struct step *step, float *logits)
{
    struct fake_engine *f = data;
    if (f->gated) {
        sem_post(&f->arrivals);
        while (sem_wait(&f->permits) != 0)
            ;
    }
    if (f->step_ns > 0)
        nanosleep(&(struct timespec){0, (long)f->step_ns}, NULL);
    expect(step->n_tokens >= 1);
    expect(step->n_tokens <= FAKE_MAX_TOKENS);
    for (uint32_t i = 0; i < step->n_tokens; i++) {
        const struct step_token *t = &step->tokens[i];
        struct step_sequence *s = &step->sequences[t->sequence];
        uint64_t *at = place(step, s, t->position);
        expect(*at == 0 || f->rewrites); /* never fed before */
        *at = number_of(t->token, t->position);
        s->failed |= t->token == FAKE_BAD_TOKEN || (f->poison != 0 && t->token == f->poison);
        if (!t->logits)
            continue;
        uint64_t state = 0;
        for (uint32_t p = 0; p <= t->position; p++) {
            uint64_t n = *place(step, s, p);
            expect(n != 0); /* was fed */
            state = mix(state ^ n);
        }
        row_from(state, logits);
        logits += FAKE_STRIDE;
    }
    f->last_tokens = step->n_tokens;
    f->last_sequences = step->n_sequences;
    if (step->n_sequences > f->most_sequences)
        f->most_sequences = step->n_sequences;
    f->tokens += step->n_tokens;
    f->steps++;
}

void fake_init(struct fake_engine *f, size_t limit, size_t page_bytes, uint32_t threads)
{
    struct error err = {0};
    struct arena_options o = {.limit = limit, .page_bytes = &page_bytes, .n_page_bytes = 1};
    *f = (struct fake_engine){.page_bytes = page_bytes};
    sem_init(&f->permits, 0, 0);
    sem_init(&f->arrivals, 0, 0);
    ck_assert_msg(kernels_select("scalar", &f->kernels, &err) == STATUS_OK, "%s", err.text);
    ck_assert_msg(team_create(threads, 0, &f->team, &err) == STATUS_OK, "%s", err.text);
    ck_assert_msg(arena_create(&o, &f->arena, &err) == STATUS_OK, "%s", err.text);
    ck_assert_msg(pages_create(f->arena, page_bytes, &f->pool, &err) == STATUS_OK, "%s", err.text);
}

void fake_release(struct fake_engine *f)
{
    struct pages_counts counts;
    pages_counts(f->pool, &counts);
    ck_assert_uint_eq(counts.used, 0);
    ck_assert_uint_eq(counts.reserved, 0);
    pages_free(f->pool);
    arena_free(f->arena);
    team_free(f->team);
    sem_destroy(&f->permits);
    sem_destroy(&f->arrivals);
}

struct sched_engine fake_engine(struct fake_engine *f)
{
    return (struct sched_engine){.data = f,
                                 .n_vocab = FAKE_VOCAB,
                                 .logits_stride = FAKE_STRIDE,
                                 .context = FAKE_CONTEXT,
                                 .max_tokens = FAKE_MAX_TOKENS,
                                 .kernels = &f->kernels,
                                 .team = f->team,
                                 .step = fake_step};
}
