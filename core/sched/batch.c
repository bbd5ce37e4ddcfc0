#include "core/sched/batch.h"

#include <stdlib.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"

void batch_init(struct batch *b, uint32_t max_tokens, uint32_t max_members)
{
    *b = (struct batch){.max_tokens = max_tokens, .max_members = max_members};
    b->tokens = xcalloc(max_tokens, sizeof(*b->tokens));
    b->sequences = xcalloc(max_members, sizeof(*b->sequences));
    b->members = xcalloc(max_members, sizeof(*b->members));
    b->draws = xcalloc(max_members, sizeof(*b->draws));
    b->order = xcalloc(max_members, sizeof(struct sequence *));
}

void batch_release(struct batch *b)
{
    free(b->tokens);
    free(b->sequences);
    free(b->members);
    free(b->draws);
    free(b->order);
}

/* Appends the next count tokens of s, and n_drafts of its draft behind them; their positions are
 * writable. */
static void add_member(struct batch *b, struct sequence *s, uint32_t count, uint32_t n_drafts)
{
    struct batch_member *m = &b->members[b->n_members];
    *m = (struct batch_member){.sequence = s,
                               .count = count + n_drafts,
                               .draws = s->n_seen + count == sequence_tokens(s),
                               .n_drafts = n_drafts};
    b->sequences[b->n_members] = (struct step_sequence){.pages = s->table.ids,
                                                        .n_pages = s->table.n_pages,
                                                        .open = s->table.open,
                                                        .open_first = s->table.open_first,
                                                        .n_open = s->table.n_open};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = s->n_seen + i;
        b->tokens[b->n_tokens++] = (struct step_token){
            .token = s->tokens[position], .position = position, .sequence = b->n_members};
    }
    b->tokens[b->n_tokens - 1].logits = m->draws;
    for (uint32_t i = 0; i < n_drafts; i++)
        b->tokens[b->n_tokens++] = (struct step_token){.token = s->draft->draft.tokens[i],
                                                       .position = s->n_seen + count + i,
                                                       .sequence = b->n_members,
                                                       .logits = true};
    for (uint32_t k = 0; m->draws && k <= s->forks; k++) {
        b->draws[b->n_draws++] =
            (struct batch_draw){.member = m, .row = b->n_rows, .slot = b->n_slots, .fork = k};
        b->n_slots += 1 + n_drafts;
    }
    b->n_rows += m->draws ? 1 + n_drafts : 0;
    b->n_members++;
}

/* Makes the next position of a decoding sequence writable, preempting the last running sequence
 * as long as the pool can promise no more, in the end s itself. False if s does not take part in
 * this step. */
static bool extend_decode(struct batch *b, struct sequence *s, struct queue *running,
                          struct queue *waiting, struct pages *pool, uint32_t ahead,
                          uint32_t *preempted)
{
    for (;;) {
        enum status status = sequence_extend(s, pool, 1, ahead);
        if (status != STATUS_NO_MEMORY) {
            b->waits |= status == STATUS_LOADING;
            return status == STATUS_OK;
        }
        struct sequence *victim = queue_last(running);
        queue_remove(running, victim);
        sequence_preempt(victim, pool);
        queue_add(waiting, victim);
        ++*preempted;
        if (victim == s)
            return false;
    }
}

/* The walk goes from first to last and victims are the last, so no member of the batch is ever
 * preempted; what lies ahead of the walk may vanish, hence it goes on from the predecessor. */
static uint32_t plan_decodes(struct batch *b, struct queue *running, struct queue *waiting,
                             struct pages *pool, uint32_t ahead)
{
    uint32_t preempted = 0;
    for (struct list *it = running->list.next, *next; it != &running->list; it = next) {
        struct sequence *s = queue_entry(it);
        struct list *before = it->prev;
        if (s->state == SEQUENCE_DECODE && !s->paused &&
            extend_decode(b, s, running, waiting, pool, ahead, &preempted)) {
            uint32_t n_drafts = sequence_extend_draft(s);
            add_member(b, s, 1, n_drafts);
            b->n_drafts += n_drafts;
            b->work.decodes++;
            b->work.decode_positions += s->n_seen;
        }
        next = before->next == it ? it->next : before->next;
    }
    queue_each(it, tmp, running)
    {
        const struct sequence *s = queue_entry(it);
        b->work.prompts += s->state == SEQUENCE_PREFILL && !s->paused;
    }
    return preempted;
}

/* Whether somebody else is filling the page that s needs next. */
static bool is_being_filled(struct sequence *s, struct queue *running)
{
    queue_each(it, tmp, running) if (sequence_waits_for(s, queue_entry(it))) return true;
    return false;
}

static int compare_rank(const void *a, const void *b)
{
    const struct sequence *x = *(struct sequence *const *)a, *y = *(struct sequence *const *)b;
    return fair_before(x, y) ? -1 : 1;
}

/* Fills b->order with those that have a prompt to compute, and returns how many. */
static uint32_t order_prefill(struct batch *b, struct queue *running, uint64_t now_ns)
{
    uint32_t n = 0;
    queue_each(it, tmp, running)
    {
        struct sequence *s = queue_entry(it);
        if (s->state != SEQUENCE_PREFILL || s->paused)
            continue;
        fair_rank(s, now_ns);
        b->order[n++] = s;
    }
    qsort(b->order, n, sizeof(struct sequence *), compare_rank);
    return n;
}

/* A prefilling sequence was promised all the pages of its tokens when it was admitted. */
static void plan_prefill(struct batch *b, struct queue *running, struct pages *pool,
                         struct pace_room room, const struct pace *pace, uint64_t now_ns)
{
    uint32_t n = order_prefill(b, running, now_ns);
    for (uint32_t i = 0; i < n; i++) {
        struct sequence *s = b->order[i];
        sequence_follow(s, pool);
        if (is_being_filled(s, running))
            continue;
        uint32_t left = b->max_tokens - b->n_tokens, whole = sequence_tokens(s);
        uint32_t count = whole - s->n_seen < left ? whole - s->n_seen : left;
        count = pace_fit(pace, &room, s->n_seen, count, whole);
        if (count == 0)
            return;
        enum status status = sequence_extend(s, pool, count, 0);
        check(status != STATUS_NO_MEMORY);
        if (status == STATUS_OK) {
            b->work.prefill += count;
            b->work.prefill_positions += count * (s->n_seen + (count - 1) / 2.0);
            add_member(b, s, count, 0);
        } else {
            b->waits = true;
        }
    }
}

uint32_t batch_plan(struct batch *b, struct queue *running, struct queue *waiting,
                    struct pages *pool, const struct pace *pace, uint32_t prefill_chunk,
                    uint32_t ahead, uint64_t now_ns)
{
    b->n_tokens = b->n_members = b->n_rows = b->n_draws = b->n_slots = b->n_drafts = 0;
    b->work = (struct pace_work){0};
    b->waits = false;
    uint32_t preempted = plan_decodes(b, running, waiting, pool, ahead);
    struct pace_room room = pace_room(pace, &b->work, prefill_chunk);
    if (b->n_drafts > 0)
        pace_charge(pace, &room, b->work.decode_positions / b->work.decodes, b->n_drafts);
    plan_prefill(b, running, pool, room, pace, now_ns);
    return preempted;
}
