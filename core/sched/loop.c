/* The scheduler thread: turns of commands, admission, one step, events. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/kernels/kernels.h"
#include "core/sched/sched_priv.h"
#include "core/stats/writer.h"

#define TRIM_EVERY_NS 1000000000u
#define TRIM_IDLE_NS 5000000000u /* an empty slab is kept that long */
#define SLEEP_MS 1000            /* longest sleep: trimming goes on while nothing runs */
#define NO_ROOM_MS 1             /* between two looks whether the loop has read its events */

/* ---- events ---- */

static struct sched_event *put_event(struct sched *s, enum sched_event_kind kind, uint64_t id)
{
    struct sched_event *e = spsc_put(&s->events);
    e->kind = kind;
    e->id = id;
    return e;
}

static void publish(struct sched *s)
{
    atomic_store_explicit(&s->published_ns, clock_ns(), memory_order_relaxed);
    if (spsc_publish(&s->events))
        doorbell_ring(&s->event_bell);
}

static uint64_t since(uint64_t from, uint64_t to)
{
    return from != 0 && to > from ? to - from : 0;
}

/* How fast ends come while others wait: what Retry-After is made from. */
static void learn_interval(struct sched *s, uint64_t now)
{
    if (s->last_end_ns != 0 && s->waiting.count > 0) {
        uint64_t old = atomic_load(&s->end_interval_ns), sample = now - s->last_end_ns;
        atomic_store(&s->end_interval_ns, old == 0 ? sample : old - old / 8 + sample / 8);
    }
    s->last_end_ns = now;
}

/* Frees it, its pages first of all. */
static void remove_sequence(struct sched *s, struct sequence *q)
{
    queue_remove(q->state == SEQUENCE_WAITING ? &s->waiting : &s->running, q);
    if (q->admitted_ns == 0)
        atomic_fetch_sub(&s->queued_tokens, q->n_prompt);
    fair_leave(&s->fair, q);
    sequence_free(q, s->pool);
}

/* Emits DONE (status OK) or FAILED and frees the sequence, its pages first of all. */
static void end(struct sched *s, struct sequence *q, enum status status, enum sched_reason reason)
{
    uint64_t now = clock_ns();
    struct sched_event *e = put_event(s, status == STATUS_OK ? SCHED_DONE : SCHED_FAILED, q->id);
    e->end = (struct sched_end){
        .reason = reason,
        .status = status,
        .text = status == STATUS_OK ? NULL : status_text(status),
        .prompt_tokens = q->n_prompt,
        .cached_tokens = q->n_cached,
        .completion_tokens = q->n_made,
        .queue_ns = since(q->generation->arrival_ns, q->admitted_ns != 0 ? q->admitted_ns : now),
        .prefill_ns = since(q->admitted_ns, q->first_ns != 0 ? q->first_ns : now),
        .decode_ns = since(q->first_ns, q->last_ns),
        .logits_hash = s->options.trace_logits ? q->hash : 0,
    };
    map_take(&s->by_id, q->id);
    remove_sequence(s, q);
    learn_interval(s, now);
}

static void end_all(struct sched *s, enum status status)
{
    struct sequence *q;
    while ((q = queue_first(&s->running)) != NULL || (q = queue_first(&s->waiting)) != NULL)
        end(s, q, status, SCHED_STOP);
}

/* ---- commands ---- */

static void submit(struct sched *s, const struct command *c)
{
    struct sequence *q =
        sequence_new(c->generation, s->next_serial++, c->limit, c->grows, s->cache);
    check(map_set(&s->by_id, q->id, q) == NULL);
    queue_add(&s->waiting, q);
    fair_join(&s->fair, q);
    /* In this order: for a moment it counts twice, never not at all. */
    atomic_store(&s->n_queued, s->waiting.count);
    atomic_fetch_add(&s->n_received, 1);
    if (s->stopped)
        end(s, q, STATUS_DRAINING, SCHED_STOP);
}

static void obey(struct sched *s, const struct command *c)
{
    struct sequence *q = map_get(&s->by_id, c->id);
    switch (c->kind) {
    case COMMAND_SUBMIT:
        submit(s, c);
        break;
    case COMMAND_CANCEL:
        if (q != NULL)
            end(s, q, STATUS_CANCELLED, SCHED_STOP);
        break;
    case COMMAND_PAUSE:
        if (q != NULL) {
            q->paused = c->paused;
            q->paused_ns = clock_ns();
        }
        break;
    case COMMAND_STOP:
        s->stopped = true;
        end_all(s, STATUS_DRAINING);
        break;
    }
}

static void take_commands(struct sched *s)
{
    struct letter *letter = mailbox_take(&s->commands);
    while (letter != NULL) {
        struct command *c = (struct command *)letter;
        letter = letter->next;
        obey(s, c);
        free(c);
    }
}

/* Frees everything that lives or was sent, without a word. */
static void drop_all(struct sched *s)
{
    struct letter *letter = mailbox_take(&s->commands);
    while (letter != NULL) {
        struct command *c = (struct command *)letter;
        letter = letter->next;
        generation_free(c->generation);
        free(c);
    }
    struct sequence *q;
    while ((q = queue_first(&s->running)) != NULL || (q = queue_first(&s->waiting)) != NULL) {
        remove_sequence(s, q);
    }
}

/* ---- a turn ---- */

static void show_counts(struct sched *s)
{
    struct pages_counts counts;
    pages_counts(s->pool, &counts);
    atomic_store(&s->n_running, s->running.count);
    atomic_store(&s->n_queued, s->waiting.count);
    stats_set(s->stats, STAT_requests_running, s->running.count);
    stats_set(s->stats, STAT_requests_waiting, s->waiting.count);
    stats_set(s->stats, STAT_kv_pages_used, counts.used);
    stats_set(s->stats, STAT_kv_pages_cached, counts.idle);
    if (s->cache == NULL)
        return;
    struct prefix_counts cached;
    prefix_cache_counts(s->cache, &cached);
    uint64_t dropped = cached.evicted + cached.expired;
    stats_add(s->stats, STATS_CELL_SCHED, STAT_kv_pages_evicted_total, dropped - s->n_dropped);
    s->n_dropped = dropped;
}

/* Fails those that have waited past their deadline. */
static void drop_late(struct sched *s, uint64_t now)
{
    queue_each(it, tmp, &s->waiting)
    {
        struct sequence *q = queue_entry(it);
        uint64_t deadline = q->generation->deadline_ns;
        if (deadline != 0 && now >= deadline && !q->started)
            end(s, q, STATUS_TIMEOUT, SCHED_STOP);
    }
}

static void admit(struct sched *s)
{
    struct sequence *q;
    uint64_t now = clock_ns();
    drop_late(s, now);
    while (s->running.count < s->options.max_running && (q = fair_next(&s->waiting, now)) != NULL) {
        bool first = q->admitted_ns == 0;
        if (!sequence_admit(q, s->pool, s->options.reserve_tokens, now))
            break;
        if (first)
            atomic_fetch_sub(&s->queued_tokens, q->n_prompt);
        queue_remove(&s->waiting, q);
        fair_admitted(&s->waiting, q);
        queue_add(&s->running, q);
    }
}

static void count_lookup(struct sched *s, const char *word)
{
    static const struct {
        const char *word;
        enum stats_id stat;
    } counters[] = {{"whole", STAT_cache_whole},
                    {"short", STAT_cache_miss_short},
                    {"new", STAT_cache_miss_new},
                    {"diverged", STAT_cache_miss_diverged},
                    {"evicted", STAT_cache_miss_evicted}};
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++)
        if (strcmp(counters[i].word, word) == 0)
            stats_add(s->stats, STATS_CELL_SCHED, counters[i].stat, 1);
}

/* STARTED for those in the batch that were in none before. */
static void announce(struct sched *s)
{
    for (uint32_t i = 0; i < s->batch.n_members; i++) {
        struct sequence *q = s->batch.members[i].sequence;
        if (q->started)
            continue;
        q->started = true;
        struct sched_event *e = put_event(s, SCHED_STARTED, q->id);
        e->started.prompt_tokens = q->n_prompt;
        e->started.cached_tokens = q->n_cached;
        e->started.queue_ns = since(q->generation->arrival_ns, q->admitted_ns);
        e->started.cache = sequence_cache_word(q);
        count_lookup(s, e->started.cache);
        stats_record(s->stats, STATS_CELL_SCHED, STAT_queue_time, e->started.queue_ns);
        stats_add(s->stats, STATS_CELL_SCHED, STAT_cached_tokens_total, q->n_cached);
    }
}

static void run_step(struct sched *s)
{
    struct batch *b = &s->batch;
    struct step step = {.tokens = b->tokens,
                        .n_tokens = b->n_tokens,
                        .sequences = b->sequences,
                        .n_sequences = b->n_members,
                        .pool = s->pool};
    uint64_t start = clock_ns();
    s->engine.step(s->engine.data, &step, s->logits);
    drawer_run(&s->drawer, b, s->logits);
    uint64_t ns = clock_ns() - start;
    pace_learn(&s->pace, b, ns);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_steps_total, 1);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_step_tokens_total, b->n_tokens);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_step_sequences_total, b->n_members);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_prefilled_tokens_total, b->n_prefill);
    stats_record(s->stats, STATS_CELL_SCHED, STAT_step_time, ns);
    stats_record(s->stats, STATS_CELL_SCHED, STAT_step_tokens, b->n_tokens);
}

/* One row's token: TOKEN, and DONE where it is the last. */
static void emit(struct sched *s, struct sequence *q, const struct drawn *drawn, uint64_t now)
{
    if (drawn->ends) {
        end(s, q, STATUS_OK, SCHED_STOP);
        return;
    }
    struct sched_event *e = put_event(s, SCHED_TOKEN, q->id);
    e->token.token = drawn->token;
    e->token.index = q->n_made;
    e->token.logprob = drawn->logprob;
    e->token.n_top = drawn->n_top;
    e->token.logits_hash = s->options.trace_logits ? drawn->hash : 0;
    memcpy(e->token.top, drawn->top, drawn->n_top * sizeof(drawn->top[0]));
    q->hash = drawn->hash;
    if (q->n_made == 0)
        q->first_ns = now;
    q->last_ns = now;
    q->state = SEQUENCE_DECODE;
    sequence_add(q, drawn->token);
    if (q->n_made == q->limit)
        end(s, q, STATUS_OK, SCHED_LENGTH);
}

static void take_results(struct sched *s)
{
    struct batch *b = &s->batch;
    uint64_t now = clock_ns();
    uint32_t row = 0;
    for (uint32_t i = 0; i < b->n_members; i++) {
        struct batch_member *m = &b->members[i];
        m->sequence->n_seen += m->count;
        fair_serve(m->sequence, m->count, m->sequence->state == SEQUENCE_DECODE);
        const struct drawn *drawn = m->draws ? &s->drawer.drawn[row++] : NULL;
        if (!b->sequences[i].failed)
            sequence_keep(m->sequence, s->pool, now);
        if (b->sequences[i].failed) {
            stats_add(s->stats, STATS_CELL_SCHED, STAT_non_finite_total, 1);
            end(s, m->sequence, STATUS_NON_FINITE, SCHED_STOP);
        } else if (drawn != NULL) {
            emit(s, m->sequence, drawn, now);
        }
    }
}

/* Sleeps until there are commands or pages, or for SLEEP_MS. */
static void rest(struct sched *s)
{
    publish(s);
    show_counts(s);
    doorbell_arm(&s->bell);
    if (atomic_load(&s->commands.top) == NULL && !atomic_load(&s->pages_came) &&
        !atomic_load(&s->quit))
        doorbell_wait(&s->bell, SLEEP_MS);
    doorbell_disarm(&s->bell);
}

/* Slow readers may not keep memory from the others for ever. */
static void put_back_paused(struct sched *s, uint64_t now)
{
    queue_each(it, tmp, &s->running)
    {
        struct sequence *q = queue_entry(it);
        if (!q->paused || now < q->paused_ns + s->options.pause_limit_ns)
            continue;
        queue_remove(&s->running, q);
        sequence_preempt(q, s->pool);
        queue_add(&s->waiting, q);
        stats_add(s->stats, STATS_CELL_SCHED, STAT_preemptions_total, 1);
    }
}

static void trim(struct sched *s)
{
    uint64_t now = clock_ns();
    if (now - s->last_trim_ns < TRIM_EVERY_NS)
        return;
    s->last_trim_ns = now;
    put_back_paused(s, now);
    if (s->cache != NULL)
        prefix_cache_expire(s->cache, now, s->options.cache_idle_ns);
    pages_trim(s->pool, now, TRIM_IDLE_NS);
}

/* Whether a turn's events fit the queue whatever happens: an end for all that live or may be
 * submitted and cancelled at once, STARTED and TOKEN for all that may run. */
static bool has_room(struct sched *s)
{
    uint32_t living = s->running.count + s->waiting.count;
    return spsc_room(&s->events) > living + s->options.max_queue + 2 * s->options.max_running + 1;
}

static void turn(struct sched *s)
{
    atomic_store(&s->pages_came, false);
    take_commands(s);
    trim(s);
    admit(s);
    uint32_t preempted =
        batch_plan(&s->batch, &s->running, &s->waiting, s->pool, &s->pace, s->options.prefill_chunk,
                   s->options.reserve_tokens, clock_ns());
    stats_add(s->stats, STATS_CELL_SCHED, STAT_preemptions_total, preempted);
    if (s->batch.n_tokens == 0) {
        rest(s);
        return;
    }
    announce(s);
    show_counts(s);
    run_step(s);
    take_results(s);
    show_counts(s);
    publish(s);
}

static void become_background(int nice)
{
    if (nice <= 0)
        return;
    struct sched_param param = {0};
    if (sched_setscheduler(0, SCHED_BATCH, &param) != 0 ||
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice) != 0)
        log_warn("scheduler: cannot lower the priority of its thread");
}

void *sched_main(void *data)
{
    struct sched *s = data;
    become_background(s->options.nice);
    kernels_enter_thread();
    while (!atomic_load(&s->quit)) {
        if (has_room(s)) {
            turn(s);
        } else {
            publish(s);
            /* Not at the bell: a command that nobody takes yet would make the wait return at once. */
            nanosleep(&(struct timespec){.tv_nsec = NO_ROOM_MS * 1000000L}, NULL);
        }
    }
    drop_all(s);
    return NULL;
}
