#include "core/worker/publish.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/stats/writer.h"
#include "core/worker/channels.h"
#include "core/worker/stream.h"
#include "core/worker/worker.h"

#define TELL_EVERY_NS UINT64_C(10000000000)

static const char *const state_names[] = {"loading", "ready", "draining", "stopping"};

void publish_start(struct worker *w)
{
    stats_set_text(w->stats, STAT_build, "tokenringd " TOKENRING_VERSION);
    stats_set_text(w->stats, STAT_listen, w->listener.path);
    stats_set_text(w->stats, STAT_model_file, w->options->model);
    stats_set(w->stats, STAT_stats_interval_ms, w->options->stats_interval);
    stats_set(w->stats, STAT_contract_version, WORKER_CONTRACT_VERSION);
    publish_state(w);
}

void publish_state(struct worker *w)
{
    stats_set_text(w->stats, STAT_state, state_names[w->state]);
}

void publish_model(struct worker *w)
{
    const struct engine *e = &w->engine;
    stats_set_text(w->stats, STAT_model, e->name);
    stats_set_text(w->stats, STAT_model_arch, e->info.arch);
    stats_set_text(w->stats, STAT_kernel_tier, e->kernels.tier);
    stats_set(w->stats, STAT_weight_streams, e->kernels.streams);
    stats_set_text(w->stats, STAT_kv_type, kv_type_name(e->geometry.type));
    stats_set(w->stats, STAT_threads, e->threads);
    stats_set(w->stats, STAT_context_length, e->context.context);
    stats_set(w->stats, STAT_model_bytes, e->info.weight_bytes);
    stats_set(w->stats, STAT_loading_percent, 100);
    stats_set(w->stats, STAT_load_time_ms, e->load_ns / 1000000);
}

static void add_counters(struct channel_counters *sum, const struct channel_counters *c)
{
    sum->frames_in += c->frames_in;
    sum->frames_out += c->frames_out;
    sum->bytes_in += c->bytes_in;
    sum->bytes_out += c->bytes_out;
    sum->doorbells_sent += c->doorbells_sent;
    sum->doorbells_received += c->doorbells_received;
    sum->late += c->late;
    sum->waited += c->waited;
    sum->no_room += c->no_room;
}

void publish_channel_closed(struct worker *w, const struct channel *c)
{
    add_counters(&w->publish.gone, &c->counters);
}

void publish_turned_away(struct worker *w, struct channel *c)
{
    uint64_t n = channel_take_turned_away(c);
    if (n == 0)
        return;
    stats_add(w->stats, STATS_CELL_LOOP, STAT_requests_refused, n);
    stats_add(w->stats, STATS_CELL_LOOP, STAT_requests_refused_at_gate, n);
    w->publish.turned_away += n;
}

/* One line for many requests, which nginx's access log has one by one. */
static void tell_turned_away(struct worker *w, uint64_t now_ns)
{
    struct publish *p = &w->publish;
    if (p->turned_away == 0 || (p->told_ns != 0 && now_ns - p->told_ns < TELL_EVERY_NS))
        return;
    log_info("the queue is full: nginx refused %" PRIu64 " requests by itself", p->turned_away);
    p->turned_away = 0;
    p->told_ns = now_ns;
}

static void record_ms(struct worker *w, enum stats_id stat, double ms)
{
    stats_record(w->stats, STATS_CELL_LOOP, stat, ms > 0 ? (uint64_t)(ms * 1e6) : 0);
}

/* The figures of a generation that came to its finish reason. */
static void record_finished(struct worker *w, const struct stream *s)
{
    const struct api_totals *t = &s->totals;
    stats_record(w->stats, STATS_CELL_LOOP, STAT_request_time, clock_ns() - s->arrival_ns);
    stats_record(w->stats, STATS_CELL_LOOP, STAT_request_prompt, t->prompt_tokens);
    stats_record(w->stats, STATS_CELL_LOOP, STAT_request_completion, t->completion_tokens);
    stats_record(w->stats, STATS_CELL_LOOP, STAT_request_max_tokens, s->request.max_tokens);
    stats_record(w->stats, STATS_CELL_LOOP, STAT_request_choices, s->request.n_choices);
    if (s->first_ns == 0)
        return;
    record_ms(w, STAT_prefill_time, t->prompt_ms);
    record_ms(w, STAT_decode_time, t->predicted_ms);
    record_ms(w, STAT_inference_time, t->prompt_ms + t->predicted_ms);
    uint32_t each = t->completion_tokens / s->request.n_choices;
    if (each > 1)
        record_ms(w, STAT_token_time, t->predicted_ms / (each - 1));
}

void publish_request_ended(struct worker *w, const struct stream *s, unsigned status)
{
    enum stats_id stat;
    if (s->endpoint != API_CHAT && s->endpoint != API_COMPLETIONS) {
        stat = STAT_requests_other;
    } else if (s->ended && s->failure == STATUS_OK) {
        /* a finish reason, counted by it, whether all of it was read or not */
        record_finished(w, s);
        return;
    } else if (status == 499) {
        stat = STAT_requests_cancelled;
    } else if (s->admitted) {
        stat = STAT_requests_failed;
    } else {
        stat = status_http(s->failure) == 503  ? STAT_requests_refused
               : status_http(s->failure) < 500 ? STAT_requests_invalid
                                               : STAT_requests_failed;
    }
    stats_add(w->stats, STATS_CELL_LOOP, stat, 1);
}

static void publish_rings(struct worker *w)
{
    struct channel_counters sum = w->publish.gone;
    uint64_t ready = 0, streams = 0;
    list_each(it, tmp, &w->links)
    {
        struct link *link = list_entry(it, struct link, node);
        if (!link->ready)
            continue;
        publish_turned_away(w, &link->channel);
        ready++;
        streams += link->channel.open;
        add_counters(&sum, &link->channel.counters);
    }
    stats_set(w->stats, STAT_channels, ready);
    stats_set(w->stats, STAT_streams, streams);
    stats_set(w->stats, STAT_frames_received, sum.frames_in);
    stats_set(w->stats, STAT_frames_sent, sum.frames_out);
    stats_set(w->stats, STAT_ring_bytes_received, sum.bytes_in);
    stats_set(w->stats, STAT_ring_bytes_sent, sum.bytes_out);
    stats_set(w->stats, STAT_doorbells_sent, sum.doorbells_sent);
    stats_set(w->stats, STAT_doorbells_received, sum.doorbells_received);
    stats_set(w->stats, STAT_frames_late, sum.late);
    stats_set(w->stats, STAT_control_waited, sum.waited);
    stats_set(w->stats, STAT_room_waits, sum.no_room);
}

static void publish_process(struct worker *w)
{
    unsigned long pages = 0, resident = 0;
    struct rusage usage;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL) {
        if (fscanf(file, "%lu %lu", &pages, &resident) == 2)
            stats_set(w->stats, STAT_resident_bytes,
                      (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE));
        fclose(file);
    }
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        stats_set(w->stats, STAT_cpu_time_ms,
                  (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
                      (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000);
}

static void publish_arena(struct worker *w)
{
    struct arena_figures f;
    if (w->engine.sched == NULL) /* still the loading thread's */
        return;
    arena_figures(w->engine.arena, &f);
    stats_set(w->stats, STAT_kv_arena_limit, f.limit);
    stats_set(w->stats, STAT_kv_arena_slabs, f.slabs);
    stats_set(w->stats, STAT_kv_arena_slabs_max, f.slabs_max);
    stats_set(w->stats, STAT_kv_arena_slab_bytes, f.slab_bytes);
    stats_set(w->stats, STAT_kv_arena_large_allocated, f.large_allocated);
    stats_set(w->stats, STAT_kv_arena_mapped, f.mapped);
    stats_set(w->stats, STAT_kv_arena_resident, f.resident);
    stats_set(w->stats, STAT_kv_arena_retained, f.retained);
}

void publish_tick(struct worker *w)
{
    publish_rings(w);
    tell_turned_away(w, clock_ns());
    publish_process(w);
    publish_arena(w);
    if (w->state == WORKER_LOADING)
        stats_set(w->stats, STAT_loading_percent, (uint64_t)engine_percent(&w->engine));
    stats_heartbeat(w->stats);
}
