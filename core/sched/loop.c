/* The scheduler thread: turns of commands, admission, one step, events. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/background.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/kernels/kernels.h"
#include "core/sched/sched_priv.h"
#include "core/sched/verify.h"
#include "core/spec/spec.h"
#include "core/stats/writer.h"

#define TRIM_EVERY_NS 1000000000u
#define TRIM_IDLE_NS 5000000000u /* an empty slab is kept that long */
#define LONG_TOKENS 400u         /* kv_long_pages counts sequences from there on */
#define SLEEP_MS 1000            /* longest sleep: trimming goes on while nothing runs */
#define NO_ROOM_MS 1             /* between two looks whether the loop has read its events */

/* ---- events ---- */

static struct sched_event *put_event(struct sched *s, enum sched_event_kind kind,
                                     const struct sequence *q)
{
    struct sched_event *e = spsc_put(&s->events);
    e->kind = kind;
    e->choice = q->choice;
    e->id = q->id;
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

/* How fast ends come while others wait for a place: what Retry-After is made from. */
static void learn_interval(struct sched *s, uint64_t now)
{
    if (s->last_end_ns != 0 && s->waiting.count > s->waiting.n_put_back) {
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
    verify_leave(s, q);
    sequence_free(q, s->pool);
}

#define kin_entry(it) list_entry(it, struct sequence, kin)

/* Emits DONE (status OK) or FAILED. */
static void put_end(struct sched *s, const struct sequence *q, enum status status,
                    enum sched_reason reason, uint64_t now)
{
    struct sched_event *e = put_event(s, status == STATUS_OK ? SCHED_DONE : SCHED_FAILED, q);
    e->end = (struct sched_end){
        .reason = reason,
        .last = status != STATUS_OK || list_empty(&q->kin),
        .status = status,
        .text = status == STATUS_OK ? NULL : status_text(status),
        .prompt_tokens = q->n_prompt,
        .cached_tokens = q->n_cached,
        .completion_tokens = q->n_made,
        .drafted_tokens = q->draft != NULL ? q->draft->drafted : 0,
        .accepted_tokens = q->draft != NULL ? q->draft->accepted : 0,
        .queue_ns = since(q->generation->arrival_ns, q->admitted_ns != 0 ? q->admitted_ns : now),
        .prefill_ns = since(q->admitted_ns, q->first_ns != 0 ? q->first_ns : now),
        .decode_ns = since(q->first_ns, q->last_ns),
        .logits_hash = s->options.trace_logits ? q->hash : 0,
    };
    if (status != STATUS_OK)
        list_each(it, tmp, &q->kin) e->end.completion_tokens += kin_entry(it)->n_made;
}

/* Ends one choice: DONE. It is freed, its pages first of all. */
static void end_choice(struct sched *s, struct sequence *q, enum sched_reason reason)
{
    uint64_t now = clock_ns();
    put_end(s, q, STATUS_OK, reason, now);
    if (list_empty(&q->kin))
        map_take(&s->by_id, q->id);
    else
        map_set(&s->by_id, q->id, kin_entry(q->kin.next));
    remove_sequence(s, q);
    learn_interval(s, now);
}

/* Ends all choices of a generation: FAILED. */
static void fail(struct sched *s, struct sequence *q, enum status status)
{
    uint64_t now = clock_ns();
    put_end(s, q, status, SCHED_STOP, now);
    map_take(&s->by_id, q->id);
    list_each(it, tmp, &q->kin) remove_sequence(s, kin_entry(it));
    remove_sequence(s, q);
    learn_interval(s, now);
}

static void end_all(struct sched *s, enum status status)
{
    struct sequence *q;
    while ((q = queue_first(&s->running)) != NULL || (q = queue_first(&s->waiting)) != NULL)
        fail(s, q, status);
}

/* ---- commands ---- */

static void show_waiting(struct sched *s)
{
    atomic_store(&s->n_put_back, s->waiting.n_put_back);
    atomic_store(&s->n_new, s->waiting.count - s->waiting.n_put_back);
}

static void submit(struct sched *s, const struct command *c)
{
    struct sequence *q = sequence_new(c->generation, s->next_serial, c->limit, c->grows, s->cache);
    s->next_serial += c->generation->n_choices;
    check(map_set(&s->by_id, q->id, q) == NULL);
    queue_add(&s->waiting, q);
    fair_join(&s->fair, q);
    verify_join(s, q);
    /* In this order: for a moment it counts twice, never not at all. */
    show_waiting(s);
    atomic_fetch_add(&s->n_received, 1);
    if (s->stopped)
        fail(s, q, STATUS_DRAINING);
}

static void pause_one(struct sequence *q, bool paused, uint64_t now)
{
    q->paused = paused;
    q->paused_ns = now;
}

static void pause_all(struct sequence *q, bool paused)
{
    uint64_t now = clock_ns();
    list_each(it, tmp, &q->kin) pause_one(kin_entry(it), paused, now);
    pause_one(q, paused, now);
}

/* What computes its prompt goes on as the last of all. */
static void abandon(struct sched *s, struct sequence *q)
{
    if (s->cache == NULL || q->state != SEQUENCE_PREFILL || q->n_made > 0) {
        fail(s, q, STATUS_CANCELLED);
        return;
    }
    queue_remove(&s->running, q);
    q->priority = 0;
    sequence_abandon(q, s->pool);
    queue_add(&s->running, q);
}

static void finish(struct sched *s, struct sequence *q, uint32_t choice)
{
    struct sequence *found = q->choice == choice ? q : NULL;
    list_each(it, tmp, &q->kin) if (kin_entry(it)->choice == choice) found = kin_entry(it);
    if (found != NULL && found->n_made > 0)
        end_choice(s, found, SCHED_STOP);
}

static void obey(struct sched *s, const struct command *c)
{
    struct sequence *q = map_get(&s->by_id, c->id);
    if (c->kind == COMMAND_SUBMIT) {
        submit(s, c);
    } else if (c->kind == COMMAND_STOP) {
        s->stopped = true;
        end_all(s, STATUS_DRAINING);
    } else if (q != NULL) {
        if (c->kind == COMMAND_CANCEL)
            fail(s, q, STATUS_CANCELLED);
        else if (c->kind == COMMAND_ABANDON)
            abandon(s, q);
        else if (c->kind == COMMAND_FINISH)
            finish(s, q, c->choice);
        else
            pause_all(q, c->paused);
    }
}

/* Whether a turn's events fit the queue whatever happens: an end for each generation that lives;
 * STARTED, TOKEN and DONE for all that may run, TOKEN for their drafts. Counted are generations, not
 * sequences: of choices that were put back more may wait than ever run, and they end by one event. */
static bool has_room(struct sched *s)
{
    return spsc_room(&s->events) > s->by_id.count + 3 * s->options.max_running +
                                       (s->options.spec != NULL ? SPEC_STEP_MAX : 0) + 1;
}

/* Each command makes one event at most, but for STOP, after which nothing lives. What finds no room
 * stays for the next turn. */
static void take_commands(struct sched *s)
{
    if (s->letters == NULL)
        s->letters = mailbox_take(&s->commands);
    while (s->letters != NULL && has_room(s)) {
        struct command *c = (struct command *)s->letters;
        s->letters = s->letters->next;
        obey(s, c);
        free(c);
    }
}

static void drop_letters(struct letter *letter)
{
    while (letter != NULL) {
        struct command *c = (struct command *)letter;
        letter = letter->next;
        generation_free(c->generation);
        free(c);
    }
}

/* Frees everything that lives or was sent, without a word. */
static void drop_all(struct sched *s)
{
    drop_letters(s->letters);
    drop_letters(mailbox_take(&s->commands));
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
    show_waiting(s);
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

/* What the pages of long sequences hold: the last page of each is filled in part. */
static void show_waste(struct sched *s)
{
    uint64_t pages = 0, positions = 0;
    queue_each(it, tmp, &s->running)
    {
        const struct sequence *q = queue_entry(it);
        if (q->n_seen < LONG_TOKENS)
            continue;
        pages += q->table.n_pages;
        positions += q->n_seen;
    }
    stats_set(s->stats, STAT_kv_long_pages, pages);
    stats_set(s->stats, STAT_kv_long_positions, positions);
}

/* Fails those that have waited past their deadline. */
static void drop_late(struct sched *s, uint64_t now)
{
    queue_each(it, tmp, &s->waiting)
    {
        struct sequence *q = queue_entry(it);
        uint64_t deadline = q->generation->deadline_ns;
        if (deadline != 0 && now >= deadline && !q->started)
            fail(s, q, STATUS_TIMEOUT);
    }
}

/* Places among the running that are taken, those of choices to come included. */
static uint32_t places_taken(const struct sched *s)
{
    uint32_t n = 0;
    queue_each(it, tmp, &s->running) n += sequence_places(queue_entry(it));
    return n;
}

static void admit(struct sched *s)
{
    struct sequence *q;
    uint64_t now = clock_ns();
    drop_late(s, now);
    uint32_t taken = places_taken(s);
    while (taken < s->options.max_running && (q = fair_next(&s->waiting, now)) != NULL) {
        bool first = q->admitted_ns == 0;
        if (taken + sequence_places(q) > s->options.max_running)
            break;
        if (!sequence_admit(q, s->pool, s->options.reserve_tokens, now))
            break;
        if (first)
            atomic_fetch_sub(&s->queued_tokens, q->n_prompt);
        queue_remove(&s->waiting, q);
        fair_admitted(&s->waiting, q);
        queue_add(&s->running, q);
        taken += sequence_places(q);
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
        struct sched_event *e = put_event(s, SCHED_STARTED, q);
        e->started.prompt_tokens = q->n_prompt;
        e->started.cached_tokens = q->n_cached;
        e->started.queue_ns = since(q->generation->arrival_ns, q->admitted_ns);
        e->started.cache = sequence_cache_word(q);
        count_lookup(s, e->started.cache);
        stats_record(s->stats, STATS_CELL_SCHED, STAT_queue_time, e->started.queue_ns);
        stats_add(s->stats, STATS_CELL_SCHED, STAT_cached_tokens_total, q->n_cached);
    }
}

static uint64_t run_step(struct sched *s)
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
    verify_pace(s, ns);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_steps_total, 1);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_step_tokens_total, b->n_tokens);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_step_sequences_total, b->n_members);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_prefilled_tokens_total, b->work.prefill);
    if (s->engine.kv_read != NULL)
        stats_add(s->stats, STATS_CELL_SCHED, STAT_kv_read_bytes_total,
                  s->engine.kv_read(s->engine.data));
    stats_record(s->stats, STATS_CELL_SCHED, STAT_step_time, ns);
    stats_record(s->stats, STATS_CELL_SCHED, STAT_step_tokens, b->n_tokens);
    return ns;
}

/* A token that was drawn: TOKEN, and DONE where it is the last. */
static void emit(struct sched *s, struct sequence *q, const struct drawn *drawn, uint64_t now)
{
    if (drawn->ends) {
        end_choice(s, q, SCHED_STOP);
        return;
    }
    struct sched_event *e = put_event(s, SCHED_TOKEN, q);
    e->token.token = drawn->token;
    e->token.index = q->n_made;
    e->token.logprob = drawn->logprob;
    e->token.n_top = drawn->n_top;
    e->token.drafted = q->draft != NULL ? q->draft->drafted : 0;
    e->token.accepted = q->draft != NULL ? q->draft->accepted : 0;
    e->token.logits_hash = s->options.trace_logits ? drawn->hash : 0;
    memcpy(e->token.top, drawn->top, drawn->n_top * sizeof(drawn->top[0]));
    q->hash = drawn->hash;
    if (q->n_made == 0)
        q->first_ns = now;
    q->last_ns = now;
    q->state = SEQUENCE_DECODE;
    sequence_add(q, drawn->token);
    if (q->n_made == q->limit)
        end_choice(s, q, SCHED_LENGTH);
}

/* q has drawn; where that was for its prompt, for all its choices, which begin now. */
static void emit_all(struct sched *s, struct sequence *q, const struct drawn *drawn, uint64_t now)
{
    uint32_t n = q->forks;
    for (uint32_t k = 1; k <= n; k++) {
        struct sequence *f = sequence_fork(q, k, q->serial + k);
        queue_add(&s->running, f);
        fair_join(&s->fair, f);
        verify_join(s, f);
    }
    for (uint32_t k = 0; k <= n; k++) {
        struct sequence *next = kin_entry(q->kin.next); /* emit may be q's end */
        emit(s, q, &drawn[k], now);
        q = next;
    }
}

/* The sequence goes on from the start of its text, later. */
static void put_back(struct sched *s, struct sequence *q)
{
    queue_remove(&s->running, q);
    sequence_preempt(q, s->pool);
    queue_add(&s->waiting, q);
    stats_add(s->stats, STATS_CELL_SCHED, STAT_preemptions_total, 1);
}

/* What the step did for one member that did not fail; returns the tokens that it made. */
static uint32_t take_member(struct sched *s, struct batch_member *m, const struct drawn *drawn,
                            uint64_t now)
{
    struct sequence *q = m->sequence;
    uint32_t right = m->n_drafts > 0 ? m->n_drawn - 1 : 0, fed = m->count - m->n_drafts + right;
    verify_learn(s, m, right);
    /* None of these ends it: drafts leave room for one token behind them. */
    for (uint32_t k = 0; k < right; k++)
        emit(s, q, &drawn[k], now);
    fair_serve(q, fed, q->state == SEQUENCE_DECODE);
    sequence_advance(q, fed);
    sequence_keep(q, s->pool, now);
    if (m->draws && q->abandoned) {
        fail(s, q, STATUS_CANCELLED);
    } else if (m->draws) {
        emit_all(s, q, drawn + right, now);
    }
    return right + 1;
}

/* Returns the tokens that those which decode made. */
static uint32_t take_results(struct sched *s)
{
    struct batch *b = &s->batch;
    uint64_t now = clock_ns();
    uint32_t n_failed = 0, n_made = 0;
    const struct drawn *drawn = s->drawer.drawn;
    for (uint32_t i = 0; i < b->n_members; i++) {
        struct batch_member *m = &b->members[i];
        struct sequence *q = m->sequence;
        uint32_t n_slots = m->draws ? sequence_places(q) + m->n_drafts : 0;
        if (!b->sequences[i].failed) {
            bool decodes = q->state == SEQUENCE_DECODE;
            uint32_t made = take_member(s, m, drawn, now);
            n_made += decodes ? made : 0;
        } else if (m->n_drafts > 0) {
            verify_leave(s, q);
            put_back(s, q);
        } else {
            stats_add(s->stats, STATS_CELL_SCHED, STAT_non_finite_total, 1);
            s->failed[n_failed++] = q->id;
        }
        drawn += n_slots;
    }
    /* Last, because it ends choices that may be members, too. */
    for (uint32_t i = 0; i < n_failed; i++) {
        struct sequence *q = map_get(&s->by_id, s->failed[i]);
        if (q != NULL)
            fail(s, q, STATUS_NON_FINITE);
    }
    return n_made;
}

/* Sleeps until there are commands or pages, or for SLEEP_MS. */
static void rest(struct sched *s)
{
    show_counts(s); /* first: whoever gets the events looks at them */
    publish(s);
    show_waste(s);
    doorbell_arm(&s->bell);
    if (s->letters == NULL && atomic_load(&s->commands.top) == NULL &&
        !atomic_load(&s->pages_came) && !atomic_load(&s->quit))
        doorbell_wait(&s->bell, SLEEP_MS);
    doorbell_disarm(&s->bell);
}

/* Slow readers may not keep memory from the others for ever. */
static void put_back_paused(struct sched *s, uint64_t now)
{
    queue_each(it, tmp, &s->running)
    {
        struct sequence *q = queue_entry(it);
        if (q->paused && now >= q->paused_ns + s->options.pause_limit_ns)
            put_back(s, q);
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

static void turn(struct sched *s)
{
    atomic_store(&s->pages_came, false);
    take_commands(s);
    trim(s);
    bool full = sched_is_full(s, 1, NULL);
    admit(s);
    verify_propose(s);
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
    if (full && !sched_is_full(s, 1, NULL)) {
        /* Whoever was turned away may come now, not a step later, even where no event says so. */
        publish(s);
        doorbell_ring(&s->event_bell);
    }
    uint64_t ns = run_step(s);
    uint32_t n_made = take_results(s);
    verify_settle(s, n_made, ns);
    show_counts(s);
    show_waste(s);
    publish(s);
}

void *sched_main(void *data)
{
    struct sched *s = data;
    if (s->options.nice > 0 && !background_enter(s->options.nice))
        log_warn("scheduler: cannot lower the priority of its thread");
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
