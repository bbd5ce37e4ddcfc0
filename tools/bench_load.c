#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tools/bench_load.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "tools/sse_reply.h"

void samples_add(struct samples *s, double value)
{
    if (s->n == s->cap) {
        s->cap = s->cap != 0 ? s->cap * 2 : 256;
        s->values = xreallocarray(s->values, s->cap, sizeof(*s->values));
    }
    s->values[s->n++] = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_quantile(struct samples *s, double q)
{
    if (s->n == 0)
        return 0;
    qsort(s->values, s->n, sizeof(*s->values), by_value);
    size_t at = (size_t)(q * (double)s->n);
    return s->values[at < s->n ? at : s->n - 1];
}

/* One request on its way; a lane is used again for the next one, and its connection if the server keeps it. */
struct lane {
    struct run *run;
    int fd;           /* -1: no connection */
    uint32_t watched; /* the events that epoll looks for; 0: none yet */
    bool busy;        /* has a request */
    bool reused;      /* the connection has carried a request before this one */
    struct buffer out;
    size_t sent;
    struct sse_reply reply;
    double start, first, last, done_at; /* 0: not yet */
    uint64_t pieces, completion, prompt, cached;
    bool done, stop, length, broken;
    uint64_t served; /* pieces of text over all its requests */
};

/* Bodies that are made before the clock starts, since the server may share our CPUs; at most that many and, but for
 * the last one, that long. */
#define PREPARED_MAX 16384u
#define PREPARED_BYTES ((size_t)256 << 20)

struct run {
    struct load *load;
    char **bodies; /* of the first requests, until they are sent */
    uint64_t n_bodies;
    struct addrinfo *address;
    int epoll, timer; /* the timer ends a wait at `due`: epoll's own counts whole milliseconds */
    struct lane **lanes;
    struct lane **
        idle; /* those without a request, the latest one last: its connection is the likeliest to live */
    size_t n_lanes, n_idle;
    uint64_t begun, ended;
    double now, due; /* due: when the next request of the open loop arrives */
    double timed;    /* the `due` that the timer is set to */
    uint64_t random;
    bool first_idle;
};

static double now_s(void)
{
    return (double)clock_ns() * 1e-9;
}

/* ---- what an event says --------------------------------------------------------------------------------- */

static bool has_text(json_t *choice)
{
    static const char *const keys[] = {"content", "reasoning_content", "reasoning"};
    const char *text = json_string_value(json_object_get(choice, "text"));
    json_t *delta = json_object_get(choice, "delta");
    for (unsigned i = 0; i < 3 && (text == NULL || *text == '\0'); i++)
        text = json_string_value(json_object_get(delta, keys[i]));
    return (text != NULL && *text != '\0') ||
           json_array_size(json_object_get(delta, "tool_calls")) > 0;
}

static void failure(struct run *run, const char *what, const char *more, size_t n)
{
    char *out = run->load->failure;
    if (*out == '\0')
        snprintf(out, sizeof(run->load->failure), "%s%s%.*s", what, n > 0 ? ": " : "",
                 (int)(n < 300 ? n : 300), more);
}

static void take_text(struct lane *c)
{
    double now = c->run->now;
    if (c->first == 0)
        c->first = now;
    else
        samples_add(&c->run->load->gaps, now - c->last);
    c->last = now;
    c->pieces++;
    c->served++;
}

static void on_event(void *arg, struct slice data)
{
    struct lane *c = arg;
    if (slice_is(data, "[DONE]")) {
        c->done = true;
        c->done_at = c->run->now;
        return;
    }
    json_t *event = json_loadb(data.ptr, data.len, 0, NULL), *choice, *usage;
    size_t i;
    if (!json_is_object(event) || json_object_get(event, "error") != NULL) {
        c->broken = true;
        failure(c->run, event == NULL ? "an event is no JSON" : "an error in the stream", data.ptr,
                data.len);
    }
    json_array_foreach(json_object_get(event, "choices"), i, choice)
    {
        const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
        if (has_text(choice))
            take_text(c);
        c->stop |= finish != NULL && strcmp(finish, "stop") == 0;
        c->length |= finish != NULL && strcmp(finish, "length") == 0;
    }
    if (json_is_object(usage = json_object_get(event, "usage"))) {
        json_t *details = json_object_get(usage, "prompt_tokens_details");
        c->completion = (uint64_t)json_integer_value(json_object_get(usage, "completion_tokens"));
        c->prompt = (uint64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
        c->cached = (uint64_t)json_integer_value(json_object_get(details, "cached_tokens"));
    }
    json_decref(event);
}

/* ---- a request ------------------------------------------------------------------------------------------ */

static void lane_disconnect(struct lane *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* The request is over: the connection stays if the answer ended whole on it. */
static void lane_free(struct lane *c)
{
    if (!c->run->load->keepalive || c->reply.part != SSE_COMPLETE || c->reply.close ||
        c->sent < c->out.len)
        lane_disconnect(c);
    c->busy = false;
    buffer_clear(&c->out);
    sse_reply_release(&c->reply);
    c->run->idle[c->run->n_idle++] = c;
}

/* The fairness figure is taken once, when the first lane of a closed loop has nothing more to ask. */
static void note_idle(struct run *run)
{
    struct load *l = run->load;
    if (run->first_idle || l->rate > 0)
        return;
    run->first_idle = true;
    l->fair_min = UINT64_MAX;
    for (size_t i = 0; i < run->n_lanes; i++) {
        uint64_t served = run->lanes[i]->served;
        l->fair_max = served > l->fair_max ? served : l->fair_max;
        l->fair_min = served < l->fair_min ? served : l->fair_min;
    }
}

static void count_good(struct lane *c)
{
    struct load *l = c->run->load;
    uint64_t tokens = c->completion != 0 ? c->completion : c->pieces;
    double end = c->done ? c->done_at : c->run->now;
    l->ok++;
    l->tokens += tokens;
    l->cached_tokens += c->cached;
    l->no_done += !c->done;
    l->stops += c->stop;
    l->lengths += c->length;
    samples_add(&l->whole, end - c->start);
    if (c->prompt != 0)
        samples_add(&l->prompt_tokens, (double)c->prompt);
    if (c->first != 0)
        samples_add(&l->ttft, c->first - c->start);
    if (c->last > c->first && tokens > 1)
        samples_add(&l->request_rate, (double)(tokens - 1) / (c->last - c->first));
}

/* The lane's request has ended, whole or not; `why` NULL: the response is complete. */
static void lane_end(struct lane *c, const char *why)
{
    struct run *run = c->run;
    struct load *l = run->load;
    char text[64];
    unsigned status = c->reply.status;
    if (why != NULL || c->broken || (status == 200 && !c->reply.events)) {
        l->failed++;
        failure(run, why != NULL ? why : "the answer is no event stream", c->reply.text.ptr,
                c->reply.text.len);
    } else if (status == 429 || status == 503) {
        l->refused++;
        samples_add(&l->refusal, run->now - c->start);
    } else if (status != 200) {
        l->failed++;
        snprintf(text, sizeof(text), "status %u", status);
        failure(run, text, c->reply.text.ptr, c->reply.text.len);
    } else {
        count_good(c);
    }
    run->ended++;
    lane_free(c);
}

static void lane_watch(struct lane *c, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = c};
    int operation = c->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    check(c->watched == events || epoll_ctl(c->run->epoll, operation, c->fd, &e) == 0);
    c->watched = events;
}

/* Makes the lane's request. */
static void lane_request(struct lane *c, uint64_t number)
{
    struct load *l = c->run->load;
    bool six = strchr(l->host, ':') != NULL;
    char *body =
        number < c->run->n_bodies ? c->run->bodies[number] : prompts_body(&l->prompts, number);
    buffer_clear(&c->out);
    buffer_printf(
        &c->out,
        "POST %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nContent-Type: application/json\r\nAccept: "
        "text/event-stream\r\n%s%sContent-Length: %zu\r\n\r\n",
        l->path, six ? "[" : "", l->host, six ? "]" : "", l->port,
        l->keepalive ? "" : "Connection: close\r\n", l->headers, strlen(body));
    buffer_add_text(&c->out, body);
    free(body);
}

static void lane_lost(struct lane *c, const char *why);

/* Sends what can be sent; the rest goes when the socket says so. */
static void lane_write(struct lane *c)
{
    while (c->sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.ptr + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) { /* not connected yet, or full */
            lane_watch(c, EPOLLIN | EPOLLOUT);
            return;
        }
        if (n < 0 && c->sent == 0) {
            lane_lost(c, strerror(errno));
            return;
        }
        if (n <
            0) { /* the server may have answered and closed already: what it said is read next */
            c->reply.close = true;
            break;
        }
        c->sent += (size_t)n;
    }
    lane_watch(c, EPOLLIN);
}

static void lane_connect(struct lane *c)
{
    struct run *run = c->run;
    c->reused = c->reply.close = false;
    c->sent = 0;
    c->watched = 0;
    c->fd = socket(run->address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || (connect(c->fd, run->address->ai_addr, run->address->ai_addrlen) != 0 &&
                      errno != EINPROGRESS)) {
        lane_end(c, strerror(errno));
        return;
    }
    lane_write(c);
}

/* Begins the next request in this lane; `start` is the moment from which its time counts, 0: now. */
static void lane_begin(struct lane *c, double start)
{
    lane_request(c, c->run->begun++);
    c->busy = true;
    c->sent = 0;
    c->first = c->last = c->done_at = 0;
    c->pieces = c->completion = c->prompt = c->cached = 0;
    c->done = c->stop = c->length = c->broken = false;
    sse_reply_init(&c->reply, on_event, c);
    c->start = start != 0 ? start : now_s();
    c->reused = c->fd >= 0;
    if (c->reused)
        lane_write(c);
    else
        lane_connect(c);
}

/* The connection has ended or failed. A kept one that says nothing more was closed as the request went out: the
 * request goes again on one of its own. */
static void lane_lost(struct lane *c, const char *why)
{
    if (c->reused && c->reply.status == 0 && c->reply.frame.len == 0) {
        lane_disconnect(c);
        lane_connect(c);
        return;
    }
    bool whole = sse_reply_end(&c->reply);
    c->reply.close = true;
    lane_end(c, whole ? NULL : why);
}

static void lane_read(struct lane *c)
{
    static char bytes[65536];
    struct error err;
    ssize_t n;
    do
        n = recv(c->fd, bytes, sizeof(bytes), 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return;
    if (!c->busy) { /* the server closed a kept connection */
        lane_disconnect(c);
        return;
    }
    c->run->now = now_s();
    if (n <= 0)
        lane_lost(c, n == 0 ? "the connection ended inside the answer" : strerror(errno));
    else if (sse_reply_feed(&c->reply, bytes, (size_t)n, &err) != STATUS_OK)
        lane_end(c, err.text);
    else if (c->reply.part == SSE_COMPLETE)
        lane_end(c, NULL);
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

static struct lane *free_lane(struct run *run)
{
    if (run->n_idle > 0)
        return run->idle[--run->n_idle];
    if (run->load->clients != 0 && run->n_lanes >= run->load->clients)
        return NULL;
    struct lane *c = xcalloc(1, sizeof(*c));
    c->run = run;
    c->fd = -1;
    run->lanes = xreallocarray(run->lanes, run->n_lanes + 1, sizeof(struct lane *));
    run->idle = xreallocarray(run->idle, run->n_lanes + 1, sizeof(struct lane *));
    return run->lanes[run->n_lanes++] = c;
}

/* The time to the next arrival: exponential, from the seed. */
static double arrival_gap(struct run *run)
{
    uint64_t z = run->random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return -log(((double)(z >> 11) + 0.5) * 0x1p-53) / run->load->rate;
}

/* Closed loop: a request for every free lane. False: there is no more to begin. */
static void begin_closed(struct run *run)
{
    for (struct lane *c; run->begun < run->load->requests && (c = free_lane(run)) != NULL;)
        lane_begin(c, 0);
    if (run->begun == run->load->requests && run->begun - run->ended < run->n_lanes)
        note_idle(run);
}

static void begin_open(struct run *run)
{
    struct itimerspec at = {0};
    for (struct lane *c;
         run->begun < run->load->requests && run->due <= now_s() && (c = free_lane(run)) != NULL;) {
        lane_begin(c, run->due);
        run->due += arrival_gap(run);
    }
    double left = run->due - now_s();
    if (run->begun == run->load->requests || run->due == run->timed)
        return;
    run->timed = run->due;
    uint64_t ns = left > 1e-9 ? (uint64_t)(left * 1e9) : 1;
    at.it_value.tv_sec = (time_t)(ns / 1000000000u);
    at.it_value.tv_nsec = (long)(ns % 1000000000u);
    check(timerfd_settime(run->timer, 0, &at, NULL) == 0);
}

static void end_late_ones(struct run *run)
{
    for (size_t i = 0; i < run->n_lanes; i++)
        if (run->lanes[i]->busy && run->now - run->lanes[i]->start > run->load->timeout)
            lane_end(run->lanes[i], "no end within --timeout");
}

static void loop(struct run *run)
{
    struct epoll_event events[256];
    struct load *l = run->load;
    run->due = now_s();
    while (run->ended < l->requests) {
        if (l->rate > 0)
            begin_open(run);
        else
            begin_closed(run);
        int n = epoll_wait(run->epoll, events, 256, 200);
        run->now = now_s();
        for (int i = 0; i < n; i++) {
            struct lane *c = events[i].data.ptr;
            if (c == NULL) /* the timer, edge-triggered: setting it again is all that it wants */
                continue;
            if (c->busy && (events[i].events & EPOLLOUT) != 0)
                lane_write(c);
            if (c->fd >= 0 && (events[i].events & ~(uint32_t)EPOLLOUT) != 0)
                lane_read(c);
        }
        end_late_ones(run);
    }
}

static void prepare(struct run *run)
{
    struct load *l = run->load;
    uint64_t most = l->requests < PREPARED_MAX ? l->requests : PREPARED_MAX;
    size_t bytes = 0;
    run->bodies = xcalloc(most, sizeof(*run->bodies));
    for (; run->n_bodies < most && bytes < PREPARED_BYTES; run->n_bodies++) {
        run->bodies[run->n_bodies] = prompts_body(&l->prompts, run->n_bodies);
        bytes += strlen(run->bodies[run->n_bodies]);
    }
}

/* The first address that takes a connection, where a name has several; else the first. */
static struct addrinfo *choose(struct addrinfo *all)
{
    for (struct addrinfo *a = all; all->ai_next != NULL && a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool taken = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (fd >= 0)
            close(fd);
        if (taken)
            return a;
    }
    return all;
}

enum status load_run(struct load *l, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct run run = {.load = l, .random = l->prompts.seed};
    struct rlimit files;
    struct addrinfo *all;
    int code = getaddrinfo(l->host, l->port, &hints, &all);
    if (code != 0)
        return error_set(err, STATUS_IO, "%s port %s: %s", l->host, l->port, gai_strerror(code));
    run.address = choose(all);
    run.epoll = epoll_create1(EPOLL_CLOEXEC);
    run.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN | EPOLLET};
    check(run.epoll >= 0 && run.timer >= 0 &&
          epoll_ctl(run.epoll, EPOLL_CTL_ADD, run.timer, &e) == 0);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prepare(&run);
    double start = now_s();
    loop(&run);
    l->wall = now_s() - start;
    note_idle(&run);
    for (size_t i = 0; i < run.n_lanes; i++) {
        lane_disconnect(run.lanes[i]);
        buffer_release(&run.lanes[i]->out);
        free(run.lanes[i]);
    }
    free(run.lanes);
    free(run.idle);
    free(run.bodies);
    close(run.timer);
    close(run.epoll);
    freeaddrinfo(all);
    return STATUS_OK;
}

void load_release(struct load *l)
{
    struct samples *all[] = {&l->ttft,    &l->gaps,          &l->whole,
                             &l->refusal, &l->prompt_tokens, &l->request_rate};
    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]->values);
    prompts_release(&l->prompts);
}
