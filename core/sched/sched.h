/* sched.h: the scheduler: one thread that owns all sequences and their KV pages and runs the
 * model's steps.
 *
 *   loop thread                                scheduler thread
 *   sched_submit, cancel, pause  --mailbox-->  admit, plan a step, run it, draw
 *   sched_next_event             <---spsc----  STARTED, TOKEN..., exactly one DONE or FAILED
 *
 * A generation is submitted once and ends with exactly one event that is the `last`, also when it is
 * cancelled or the scheduler is stopped: the DONE of its only choice or of the last one, or a FAILED,
 * which ends all choices that still live. Events of one generation come in order; those of one step
 * are published together with at most one write to the event descriptor, and none while the loop is
 * awake.
 *
 * Life of a sequence (sequence.h):
 *      WAITING --pages promised--> PREFILL --whole prompt seen--> DECODE --stop, length--> ended
 *         \------------------------- cancel, failure: at every step border -------------------/
 *
 * A step: first one token of every decoding sequence, then prefill chunks, oldest sequence first,
 * within a token budget. Sequences join and leave at every step.
 *
 * Choices: a generation of n choices is one sequence until its prompt is computed. Then n tokens are
 * drawn from the one row of logits, and it becomes n sequences over the same pages:
 *
 *      prompt   | page | page | page, partly |          promised: the prompt's pages once,
 *                 ^      ^      ^    ^    ^                       and n times what may follow
 *      choice     0..n-1 0..n-1 0    1 .. n-1   the first to append copies the page, the last need not
 *
 * From there on they have nothing to do with each other: each draws with its own index in the noise's
 * counter, so it makes what it would make alone, is preempted alone and ends alone. Only pause, cancel
 * and failure are the generation's. It takes n places among the running from its admission on.
 *
 * Order: fair.h says who is admitted next, and whose prompt is computed first. A generation that has
 * not started at its deadline fails with STATUS_TIMEOUT.
 *
 * Memory: who is next waits until there is memory, and all others behind it. One with max_tokens is
 * admitted when the pages of its prompt and of all its tokens are promised. One without gets its
 * prompt's and reserve_tokens more, and grows; when the pool can promise no more, the youngest
 * sequence of the lowest priority is put back in the queue (preempted): its pages go, its tokens stay, and later they are prefilled again
 * and it goes on with the same tokens as if nothing had been (the model's rule that logits do not
 * depend on how a prompt was cut). So nothing ever fails half-way for want of memory.
 *
 * Prefix cache (alloc/prefix_cache.h): every full page stays in it after its sequence ended, until
 * its memory is wanted or nobody used it for the idle time. A generation takes what it has of the
 * prompt, of the same salt; STARTED says how much. One whose next page is just being filled by
 * another generation waits for it instead of computing it too; if the other ends or is paused
 * before, it goes on by itself. Cached pages count as free memory.
 *
 * STARTED comes with the first tokens that go through the model.
 *
 * Stats written here: requests_running, requests_waiting, preemptions_total, non_finite_total,
 * prefilled_tokens_total, cached_tokens_total, steps_total, step_*, queue_time, kv_pages_used,
 * kv_pages_cached, kv_pages_evicted_total, kv_read_bytes_total, kv_long_*, cache_*,
 * kv_pages_total, kv_page_bytes. Everything else about requests and tokens is the loop's to count.
 *
 * Threads: every function here is for the loop thread (one thread), except sched_create and
 * sched_free, which are called while nothing else uses the scheduler. */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/pages.h"
#include "core/base/siphash.h"
#include "core/base/status.h"
#include "core/model/sample.h"
#include "core/sched/engine.h"

struct sched;
struct spec;
struct stats_writer;

#define SCHED_PRIORITY_MAX 9u
#define SCHED_PRIORITY_DEFAULT 5u
#define SCHED_REST UINT32_MAX /* max_tokens: the rest of the context */

struct sched_options {
    uint32_t context;       /* positions a sequence may have; 0: the engine's, which is the most */
    uint32_t prefill_chunk; /* prompt tokens a step at most; 0: as many as the engine takes */
    uint32_t max_queue;     /* generations that may wait and never ran */
    uint64_t max_queue_tokens; /* prompt tokens of those; 0: no limit */
    uint32_t max_running;      /* generations that may run at once; 0: 64 */
    uint32_t reserve_tokens;   /* promised ahead to a generation without max_tokens; 0: 256 */
    double itl_target;         /* batch.h: a token's time beside prompts, in times without; 0: 3 */
    uint64_t pause_limit_ns;   /* a paused generation keeps its memory so long; 0: 30 s */
    bool no_cache;             /* no prefix cache */
    uint64_t cache_idle_ns;    /* cached pages that nobody used for so long go; 0: 300 s */
    int nice;                  /* > 0: the thread runs as SCHED_BATCH with that niceness */
    bool trace_logits;         /* hash the row of every token made (CONTRACTS: logits hash) */
    uint32_t other_pages;      /* pages' memory that other pools of the arena may take */
    struct spec *spec;   /* drafts for all generations; NULL: none. Must outlive the scheduler */
    const uint32_t *eog; /* tokens that end a generation; copied */
    unsigned n_eog;
};

/* One generation as the front pool made it, by generation_new. sched_submit takes it over when it
 * returns STATUS_OK, otherwise it stays the caller's. */
struct generation {
    uint64_t id;         /* the caller's name for it, unique among the living */
    uint32_t *tokens;    /* the prompt, malloc'ed */
    uint32_t n_tokens;   /* at least 1 */
    uint32_t max_tokens; /* tokens to make at most, at least 1, or SCHED_REST */
    bool grows; /* so many are not expected: memory as without max_tokens (SCHED_REST: always) */
    uint32_t
        n_choices;  /* answers to make, at least 1; theirs are sampling.choice and the next ones */
    int n_top;      /* < 0: no log-probabilities; else alternatives a token, up to SAMPLE_TOP_MAX */
    bool no_drafts; /* nothing is guessed for it */
    bool ignore_eos;         /* end tokens are never drawn */
    struct siphash salt;     /* texts share pages of the prefix cache only within one (sched_key) */
    uint64_t tenant;         /* whose it is: tenants get equal shares (sched_key); 0: nobody's */
    unsigned priority;       /* 0 to 9: higher ones first; also of its pages in the prefix cache */
    uint64_t deadline_ns;    /* clock_ns() when it must have started, or it fails; 0: none */
    uint64_t arrival_ns;     /* clock_ns() when the request came */
    struct logit_bias *bias; /* malloc'ed, n_bias entries, or NULL */
    size_t n_bias;
    struct sample_params sampling; /* bias and banned are set by sched_submit */
};

/* A generation of SCHED_REST tokens at sample_params_default() without log-probabilities, arrived
 * now. Takes over tokens (malloc'ed). */
struct generation *generation_new(uint64_t id, uint32_t *tokens, uint32_t n_tokens);
/* NULL is fine. */
void generation_free(struct generation *g);

enum sched_event_kind { SCHED_STARTED, SCHED_TOKEN, SCHED_DONE, SCHED_FAILED };
enum sched_reason { SCHED_STOP, SCHED_LENGTH };

struct sched_token {
    uint32_t token;
    uint32_t index;             /* 0 for the first token made */
    float logprob;              /* of this token; 0 when n_top < 0 */
    uint32_t n_top;             /* entries of top, best first */
    uint32_t drafted, accepted; /* of the choice so far: see sched_end */
    uint64_t logits_hash;       /* chain up to this token; 0 without trace_logits */
    struct sample_logprob top[SAMPLE_TOP_MAX];
};

/* How a generation went; in DONE and FAILED alike. Times in nanoseconds. */
struct sched_end {
    enum sched_reason reason; /* DONE only */
    bool last;                /* the generation's last event; FAILED: always */
    enum status status; /* FAILED: why (STATUS_CANCELLED after sched_cancel); DONE: STATUS_OK */
    const char *text;   /* FAILED: a sentence, static storage; DONE: NULL */
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t
        completion_tokens;   /* TOKEN events of the choice (FAILED: of all that lived); an end token
                                   that was drawn is none */
    uint32_t drafted_tokens; /* guessed for it and verified */
    uint32_t accepted_tokens; /* of those, the ones that were right: so many came without a step */
    uint64_t queue_ns;        /* arrival to admission */
    uint64_t prefill_ns;      /* admission to first token */
    uint64_t decode_ns;       /* first token to last */
    uint64_t logits_hash;     /* of the last TOKEN event */
};

struct sched_event {
    enum sched_event_kind kind;
    uint32_t choice; /* TOKEN, DONE: whose */
    uint64_t id;
    union {
        struct {
            uint32_t prompt_tokens;
            uint32_t cached_tokens;
            uint64_t queue_ns;
            const char *cache; /* why not more is cached, static: "whole" (nothing is missing),
                                  "short", "new", "diverged", "evicted", "off" */
        } started;
        struct sched_token token;
        struct sched_end end; /* DONE and FAILED */
    };
};

/* Starts the thread. engine, pool and stats (which may be NULL) must outlive the scheduler; the
 * pool is its alone from now on. */
enum status sched_create(const struct sched_engine *engine, struct pages *pool,
                         struct stats_writer *stats, const struct sched_options *options,
                         struct sched **sched, struct error *err);
/* Joins the thread and frees everything. Generations that still live and events not yet read are
 * lost. */
void sched_free(struct sched *s);

/* The key of a text of len bytes, for generation.salt (all of it; {0} is no salt) and .tenant (a
 * word of it). */
struct siphash sched_key(const struct sched *s, const void *text, size_t len);
/* Hands a generation over. Errors, all at once and without side effects:
 * CONTEXT_LENGTH  prompt and max_tokens don't fit the context, or their pages (those of all choices)
 *                 could never fit the arena; the text has the numbers
 * INVALID         more choices than may run at once; param is "n"
 * QUEUE_FULL      max_queue generations wait, or max_queue_tokens tokens; *retry_after (may be NULL) is set to a number of
 *                 seconds, from how fast generations end now. What was put back (a slow reader's, or for want of
 *                 memory) is not counted among them, but max_queue + max_running of that fill the queue, too
 * DRAINING        after sched_drain or sched_stop */
enum status sched_submit(struct sched *s, struct generation *g, unsigned *retry_after,
                         struct error *err);
/* Whether sched_submit would find the queue full now; errors as there. For whoever would refuse a
 * request before looking into it. */
enum status sched_has_room(const struct sched *s, uint32_t n_choices, unsigned *retry_after,
                           struct error *err);
/* The same, shorter: true if the queue is full. */
bool sched_is_full(const struct sched *s, uint32_t n_choices, unsigned *retry_after);
/* Ends a generation at the next step border; unknown ids (just ended) are ignored. */
void sched_cancel(struct sched *s, uint64_t id);
/* As sched_cancel, but a prompt that is being computed is computed to its end, so that the prefix cache
 * has it, after everybody else's prompts. */
void sched_abandon(struct sched *s, uint64_t id);
/* Ends one choice, of which the caller has all it wants (a stop string), at the next step border: DONE,
 * as if it had drawn an end token. Ignored if it has ended, or has made no token yet. */
void sched_finish(struct sched *s, uint64_t id, uint32_t choice);
/* A paused generation makes no tokens and goes on where it was. It keeps its pages for pause_limit_ns;
 * then it is put back in the queue, as for want of memory. One that waits is not admitted while it is
 * paused. Unknown ids are ignored. */
void sched_pause(struct sched *s, uint64_t id, bool paused);
/* Takes no more generations; those submitted go on to their end. */
void sched_drain(struct sched *s);
/* Ends all generations at the next step border (FAILED, STATUS_DRAINING) and takes no more. */
void sched_stop(struct sched *s);

/* Becomes readable when there are events. For poll or uv_poll. */
int sched_event_fd(const struct sched *s);
/* clock_ns() when events were last published: what the loop's way from the ring of the descriptor to its handler takes. */
uint64_t sched_published_ns(const struct sched *s);
/* The next event, or false. Call until false: only then the descriptor is armed again. */
bool sched_next_event(struct sched *s, struct sched_event *event);

/* Generations that wait and run (a snapshot). */
uint32_t sched_waiting(const struct sched *s);
uint32_t sched_running(const struct sched *s);

#endif
