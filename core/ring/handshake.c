/* The hello of both sides, and the regions that travel with it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "core/ring/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/ring/channel_priv.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define REGION_SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

enum {
    STATE_NONE,
    CLIENT_SENDS,
    CLIENT_READS,
    SERVER_READS,
    SERVER_SENDS,
    STATE_READY,
    STATE_FAILED
};

#define FDS_MAX 8 /* that we have a buffer for; more are closed by the kernel and reported */

/* ---- regions -------------------------------------------------------------------------------------------- */

/* Makes our region: pages allocated before the seals, so that no later touch can fail; mapped writable before
 * FUTURE_WRITE forbids that for everybody else. */
static enum status region_create(struct channel *c, uint64_t ring_size, struct error *err)
{
    uint64_t bytes = region_bytes(ring_size);
    int fd = memfd_create("tokenring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_set(err, STATUS_IO, "cannot make a region: memfd_create: %s", strerror(errno));
    c->own_fd = fd;
    if (ftruncate(fd, (off_t)bytes) != 0 || fallocate(fd, 0, 0, (off_t)bytes) != 0)
        return error_set(err, STATUS_NO_MEMORY, "cannot get %llu bytes for a region: %s",
                         (unsigned long long)bytes, strerror(errno));
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED)
        return error_set(err, STATUS_NO_MEMORY, "cannot map a region of %llu bytes: %s",
                         (unsigned long long)bytes, strerror(errno));
    c->own = at;
    c->own_bytes = bytes;
    c->own->header =
        (struct region_header){LAYOUT_MAGIC, c->config.version, c->config.layout, ring_size};
    if (fcntl(fd, F_ADD_SEALS, REGION_SEALS) != 0)
        return error_set(err, STATUS_IO, "cannot seal a region: %s", strerror(errno));
    return STATUS_OK;
}

/* Maps the peer's region, after every check that makes reading it safe for ever. */
static enum status region_attach(struct channel *c, uint64_t ring_size, struct error *err)
{
    uint64_t bytes = region_bytes(ring_size);
    struct stat st;
    if (c->peer_fd < 0)
        return error_set(err, STATUS_PEER, "the peer's hello came without its region");
    int seals = fcntl(c->peer_fd, F_GET_SEALS);
    if (seals < 0 || (seals & REGION_SEALS) != REGION_SEALS)
        return error_set(err, STATUS_PEER, "the peer's region lacks seals (has %#x, needs %#x)",
                         seals < 0 ? 0u : (unsigned)seals, (unsigned)REGION_SEALS);
    if (fstat(c->peer_fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes)
        return error_set(err, STATUS_PEER,
                         "the peer's region is %lld bytes long, its hello says %llu",
                         (long long)st.st_size, (unsigned long long)bytes);
    if ((uint64_t)st.st_blocks * 512 < bytes)
        return error_set(err, STATUS_PEER,
                         "the peer's region has holes: %llu of %llu bytes are allocated",
                         (unsigned long long)st.st_blocks * 512, (unsigned long long)bytes);
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, c->peer_fd, 0);
    if (at == MAP_FAILED)
        return error_set(err, STATUS_NO_MEMORY, "cannot map the peer's region of %llu bytes: %s",
                         (unsigned long long)bytes, strerror(errno));
    c->peer = at;
    c->peer_bytes = bytes;
    struct region_header h = c->peer->header;
    if (h.magic != LAYOUT_MAGIC || h.version != c->config.version || h.layout != c->config.layout ||
        h.ring_size != ring_size)
        return error_set(err, STATUS_PEER,
                         "the header of the peer's region does not agree with its hello");
    return STATUS_OK;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* ---- hello ---------------------------------------------------------------------------------------------- */

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static void start(struct channel *c, int fd, enum channel_role role,
                  const struct channel_config *config)
{
    memset(c, 0, sizeof(*c));
    c->fd = fd;
    c->role = role;
    c->own_fd = c->peer_fd = -1;
    if (config != NULL)
        c->config = *config;
    struct channel_config *g = &c->config;
    g->build = g->build != NULL ? g->build : LAYOUT_BUILD;
    g->version = or_default(g->version, LAYOUT_VERSION);
    g->layout = or_default(g->layout, LAYOUT_WORD);
    g->slots = or_default(g->slots, SLOTS_DEFAULT);
    g->up_size = or_default(g->up_size, RING_UP_DEFAULT);
    g->down_size = or_default(g->down_size, RING_DOWN_DEFAULT);
    g->up_window = or_default(g->up_window, WINDOW_UP_DEFAULT);
    g->down_window = or_default(g->down_window, WINDOW_DOWN_DEFAULT);
    c->state = STATE_FAILED; /* until the caller says otherwise */
}

static void hello_fill(struct channel *c, enum hello_kind kind)
{
    struct hello *h = &c->out;
    memset(h, 0, sizeof(*h));
    h->magic = LAYOUT_MAGIC;
    h->size = sizeof(*h);
    h->version = c->config.version;
    h->kind = kind;
    h->pid = (uint32_t)getpid();
    snprintf(h->build, sizeof(h->build), "%s", c->config.build);
    h->layout = c->config.layout;
    h->slots = c->config.slots;
    h->features = c->config.features;
    h->up_size = c->config.up_size;
    h->down_size = c->config.down_size;
    h->up_window = c->config.up_window;
    h->down_window = c->config.down_window;
}

/* Is this geometry one that the rings work with? NULL, or what is wrong. */
static const char *geometry_fault(const struct hello *h)
{
    if (h->slots == 0 || h->slots > SLOTS_MAX)
        return "the number of slots";
    if (h->up_size < RING_SIZE_MIN || h->up_size > RING_SIZE_MAX ||
        (h->up_size & (h->up_size - 1)) != 0)
        return "the size of the up ring";
    if (h->down_size < RING_SIZE_MIN || h->down_size > RING_SIZE_MAX ||
        (h->down_size & (h->down_size - 1)) != 0)
        return "the size of the down ring";
    if ((uint64_t)h->slots * CONTROL_ROOM_PER_SLOT > h->up_size / 2 ||
        (uint64_t)h->slots * CONTROL_ROOM_PER_SLOT > h->down_size / 2)
        return "the room that so many slots leave in a ring";
    if (h->up_window < WINDOW_MIN || h->up_window > WINDOW_MAX || h->down_window < WINDOW_MIN ||
        h->down_window > WINDOW_MAX)
        return "a credit window";
    return NULL;
}

/* Texts of the peer end up in logs: NUL-terminated, printable. */
static void tidy(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e)
            *p = '?';
}

/* The checks that come before anything else in a hello can be believed. */
static enum status check_builds(struct channel *c, struct error *err)
{
    struct hello *h = &c->in;
    bool client = c->role == CHANNEL_CLIENT;
    if (h->magic != LAYOUT_MAGIC || h->size != sizeof(*h))
        return error_set(err, STATUS_PEER, "what came over the socket is no tokenring hello");
    tidy(h->build, sizeof(h->build));
    tidy(h->text, sizeof(h->text));
    c->peer_pid = (pid_t)h->pid;
    memcpy(c->peer_build, h->build, sizeof(c->peer_build));
    if (h->version == c->config.version && h->layout == c->config.layout)
        return STATUS_OK;
    return error_set(err, STATUS_VERSION,
                     "the nginx module is '%.63s' with ring version %u (layout %08x), the worker "
                     "is '%.63s' with "
                     "ring version %u (layout %08x)",
                     client ? c->config.build : h->build, client ? c->config.version : h->version,
                     client ? c->config.layout : h->layout, client ? h->build : c->config.build,
                     client ? h->version : c->config.version,
                     client ? h->layout : c->config.layout);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Server: reads the offer, makes the answer. */
static enum status accept_offer(struct channel *c, struct error *err)
{
    struct hello *in = &c->in;
    enum status status = check_builds(c, err);
    if (status != STATUS_OK)
        return status;
    if (in->kind != HELLO_OFFER)
        return error_set(err, STATUS_PEER, "the client's hello is no offer");
    const char *fault = geometry_fault(in);
    if (fault != NULL)
        return error_set(err, STATUS_PEER, "the client offers a geometry that cannot be: %s",
                         fault);
    if ((status = region_attach(c, in->up_size, err)) != STATUS_OK)
        return status;
    hello_fill(c, HELLO_ANSWER);
    struct hello *out = &c->out;
    out->up_size = in->up_size;
    out->slots = smaller(in->slots, out->slots);
    out->down_size = in->down_size < out->down_size ? in->down_size : out->down_size;
    out->up_window = smaller(in->up_window, out->up_window);
    out->down_window = smaller(in->down_window, out->down_window);
    out->features &= in->features;
    if ((fault = geometry_fault(out)) != NULL)
        return error_set(err, STATUS_PEER, "no geometry suits both sides: %s", fault);
    if ((status = region_create(c, out->down_size, err)) != STATUS_OK)
        return status;
    return channel_begin(c, out, err);
}

/* Client: reads the answer. */
static enum status accept_answer(struct channel *c, struct error *err)
{
    struct hello *in = &c->in;
    const struct hello *out = &c->out;
    enum status status = check_builds(c, err);
    if (status == STATUS_PEER)
        return status;
    if (in->kind == HELLO_REFUSAL && in->text[0] != '\0')
        return error_set(err, status == STATUS_OK ? STATUS_PEER : STATUS_VERSION,
                         "the worker refused: %s", in->text);
    if (status != STATUS_OK)
        return status;
    if (in->kind != HELLO_ANSWER)
        return error_set(err, STATUS_PEER, "the worker's hello is no answer");
    if (geometry_fault(in) != NULL || in->slots > out->slots || in->up_size != out->up_size ||
        in->down_size > out->down_size || in->up_window > out->up_window ||
        in->down_window > out->down_window || (in->features & ~out->features) != 0)
        return error_set(err, STATUS_PEER, "the worker's answer exceeds the offer");
    if ((status = region_attach(c, in->down_size, err)) != STATUS_OK)
        return status;
    return channel_begin(c, in, err);
}

/* ---- the socket ----------------------------------------------------------------------------------------- */

/* Sends what is left of c->out; the region goes with its first byte. READY: all sent. */
static enum channel_wait hello_send(struct channel *c, struct error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    while (c->done < sizeof(c->out)) {
        struct iovec iov = {(char *)&c->out + c->done, sizeof(c->out) - c->done};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        if (c->done == 0 && c->own_fd >= 0) {
            memset(&control, 0, sizeof(control));
            msg.msg_control = control.bytes;
            msg.msg_controllen = sizeof(control.bytes);
            struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
            cmsg->cmsg_level = SOL_SOCKET;
            cmsg->cmsg_type = SCM_RIGHTS;
            cmsg->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(cmsg), &c->own_fd, sizeof(int));
        }
        ssize_t n = sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return CHANNEL_WANT_WRITE;
        if (n < 0 && c->role == CHANNEL_CLIENT && (errno == EPIPE || errno == ECONNRESET))
            return CHANNEL_READY; /* turned away at once: why lies in the socket */
        if (n <= 0) {
            error_set(err, STATUS_PEER, "cannot send the hello: %s", strerror(errno));
            return CHANNEL_FAILED;
        }
        c->done += (size_t)n;
    }
    return CHANNEL_READY;
}

/* Keeps the first descriptor that comes, closes every other. NULL, or why the hello cannot be used. */
static const char *take_descriptors(struct channel *c, struct msghdr *msg)
{
    bool cut = (msg->msg_flags & MSG_CTRUNC) != 0, fine = !cut;
    if (cut && CMSG_FIRSTHDR(msg) == NULL) /* not one got through: the fault is on our side */
        return "the peer's region cannot be received: this process has no descriptor left";
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg != NULL; cmsg = CMSG_NXTHDR(msg, cmsg)) {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS) {
            fine = false;
            continue;
        }
        size_t n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
            if (c->peer_fd < 0 && fine) {
                c->peer_fd = fd;
            } else {
                close(fd);
                fine = false;
            }
        }
    }
    return fine ? NULL : "the peer's hello carries more than one descriptor";
}

/* Reads what is left of c->in, and not a byte more: what follows are doorbells. READY: complete. */
static enum channel_wait hello_read(struct channel *c, struct error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    while (c->done < sizeof(c->in)) {
        struct iovec iov = {(char *)&c->in + c->done, sizeof(c->in) - c->done};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
        ssize_t n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return CHANNEL_WANT_READ;
        if (n <= 0) {
            error_set(err, STATUS_PEER, "the peer closed the socket during the handshake%s%s",
                      n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
            return CHANNEL_FAILED;
        }
        c->done += (size_t)n;
        const char *fault = take_descriptors(c, &msg);
        if (fault != NULL) {
            error_set(err, STATUS_PEER, "%s", fault);
            return CHANNEL_FAILED;
        }
    }
    return CHANNEL_READY;
}

/* Server: lets the client know why, as far as the socket takes it; a fresh socket always does. */
static void refuse(struct channel *c, const struct error *why)
{
    close_fd(&c->own_fd);
    hello_fill(c, HELLO_REFUSAL);
    snprintf(c->out.text, sizeof(c->out.text), "%.255s", why->text);
    c->done = 0;
    hello_send(c, NULL);
}

enum status channel_client_start(struct channel *c, int fd, const struct channel_config *config,
                                 struct error *err)
{
    start(c, fd, CHANNEL_CLIENT, config);
    hello_fill(c, HELLO_OFFER);
    const char *fault = geometry_fault(&c->out);
    if (fault != NULL)
        return error_set(err, STATUS_INVALID, "a channel cannot have this geometry: %s", fault);
    enum status status = region_create(c, c->config.up_size, err);
    if (status != STATUS_OK) {
        channel_release(c);
        return status;
    }
    c->state = CLIENT_SENDS;
    return STATUS_OK;
}

enum status channel_server_start(struct channel *c, int fd, const struct channel_config *config,
                                 struct error *err)
{
    start(c, fd, CHANNEL_SERVER, config);
    hello_fill(c, HELLO_ANSWER);
    const char *fault = geometry_fault(&c->out);
    if (fault != NULL)
        return error_set(err, STATUS_INVALID, "a channel cannot have this geometry: %s", fault);
    c->state = SERVER_READS;
    return STATUS_OK;
}

void channel_turn_away(int fd, const char *why)
{
    struct channel c;
    struct error err;
    start(&c, fd, CHANNEL_SERVER, NULL);
    error_set(&err, STATUS_PEER, "%s", why);
    refuse(&c, &err);
}

static enum channel_wait finish(struct channel *c)
{
    close_fd(&c->own_fd);
    close_fd(&c->peer_fd);
    c->state = STATE_READY;
    return CHANNEL_READY;
}

static enum channel_wait step(struct channel *c, struct error *err)
{
    enum channel_wait wait;
    switch (c->state) {
    case CLIENT_SENDS:
        if ((wait = hello_send(c, err)) != CHANNEL_READY)
            return wait;
        c->done = 0;
        c->state = CLIENT_READS;
        /* fall through */
    case CLIENT_READS:
        if ((wait = hello_read(c, err)) != CHANNEL_READY)
            return wait;
        return accept_answer(c, err) == STATUS_OK ? finish(c) : CHANNEL_FAILED;
    case SERVER_READS:
        if ((wait = hello_read(c, err)) != CHANNEL_READY)
            return wait;
        if (accept_offer(c, err) != STATUS_OK) {
            if (c->in.magic == LAYOUT_MAGIC)
                refuse(c, err);
            return CHANNEL_FAILED;
        }
        c->done = 0;
        c->state = SERVER_SENDS;
        /* fall through */
    case SERVER_SENDS:
        if ((wait = hello_send(c, err)) != CHANNEL_READY)
            return wait;
        return finish(c);
    case STATE_READY:
        return CHANNEL_READY;
    default:
        error_set(err, STATUS_INTERNAL, "the channel was not started, or has failed before");
        return CHANNEL_FAILED;
    }
}

enum channel_wait channel_handshake_step(struct channel *c, struct error *err)
{
    struct error local;
    enum channel_wait wait = step(c, err != NULL ? err : &local);
    if (wait == CHANNEL_FAILED)
        c->state = STATE_FAILED;
    return wait;
}

void channel_release(struct channel *c)
{
    if (c->state != STATE_NONE) {
        close_fd(&c->own_fd);
        close_fd(&c->peer_fd);
    }
    if (c->own != NULL)
        munmap(c->own, c->own_bytes);
    if (c->peer != NULL)
        munmap((void *)(uintptr_t)c->peer, c->peer_bytes);
    free(c->streams);
    free(c->scratch);
    memset(c, 0, sizeof(*c));
    c->fd = c->own_fd = c->peer_fd = -1;
}
