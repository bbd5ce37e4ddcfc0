#include "core/worker/channels.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/xalloc.h"
#include "core/sched/sched.h"
#include "core/stats/writer.h"
#include "core/worker/incoming.h"
#include "core/worker/stream.h"
#include "core/worker/worker.h"

#define BELL_GRACE_NS 1000000000u /* how late a bell may be */

static void closed(uv_handle_t *handle)
{
    struct link *link = handle->data;
    close(link->fd);
    free(link);
}

/* Ends a link: its streams are cancelled, the peer sees EOF. */
static void drop(struct link *link, const char *why)
{
    struct worker *w = link->worker;
    struct channel_stream *cs;
    unsigned streams = 0;
    if (link->ready) {
        for (uint32_t i = 0; (cs = channel_each(&link->channel, &i)) != NULL; streams++)
            if (cs->user != NULL)
                stream_lost(cs->user, false);
        log_info("channel %" PRIu64 ": closed (%s), %u streams cancelled", link->number, why,
                 streams);
        publish_turned_away(w, &link->channel);
        publish_channel_closed(w, &link->channel);
    } else {
        stats_add(w->stats, STATS_CELL_LOOP, STAT_channels_refused, 1);
        log_warn("channel %" PRIu64 ": no handshake: %s", link->number, why);
    }
    channel_release(&link->channel);
    list_remove(&link->node);
    w->n_links--;
    uv_poll_stop(&link->poll);
    uv_close((uv_handle_t *)&link->poll, closed);
}

static void socket_event(uv_poll_t *poll, int status, int events);

static void shake(struct link *link)
{
    struct error err = {0};
    switch (channel_handshake_step(&link->channel, &err)) {
    case CHANNEL_WANT_READ:
        uv_poll_start(&link->poll, UV_READABLE, socket_event);
        break;
    case CHANNEL_WANT_WRITE:
        uv_poll_start(&link->poll, UV_WRITABLE, socket_event);
        break;
    case CHANNEL_READY:
        link->ready = true;
        link->readable = true; /* the peer's first doorbell may have come with the hello */
        uv_poll_start(&link->poll, UV_READABLE, socket_event);
        log_info("channel %" PRIu64 ": process %d, %s, %u slots", link->number,
                 (int)link->channel.peer_pid, link->channel.peer_build, link->channel.slots);
        stats_add(link->worker->stats, STATS_CELL_LOOP, STAT_channels_total, 1);
        worker_start_recheck(link->worker);
        break;
    case CHANNEL_FAILED:
        drop(link, err.text);
        break;
    }
}

static void socket_event(uv_poll_t *poll, int status, int events)
{
    struct link *link = poll->data;
    (void)events;
    link->worker->polled = true;
    if (status < 0)
        drop(link, "the socket failed");
    else if (link->ready)
        link->readable = true;
    else
        shake(link);
}

static void accept_link(struct worker *w, int fd)
{
    static const struct channel_config config = {.features = FEATURE_GATE};
    struct error err = {0};
    if (w->n_links >= w->options->max_channels) {
        stats_add(w->stats, STATS_CELL_LOOP, STAT_channels_refused, 1);
        log_warn("channels: refused one: there are %u already (--max-channels)", w->n_links);
        channel_turn_away(fd, "there are too many channels already (--max-channels)");
        close(fd);
        return;
    }
    struct link *link = xcalloc(1, sizeof(*link));
    link->worker = w;
    link->fd = fd;
    link->number = ++w->last_link;
    link->deadline_ns = clock_ns() + w->options->hello_timeout * 1000000;
    list_init(&link->node);
    list_init(&link->blocked);
    if (channel_server_start(&link->channel, fd, &config, &err) != STATUS_OK) {
        log_error("channels: %s", err.text);
        close(fd);
        free(link);
        return;
    }
    if (uv_poll_init(&w->loop, &link->poll, fd) != 0) {
        log_error("channels: cannot watch a socket");
        channel_release(&link->channel);
        close(fd);
        free(link);
        return;
    }
    link->poll.data = link;
    list_append(&w->links, &link->node);
    w->n_links++;
    shake(link);
}

static void listen_event(uv_poll_t *poll, int status, int events)
{
    struct worker *w = poll->data;
    (void)status;
    (void)events;
    w->polled = true;
    for (;;) {
        bool failed;
        int fd = listener_accept(&w->listener, &w->rule, &failed);
        if (fd >= 0) {
            accept_link(w, fd);
            continue;
        }
        if (failed) { /* the waiting peer stays readable: don't spin on it */
            uv_poll_stop(&w->listen_poll);
            w->accept_paused = true;
        }
        return;
    }
}

enum status channels_start(struct worker *w, struct error *err)
{
    if (uv_poll_init(&w->loop, &w->listen_poll, w->listener.fd) != 0)
        return error_set(err, STATUS_IO, "cannot watch the listening socket");
    w->listen_poll.data = w;
    uv_poll_start(&w->listen_poll, UV_READABLE, listen_event);
    return STATUS_OK;
}

void channels_stop(struct worker *w)
{
    if (w->listen_poll.data == NULL)
        return; /* never started */
    uv_poll_stop(&w->listen_poll);
    if (!uv_is_closing((uv_handle_t *)&w->listen_poll))
        uv_close((uv_handle_t *)&w->listen_poll, NULL);
    w->accept_paused = false;
}

void channels_drop_all(struct worker *w)
{
    list_each(it, tmp, &w->links) drop(list_entry(it, struct link, node), "the worker ends");
}

/* What nginx may answer without asking us: nothing, but where every generation would be refused. */
static struct channel_gate gate_now(const struct worker *w)
{
    struct channel_gate gate = {0};
    struct error err;
    unsigned retry_after = 0;
    if (lifecycle_admits(w, &err) == STATUS_OK && w->engine.sched != NULL &&
        sched_is_full(w->engine.sched, 1, &retry_after)) {
        gate.retry_after = retry_after;
        gate.waiting = (uint32_t)w->options->max_queue;
    }
    return gate;
}

bool channels_sleep(struct worker *w)
{
    struct channel_gate gate = gate_now(w);
    bool rest = true;
    list_each(it, tmp, &w->links)
    {
        struct link *link = list_entry(it, struct link, node);
        if (!link->ready)
            continue;
        channel_set_gate(&link->channel, &gate);
        channel_publish(&link->channel);
        if (channel_sleep(&link->channel))
            rest = false;
    }
    return rest;
}

/* Whether the peer's bell lies unheard in the socket. */
static bool bell_waits(const struct link *link)
{
    char byte;
    return recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

/* Work that only a timer told us of is a defect, unless the peer was just between publishing and ringing: then its
 * bell comes as soon as it runs again. */
static void judge_bell(struct link *link)
{
    if (link->suspect_ns == 0)
        return;
    if (link->channel.counters.doorbells_received != link->suspect_bells || link->eof) {
        link->suspect_ns = 0;
    } else if (clock_ns() - link->suspect_ns > BELL_GRACE_NS) {
        link->suspect_ns = 0;
        stats_add(link->worker->stats, STATS_CELL_LOOP, STAT_timer_found_work, 1);
    }
}

static void take(struct link *link)
{
    struct worker *w = link->worker;
    struct channel *c = &link->channel;
    struct channel_frame frame;
    struct error err = {0};
    if (!w->polled && link->suspect_ns == 0 && channel_has_work(c) && !bell_waits(link)) {
        link->suspect_ns = clock_ns();
        link->suspect_bells = c->counters.doorbells_received;
    }
    channel_awake(c);
    if (link->readable) {
        link->readable = false;
        if (channel_drain(c) == CHANNEL_EOF)
            link->eof = true;
    }
    judge_bell(link);
    enum channel_event event;
    while ((event = channel_next(c, &frame, &err)) == CHANNEL_FRAME)
        incoming_frame(link, &frame);
    if (event == CHANNEL_BROKEN) {
        stats_add(w->stats, STATS_CELL_LOOP, STAT_protocol_errors, 1);
        drop(link, err.text);
    } else if (link->eof) {
        drop(link, "the peer is gone");
    } else if (channel_take_room(c)) {
        struct list again; /* a stream that finds no room again goes back to the list */
        list_init(&again);
        list_each(it, tmp, &link->blocked)
        {
            list_remove(it);
            list_append(&again, it);
        }
        list_each(it, tmp, &again)
        {
            list_remove(it);
            stream_flush(list_entry(it, struct stream, blocked_node));
        }
    }
}

void channels_take(struct worker *w)
{
    list_each(it, tmp, &w->links)
    {
        struct link *link = list_entry(it, struct link, node);
        if (link->ready)
            take(link);
    }
}

void channels_tick(struct worker *w, uint64_t now_ns)
{
    list_each(it, tmp, &w->links)
    {
        struct link *link = list_entry(it, struct link, node);
        if (!link->ready && now_ns > link->deadline_ns)
            drop(link, "it took too long (--hello-timeout)");
    }
    if (w->accept_paused) {
        w->accept_paused = false;
        uv_poll_start(&w->listen_poll, UV_READABLE, listen_event);
    }
}
