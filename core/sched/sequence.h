/* sequence.h: one choice of a generation inside the scheduler: its state, its tokens and its pages.
 *
 *      tokens   [ prompt ............ | made ......... ]
 *                n_prompt               n_made
 *      n_seen    |------------------------->|  K and V of these are in the pages
 *
 *      SEQUENCE_WAITING   no pages, no promise
 *      SEQUENCE_PREFILL   n_seen < all tokens - 1 or nothing drawn yet: chunks of tokens go through the model
 *      SEQUENCE_DECODE    only the last token is unseen: one token a step
 *
 * After a preemption the sequence waits again with all its tokens, and prefill goes over prompt and
 * made tokens alike.
 *
 *      table    [ page | page | page | page | page ]
 *                n_shared ----->|  the prefix cache has these too, up to `entry`
 *
 * Pages come into the table from the cache (a prefix that somebody had before), and go into it as
 * soon as they are full. The last token is always fed, for its logits, so a lookup takes at most
 * (tokens - 1) / 32 pages.
 *
 * A sequence with `forks` stands for that many further choices too, until its prompt is computed
 * (sequence_fork). Owner: the scheduler thread. */
#ifndef SCHED_SEQUENCE_H
#define SCHED_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/block_table.h"
#include "alloc/prefix_cache.h"
#include "core/base/list.h"
#include "core/model/sample.h"
#include "core/sched/sched.h"
#include "core/spec/drafter.h"

struct tenant;

enum sequence_state { SEQUENCE_WAITING, SEQUENCE_PREFILL, SEQUENCE_DECODE };

struct sequence {
    struct list node; /* in the queue or among the running */
    uint64_t id;
    uint64_t serial; /* order of arrival */
    enum sequence_state state;
    bool paused;
    uint64_t paused_ns; /* since when */
    bool started;       /* STARTED was sent */
    bool put_back;      /* has run, and had to wait again */
    bool abandoned;     /* only its prompt is wanted, in the cache */

    uint32_t choice;     /* index among the generation's */
    struct list kin;     /* ring of the sequences of one generation */
    uint32_t forks;      /* choices that begin where its prompt ends; 0 once they have begun */
    uint32_t fork_pages; /* promised for each of them, in `promised` */

    struct generation *generation; /* its own */
    uint32_t *tokens;              /* the generation's array, grown by what is made */
    uint32_t tokens_cap;
    uint32_t n_prompt, n_made;
    uint32_t limit; /* tokens to make at most */
    uint32_t priority;

    /* fair.h */
    struct tenant *tenant;
    uint32_t level;  /* as last ranked */
    uint64_t served; /* as last ranked */
    uint32_t passed; /* times that later ones were admitted before */
    bool grows;      /* promised only in part (no max_tokens) */
    uint32_t n_seen;
    uint32_t n_cached;

    struct block_table table;
    uint32_t
        promised; /* pages reserved in the pool for it; those it shares with the cache are not */

    struct prefix_cache *cache; /* NULL: looks nothing up and keeps nothing */
    struct siphash *chain;      /* hash of each full page of its tokens, as far as was needed */
    uint32_t n_chain, chain_cap;
    uint32_t n_shared;          /* pages of the table, from the first, that the cache has */
    struct prefix_entry *entry; /* the last of them */

    struct draft_text *draft; /* NULL: nothing is guessed for it; verify.h */

    struct sample_state history; /* kept only where the penalties need it */
    bool needs_history;
    uint64_t hash; /* of the rows of all tokens made */
    uint64_t admitted_ns, first_ns, last_ns;
};

/* Takes over the generation; limit as sched.c computed it. */
struct sequence *sequence_new(struct generation *g, uint64_t serial, uint32_t limit, bool grows,
                              struct prefix_cache *cache);
/* Drops pages and promise, frees it and the generation. */
void sequence_free(struct sequence *s, struct pages *pool);

/* The k-th further choice of s, whose prompt was just computed: a sequence of the same tokens and pages,
 * with the promise that s held for it. In no queue; among the kin. */
struct sequence *sequence_fork(struct sequence *s, uint32_t k, uint64_t serial);

/* Places among the running that it takes. */
static inline uint32_t sequence_places(const struct sequence *s)
{
    return 1 + s->forks;
}

/* All tokens: prompt and made. */
static inline uint32_t sequence_tokens(const struct sequence *s)
{
    return s->n_prompt + s->n_made;
}

/* Positions that will ever need K and V: the last token made is never fed. */
static inline uint32_t sequence_positions_max(const struct sequence *s)
{
    return s->n_prompt + s->limit - 1;
}

/* WAITING -> PREFILL: promises pages for all tokens so far and `ahead` more, or for all that it may
 * ever need, less what the cache has; those pages are its own now too. So much, less the full pages of
 * the prompt, for each further choice as well. False if the pool cannot promise them. */
bool sequence_admit(struct sequence *s, struct pages *pool, uint32_t ahead, uint64_t now_ns);
/* Makes positions [n_seen, n_seen + count) writable, promising more if it grows. NO_MEMORY: the
 * pool can promise no more; LOADING: the page is promised but not populated yet, try again when the
 * pool wakes us. */
enum status sequence_extend(struct sequence *s, struct pages *pool, uint32_t count, uint32_t ahead);
/* After that: makes the positions of its draft writable too, or of as much of it as is promised and
 * there; cuts the draft to that. Returns its length. */
uint32_t sequence_extend_draft(struct sequence *s);
/* n more of its tokens, of those that a step was given, count as seen; positions behind them are
 * forgotten. */
void sequence_advance(struct sequence *s, uint32_t n);
/* Pages of its tokens that an admission would find in the cache now. */
uint32_t sequence_cached_pages(struct sequence *s);
/* Takes the pages behind its own that others have finished in the meantime. */
void sequence_follow(struct sequence *s, struct pages *pool);
/* Whether `other`, which prefills too and is no less important, is about to finish the page that s
 * would fill next: then s need not. Never true both ways, nor in a circle. Both are ranked. */
bool sequence_waits_for(struct sequence *s, struct sequence *other);
/* Gives the pages that are full now to the cache; of two equal ones the cache's stays. */
void sequence_keep(struct sequence *s, struct pages *pool, uint64_t now_ns);
/* How the lookup went: a word for statistics and logs. */
const char *sequence_cache_word(struct sequence *s);
/* From now on only its prompt is wanted: makes no choices and gives up what was promised for an answer.
 * It must be in PREFILL. */
void sequence_abandon(struct sequence *s, struct pages *pool);
/* Back to WAITING: drops pages and promise, keeps the tokens. In no queue meanwhile. */
void sequence_preempt(struct sequence *s, struct pages *pool);
/* Adds a token that was drawn. (The history has it already where it was a draft.) */
void sequence_add(struct sequence *s, uint32_t token);

#endif
