/* stress_bell.c: the doorbell's two fences. One process sleeps as soon as it has taken a byte; the other sends the next
 * one just then, a few nanoseconds sooner or later, so that "publish, then look whether it sleeps" and "say that I sleep,
 * then look again" overlap as often as can be. Without the fences a wakeup is lost within a second: nobody would ring
 * again, as nothing more is sent before the byte has been taken.
 *
 *     stress_bell [SECONDS]      3, or 120 with TOKENRING_LONG set */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/ring/channel.h"

static struct {
    _Atomic uint64_t sent, got, sleeps, bells, lost;
    _Atomic int stop;
} * shared;

#define LOST_NS 2000000000ull /* not rung and not taken for so long */

static void pause_for(uint64_t *rng, unsigned most)
{
    *rng ^= *rng << 13;
    *rng ^= *rng >> 7;
    *rng ^= *rng << 17;
    for (volatile unsigned i = 0; i < *rng % most; i++)
        ;
}

static void handshake(struct channel *c)
{
    struct error err;
    enum channel_wait wait;
    while ((wait = channel_handshake_step(c, &err)) != CHANNEL_READY) {
        check(wait != CHANNEL_FAILED);
        usleep(100);
    }
}

/* The worker's side: a byte, and when that has been taken, the next. */
static void sender(int fd)
{
    struct channel c;
    struct channel_frame f;
    struct channel_stream *s = NULL;
    struct message_head h = {.status = 200};
    uint64_t rng = 88172645463325252ull;
    size_t taken;
    check(channel_server_start(&c, fd, NULL, NULL) == STATUS_OK);
    handshake(&c);
    while (s == NULL)
        if (channel_next(&c, &f, NULL) == CHANNEL_FRAME)
            s = f.stream;
    check(channel_send_head(&c, s, &h, 0, NULL) == SEND_DONE);
    while (!shared->stop) {
        while (channel_next(&c, &f, NULL) == CHANNEL_FRAME)
            ;
        if (channel_send_data(&c, s, "x", 1, 0, &taken) == SEND_DONE)
            shared->sent++;
        bool rung = channel_publish(&c);
        uint64_t since = clock_ns();
        while (shared->got != shared->sent && !shared->stop) {
            if (rung || clock_ns() - since < LOST_NS)
                continue;
            shared->lost++;
            rung = send(fd, "", 1, MSG_DONTWAIT) == 1; /* gets the test going again */
        }
        pause_for(&rng, 100);
    }
    shared->bells = c.counters.doorbells_sent;
    channel_release(&c);
}

static void receiver(int fd)
{
    struct channel c;
    struct channel_frame f;
    struct message_request m = {.method = slice_of("GET"), .target = slice_of("/")};
    uint64_t rng = 0x9e3779b97f4a7c15ull;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    check(channel_client_start(&c, fd, NULL, NULL) == STATUS_OK);
    handshake(&c);
    struct channel_stream *s = channel_open(&c, NULL);
    check(channel_send_request(&c, s, &m, FRAME_FIN, NULL) == SEND_DONE);
    while (!shared->stop) {
        channel_drain(&c);
        while (channel_next(&c, &f, NULL) == CHANNEL_FRAME)
            if (f.type == FRAME_DATA) {
                channel_consumed(&c, s, f.len);
                shared->got += f.len;
            }
        channel_publish(&c);
        pause_for(&rng, 1500); /* about as long as the sender takes */
        shared->sleeps++;
        if (!channel_sleep(&c))
            poll(&p, 1, 10000);
    }
    channel_release(&c);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : getenv("TOKENRING_LONG") != NULL ? 120 : 3;
    int fds[2];
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(shared != MAP_FAILED &&
          socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    pid_t pids[2];
    for (int i = 0; i < 2; i++)
        if ((pids[i] = fork()) == 0) {
            i == 0 ? sender(fds[0]) : receiver(fds[1]);
            _exit(0);
        }
    usleep((useconds_t)(seconds * 1e6));
    shared->stop = 1;
    int status, ended = 0;
    for (int i = 0; i < 2; i++)
        ended += waitpid(pids[i], &status, 0) == pids[i] && status == 0;
    printf("%llu bytes sent, %llu got, %llu sleeps, %llu doorbells, %llu lost\n",
           (unsigned long long)shared->sent, (unsigned long long)shared->got,
           (unsigned long long)shared->sleeps, (unsigned long long)shared->bells,
           (unsigned long long)shared->lost);
    bool fine = ended == 2 && shared->lost == 0 && shared->sleeps > 100 &&
                shared->bells <= shared->sleeps + 1;
    printf("%s stress bell\n", fine ? "ok" : "not ok");
    return !fine;
}
