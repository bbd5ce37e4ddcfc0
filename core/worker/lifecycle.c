/* The worker's states and what moves them: the load's end, signals, the last stream. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/stats/writer.h"
#include "core/worker/channels.h"
#include "core/worker/glue.h"
#include "core/worker/stream.h"
#include "core/worker/worker.h"

/* How long streams get to take their last event after INT, and a load to notice that it is not wanted. */
#define STOP_NS UINT64_C(2000000000)
#define BAR_WIDTH 40

static void set_state(struct worker *w, enum worker_state state)
{
    w->state = state;
    publish_state(w);
}

enum status lifecycle_admits(const struct worker *w, struct error *err)
{
    switch (w->state) {
    case WORKER_LOADING:
        return error_set(err, STATUS_LOADING, "the model is still loading (%d %%)",
                         engine_percent((struct engine *)&w->engine));
    case WORKER_READY:
        if (w->engine.sched == NULL)
            return error_set(err, STATUS_MODEL_NOT_FOUND, "this worker serves no model");
        return STATUS_OK;
    case WORKER_DRAINING:
    case WORKER_STOPPING:
        break;
    }
    return error_set(err, STATUS_DRAINING, "the worker is shutting down");
}

void lifecycle_check(struct worker *w)
{
    if (!w->closing && w->state >= WORKER_DRAINING && w->n_streams == 0 && !w->loading)
        uv_stop(&w->loop);
}

void lifecycle_drain(struct worker *w)
{
    if (w->state >= WORKER_DRAINING) {
        lifecycle_stop(w);
        return;
    }
    log_info("worker: draining, %u requests are in the house", w->n_streams);
    set_state(w, WORKER_DRAINING);
    if (w->options->drain_timeout > 0)
        w->stop_by_ns = clock_ns() + w->options->drain_timeout * 1000000000;
    if (w->engine.sched != NULL)
        sched_drain(w->engine.sched);
    if (w->loading) {
        atomic_store_explicit(&w->engine.cancel, true, memory_order_relaxed);
        w->stop_by_ns = clock_ns() + STOP_NS;
    }
    lifecycle_check(w);
}

void lifecycle_stop(struct worker *w)
{
    if (w->state == WORKER_STOPPING)
        return;
    log_info("worker: stopping, %u requests are ended", w->n_streams);
    set_state(w, WORKER_STOPPING);
    w->stop_by_ns = clock_ns() + STOP_NS;
    atomic_store_explicit(&w->engine.cancel, true, memory_order_relaxed);
    if (w->engine.sched != NULL)
        sched_stop(w->engine.sched);
    list_each(it, tmp, &w->streams)
    {
        struct stream *s = list_entry(it, struct stream, node);
        struct error err = {0};
        if (s->cs == NULL || s->ended || s->in_sched)
            continue; /* the scheduler's last event ends the ones that it has */
        lifecycle_admits(w, &err);
        stream_fail(s, &err);
    }
    lifecycle_check(w);
}

static void show_progress(struct worker *w, bool last)
{
    if (!w->shows_progress)
        return;
    char bar[BAR_WIDTH + 1];
    int percent = engine_percent(&w->engine);
    for (int i = 0; i < BAR_WIDTH; i++)
        bar[i] = i * 100 < percent * BAR_WIDTH ? '#' : ' ';
    bar[BAR_WIDTH] = '\0';
    if (last)
        fputs("\r\033[K", stderr);
    else
        fprintf(stderr, "\rloading [%s] %3d %%", bar, percent);
    fflush(stderr);
}

static void sched_event(uv_poll_t *poll, int status, int events)
{
    struct worker *w = poll->data;
    (void)status;
    (void)events;
    uint64_t now = clock_ns(), published = sched_published_ns(w->engine.sched);
    if (published != 0 && published <= now)
        stats_record(w->stats, STATS_CELL_LOOP, STAT_loop_wake_time, now - published);
    w->polled = true; /* the events are taken in check, every turn */
}

void lifecycle_loaded(struct worker *w, enum status status, const struct error *err)
{
    struct error late = {0};
    w->loading = false;
    show_progress(w, true);
    if (w->state != WORKER_LOADING) { /* a signal came first */
        lifecycle_check(w);
        return;
    }
    if (status == STATUS_OK) {
        status = engine_begin(&w->engine, w->stats, &late);
        err = &late;
    }
    if (status == STATUS_OK &&
        (uv_poll_init(&w->loop, &w->sched_poll, sched_event_fd(w->engine.sched)) != 0 ||
         uv_poll_start(&w->sched_poll, UV_READABLE, sched_event) != 0))
        status = error_set(&late, STATUS_INTERNAL, "cannot watch the scheduler");
    if (status != STATUS_OK) {
        w->error = *err;
        w->exit_status = 1;
        lifecycle_stop(w);
        return;
    }
    w->sched_poll.data = w;
    char weights[32], kv[32];
    options_format_size(w->engine.info.weight_bytes, weights);
    options_format_size(w->engine.plan.kv, kv);
    log_info("worker: ready: %s, %s, %s of weights, %s for KV pages (%s), context %u, %u threads, "
             "%s, loaded in %.1f s",
             w->engine.name, w->engine.info.arch, weights, kv,
             kv_type_name(w->engine.geometry.type), w->engine.context.context, w->engine.threads,
             w->engine.kernels.tier, (double)w->engine.load_ns / 1e9);
    publish_model(w);
    set_state(w, WORKER_READY);
}

static void tick(uv_timer_t *timer)
{
    struct worker *w = timer->data;
    uint64_t now = clock_ns();
    streams_tick(w, now);
    channels_tick(w, now);
    publish_tick(w);
    if (w->loading)
        show_progress(w, false);
    if (w->stop_by_ns != 0 && now > w->stop_by_ns) {
        if (w->state == WORKER_DRAINING && !w->loading) {
            log_warn("worker: --drain-timeout is over");
            lifecycle_stop(w);
        } else {
            log_warn("worker: leaving with %u requests unfinished", w->n_streams);
            uv_stop(&w->loop);
        }
    }
}

static void signalled(uv_signal_t *handle, int number)
{
    struct worker *w = handle->data;
    w->polled = true;
    if (number == SIGTERM) {
        lifecycle_drain(w);
    } else if (number == SIGINT) {
        lifecycle_stop(w);
    } else if (log_reopen()) {
        log_info("worker: log opened anew");
    } else {
        log_error("worker: the log cannot be opened anew, the old file stays in use");
    }
}

static void load_run(uv_work_t *work)
{
    struct worker *w = work->data;
    w->load_status = engine_load(&w->engine, &w->load_error);
}

static void load_done(uv_work_t *work, int cancelled)
{
    struct worker *w = work->data;
    (void)cancelled;
    w->polled = true;
    lifecycle_loaded(w, w->load_status, &w->load_error);
}

void lifecycle_watch_signals(struct worker *w)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    for (unsigned i = 0; i < 3; i++) {
        uv_signal_init(&w->loop, &w->signals[i]);
        w->signals[i].data = w;
        uv_signal_start(&w->signals[i], signalled, numbers[i]);
    }
}

void lifecycle_start(struct worker *w)
{
    uint64_t interval = w->options->stats_interval, keepalive = w->options->keepalive_interval / 2;
    if (keepalive > 0 && keepalive < interval)
        interval = keepalive;
    uv_timer_init(&w->loop, &w->tick);
    w->tick.data = w;
    uv_timer_start(&w->tick, tick, interval, interval);
    if (*w->options->model == '\0') {
        set_state(w, WORKER_READY);
        log_info("worker: ready, without a model (--test-echo)");
        return;
    }
    w->loading = true;
    w->shows_progress = isatty(STDERR_FILENO) == 1;
    w->load.data = w;
    uv_queue_work(&w->loop, &w->load, load_run, load_done);
}
