#include "core/worker/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/stats/reader.h"
#include "core/stats/writer.h"
#include "core/worker/channels.h"
#include "core/worker/glue.h"
#include "core/worker/stream.h"

static void prepare(uv_prepare_t *handle)
{
    struct worker *w = handle->data;
    w->polled = false;
    if (!channels_sleep(w)) {
        w->polled = true; /* found now, not by a timer */
        worker_wake(w);
    }
}

static void busy(uv_idle_t *handle)
{
    (void)handle; /* being active is all: the poll returns at once */
}

static void check(uv_check_t *handle)
{
    struct worker *w = handle->data;
    uv_idle_stop(&w->busy);
    if (w->engine.sched != NULL)
        glue_take_events(w);
    channels_take(w);
}

static void recheck(uv_timer_t *timer)
{
    struct worker *w = timer->data;
    if (w->n_links == 0)
        uv_timer_stop(timer); /* the next channel starts it again; the looking itself is check's */
}

void worker_wake(struct worker *w)
{
    uv_idle_start(&w->busy, busy);
}

void worker_start_recheck(struct worker *w)
{
    if (!uv_is_active((uv_handle_t *)&w->recheck))
        uv_timer_start(&w->recheck, recheck, w->options->recheck_interval,
                       w->options->recheck_interval);
}

/* The default socket stands beside the stats file. */
static enum status socket_path(const struct options *o, char *path, size_t cap, struct error *err)
{
    char dir[400];
    const char *given;
    if (*o->listen != '\0') {
        enum status status = listener_path(o->listen, &given, err);
        if (status == STATUS_OK)
            snprintf(path, cap, "%s", given);
        return status;
    }
    if (*o->stats_dir != '\0')
        snprintf(dir, sizeof(dir), "%s", o->stats_dir);
    else if (!stats_default_dir(dir, sizeof(dir)))
        return error_set(err, STATUS_INVALID, "no default for --stats-dir: the path is too long");
    char listen[512];
    snprintf(listen, sizeof(listen), "unix:%s/%s.sock", dir, o->name);
    enum status status = listener_path(listen, &given, err);
    if (status == STATUS_OK)
        snprintf(path, cap, "%s", given);
    return status;
}

static enum status open_outside(struct worker *w, struct error *err)
{
    const struct options *o = w->options;
    char path[108];
    gid_t group = (gid_t)-1;
    w->rule = (struct peer_rule){.uid = geteuid()};
    enum status status = socket_path(o, path, sizeof(path), err);
    if (status == STATUS_OK && *o->socket_group != '\0')
        status = group_find("socket-group", o->socket_group, &group, err);
    if (status == STATUS_OK && *o->allow_group != '\0') {
        w->rule.has_group = true;
        status = group_find("allow-group", o->allow_group, &w->rule.gid, err);
    }
    if (status == STATUS_OK)
        status = stats_writer_create(*o->stats_dir != '\0' ? o->stats_dir : NULL, o->name,
                                     &w->stats, err);
    if (status == STATUS_OK)
        status = listener_open(&w->listener, path, (mode_t)o->socket_mode, group, err);
    return status;
}

static enum status open_loop(struct worker *w, struct error *err)
{
    char threads[16];
    snprintf(threads, sizeof(threads), "%u", (unsigned)w->options->front_threads);
    setenv("UV_THREADPOOL_SIZE", threads, 1); /* read when the first work is queued */
    if (uv_loop_init(&w->loop) != 0)
        return error_set(err, STATUS_INTERNAL, "cannot make an event loop");
    w->loop_open = true;
    uv_prepare_init(&w->loop, &w->prepare);
    uv_check_init(&w->loop, &w->check);
    uv_idle_init(&w->loop, &w->busy);
    uv_timer_init(&w->loop, &w->recheck);
    w->prepare.data = w->check.data = w->busy.data = w->recheck.data = w;
    uv_prepare_start(&w->prepare, prepare);
    uv_check_start(&w->check, check);
    lifecycle_watch_signals(w);
    return STATUS_OK;
}

enum status worker_open(struct worker *w, const struct options *options, struct error *err)
{
    memset(w, 0, sizeof(*w));
    w->options = options;
    w->listener.fd = w->listener.lock_fd = -1;
    list_init(&w->links);
    list_init(&w->streams);
    engine_init(&w->engine, options);
    signal(SIGPIPE, SIG_IGN);
    if (getrandom(&w->id_key, sizeof(w->id_key), 0) != (ssize_t)sizeof(w->id_key))
        w->id_key = clock_wall_ns();
    if (!log_open(options->log_file))
        return error_set(err, STATUS_IO, "option log-file: cannot open %s", options->log_file);
    /* signals first: whoever sees the socket may send one */
    enum status status = open_loop(w, err);
    if (status == STATUS_OK)
        status = open_outside(w, err);
    if (status == STATUS_OK)
        status = channels_start(w, err);
    if (status != STATUS_OK)
        return status;
    log_info("worker: tokenringd %s listens on unix:%s, stats in %s", TOKENRING_VERSION,
             w->listener.path, stats_writer_path(w->stats));
    publish_start(w);
    lifecycle_start(w);
    return STATUS_OK;
}

int worker_run(struct worker *w)
{
    uv_run(&w->loop, UV_RUN_DEFAULT);
    channels_sleep(w); /* publishes what the last turn wrote: peers read it after our end */
    publish_tick(w);
    return w->exit_status;
}

static void close_handle(uv_handle_t *handle, void *data)
{
    (void)data;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

void worker_close(struct worker *w)
{
    w->closing = true;
    if (w->loop_open) {
        channels_stop(w);
        /* streams that are with the front pool or the scheduler outlive their links */
        channels_drop_all(w);
    }
    listener_close(&w->listener);
    if (w->loading) { /* the loading thread does not come back: leave everything to the system */
        stats_writer_free(w->stats);
        _exit(w->exit_status);
    }
    if (w->loop_open) {
        uv_walk(&w->loop, close_handle, NULL);
        uv_run(&w->loop, UV_RUN_DEFAULT);
        uv_loop_close(&w->loop);
    }
    sched_free(w->engine.sched);
    w->engine.sched = NULL;
    streams_free_all(w);
    engine_release(&w->engine);
    map_release(&w->by_number);
    stats_writer_free(w->stats);
}
