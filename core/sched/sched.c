#define _GNU_SOURCE
#include "core/sched/sched.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/sched/sched_priv.h"
#include "core/spec/spec.h"
#include "core/stats/writer.h"

#define RESERVE_TOKENS 256u
#define MAX_RUNNING 64u
#define RETRY_MAX 60u /* seconds */
#define CACHE_IDLE_NS UINT64_C(300000000000)
#define PAUSE_LIMIT_NS UINT64_C(30000000000)
#define ITL_TARGET 3

static void wake_for_pages(void *data)
{
    struct sched *s = data;
    atomic_store(&s->pages_came, true);
    doorbell_ring(&s->bell);
}

static void send(struct sched *s, struct command command)
{
    struct command *c = xmalloc(sizeof(*c));
    *c = command;
    mailbox_send(&s->commands, &c->letter);
    doorbell_ring(&s->bell);
}

static void release(struct sched *s)
{
    pages_set_wake(s->pool, NULL, NULL);
    prefix_cache_free(s->cache);
    doorbell_release(&s->bell);
    doorbell_release(&s->event_bell);
    spsc_release(&s->events);
    map_release(&s->by_id);
    fair_release(&s->fair);
    batch_release(&s->batch);
    drawer_release(&s->drawer);
    free(s->logits);
    free(s->texts);
    free(s->failed);
    free(s->eog);
    free(s);
}

/* Brings the options within what the engine can do. */
static void set_options(struct sched *s, const struct sched_options *options)
{
    struct sched_options *o = &s->options;
    *o = *options;
    uint32_t most = s->engine.max_tokens;
    o->context = o->context == 0 || o->context > s->engine.context ? s->engine.context : o->context;
    o->prefill_chunk = o->prefill_chunk == 0 || o->prefill_chunk > most ? most : o->prefill_chunk;
    o->max_running = o->max_running == 0 ? MAX_RUNNING : o->max_running;
    o->max_running = o->max_running > most ? most : o->max_running;
    o->reserve_tokens = o->reserve_tokens == 0 ? RESERVE_TOKENS : o->reserve_tokens;
    o->pause_limit_ns = o->pause_limit_ns == 0 ? PAUSE_LIMIT_NS : o->pause_limit_ns;
    o->itl_target = o->itl_target == 0 ? ITL_TARGET : o->itl_target;
    pace_init(&s->pace, o->itl_target);
    o->cache_idle_ns = o->cache_idle_ns == 0 ? CACHE_IDLE_NS : o->cache_idle_ns;
    s->eog = xcalloc(o->n_eog + 1, sizeof(*s->eog));
    if (o->n_eog > 0)
        memcpy(s->eog, o->eog, o->n_eog * sizeof(*s->eog));
    o->eog = s->eog;
}

enum status sched_create(const struct sched_engine *engine, struct pages *pool,
                         struct stats_writer *stats, const struct sched_options *options,
                         struct sched **sched, struct error *err)
{
    struct sched *s = xaligned(sizeof(*s));
    s->engine = *engine;
    s->pool = pool;
    s->stats = stats;
    set_options(s, options);
    queue_init(&s->waiting);
    queue_init(&s->running);
    s->running.by_priority = true;
    uint32_t rows = s->options.max_running + (s->options.spec != NULL ? SPEC_STEP_MAX : 0);
    batch_init(&s->batch, s->engine.max_tokens, s->options.max_running);
    drawer_init(&s->drawer, &s->engine, rows, s->eog, s->options.n_eog, s->options.trace_logits);
    /* Not zeroed: only the rows that are used ever take memory. */
    s->logits = aligned_alloc(64, (size_t)rows * s->engine.logits_stride * sizeof(float));
    check(s->logits != NULL);
    s->texts = xcalloc(s->options.max_running, sizeof(*s->texts));
    s->failed = xcalloc(s->options.max_running, sizeof(*s->failed));
    /* Room for several turns of events of everybody that may live, those that were put back
     * included (sched_has_room): the loop may be late without holding up a step. */
    spsc_init(&s->events, 8 * s->options.max_running + 4 * (s->options.max_queue + SPEC_STEP_MAX),
              sizeof(struct sched_event));
    bool bells = doorbell_init(&s->bell);
    bells = doorbell_init(&s->event_bell) && bells;
    if (!bells) {
        release(s);
        return error_set(err, STATUS_IO, "the scheduler's eventfd: %s", strerror(errno));
    }
    if (getrandom(s->key, sizeof(s->key), 0) != (ssize_t)sizeof(s->key)) {
        release(s);
        return error_set(err, STATUS_IO, "a key for the prefix cache: %s", strerror(errno));
    }
    if (!s->options.no_cache)
        s->cache = prefix_cache_create(pool, s->key);
    struct pages_counts counts;
    pages_counts(pool, &counts);
    stats_set(stats, STAT_kv_pages_total, counts.total);
    stats_set(stats, STAT_kv_page_bytes, pages_bytes(pool));
    pages_set_wake(pool, wake_for_pages, s);
    int code = pthread_create(&s->thread, NULL, sched_main, s);
    if (code != 0) {
        release(s);
        return error_set(err, STATUS_IO, "the scheduler's thread: %s", strerror(code));
    }
    *sched = s;
    return STATUS_OK;
}

void sched_free(struct sched *s)
{
    if (s == NULL)
        return;
    atomic_store(&s->quit, true);
    doorbell_ring(&s->bell);
    pthread_join(s->thread, NULL);
    release(s);
}

struct siphash sched_key(const struct sched *s, const void *text, size_t len)
{
    return siphash(s->key, text, len);
}

/* Generations that wait and never ran. */
static uint32_t new_waiting(const struct sched *s)
{
    return atomic_load(&s->n_sent) - atomic_load(&s->n_received) + atomic_load(&s->n_new);
}

/* Seconds until a place in the queue is likely to be free. */
static unsigned retry_seconds(const struct sched *s)
{
    uint64_t interval = atomic_load(&s->end_interval_ns);
    uint64_t seconds = interval * (new_waiting(s) / 4 + 1) / 1000000000u + 1;
    return seconds < RETRY_MAX ? (unsigned)seconds : RETRY_MAX;
}

/* Works out how many tokens g may make. */
static enum status find_limit(const struct sched *s, const struct generation *g, uint32_t *limit,
                              struct error *err)
{
    uint32_t context = s->options.context, total = pages_total(s->pool) - s->options.other_pages;
    /* Choices share the full pages of the prompt, where the cache keeps them. */
    uint32_t shared = s->cache != NULL ? g->n_tokens / BLOCK_POSITIONS : 0;
    uint32_t each = total > shared ? shared + (total - shared) / g->n_choices : total;
    uint64_t fits = (uint64_t)each * BLOCK_POSITIONS;
    bool rest = g->grows || g->max_tokens == SCHED_REST;
    uint64_t asked = (uint64_t)g->n_tokens + (rest ? 1 : g->max_tokens);
    if (asked > context && rest)
        return error_set(
            err, STATUS_CONTEXT_LENGTH,
            "the prompt has %u tokens; the model's context of %u leaves no room for an answer",
            g->n_tokens, context);
    if (asked > context)
        return error_set(
            err, STATUS_CONTEXT_LENGTH,
            "the prompt's %u tokens and max_tokens %u are %llu together; the model's context is %u",
            g->n_tokens, g->max_tokens, (unsigned long long)asked, context);
    if (asked - 1 > fits && g->n_choices > 1)
        return error_set(err, STATUS_CONTEXT_LENGTH,
                         "%llu tokens were asked for (prompt: %u); the KV memory holds %llu for "
                         "each of %u choices",
                         (unsigned long long)asked, g->n_tokens, (unsigned long long)fits,
                         g->n_choices);
    if (asked - 1 > fits)
        return error_set(err, STATUS_CONTEXT_LENGTH,
                         "%llu tokens were asked for (prompt: %u); the KV memory holds %llu",
                         (unsigned long long)asked, g->n_tokens, (unsigned long long)fits);
    uint64_t longest = context < fits + 1 ? context : fits + 1;
    longest -= g->n_tokens;
    *limit = rest && g->max_tokens > longest ? (uint32_t)longest : g->max_tokens;
    return STATUS_OK;
}

/* Those that were put back are more than a full queue and all that run. */
static bool is_crowded(const struct sched *s)
{
    return atomic_load(&s->n_put_back) >= s->options.max_queue + s->options.max_running;
}

bool sched_is_full(const struct sched *s, uint32_t n_choices, unsigned *retry_after)
{
    uint32_t waiting = new_waiting(s);
    bool idle = waiting == 0 && sched_running(s) + n_choices <= s->options.max_running;
    if (!is_crowded(s) && (idle || waiting < s->options.max_queue))
        return false;
    if (retry_after != NULL)
        *retry_after = retry_seconds(s);
    return true;
}

enum status sched_has_room(const struct sched *s, uint32_t n_choices, unsigned *retry_after,
                           struct error *err)
{
    if (!sched_is_full(s, n_choices, retry_after))
        return STATUS_OK;
    if (is_crowded(s))
        return error_set(err, STATUS_QUEUE_FULL,
                         "the queue is full: %u answers that were put back are waiting",
                         atomic_load(&s->n_put_back));
    return error_set(err, STATUS_QUEUE_FULL, "the queue is full: %u requests are waiting",
                     s->options.max_queue);
}

enum status sched_submit(struct sched *s, struct generation *g, unsigned *retry_after,
                         struct error *err)
{
    check(g->n_tokens > 0 && g->max_tokens > 0 && g->n_top <= (int)SAMPLE_TOP_MAX);
    check(g->n_choices > 0);
    uint32_t limit = 0;
    if (g->n_choices > s->options.max_running)
        return error_param(err, STATUS_INVALID, "n",
                           "%u choices were asked for; %u may run at once", g->n_choices,
                           s->options.max_running);
    enum status status = find_limit(s, g, &limit, err);
    if (status != STATUS_OK)
        return status;
    if (s->draining)
        return error_set(err, STATUS_DRAINING, "%s", status_text(STATUS_DRAINING));
    status = sched_has_room(s, g->n_choices, retry_after, err);
    if (status != STATUS_OK)
        return status;
    uint64_t tokens = atomic_load(&s->queued_tokens);
    if (new_waiting(s) > 0 && s->options.max_queue_tokens > 0 &&
        tokens + g->n_tokens > s->options.max_queue_tokens) {
        if (retry_after != NULL)
            *retry_after = retry_seconds(s);
        return error_set(err, STATUS_QUEUE_FULL,
                         "the queue is full: prompts of %llu tokens are waiting, the limit is %llu",
                         (unsigned long long)tokens,
                         (unsigned long long)s->options.max_queue_tokens);
    }
    atomic_fetch_add(&s->queued_tokens, g->n_tokens);
    g->sampling.bias = g->bias;
    g->sampling.n_bias = g->n_bias;
    g->sampling.banned = g->ignore_eos ? s->eog : NULL;
    g->sampling.n_banned = g->ignore_eos ? s->options.n_eog : 0;
    atomic_fetch_add(&s->n_sent, 1);
    send(s, (struct command){.kind = COMMAND_SUBMIT,
                             .generation = g,
                             .limit = limit,
                             .grows = g->grows || g->max_tokens == SCHED_REST});
    return STATUS_OK;
}

void sched_cancel(struct sched *s, uint64_t id)
{
    send(s, (struct command){.kind = COMMAND_CANCEL, .id = id});
}

void sched_abandon(struct sched *s, uint64_t id)
{
    send(s, (struct command){.kind = COMMAND_ABANDON, .id = id});
}

void sched_finish(struct sched *s, uint64_t id, uint32_t choice)
{
    send(s, (struct command){.kind = COMMAND_FINISH, .id = id, .choice = choice});
}

void sched_pause(struct sched *s, uint64_t id, bool paused)
{
    send(s, (struct command){.kind = COMMAND_PAUSE, .id = id, .paused = paused});
}

void sched_drain(struct sched *s)
{
    s->draining = true;
}

void sched_stop(struct sched *s)
{
    s->draining = true;
    send(s, (struct command){.kind = COMMAND_STOP});
}

int sched_event_fd(const struct sched *s)
{
    return s->event_bell.fd;
}

uint64_t sched_published_ns(const struct sched *s)
{
    return atomic_load_explicit(&s->published_ns, memory_order_relaxed);
}

bool sched_next_event(struct sched *s, struct sched_event *event)
{
    struct sched_event *next = spsc_peek(&s->events);
    if (next == NULL) {
        doorbell_arm(&s->event_bell);
        next = spsc_peek(&s->events);
        if (next == NULL)
            return false;
        doorbell_disarm(&s->event_bell);
    }
    *event = *next;
    spsc_drop(&s->events);
    return true;
}

uint32_t sched_waiting(const struct sched *s)
{
    return new_waiting(s) + atomic_load(&s->n_put_back);
}

uint32_t sched_running(const struct sched *s)
{
    return atomic_load(&s->n_running);
}
