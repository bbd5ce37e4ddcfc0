/* fuzz_handshake.c: a peer that says what it likes in its hello, and passes descriptors as it likes, against our side
 * of the handshake, client or server. An input: a byte for our role and configuration, one for the hello's kind and
 * number of changes, the changes (place, value), then steps: bytes of the hello go out, with or without descriptors,
 * we take a step, the socket closes. Nothing may hang or crash, no descriptor may be left behind, a failure must have a
 * sentence, and a channel that comes up must stand on a region that no peer can shrink.
 *
 * sources: core/ring/handshake.c core/ring/channel.c core/ring/doorbell.c core/ring/ring.c core/ring/message.c core/base/status.c core/base/check.c
 * covers: core/ring/handshake.c
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/ring/channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | 0x0010 /* FUTURE_WRITE */)

static const uint8_t *at, *end;
static struct channel c;
static struct hello hello; /* the peer's */
static size_t sent;
static int ours, theirs;

static unsigned take(void)
{
    return at < end ? *at++ : 0;
}

enum region_kind {
    REGION_GOOD,
    REGION_UNSEALED,
    REGION_HOLES,
    REGION_SHORT,
    REGION_OTHER_HEADER,
    REGION_NO_MEMFD,
    REGION_KINDS
};

/* What the peer passes as its region. */
static int make_region(enum region_kind kind, bool client)
{
    if (kind == REGION_NO_MEMFD)
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    uint64_t ring = client ? hello.down_size : hello.up_size;
    uint64_t bytes = region_bytes(ring < RING_SIZE_MIN || ring > 1u << 20 ? RING_SIZE_MIN : ring);
    if (kind == REGION_SHORT)
        bytes -= 4096;
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    check(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    check(kind == REGION_HOLES || fallocate(fd, 0, 0, (off_t)bytes) == 0);
    struct region_header header = {LAYOUT_MAGIC, hello.version, hello.layout, ring};
    if (kind == REGION_OTHER_HEADER)
        ((uint8_t *)&header)[take() % sizeof(header)] ^= (uint8_t)(take() | 1);
    check(pwrite(fd, &header, sizeof(header), 0) == (ssize_t)sizeof(header));
    if (kind != REGION_UNSEALED)
        check(fcntl(fd, F_ADD_SEALS, SEALS) == 0);
    return fd;
}

/* Sends n bytes of the hello, and with them so many descriptors. */
static void send_part(size_t n, unsigned n_fds, enum region_kind kind)
{
    int fds[16];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(fds))];
    } control;
    n = n < sizeof(hello) - sent ? n : sizeof(hello) - sent;
    if (n == 0 || theirs < 0)
        return;
    struct iovec iov = {(char *)&hello + sent, n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        memset(&control, 0, sizeof(control));
        for (unsigned i = 0; i < n_fds; i++)
            check((fds[i] = i == 0 ? make_region(kind, c.role == CHANNEL_CLIENT) : dup(fds[0])) >=
                  0);
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
    }
    if (sendmsg(theirs, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        sent += n;
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
}

/* A hello that would be fine, then the input's changes. */
static void fill_hello(void)
{
    static const uint16_t fields[] = {
        offsetof(struct hello, magic),       offsetof(struct hello, size),
        offsetof(struct hello, version),     offsetof(struct hello, kind),
        offsetof(struct hello, layout),      offsetof(struct hello, slots),
        offsetof(struct hello, features),    offsetof(struct hello, up_size),
        offsetof(struct hello, down_size),   offsetof(struct hello, up_window),
        offsetof(struct hello, down_window), offsetof(struct hello, text),
        offsetof(struct hello, build)};
    unsigned how = take();
    memset(&hello, 0, sizeof(hello));
    hello.magic = LAYOUT_MAGIC;
    hello.size = sizeof(hello);
    hello.version = LAYOUT_VERSION;
    hello.kind = c.role == CHANNEL_CLIENT ? HELLO_ANSWER : HELLO_OFFER;
    if ((how & 3) == 3)
        hello.kind = HELLO_REFUSAL;
    hello.pid = 77;
    strcpy(hello.build, "a fuzzer");
    hello.layout = LAYOUT_WORD;
    hello.slots = 8;
    hello.up_size = hello.down_size = RING_SIZE_MIN;
    hello.up_window = hello.down_window = WINDOW_MIN;
    for (unsigned i = 0; i < (how >> 2) % 8; i++) {
        unsigned place = take();
        size_t to = (place < 128 ? fields[place % 13] + place / 13u : take() * 2) % sizeof(hello);
        ((uint8_t *)&hello)[to] = (uint8_t)take();
    }
    sent = 0;
}

/* One step of ours; true while the handshake goes on. */
static bool step(void)
{
    struct error err = {0};
    enum channel_wait wait = channel_handshake_step(&c, &err);
    check(wait <= CHANNEL_FAILED);
    if (wait == CHANNEL_FAILED) {
        check(err.status != STATUS_OK && err.text[0] != '\0' &&
              strlen(err.text) < sizeof(err.text));
        for (const char *p = err.text; *p != '\0'; p++)
            check((unsigned char)*p >= 0x20 && (unsigned char)*p < 0x7f);
        check(channel_handshake_step(&c, NULL) == CHANNEL_FAILED); /* for good */
    } else if (wait == CHANNEL_READY) {
        struct channel_frame f;
        check(c.peer != NULL && c.own != NULL && c.slots > 0 && c.slots <= 16 && c.peer_fd < 0);
        check(c.reader.size >= RING_SIZE_MIN && region_bytes(c.reader.size) == c.peer_bytes);
        check((c.features & ~FEATURES_KNOWN) == 0 &&
              c.peer_build[sizeof(c.peer_build) - 1] == '\0');
        channel_publish(&c);
        channel_next(&c, &f, &err);
    }
    return wait == CHANNEL_WANT_READ || wait == CHANNEL_WANT_WRITE;
}

static void converse(void)
{
    static char drain[2048];
    bool goes_on = true;
    while (at < end && goes_on) {
        unsigned what = take();
        switch (what % 8) {
        case 0:
        case 1: /* all, as it should be */
            send_part(sizeof(hello), 1, REGION_GOOD);
            break;
        case 2:
            send_part(sizeof(hello), 1, (enum region_kind)(what / 8 % REGION_KINDS));
            break;
        case 3:
            send_part(take() + 1, what / 8 % 3, REGION_GOOD);
            break;
        case 4: /* more than there is room for */
            send_part(take() + 1, what / 8 % 16, REGION_GOOD);
            break;
        case 5:
            while (recv(theirs, drain, sizeof(drain), MSG_DONTWAIT) > 0)
                continue;
            break;
        case 6:
            if (what / 8 % 4 == 0 && theirs >= 0) {
                close(theirs);
                theirs = -1;
            } else if (what / 8 % 4 == 1) {
                channel_turn_away(ours, "no");
            }
            break;
        default:
            break;
        }
        goes_on = step();
    }
}

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 64; fd++)
        n += fcntl(fd, F_GETFD) != -1;
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    struct error err = {0};
    if (size < 3)
        return 0;
    at = data;
    end = data + size;
    const unsigned before = open_descriptors();
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    ours = pair[0];
    theirs = pair[1];
    unsigned how = take();
    struct channel_config config = {.slots = how & 2 ? 16 : 4,
                                    .features = how & 4 ? FEATURE_JOURNAL : 0,
                                    .up_size = how & 8 ? RING_SIZE_MIN * 2 : RING_SIZE_MIN,
                                    .down_size = how & 16 ? RING_SIZE_MIN * 2 : RING_SIZE_MIN,
                                    .up_window = how & 32 ? WINDOW_UP_DEFAULT : WINDOW_MIN,
                                    .down_window = how & 64 ? 77 : WINDOW_MIN}; /* 77: impossible */
    enum status status = how & 1 ? channel_client_start(&c, ours, &config, &err)
                                 : channel_server_start(&c, ours, &config, &err);
    check((status == STATUS_OK) == !(how & 64));
    if (status == STATUS_OK) {
        fill_hello();
        converse();
    }
    channel_release(&c);
    channel_release(&c);
    close(ours);
    if (theirs >= 0)
        close(theirs);
    check(open_descriptors() == before);
    return 0;
}
