/* tokenringd over the ring, without nginx and without a model: its endpoint /tokenring/echo stands for one. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/ring_client.h"
#include "tests/check_main.h"

#define ECHO "/tokenring/echo"
static const struct slice nothing;
static struct daemon d;
static struct client c;

static void start(const char *const *arguments)
{
    daemon_start(&d, arguments);
    ck_assert_msg(client_open(&c, d.socket), "%s", c.error);
}

static void setup(void)
{
    start((const char *const[]){"--test-echo", NULL});
}

static void teardown(void)
{
    if (c.fd > 0)
        client_close(&c);
    if (d.pid > 0)
        ck_assert_int_eq(daemon_stop(&d, SIGINT), 0);
    daemon_clean(&d);
}

/* One request to its end. */
static void fetch(struct call *a, const char *method, const char *target, const char *headers,
                  struct slice body)
{
    ck_assert_msg(client_send(&c, a, method, target, headers, body, false), "%s", c.error);
    ck_assert_msg(client_wait(&c, a, 10000), "%s %s: no end: %s", method, target, c.error);
}

START_TEST(health)
{
    struct call a;
    fetch(&a, "GET", "/health", NULL, nothing);
    ck_assert_uint_eq(a.status, 200);
    ck_assert_str_eq(call_header(&a, "content-type"), "application/json");
    ck_assert_ptr_nonnull(strstr(a.answer.ptr, "\"ok\""));
    call_release(&a);
}
END_TEST

START_TEST(echo_bodies)
{
    static const size_t sizes[] = {0, 1, 16383, 16384, 16385, 65536, 1 << 20, 16 << 20};
    char *bytes = malloc(16 << 20);
    for (size_t i = 0; i < 16 << 20; i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct call a;
        fetch(&a, "POST", ECHO, NULL, slice_make(bytes, sizes[i]));
        ck_assert_uint_eq(a.status, 200);
        ck_assert_uint_eq(a.answer.len, sizes[i]);
        ck_assert(sizes[i] == 0 || memcmp(a.answer.ptr, bytes, sizes[i]) == 0);
        call_release(&a);
    }
    free(bytes);
}
END_TEST

START_TEST(echo_events)
{
    struct call a;
    fetch(&a, "POST", ECHO "?events=500", NULL, nothing);
    ck_assert_uint_eq(a.status, 200);
    ck_assert_str_eq(call_header(&a, "content-type"), "text/event-stream");
    ck_assert_uint_eq(call_count(&a, "data: {\"n\":"), 500);
    ck_assert_uint_eq(a.cut_frames, 0);
    ck_assert_str_eq(a.answer.ptr + a.answer.len - 14, "data: [DONE]\n\n");
    call_release(&a);
    uint64_t start = clock_ns();
    fetch(&a, "POST", ECHO "?events=5&gap_ms=30", NULL, nothing);
    ck_assert_uint_ge(clock_ns() - start, 100000000u);
    ck_assert_uint_eq(call_count(&a, "data: {\"n\":"), 5);
    ck_assert_uint_ge(a.frames, 5);
    call_release(&a);
    fetch(&a, "POST", ECHO "?events=7&size=100000", NULL,
          nothing); /* larger than any frame and the window */
    ck_assert_uint_eq(call_count(&a, "data: {\"n\":"), 7);
    ck_assert_uint_gt(a.answer.len, 7 * 99000);
    ck_assert_uint_gt(a.cut_frames, 0);
    call_release(&a);
    fetch(&a, "POST", ECHO "?events=3&status=503", NULL, nothing);
    ck_assert_uint_eq(a.status, 503);
    call_release(&a);
    ck_assert(client_send(&c, &a, "POST", ECHO "?events=3&reset=1", NULL, nothing, false));
    ck_assert(!client_wait(&c, &a, 5000));
    ck_assert_uint_eq(a.reset, RESET_INTERNAL);
    ck_assert_uint_eq(call_count(&a, "data: {\"n\":"), 3);
    call_release(&a);
}
END_TEST

START_TEST(errors)
{
    static const struct {
        const char *method, *target;
        unsigned status;
        const char *word;
    } cases[] = {
        {"GET", "/nowhere", 404, "/nowhere"},
        {"GET", "/v1/chat/completions", 405, "GET"},
        {"POST", "/health", 405, "POST"},
        {"POST", ECHO "?events=x", 400, "events=x"},
        {"POST", ECHO "?events=1&gap_ms", 400, "gap_ms"},
        {"POST", ECHO "?status=99", 400, "status=99"},
        {"POST", ECHO "?what=1", 400, "what=1"},
        {"POST", "/v1/completions", 404, "no model"},
        {"GET", "/v1/models", 404, "no model"},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct call a;
        fetch(&a, cases[i].method, cases[i].target, NULL, nothing);
        ck_assert_msg(a.status == cases[i].status, "%s: %u", cases[i].target, a.status);
        ck_assert_str_eq(call_header(&a, "content-type"), "application/json");
        static const char *const keys[] = {"\"message\"", "\"type\"", "\"param\"", "\"code\""};
        for (unsigned k = 0; k < 4; k++)
            ck_assert_ptr_nonnull(strstr(a.answer.ptr, keys[k]));
        ck_assert_msg(strstr(a.answer.ptr, cases[i].word) != NULL, "%s", a.answer.ptr);
        if (cases[i].status == 405)
            ck_assert_ptr_nonnull(call_header(&a, "allow"));
        call_release(&a);
    }
}
END_TEST

START_TEST(request_ids)
{
    struct call a;
    fetch(&a, "GET", "/health", "x-request-id: my-id.7\n", nothing);
    ck_assert_str_eq(call_header(&a, "x-request-id"), "my-id.7");
    call_release(&a);
    fetch(&a, "GET", "/health", "x-request-id: no good\n", nothing);
    ck_assert_uint_eq(strlen(call_header(&a, "x-request-id")), 24);
    call_release(&a);
    ck_assert(daemon_logged(&d, "my-id.7"));
}
END_TEST

START_TEST(body_limits)
{
    struct call a;
    char *bytes = calloc(1, 300000);
    teardown();
    start((const char *const[]){"--test-echo", "--max-body", "100k", "--max-body-memory", "150k",
                                NULL});
    fetch(&a, "POST", ECHO, "content-length: 102401\n", nothing); /* refused by its announcement */
    ck_assert_uint_eq(a.status, 413);
    call_release(&a);
    fetch(&a, "POST", ECHO, NULL, slice_make(bytes, 102400));
    ck_assert_uint_eq(a.status, 200);
    call_release(&a);
    ck_assert(client_send(&c, &a, "POST", ECHO, NULL, slice_make(bytes, 300000), false));
    ck_assert(client_wait(&c, &a, 5000));
    ck_assert_uint_eq(a.status, 413);
    call_release(&a);
    struct call held, late;
    ck_assert(client_send(&c, &held, "POST", ECHO, NULL, slice_make(bytes, 90000), true));
    while (held.body_sent < held.body.len)
        ck_assert(client_turn(&c, 20));
    fetch(&late, "POST", ECHO, NULL, slice_make(bytes, 90000));
    ck_assert_uint_eq(late.status, 503);
    ck_assert_ptr_nonnull(call_header(&late, "retry-after"));
    call_release(&late);
    client_cancel(&c, &held);
    daemon_expect(&d, "streams", 0);
    fetch(&late, "POST", ECHO, NULL,
          slice_make(bytes, 90000)); /* the cancelled body's memory is free again */
    ck_assert_uint_eq(late.status, 200);
    call_release(&late);
    call_release(&held);
    free(bytes);
}
END_TEST

START_TEST(stream_limit)
{
    struct call held[3], a;
    teardown();
    start((const char *const[]){"--test-echo", "--max-streams", "3", NULL});
    for (int i = 0; i < 3; i++)
        ck_assert(client_send(&c, &held[i], "POST", ECHO "?delay_ms=60000", NULL, nothing, false));
    fetch(&a, "GET", "/health", NULL, nothing);
    ck_assert_uint_eq(a.status, 503);
    call_release(&a);
    for (int i = 0; i < 3; i++) {
        client_cancel(&c, &held[i]);
        call_release(&held[i]);
    }
    daemon_expect(&d, "streams", 0);
    fetch(&a, "GET", "/health", NULL, nothing);
    ck_assert_uint_eq(a.status, 200);
    call_release(&a);
}
END_TEST

START_TEST(cancel_at_every_phase)
{
    static const struct {
        const char *target;
        bool hold; /* the body never ends */
        unsigned events;
    } phases[] = {
        {ECHO, true, 0},
        {ECHO "?delay_ms=60000", false, 0},
        {ECHO "?events=100000&gap_ms=10", false, 1},
        {ECHO "?events=100000&gap_ms=10", false, 3},
        {ECHO "?events=1000000", false, 100},
    };
    for (unsigned i = 0; i < sizeof(phases) / sizeof(*phases); i++) {
        struct call a;
        uint64_t aborts = daemon_stat(&d, "stream_aborts");
        ck_assert(
            client_send(&c, &a, "POST", phases[i].target, NULL, slice_of("body"), phases[i].hold));
        do
            ck_assert(client_turn(&c, 10));
        while (call_count(&a, "data:") < phases[i].events);
        client_cancel(&c, &a);
        daemon_expect(&d, "stream_aborts", aborts + 1);
        daemon_expect(&d, "streams", 0);
        call_release(&a);
    }
}
END_TEST

START_TEST(slow_client)
{
    struct call slow, quick;
    c.stingy = true;
    ck_assert(client_send(&c, &slow, "POST", ECHO "?events=20000", NULL, nothing, false));
    for (int i = 0; i < 20; i++)
        ck_assert(client_turn(&c, 10));
    ck_assert_uint_le(slow.answer.len, WINDOW_DOWN_DEFAULT);
    ck_assert_uint_gt(slow.answer.len, WINDOW_DOWN_DEFAULT / 2);
    fetch(&quick, "GET", "/health", NULL, nothing);
    ck_assert_uint_eq(quick.status, 200);
    call_release(&quick);
    while (slow.stream != NULL) {
        client_feed(&c, &slow);
        ck_assert(client_turn(&c, 10));
    }
    ck_assert_uint_eq(call_count(&slow, "data: {\"n\":"), 20000);
    ck_assert_uint_eq(slow.cut_frames, 0);
    call_release(&slow);
}
END_TEST

START_TEST(full_ring)
{
    enum { N = 100 };
    static struct call calls[N];
    for (int i = 0; i < N; i++) /* more than the ring holds, less than each one's credit */
        ck_assert(
            client_send(&c, &calls[i], "POST", ECHO "?events=30&size=4000", NULL, nothing, false));
    channel_publish(&c.channel);
    usleep(100000); /* the worker fills the ring meanwhile */
    for (int i = 0; i < N; i++) {
        ck_assert_msg(client_wait(&c, &calls[i], 10000), "%d: %s", i, c.error);
        ck_assert_uint_eq(call_count(&calls[i], "data: {\"n\":"), 30);
        call_release(&calls[i]);
    }
    daemon_expect(&d, "streams", 0);
    daemon_expect(&d, "timer_found_work", 0);
}
END_TEST

static int raw_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", d.socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Waits until the worker has closed the other end. */
static void expect_end(int fd)
{
    char bytes[1024];
    struct timeval limit = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof(bytes), 0)) > 0)
        ;
    ck_assert_msg(n == 0 || errno == ECONNRESET, "still open");
    close(fd);
}

START_TEST(bad_hellos)
{
    teardown();
    start((const char *const[]){"--test-echo", "--hello-timeout", "200", "--stats-interval", "50",
                                NULL});
    usleep(100000); /* the probing connection of the start is gone then */
    unsigned fds = daemon_fds(&d);
    char garbage[4096];
    uint32_t seed = 7;
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof(garbage); i++)
            garbage[i] = (char)((seed = seed * 1664525 + 1013904223) >> 24);
        int fd = raw_connect();
        ssize_t n = send(fd, garbage, (size_t)(round * 200) + 1, MSG_NOSIGNAL);
        (void)n;
        expect_end(fd);
    }
    int half = raw_connect(), silent = raw_connect();
    struct hello hello = {.magic = LAYOUT_MAGIC, .size = sizeof(hello), .version = LAYOUT_VERSION};
    ck_assert_int_eq(send(half, &hello, 100, 0), 100);
    expect_end(half);
    expect_end(silent);
    int without_memory = raw_connect();
    hello.kind = HELLO_OFFER;
    ck_assert_int_eq(send(without_memory, &hello, sizeof(hello), 0), (ssize_t)sizeof(hello));
    expect_end(without_memory);
    ck_assert_str_eq(daemon_health(&d), "ok");
    for (int i = 0; i < 100 && daemon_fds(&d) != fds; i++)
        usleep(20000);
    ck_assert_uint_eq(daemon_fds(&d), fds);
}
END_TEST

START_TEST(violation_costs_one_channel)
{
    struct client bad;
    struct call a, lost;
    ck_assert(client_open(&bad, d.socket));
    ck_assert(
        client_send(&bad, &lost, "POST", ECHO "?events=100000&gap_ms=5", NULL, nothing, false));
    ck_assert(client_send(&c, &a, "POST", ECHO "?events=20&gap_ms=10", NULL, nothing, false));
    ck_assert(client_turn(&c, 10));
    ck_assert(client_turn(&bad, 10));
    ck_assert_ptr_nonnull(ring_writer_reserve(&bad.channel.writer, 16, false));
    ring_writer_commit(&bad.channel.writer, 200, 0, 77, 0, 16);
    while (client_turn(&bad, 50))
        ;
    ck_assert(client_wait(&c, &a, 5000));
    ck_assert_uint_eq(call_count(&a, "data: {\"n\":"), 20);
    call_release(&a);
    client_close(&bad);
    call_release(&lost);
    daemon_expect(&d, "protocol_errors", 1);
    daemon_expect(&d, "channels", 1);
    daemon_expect(&d, "streams", 0);
    /* a request that does not decode is a violation too */
    ck_assert(client_open(&bad, d.socket));
    struct channel_stream *stream = channel_open(&bad.channel, &a);
    uint8_t *room = ring_writer_reserve(&bad.channel.writer, 64, false);
    memset(room, 0xff, 64);
    ring_writer_commit(&bad.channel.writer, FRAME_REQUEST, FRAME_OPEN, stream->id, 0, 64);
    while (client_turn(&bad, 50))
        ;
    client_close(&bad);
    daemon_expect(&d, "protocol_errors", 2);
}
END_TEST

START_TEST(garbage_frames)
{
    uint32_t seed = 4711;
    usleep(100000);
    unsigned fds = daemon_fds(&d);
    for (int round = 0; round < 150; round++) {
        struct client bad;
        struct call calls[3];
        ck_assert_msg(client_open(&bad, d.socket), "%s", bad.error);
        for (int i = 0; i < 3; i++)
            ck_assert(client_send(&bad, &calls[i], "POST", ECHO "?events=50&gap_ms=1", NULL,
                                  slice_of("x"), i == 2));
        for (int i = 0; i < 8 && !bad.dead; i++) {
            /* mostly plausible: known types, ids that live, then anything */
            seed = seed * 1664525 + 1013904223;
            uint32_t len = (seed >> 8) % 300, pick = (seed >> 20) % 4;
            uint8_t *room = ring_writer_reserve(&bad.channel.writer, len, false);
            ck_assert_ptr_nonnull(room);
            for (uint32_t k = 0; k < len; k++)
                room[k] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
            uint32_t id = pick < 3 && calls[pick].stream != NULL ? calls[pick].stream->id : seed;
            ring_writer_commit(&bad.channel.writer, (uint8_t)((seed >> 4) % 10),
                               (uint8_t)((seed >> 13) % 9), id, (seed >> 5) % 5 == 0 ? seed : 0,
                               len);
            client_turn(&bad, 0);
        }
        client_turn(&bad, 1);
        client_close(&bad);
        for (int i = 0; i < 3; i++)
            call_release(&calls[i]);
    }
    daemon_expect(&d, "channels", 1);
    daemon_expect(&d, "streams", 0);
    ck_assert_uint_gt(daemon_stat(&d, "protocol_errors"), 50);
    ck_assert_str_eq(daemon_health(&d), "ok");
    for (int i = 0; i < 100 && daemon_fds(&d) != fds; i++)
        usleep(20000);
    ck_assert_uint_eq(daemon_fds(&d), fds);
}
END_TEST

START_TEST(killed_client)
{
    pid_t child = fork();
    if (child == 0) {
        struct client other;
        struct call calls[20];
        if (!client_open(&other, d.socket))
            _exit(1);
        for (int i = 0; i < 20; i++)
            client_send(&other, &calls[i], "POST", ECHO "?events=100000&gap_ms=2", NULL, nothing,
                        false);
        for (;;)
            client_turn(&other, 10);
    }
    daemon_expect(&d, "streams", 20);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    daemon_expect(&d, "streams", 0);
    daemon_expect(&d, "channels", 1);
    ck_assert_uint_eq(daemon_stat(&d, "requests_other"), 20);
}
END_TEST

START_TEST(random_aborts)
{
    enum { PARALLEL = 16, TOTAL = 200 };
    static const char *const targets[] = {ECHO,
                                          ECHO "?delay_ms=20",
                                          ECHO "?events=50&gap_ms=1",
                                          ECHO "?events=3000",
                                          ECHO "?events=20&size=9000",
                                          "/health"};
    struct call calls[PARALLEL];
    unsigned begun = 0, live = 0;
    bool used[PARALLEL] = {false};
    uint32_t seed = 12345;
    char *body = calloc(1, 200000);
    struct call a;
    fetch(&a, "POST", ECHO, NULL, slice_make(body, 200000));
    call_release(&a);
    unsigned fds = daemon_fds(&d), threads = daemon_threads(&d);
    while (begun < TOTAL || live > 0) {
        unsigned i = (seed = seed * 1664525 + 1013904223) >> 28;
        unsigned choice = (seed >> 16) % 7;
        if (!used[i] && begun < TOTAL) {
            const char *target = targets[choice % 6];
            bool get = *target == '/' && target[1] == 'h';
            if (!client_send(&c, &calls[i], get ? "GET" : "POST", target, NULL,
                             get ? nothing : slice_make(body, (seed >> 8) % 200000), false)) {
                ck_assert_msg(client_turn(&c, 1), "%s", c.error); /* the ring is full of bodies */
                continue;
            }
            used[i] = true;
            begun++;
            live++;
        } else if (used[i] && (choice < 3 || calls[i].stream == NULL)) {
            client_cancel(&c, &calls[i]);
            call_release(&calls[i]);
            used[i] = false;
            live--;
        }
        ck_assert_msg(client_turn(&c, choice == 0), "%s", c.error);
    }
    free(body);
    daemon_expect(&d, "streams", 0);
    ck_assert_str_eq(daemon_health(&d), "ok");
    for (int i = 0; i < 100 && daemon_fds(&d) != fds; i++)
        usleep(20000);
    ck_assert_uint_eq(daemon_fds(&d), fds);
    ck_assert_uint_eq(daemon_threads(&d), threads);
    daemon_expect(&d, "timer_found_work", 0);
}
END_TEST

START_TEST(term_drains)
{
    struct call running, late;
    ck_assert(client_send(&c, &running, "POST", ECHO "?events=40&gap_ms=10", NULL, nothing, false));
    while (running.frames == 0)
        ck_assert(client_turn(&c, 10));
    kill(d.pid, SIGTERM);
    do {
        fetch(&late, "GET", "/health", NULL, nothing);
        if (late.status == 200)
            call_release(&late);
    } while (late.status == 200);
    ck_assert_uint_eq(late.status, 503);
    ck_assert_ptr_nonnull(strstr(late.answer.ptr, "draining"));
    ck_assert_ptr_nonnull(call_header(&late, "retry-after"));
    call_release(&late);
    fetch(&late, "POST", "/v1/completions", NULL, slice_of("{}"));
    ck_assert_uint_eq(late.status, 503);
    call_release(&late);
    ck_assert(client_wait(&c, &running, 5000));
    ck_assert_uint_eq(call_count(&running, "data: {\"n\":"), 40);
    ck_assert_uint_eq(call_count(&running, "data: [DONE]"), 1);
    call_release(&running);
    ck_assert_int_eq(daemon_wait(&d), 0);
    ck_assert_int_ne(access(d.socket, F_OK), 0);
}
END_TEST

/* INT (or a second TERM) ends running streams with an error event and [DONE], silent ones with 503. */
static void stop_at_once(bool twice)
{
    struct call running, silent, sending;
    ck_assert(
        client_send(&c, &running, "POST", ECHO "?events=100000&gap_ms=10", NULL, nothing, false));
    ck_assert(client_send(&c, &silent, "POST", ECHO "?delay_ms=100000", NULL, nothing, false));
    ck_assert(client_send(&c, &sending, "POST", ECHO, NULL, slice_of("half"), true));
    while (running.frames == 0)
        ck_assert(client_turn(&c, 10));
    kill(d.pid, twice ? SIGTERM : SIGINT);
    if (twice) {
        usleep(50000);
        kill(d.pid, SIGTERM);
    }
    while (client_turn(&c, 50))
        ;
    ck_assert(running.complete && silent.complete && sending.complete);
    ck_assert_ptr_nonnull(strstr(running.answer.ptr, "\"draining\""));
    ck_assert_str_eq(running.answer.ptr + running.answer.len - 14, "data: [DONE]\n\n");
    ck_assert_uint_eq(silent.status, 503);
    ck_assert_uint_eq(sending.status, 503);
    ck_assert_int_eq(daemon_wait(&d), 0);
    call_release(&running);
    call_release(&silent);
    call_release(&sending);
}

START_TEST(second_term_stops)
{
    stop_at_once(true);
}
END_TEST

START_TEST(int_stops)
{
    stop_at_once(false);
}
END_TEST

START_TEST(socket_and_name_are_taken)
{
    const char *build = getenv("TOKENRING_BUILD");
    char command[600];
    snprintf(command, sizeof(command),
             "%s/tokenringd --test-echo --listen unix:%s --stats-dir %s --name other 2>%s/err",
             build, d.socket, d.dir, d.dir);
    ck_assert_int_eq(system(command), 1 << 8);
    snprintf(command, sizeof(command),
             "%s/tokenringd --test-echo --listen unix:%s.2 --stats-dir %s --name test 2>%s/err",
             build, d.socket, d.dir, d.dir);
    ck_assert_int_eq(system(command), 1 << 8);
    snprintf(command, sizeof(command),
             "touch %s/file; %s/tokenringd --test-echo --listen unix:%s/file --stats-dir %s --name "
             "third 2>%s/err",
             d.dir, build, d.dir, d.dir, d.dir);
    ck_assert_int_eq(system(command), 1 << 8);
    ck_assert_str_eq(daemon_health(&d), "ok");
    struct stat st;
    ck_assert_int_eq(stat(d.socket, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0660);
    client_close(&c);
    ck_assert_int_eq(daemon_stop(&d, SIGKILL), 128 + SIGKILL);
    ck_assert_int_eq(access(d.socket, F_OK), 0); /* stale: replaced by the next one */
    daemon_start_again(&d, (const char *const[]){"--test-echo", "--socket-mode", "0600", NULL});
    ck_assert_str_eq(daemon_health(&d), "ok");
    ck_assert_int_eq(stat(d.socket, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
}
END_TEST

/* Whether a process of nobody, in this group, gets a channel. */
static bool stranger_gets_in(gid_t group)
{
    pid_t child = fork();
    if (child == 0) {
        struct client other;
        if (setgroups(0, NULL) != 0 || setgid(group) != 0 || setuid(65534) != 0)
            _exit(2);
        _exit(client_open(&other, d.socket) ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

START_TEST(peers)
{
    if (geteuid() != 0)
        return; /* only root can be somebody else */
    teardown();
    start((const char *const[]){"--test-echo", "--socket-mode", "0666", "--allow-group", "65533",
                                "--socket-group", "65533", NULL});
    struct stat st;
    ck_assert_int_eq(chmod(d.dir, 0755), 0);
    ck_assert_int_eq(stat(d.socket, &st), 0);
    ck_assert_uint_eq(st.st_gid, 65533);
    ck_assert(!stranger_gets_in(65534));
    ck_assert(stranger_gets_in(65533));
    ck_assert(daemon_logged(&d, "refused process"));
}
END_TEST

START_TEST(options_are_checked_before_anything_is_made)
{
    static const char *const wrong[] = {"--allow-group no-such-group",
                                        "--socket-group no-such-group",
                                        "--log-level loud",
                                        "--listen tcp:1",
                                        "--log-file /nonexistent/x",
                                        "--name a/b"};
    char command[600];
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        snprintf(command, sizeof(command),
                 "%s/tokenringd --test-echo --listen unix:%s/other --name o%u --stats-dir %s %s "
                 "2>%s/err",
                 getenv("TOKENRING_BUILD"), d.dir, i, d.dir, wrong[i], d.dir);
        ck_assert_msg(system(command) == 1 << 8, "%s", wrong[i]);
        snprintf(command, sizeof(command), "%s/other", d.dir);
        ck_assert_msg(access(command, F_OK) != 0, "%s left a socket", wrong[i]);
    }
}
END_TEST

START_TEST(log_reopens)
{
    char log[100], moved[110];
    struct call a;
    teardown();
    start((const char *const[]){"--test-echo", NULL});
    client_close(&c);
    daemon_stop(&d, SIGINT);
    snprintf(log, sizeof(log), "%s/own.log", d.dir);
    snprintf(moved, sizeof(moved), "%s.1", log);
    daemon_start_again(&d, (const char *const[]){"--test-echo", "--log-file", log, NULL});
    ck_assert(client_open(&c, d.socket));
    ck_assert_int_eq(rename(log, moved), 0);
    kill(d.pid, SIGUSR1);
    for (int i = 0; i < 500 && access(log, F_OK) != 0; i++)
        usleep(10000);
    fetch(&a, "GET", "/health", "x-request-id: after\n", nothing);
    call_release(&a);
    snprintf(d.log, sizeof(d.log), "%s", log);
    ck_assert(daemon_logged(&d, "after"));
    snprintf(d.log, sizeof(d.log), "%s", moved);
    ck_assert(!daemon_logged(&d, "after"));
}
END_TEST

START_TEST(idle_costs_nothing)
{
    if (getenv("TOKENRING_WRAP") != NULL)
        return; /* valgrind's own work is no measure */
    daemon_expect(&d, "streams", 0);
    uint64_t before = daemon_stat(&d, "cpu_time_ms");
    usleep(1000000);
    uint64_t after = daemon_stat(&d, "cpu_time_ms");
    ck_assert_uint_lt(after - before, 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("e2e/worker");
    TCase *tc = tcase_create("worker");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, health);
    tcase_add_test(tc, echo_bodies);
    tcase_add_test(tc, echo_events);
    tcase_add_test(tc, errors);
    tcase_add_test(tc, request_ids);
    tcase_add_test(tc, body_limits);
    tcase_add_test(tc, stream_limit);
    tcase_add_test(tc, cancel_at_every_phase);
    tcase_add_test(tc, slow_client);
    tcase_add_test(tc, full_ring);
    tcase_add_test(tc, bad_hellos);
    tcase_add_test(tc, violation_costs_one_channel);
    tcase_add_test(tc, garbage_frames);
    tcase_add_test(tc, killed_client);
    tcase_add_test(tc, random_aborts);
    tcase_add_test(tc, term_drains);
    tcase_add_test(tc, second_term_stops);
    tcase_add_test(tc, int_stops);
    tcase_add_test(tc, socket_and_name_are_taken);
    tcase_add_test(tc, peers);
    tcase_add_test(tc, options_are_checked_before_anything_is_made);
    tcase_add_test(tc, log_reopens);
    tcase_add_test(tc, idle_costs_nothing);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
