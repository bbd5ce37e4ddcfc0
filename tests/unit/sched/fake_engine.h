/* fake_engine.h: a model of a few lines, which shows every mistake of the scheduler.
 *
 * The "KV" of a position is one number in its page, made of token and position. A row of logits is
 * made of the numbers of all positions up to its own, read through the page ids. So a token depends
 * on the whole text before it, and a page mixed up, freed too early, not zeroed or a position fed
 * twice or never changes the stream or fails a check. */
#ifndef TEST_FAKE_ENGINE_H
#define TEST_FAKE_ENGINE_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>

#include "alloc/pages.h"
#include "core/kernels/kernels.h"
#include "core/kernels/team.h"
#include "core/sched/engine.h"

#define FAKE_VOCAB 61u
#define FAKE_STRIDE 64u
#define FAKE_CONTEXT 2048u
#define FAKE_MAX_TOKENS 512u
#define FAKE_BAD_TOKEN 1000u /* a sequence is not finite from there on; never drawn */

struct fake_engine {
    struct kernels kernels;
    struct team *team;
    struct arena *arena;
    struct pages *pool;
    size_t page_bytes;
    _Atomic bool gated; /* each step needs a permit */
    sem_t permits;
    sem_t arrivals; /* posted when a gated step stands at the gate */
    _Atomic uint32_t steps, last_tokens, last_sequences, most_sequences;
    _Atomic uint64_t tokens;
    _Atomic uint64_t step_ns; /* time a step takes; tests change it while steps run */
    bool rewrites;    /* positions may be fed again: drafts that were wrong */
    uint32_t poison;  /* a token that makes its sequence not finite, for one step; 0: none */
};

/* limit: bytes of KV memory in pages of page_bytes. threads: of the team. */
void fake_init(struct fake_engine *f, size_t limit, size_t page_bytes, uint32_t threads);
/* Checks that every page is back. */
void fake_release(struct fake_engine *f);
struct sched_engine fake_engine(struct fake_engine *f);

/* What the engine's rows are for a text: logits[FAKE_STRIDE] of the token after it. */
void fake_row(const uint32_t *tokens, uint32_t n, float *logits);

#endif
