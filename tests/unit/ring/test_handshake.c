#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/unit/ring/pair.h"
#include "tests/check_main.h"

#define ALL_SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

static unsigned count_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

START_TEST(build_text_is_this_version)
{
    ck_assert_str_eq(LAYOUT_BUILD, "tokenring " TOKENRING_VERSION);
}
END_TEST

START_TEST(both_sides_agree)
{
    unsigned before = count_fds();
    struct channel_config c = {.slots = 100, .features = FEATURE_JOURNAL, .down_window = 4096};
    struct channel_config s = {
        .slots = 50, .features = FEATURE_JOURNAL | 1ull << 40, .down_size = RING_SIZE_MIN};
    pair_connect(&c, &s);
    ck_assert_uint_eq(client.slots, 50);
    ck_assert_uint_eq(server.slots, 50);
    ck_assert_uint_eq(client.features, FEATURE_JOURNAL);
    ck_assert_uint_eq(server.features, FEATURE_JOURNAL);
    ck_assert_uint_eq(client.receive_window, 4096);
    ck_assert_uint_eq(server.send_window, 4096);
    ck_assert_uint_eq(client.send_window, WINDOW_UP_DEFAULT);
    ck_assert_uint_eq(client.reader.size, RING_SIZE_MIN);
    ck_assert_uint_eq(server.reader.size, RING_UP_DEFAULT);
    ck_assert_str_eq(client.peer_build, LAYOUT_BUILD);
    ck_assert_int_eq(client.peer_pid, getpid());
    ck_assert_uint_eq(count_fds(), before + 2); /* the sockets: no region keeps a descriptor */
    pair_release();
    ck_assert_uint_eq(count_fds(), before);
    channel_release(&client); /* harmless */
}
END_TEST

/* Neither side can write, grow, shrink or reopen the other's region for writing. */
START_TEST(regions_are_read_only_to_the_peer)
{
    pair_connect(NULL, NULL);
    ck_assert_int_eq(mprotect((void *)(uintptr_t)client.peer, 4096, PROT_READ | PROT_WRITE), -1);
    ck_assert_int_eq(errno, EACCES);
    pair_release();
    struct error err;
    pair_sockets();
    ck_assert_int_eq(channel_client_start(&client, sockets[0], NULL, &err), STATUS_OK);
    int fd = client.own_fd;
    ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & ALL_SEALS, ALL_SEALS);
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    ck_assert_int_eq(pwrite(fd, "x", 1, 0), -1);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    pair_release();
}
END_TEST

/* _i 0: other version; 1: same version, other layout word. */
START_TEST(unlike_builds_name_both_versions)
{
    struct channel_config c = {.build = "tokenring 9.8.7", .version = 77},
                          s = {.build = "tokenring 1.2.3"};
    if (_i == 1)
        c.version = 0, c.layout = 0xabcdef01;
    struct error at_client, at_server;
    unsigned before = count_fds();
    pair_sockets();
    ck_assert_int_eq(channel_client_start(&client, sockets[0], &c, &at_client), STATUS_OK);
    ck_assert_int_eq(channel_server_start(&server, sockets[1], &s, &at_server), STATUS_OK);
    ck_assert_int_eq(channel_handshake_step(&client, &at_client), CHANNEL_WANT_READ);
    ck_assert_int_eq(channel_handshake_step(&server, &at_server), CHANNEL_FAILED);
    ck_assert_int_eq(channel_handshake_step(&server, NULL), CHANNEL_FAILED);
    ck_assert_int_eq(channel_handshake_step(&client, &at_client), CHANNEL_FAILED);
    const struct error *errs[] = {&at_client, &at_server};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(errs[i]->status, STATUS_VERSION);
        ck_assert_msg(strstr(errs[i]->text, "9.8.7") && strstr(errs[i]->text, "1.2.3"), "%s",
                      errs[i]->text);
        ck_assert_ptr_nonnull(strstr(errs[i]->text, _i == 0 ? "ring version 77" : "abcdef01"));
        ck_assert_ptr_nonnull(strstr(errs[i]->text, "ring version 1 "));
    }
    pair_release();
    ck_assert_uint_eq(count_fds(), before);
}
END_TEST

static int make_memfd(size_t bytes, bool allocate, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    if (allocate)
        ck_assert_int_eq(fallocate(fd, 0, 0, (off_t)bytes), 0);
    struct region_header h = {LAYOUT_MAGIC, LAYOUT_VERSION, LAYOUT_WORD, RING_UP_DEFAULT};
    if (allocate)
        ck_assert_int_eq(pwrite(fd, &h, sizeof(h), 0), (ssize_t)sizeof(h));
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static struct hello offer(void)
{
    struct hello h = {.magic = LAYOUT_MAGIC,
                      .size = sizeof(h),
                      .version = LAYOUT_VERSION,
                      .kind = HELLO_OFFER,
                      .build = "by hand",
                      .layout = LAYOUT_WORD,
                      .slots = 64,
                      .up_size = RING_UP_DEFAULT,
                      .down_size = RING_DOWN_DEFAULT,
                      .up_window = WINDOW_UP_DEFAULT,
                      .down_window = WINDOW_DOWN_DEFAULT};
    return h;
}

static void send_hello(const void *data, size_t len, const int *fds, unsigned n)
{
    char control[CMSG_SPACE(sizeof(int) * 64)] = {0};
    struct iovec iov = {(void *)(uintptr_t)data, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n != 0) {
        msg.msg_control = control;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * n);
    }
    ck_assert_int_eq(sendmsg(sockets[0], &msg, 0), (ssize_t)len);
}

/* Offers made by hand; each must be refused with the given words, leave no descriptor behind, and tell the client. */
START_TEST(bad_offers_are_refused)
{
    size_t bytes = region_bytes(RING_UP_DEFAULT);
    struct hello h = offer();
    int fds[40], n = 1;
    const char *words = NULL;
    unsigned before = count_fds();
    for (size_t i = 0; i < 40; i++)
        fds[i] = -1;
    fds[0] = -2;
    switch (_i) {
    case 0: /* missing seals, one by one */
    case 1:
    case 2:
    case 3:
        words = "lacks seals";
        fds[0] = make_memfd(
            bytes, true,
            ALL_SEALS & ~(int[]){F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE}[_i]);
        break;
    case 4:
        words = "bytes long";
        fds[0] = make_memfd(bytes - 4096, true, ALL_SEALS);
        break;
    case 5:
        words = "bytes long";
        fds[0] = make_memfd(bytes + 4096, true, ALL_SEALS);
        break;
    case 6:
        words = "has holes";
        fds[0] = make_memfd(bytes, false, ALL_SEALS);
        break;
    case 7:
        words = "without its region";
        n = 0;
        break;
    case 8:
        words = "more than one descriptor";
        fds[0] = make_memfd(bytes, true, ALL_SEALS);
        fds[1] = dup(fds[0]);
        n = 2;
        break;
    case 9: /* more than the control buffer holds */
        words = "more than one descriptor";
        fds[0] = make_memfd(bytes, true, ALL_SEALS);
        for (n = 1; n < 40; n++)
            fds[n] = dup(fds[0]);
        break;
    case 10:
        words = "lacks seals";
        fds[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
        break;
    case 11:
        words = "number of slots";
        h.slots = SLOTS_MAX + 1;
        break;
    case 12:
        words = "up ring";
        h.up_size = RING_UP_DEFAULT + 16;
        break;
    case 13:
        words = "up ring";
        h.up_size = 1ull << 40;
        break;
    case 14:
        words = "down ring";
        h.down_size = 4096;
        break;
    case 15:
        words = "credit window";
        h.down_window = 0;
        break;
    case 16:
        words = "no offer";
        h.kind = HELLO_ANSWER;
        break;
    case 17:
        words = "no tokenring hello";
        memcpy(&h, "GET / HTTP/1.1\r\n", 16);
        break;
    case 18:
        words = "so many slots";
        h.slots = SLOTS_MAX;
        h.up_size = RING_SIZE_MIN;
        h.down_size = RING_SIZE_MIN;
        break;
    case 19:
        words = "does not agree";
        fds[0] = make_memfd(region_bytes(RING_SIZE_MIN), true, ALL_SEALS);
        h.up_size = RING_SIZE_MIN; /* the region's own header says otherwise */
        break;
    }
    if (fds[0] == -2)
        fds[0] = make_memfd(bytes, true, ALL_SEALS);
    pair_sockets();
    send_hello(&h, sizeof(h), fds, (unsigned)n);
    for (int i = 0; i < 40; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    struct error err;
    ck_assert_int_eq(channel_server_start(&server, sockets[1], NULL, &err), STATUS_OK);
    ck_assert_int_eq(channel_handshake_step(&server, &err), CHANNEL_FAILED);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
    ck_assert_int_eq(err.status, STATUS_PEER);
    struct hello back;
    ssize_t got = recv(sockets[0], &back, sizeof(back), MSG_DONTWAIT);
    if (_i == 8 || _i == 9 || _i == 17) {
        ck_assert_int_lt(got, 0); /* no hello worth an answer */
    } else {
        ck_assert_int_eq(got, (ssize_t)sizeof(back));
        ck_assert_uint_eq(back.kind, HELLO_REFUSAL);
        ck_assert_ptr_nonnull(strstr(back.text, words));
    }
    channel_release(&server);
    close(sockets[0]);
    close(sockets[1]);
    ck_assert_uint_eq(count_fds(), before);
}
END_TEST

START_TEST(a_hello_in_pieces_is_read)
{
    struct hello h = offer();
    struct error err;
    int fd = make_memfd(region_bytes(RING_UP_DEFAULT), true, ALL_SEALS);
    pair_sockets();
    ck_assert_int_eq(channel_server_start(&server, sockets[1], NULL, &err), STATUS_OK);
    ck_assert_int_eq(channel_handshake_step(&server, &err), CHANNEL_WANT_READ);
    for (size_t i = 0; i < sizeof(h); i++) {
        send_hello((char *)&h + i, 1, &fd, i == 0);
        ck_assert_int_eq(channel_handshake_step(&server, &err),
                         i + 1 < sizeof(h) ? CHANNEL_WANT_READ : CHANNEL_READY);
    }
    close(fd);
    channel_release(&server);
    close(sockets[0]);
    close(sockets[1]);
}
END_TEST

START_TEST(a_peer_that_leaves_is_noticed)
{
    struct error err;
    pair_sockets();
    ck_assert_int_eq(channel_client_start(&client, sockets[0], NULL, &err), STATUS_OK);
    ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_WANT_READ);
    close(sockets[1]);
    ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_FAILED);
    ck_assert_int_eq(err.status, STATUS_PEER);
    channel_release(&client);
    close(sockets[0]);
}
END_TEST

/* The reason arrives whether the client's hello was sent before the socket was closed (0) or not (1). */
START_TEST(a_client_that_is_turned_away_knows_why)
{
    struct error err;
    pair_sockets();
    ck_assert_int_eq(channel_client_start(&client, sockets[0], NULL, &err), STATUS_OK);
    if (_i == 0)
        ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_WANT_READ);
    channel_turn_away(sockets[1], "user 33 may not connect");
    close(sockets[1]);
    ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_FAILED);
    ck_assert_str_eq(err.text, "the worker refused: user 33 may not connect");
    channel_release(&client);
    close(sockets[0]);
}
END_TEST

/* The kernel drops a descriptor for which the receiver has no number; that is not the peer's fault. */
START_TEST(out_of_descriptors_is_said)
{
    struct error err;
    struct rlimit limit;
    pair_sockets();
    ck_assert_int_eq(channel_client_start(&client, sockets[0], NULL, &err), STATUS_OK);
    ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_WANT_READ);
    ck_assert_int_eq(channel_server_start(&server, sockets[1], NULL, &err), STATUS_OK);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    struct rlimit none = {0, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(channel_handshake_step(&server, &err), CHANNEL_FAILED);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    /* valgrind imitates the limit, but not for descriptors that come through sockets */
    const char *words =
        getenv("TOKENRING_VALGRIND") != NULL ? "Too many open files" : "no descriptor left";
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
    pair_release();
}
END_TEST

/* A worker whose answer exceeds the offer. */
START_TEST(bad_answers_are_refused)
{
    struct error err;
    struct channel_config c = {.slots = 64};
    pair_sockets();
    ck_assert_int_eq(channel_client_start(&client, sockets[1], &c, &err), STATUS_OK);
    ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_WANT_READ);
    struct hello h = offer();
    h.kind = HELLO_ANSWER;
    int fd = make_memfd(region_bytes(RING_DOWN_DEFAULT), true, ALL_SEALS);
    const char *words = "exceeds";
    switch (_i) {
    case 0:
        h.slots = 65;
        break;
    case 1:
        h.features = 1;
        break;
    case 2:
        h.up_size *= 2;
        break;
    case 3:
        h.down_size *= 2;
        break;
    case 4:
        h.down_window *= 2;
        break;
    case 5:
        h.kind = HELLO_OFFER;
        words = "no answer";
        break;
    case 6:
        h.kind = HELLO_REFUSAL;
        memset(h.text, 'x', sizeof(h.text)); /* no NUL */
        h.text[3] = '\n';
        words = "the worker refused: xxx?xxx";
        break;
    case 7: /* right geometry, region header of another ring size */
        words = "does not agree";
        break;
    }
    send_hello(&h, sizeof(h), &fd, 1);
    close(fd);
    ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_FAILED);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
    channel_release(&client);
    close(sockets[0]);
    close(sockets[1]);
}
END_TEST

START_TEST(impossible_config_is_refused_at_once)
{
    struct error err;
    struct channel_config c = {.slots = SLOTS_MAX + 1};
    ck_assert_int_eq(channel_client_start(&client, 0, &c, &err), STATUS_INVALID);
    channel_release(&client);
    c = (struct channel_config){.up_size = 1000000};
    ck_assert_int_eq(channel_server_start(&server, 0, &c, &err), STATUS_INVALID);
    channel_release(&server);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("handshake");
    TCase *tc = tcase_create("handshake");
    tcase_add_test(tc, build_text_is_this_version);
    tcase_add_test(tc, both_sides_agree);
    tcase_add_test(tc, regions_are_read_only_to_the_peer);
    tcase_add_loop_test(tc, unlike_builds_name_both_versions, 0, 2);
    tcase_add_loop_test(tc, bad_offers_are_refused, 0, 20);
    tcase_add_test(tc, a_hello_in_pieces_is_read);
    tcase_add_test(tc, a_peer_that_leaves_is_noticed);
    tcase_add_test(tc, out_of_descriptors_is_said);
    tcase_add_loop_test(tc, a_client_that_is_turned_away_knows_why, 0, 2);
    tcase_add_loop_test(tc, bad_answers_are_refused, 0, 8);
    tcase_add_test(tc, impossible_config_is_refused_at_once);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
