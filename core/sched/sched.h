/* sched.h: the scheduler: one thread that owns all sequences and their KV pages and runs the model's steps.
 *
 *      loop thread                                    scheduler thread
 *      sched_submit, cancel, pause, drain  --SPSC-->  admit, plan a step, run it, sample
 *      sched_next_event                    <--SPSC--  STARTED, TOKEN..., then exactly one DONE or FAILED
 *
 * A generation is submitted once and ends with exactly one DONE or FAILED event, also when it is cancelled, when
 * it is drained and when the scheduler is stopped. Events of one generation come in order; those of one step are
 * published together with at most one write to the event descriptor, and none while the loop is awake.
 *
 * Life of a sequence (sequence.h):
 *      WAITING --pages promised--> PREFILL --whole prompt seen--> DECODE --stop, length--> ended
 *         \------------------------- cancel, failure: at every step border -------------------/
 *
 * A step: first one token of every decoding sequence, then prefill chunks, oldest sequence first, within a token
 * budget. Sequences join and leave at every step. A generation is admitted in order of arrival when the pages of
 * its prompt and of all tokens that it may make are promised, so it never fails half-way for want of memory.
 *
 * Threads: every function here is for the loop thread (one thread), except sched_create and sched_free, which
 * are called while nothing else uses the scheduler. */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/pages.h"
#include "core/base/status.h"
#include "core/model/sample.h"
#include "core/sched/engine.h"

struct sched;
struct stats_writer;

#define SCHED_TOP_MAX 20u     /* alternatives with log-probabilities a token (OpenAI's limit) */
#define SCHED_REST UINT32_MAX /* max_tokens: the rest of the context */

struct sched_options {
    uint32_t context;       /* positions a sequence may have; at most the engine's */
    uint32_t prefill_chunk; /* prompt tokens a step at most */
    uint32_t max_queue;     /* generations that may wait */
    uint32_t max_running;   /* generations that may run at once */
    bool trace_logits;      /* hash the row of every token made (CONTRACTS: logits hash) */
    const uint32_t *eog;    /* tokens that end a generation; copied */
    unsigned n_eog;
};

/* One generation as the front pool made it. Allocated by generation_new; sched_submit takes it over when it
 * returns STATUS_OK, otherwise it stays the caller's. */
struct generation {
    uint64_t id;          /* the caller's name for it, unique among the living */
    uint32_t *tokens;     /* the prompt, malloc'ed */
    uint32_t n_tokens;    /* at least 1 */
    uint32_t max_tokens;  /* tokens to make at most (0: only read the prompt, none is made), or SCHED_REST */
    int n_top;            /* < 0: no log-probabilities; else alternatives a token, up to SCHED_TOP_MAX */
    bool ignore_eos;      /* end tokens do not end it */
    uint32_t choice;      /* choice index of the noise (CONTRACTS: sampler) */
    uint64_t arrival_ns;  /* clock_ns() when the request came */
    struct sample_params sampling; /* released with sample_params_release */
};

/* A zeroed generation; takes over tokens (malloc'ed). */
struct generation *generation_new(uint32_t *tokens, uint32_t n_tokens);
void generation_free(struct generation *g);

enum sched_event_kind { SCHED_STARTED, SCHED_TOKEN, SCHED_DONE, SCHED_FAILED };
enum sched_reason { SCHED_STOP, SCHED_LENGTH };

struct sched_top {
    uint32_t token;
    float logprob;
};

struct sched_token {
    uint32_t token;
    uint32_t index;        /* 0 for the first token made */
    float logprob;         /* of this token; 0 when n_top < 0 */
    uint32_t n_top;        /* entries of top, best first */
    uint64_t logits_hash;  /* chain up to this token; 0 without trace_logits */
    struct sched_top top[SCHED_TOP_MAX];
};

/* How a generation went; in DONE and FAILED alike. Times in nanoseconds. */
struct sched_end {
    enum sched_reason reason; /* DONE only */
    enum status status;       /* FAILED: why (STATUS_CANCELLED after sched_cancel); DONE: STATUS_OK */
    const char *text;         /* FAILED: a sentence, static storage; DONE: NULL */
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t completion_tokens; /* TOKEN events; an end token that was drawn is no event and not counted */
    uint64_t queue_ns;          /* arrival to admission */
    uint64_t prefill_ns;        /* admission to first token */
    uint64_t decode_ns;         /* first token to last */
    uint64_t logits_hash;       /* of the last TOKEN event */
};

struct sched_event {
    enum sched_event_kind kind;
    uint64_t id;
    union {
        struct {
            uint32_t prompt_tokens;
            uint32_t cached_tokens;
            uint64_t queue_ns;
        } started;
        struct sched_token token;
        struct sched_end end; /* DONE and FAILED */
    };
};

/* Starts the thread. engine, pool and stats (which may be NULL) must outlive the scheduler; the pool is its
 * alone from now on. */
enum status sched_create(const struct sched_engine *engine, struct pages *pool, struct stats_writer *stats,
                         const struct sched_options *options, struct sched **sched, struct error *err);
/* Ends every generation (FAILED, STATUS_DRAINING), joins the thread and frees everything; unread events are lost. */
void sched_free(struct sched *s);

/* Hands a generation over. Errors, all at once and without side effects:
 * CONTEXT_LENGTH  prompt and max_tokens don't fit the context, or their pages could never fit the arena; the
 *                 text has both numbers
 * QUEUE_FULL      max_queue generations wait; DRAINING after sched_drain
 * With QUEUE_FULL *retry_after (may be NULL) is set to a number of seconds, from how fast generations end now. */
enum status sched_submit(struct sched *s, struct generation *g, unsigned *retry_after, struct error *err);
/* Ends a generation at the next step border; unknown ids (just ended) are ignored. */
void sched_cancel(struct sched *s, uint64_t id);
/* A paused generation makes no tokens, keeps its pages and goes on where it was. Unknown ids are ignored. */
void sched_pause(struct sched *s, uint64_t id, bool paused);
/* Takes no more generations; those submitted go on to their end. */
void sched_drain(struct sched *s);
/* Ends all generations at the next step border (FAILED, STATUS_DRAINING) and takes no more. */
void sched_stop(struct sched *s);

/* Becomes readable when there are events. For poll or uv_poll. */
int sched_event_fd(const struct sched *s);
/* The next event, or false. Call until false: only then the descriptor is armed again. */
bool sched_next_event(struct sched *s, struct sched_event *event);

/* Generations that wait and run (a snapshot). */
uint32_t sched_waiting(const struct sched *s);
uint32_t sched_running(const struct sched *s);

#endif
