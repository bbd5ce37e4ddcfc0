/* stress_ring.c: two processes over a channel, with random stalls, stops and kill -9.
 *
 * The client keeps many streams going: a request whose body and answer are made of a seed, so that each side checks
 * every byte of the other; some are cancelled, some reset, some read slowly. Both sleep in poll for as long as it
 * takes, so a lost wakeup shows as a sleep that a timeout ended with work waiting. The parent stops and kills both at
 * random; the one that is left must notice, let go of everything, and go on with the next peer.
 *
 *     stress_ring [SECONDS]      10, or 600 with TOKENRING_LONG set */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/ring/channel.h"

#define CHANNELS 8
#define STREAMS 48
#define SILENCE_MS                                                                                 \
    300 /* longer than any stall or stop: a sleep of this length with work waiting is suspect */
#define GRACE_MS 300 /* and a lost wakeup if no doorbell comes in this time either */

static struct shared {
    _Atomic uint64_t done, cancelled, reset, bytes, lost, bad, attached, turns, blocked;
    _Atomic int finish; /* the client opens no more streams */
    _Atomic int idle;   /* it has none left */
} * shared;

static char socket_path[108];
static uint64_t rng;

static uint64_t random64(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    return rng ^= rng << 17;
}

static bool one_in(uint64_t n)
{
    return random64() % n == 0;
}

static void bad(const char *what)
{
    fprintf(stderr, "stress_ring[%d]: %s\n", (int)getpid(), what);
    shared->bad++;
}

static void stall(void)
{
    if (one_in(300))
        usleep((useconds_t)(random64() % 4000));
}

static uint8_t byte_of(uint64_t seed, uint64_t i)
{
    return (uint8_t)((seed + i * 0x9e3779b97f4a7c15ull) >> 37);
}

struct transfer {
    bool used;
    struct channel_stream *stream;
    uint64_t seed;
    uint64_t out_len, out; /* our direction: length, sent */
    uint64_t in_len, in;   /* the peer's: length, received and right so far */
    uint64_t give_up_at;   /* client: cancel after so many bytes; server: reset */
    uint32_t owed;         /* received, not given back yet */
    bool head, ready, fin, requested;
};

struct side {
    struct channel channel;
    struct transfer transfers[STREAMS];
    bool up; /* handshake done */
    int fd;
};

static bool fill_and_send(struct side *s, struct transfer *t, uint64_t seed, unsigned last_flags)
{
    static uint8_t chunk[24000];
    while (t->out < t->out_len) {
        size_t n = 1 + random64() % sizeof(chunk), taken;
        if (n > t->out_len - t->out)
            n = t->out_len - t->out;
        for (size_t i = 0; i < n; i++)
            chunk[i] = byte_of(seed, t->out + i);
        enum channel_send r = channel_send_data(&s->channel, t->stream, chunk, n,
                                                t->out + n == t->out_len ? last_flags : 0, &taken);
        t->out += taken;
        if (r == SEND_INVALID)
            bad("a send was invalid");
        if (r != SEND_DONE) {
            shared->blocked++;
            return false;
        }
    }
    return true;
}

static void receive(struct side *s, struct transfer *t, const struct channel_frame *f,
                    uint64_t seed)
{
    for (uint32_t i = 0; i < f->len; i++)
        if (f->payload[i] != byte_of(seed, t->in + i))
            return bad("a byte is wrong");
    t->in += f->len;
    t->owed += f->len;
    shared->bytes += f->len;
    if (!one_in(8)) { /* some readers are slow */
        channel_consumed(&s->channel, t->stream, t->owed);
        t->owed = 0;
    }
}

/* ---- server --------------------------------------------------------------------------------------------- */

static struct transfer *free_transfer(struct side *s)
{
    for (int i = 0; i < STREAMS; i++)
        if (!s->transfers[i].used)
            return &s->transfers[i];
    return NULL;
}

static void server_frame(struct side *s, const struct channel_frame *f)
{
    struct transfer *t = f->stream->user;
    struct message_request m;
    struct error err;
    if (f->type == FRAME_REQUEST) {
        if (message_request_decode(f->payload, f->len, &m, &err) != STATUS_OK)
            return bad(err.text);
        t = free_transfer(s);
        if (t == NULL)
            return bad("more streams than the client has");
        *t = (struct transfer){.used = true, .stream = f->stream};
        f->stream->user = t;
        unsigned long long seed = 0, in = 0, out = 0;
        struct slice value = message_find(m.pairs, m.n_pairs, "x-job");
        char text[80] = "";
        memcpy(text, value.ptr, value.len < 79 ? value.len : 79);
        if (sscanf(text, "%llx %llu %llu", &seed, &in, &out) != 3)
            bad("the job does not parse");
        t->seed = seed, t->in_len = in, t->out_len = out;
        t->give_up_at = one_in(32) ? random64() % (out + 1) : UINT64_MAX;
        t->ready = f->flags & FRAME_FIN;
    } else if (f->type == FRAME_DATA) {
        receive(s, t, f, t->seed);
        t->ready = f->flags & FRAME_FIN;
        if (t->ready && t->in != t->in_len)
            bad("a body has the wrong length");
    } else if (f->type == FRAME_CANCEL) {
        t->used = false;
        f->stream->user = NULL;
    }
}

static void server_work(struct side *s)
{
    for (int i = 0; i < STREAMS; i++) {
        struct transfer *t = &s->transfers[i];
        if (t->used && t->owed != 0 && one_in(4)) {
            channel_consumed(&s->channel, t->stream, t->owed);
            t->owed = 0;
        }
        if (!t->used || !t->ready)
            continue;
        struct message_head h = {.status = 200};
        char text[32];
        if (!t->head && channel_send_head(&s->channel, t->stream, &h, 0, NULL) != SEND_DONE)
            continue;
        t->head = true;
        if (t->out >= t->give_up_at) {
            channel_reset(&s->channel, t->stream, RESET_INTERNAL);
            t->used = false;
            continue;
        }
        if (!fill_and_send(s, t, ~t->seed, FRAME_EVENT_END))
            continue;
        snprintf(text, sizeof(text), "%llu", (unsigned long long)t->in);
        message_add_pair(h.pairs, &h.n_pairs, slice_of("x-got"), slice_of(text));
        if (channel_send_trailer(&s->channel, t->stream, &h, NULL) == SEND_DONE)
            t->used = false;
    }
}

/* ---- client --------------------------------------------------------------------------------------------- */

static void client_end(struct side *s, struct transfer *t)
{
    channel_close(&s->channel, t->stream);
    t->used = false;
}

static void client_frame(struct side *s, const struct channel_frame *f)
{
    struct transfer *t = f->stream->user;
    struct message_head m;
    struct error err;
    char text[32];
    if (f->type == FRAME_DATA) {
        receive(s, t, f, ~t->seed);
    } else if (f->type == FRAME_RESET) {
        shared->reset++;
        client_end(s, t);
        return;
    } else if (f->type == FRAME_TRAILER) {
        snprintf(text, sizeof(text), "%llu", (unsigned long long)t->out_len);
        if (message_head_decode(f->payload, f->len, &m, &err) != STATUS_OK ||
            !slice_is(message_find(m.pairs, m.n_pairs, "x-got"), text) || t->in != t->in_len)
            bad("a stream ended with less than all of it");
        shared->done++;
        client_end(s, t);
        return;
    }
    if (t->in + t->out >= t->give_up_at) {
        shared->cancelled++;
        client_end(s, t);
    }
}

static uint64_t some_length(void)
{
    return one_in(4) ? 0 : random64() % (one_in(8) ? 200000 : 2000);
}

static void client_work(struct side *s)
{
    struct transfer *t;
    unsigned used = 0;
    while (!shared->finish && (t = free_transfer(s)) != NULL) {
        struct channel_stream *stream = channel_open(&s->channel, t);
        if (stream == NULL)
            break;
        *t = (struct transfer){.used = true,
                               .stream = stream,
                               .seed = random64(),
                               .out_len = some_length(),
                               .in_len = some_length()};
        t->give_up_at = one_in(8) ? random64() % (t->out_len + t->in_len + 1) : UINT64_MAX;
    }
    for (int i = 0; i < STREAMS; i++) {
        t = &s->transfers[i];
        used += t->used;
        if (t->used && t->owed != 0 && one_in(4)) {
            channel_consumed(&s->channel, t->stream, t->owed);
            t->owed = 0;
        }
        if (!t->used || t->out == UINT64_MAX)
            continue;
        if (!t->requested) {
            struct message_request m = {.method = slice_of("POST"), .target = slice_of("/job")};
            char text[80];
            snprintf(text, sizeof(text), "%llx %llu %llu", (unsigned long long)t->seed,
                     (unsigned long long)t->out_len, (unsigned long long)t->in_len);
            message_add_pair(m.pairs, &m.n_pairs, slice_of("x-job"), slice_of(text));
            enum channel_send r = channel_send_request(&s->channel, t->stream, &m,
                                                       t->out_len == 0 ? FRAME_FIN : 0, NULL);
            if (r == SEND_INVALID)
                bad("a request was invalid");
            if (r != SEND_DONE)
                continue;
            t->requested = true;
        }
        if (t->out < t->out_len)
            fill_and_send(s, t, t->seed, FRAME_FIN);
        if (t->out >= t->give_up_at) {
            shared->cancelled++;
            client_end(s, t);
        }
    }
    shared->idle = shared->finish && used == 0;
}

/* ---- both ----------------------------------------------------------------------------------------------- */

static void side_drop(struct side *s)
{
    channel_release(&s->channel);
    close(s->fd);
    memset(s, 0, sizeof(*s));
    s->fd = -1;
}

/* One turn of the loop for one channel, as channel.h describes it. False: the channel is gone. */
static bool turn(struct side *s, bool client)
{
    struct channel *c = &s->channel;
    struct channel_frame f;
    struct error err;
    if (!s->up) {
        enum channel_wait wait = channel_handshake_step(c, &err);
        if (wait == CHANNEL_FAILED) {
            if (err.status != STATUS_PEER || strstr(err.text, "handshake") == NULL)
                if (strstr(err.text, "send the hello") == NULL)
                    bad(err.text);
            return false;
        }
        if (wait != CHANNEL_READY)
            return true;
        s->up = true;
        shared->attached++;
    }
    shared->turns++;
    channel_awake(c);
    bool dead = channel_drain(c) == CHANNEL_EOF;
    enum channel_event event;
    while ((event = channel_next(c, &f, &err)) == CHANNEL_FRAME) {
        client ? client_frame(s, &f) : server_frame(s, &f);
        stall();
    }
    if (event == CHANNEL_BROKEN) {
        bad(err.text);
        return false;
    }
    if (dead)
        return false;
    channel_take_room(c);
    client ? client_work(s) : server_work(s);
    stall();
    channel_publish(c);
    return true;
}

/* Credit that a slow reader still owes would keep everybody asleep for ever: such a side wakes by itself. */
static bool owes(const struct side *s)
{
    for (int i = 0; i < STREAMS; i++)
        if (s->transfers[i].used && s->transfers[i].owed != 0)
            return true;
    return false;
}

/* Sleeps until something happens on one of n sides (or on `listener`). */
static void sleep_all(struct side *sides, int n, int listener, struct pollfd *fds)
{
    int timeout = SILENCE_MS, count = 0;
    for (int i = 0; i < n; i++) {
        if (sides[i].fd < 0)
            continue;
        if (sides[i].up && channel_sleep(&sides[i].channel))
            timeout = 0;
        if (sides[i].up && owes(&sides[i]) && timeout > 1)
            timeout = 1;
        fds[count++] = (struct pollfd){.fd = sides[i].fd, .events = POLLIN};
    }
    if (listener >= 0)
        fds[count++] = (struct pollfd){.fd = listener, .events = POLLIN};
    uint64_t before = clock_ns();
    int got = poll(fds, (nfds_t)count, timeout);
    if (got != 0 || timeout != SILENCE_MS)
        return;
    /* Work that waits now, and was there before the grace in which a doorbell under way would have come, was not rung
     * for. Not if we were stopped ourselves meanwhile. */
    bool waited[CHANNELS] = {false};
    for (int i = 0; i < n; i++)
        waited[i] = sides[i].fd >= 0 && sides[i].up && channel_has_work(&sides[i].channel);
    if (poll(fds, (nfds_t)count, GRACE_MS) != 0 ||
        clock_ns() - before > (SILENCE_MS + GRACE_MS + 100) * 1000000ull)
        return;
    for (int i = 0; i < n; i++)
        if (waited[i] && channel_has_work(&sides[i].channel)) {
            shared->lost++;
            bad("a wakeup was lost");
        }
}

static struct channel_config some_config(void)
{
    return (struct channel_config){.slots = STREAMS,
                                   .up_size = RING_SIZE_MIN << random64() % 3,
                                   .down_size = RING_SIZE_MIN << random64() % 3,
                                   .up_window = WINDOW_MIN << random64() % 7,
                                   .down_window = WINDOW_MIN << random64() % 7};
}

static _Noreturn void server_main(int listener)
{
    static struct side sides[CHANNELS];
    struct pollfd fds[CHANNELS + 1];
    for (int i = 0; i < CHANNELS; i++)
        sides[i].fd = -1;
    for (;;) {
        for (int i = 0; i < CHANNELS; i++) {
            if (sides[i].fd >= 0) {
                if (!turn(&sides[i], false))
                    side_drop(&sides[i]);
                continue;
            }
            int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0)
                continue;
            struct channel_config config = some_config();
            sides[i].fd = fd;
            check(channel_server_start(&sides[i].channel, fd, &config, NULL) == STATUS_OK);
        }
        sleep_all(sides, CHANNELS, listener, fds);
    }
}

static _Noreturn void client_main(void)
{
    static struct side side;
    struct pollfd fds[1];
    side.fd = -1;
    for (;;) {
        while (side.fd < 0) {
            struct sockaddr_un addr = {.sun_family = AF_UNIX};
            memcpy(addr.sun_path, socket_path, sizeof(addr.sun_path));
            int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
            check(fd >= 0);
            if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
                close(fd);
                usleep(1000);
                continue;
            }
            struct channel_config config = some_config();
            side.fd = fd;
            check(channel_client_start(&side.channel, fd, &config, NULL) == STATUS_OK);
        }
        if (!turn(&side, true))
            side_drop(&side);
        else
            sleep_all(&side, 1, -1, fds);
    }
}

static pid_t start(bool client, int listener)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    pid_t pid = fork();
    check(pid >= 0);
    if (pid == 0) {
        rng |= 1;
        client ? client_main() : server_main(listener);
    }
    return pid;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : getenv("TOKENRING_LONG") != NULL ? 600 : 10;
    char dir[] = "/tmp/tokenring-stress-XXXXXX";
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(shared != MAP_FAILED && mkdtemp(dir) != NULL);
    rng = (uint64_t)time(NULL) * 0x9e3779b97f4a7c15ull | 1;
    printf("seed %llx\n", (unsigned long long)rng);
    fflush(stdout);
    snprintf(socket_path, sizeof(socket_path), "%s/s", dir);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memcpy(addr.sun_path, socket_path, sizeof(addr.sun_path));
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    check(bind(listener, (struct sockaddr *)&addr, sizeof(addr)) == 0 && listen(listener, 16) == 0);

    pid_t pids[2] = {start(false, listener), start(true, listener)};
    uint64_t end = clock_ns() + (uint64_t)(seconds * 1e9), kills = 0, stops = 0;
    while (clock_ns() < end) {
        usleep((useconds_t)(10000 + random64() % 200000));
        int which = (int)(random64() % 2);
        if (one_in(12)) {
            kill(pids[which], SIGKILL);
            waitpid(pids[which], NULL, 0);
            pids[which] = start(which == 1, listener);
            kills++;
        } else {
            kill(pids[which], SIGSTOP);
            usleep((useconds_t)(random64() % 60000));
            kill(pids[which], SIGCONT);
            stops++;
        }
    }
    /* Now everything that is open comes to its end. */
    shared->finish = 1;
    for (int i = 0; i < 2000 && !shared->idle; i++)
        usleep(10000);
    bool ended = shared->idle;
    for (int i = 0; i < 2; i++) {
        if (waitpid(pids[i], NULL, WNOHANG) != 0)
            bad("a process ended by itself");
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    unlink(socket_path);
    rmdir(dir);
    printf("%llu streams done, %llu cancelled, %llu reset, %.1f MB, %llu turns, %llu sends "
           "blocked; %llu kills, %llu stops, "
           "%llu attachments\n",
           (unsigned long long)shared->done, (unsigned long long)shared->cancelled,
           (unsigned long long)shared->reset, (double)shared->bytes / 1e6,
           (unsigned long long)shared->turns, (unsigned long long)shared->blocked,
           (unsigned long long)kills, (unsigned long long)stops,
           (unsigned long long)shared->attached);
    bool fine = ended && shared->bad == 0 && shared->lost == 0 && shared->done > 100 &&
                shared->cancelled > 10 && shared->reset > 0 && stops > 0 &&
                (kills > 0 || seconds < 5);
    if (!ended)
        printf("streams are still open 20 s after the end\n");
    printf("%s stress ring\n", fine ? "ok" : "not ok");
    return !fine;
}
