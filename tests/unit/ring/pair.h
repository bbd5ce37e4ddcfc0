/* pair.h: both ends of a channel in one process, for tests. */
#ifndef TESTS_UNIT_RING_PAIR_H
#define TESTS_UNIT_RING_PAIR_H

#include <check.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/ring/channel.h"

static int sockets[2];
static struct channel client, server;

static inline void pair_sockets(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets),
                     0);
}

static inline void pair_connect(const struct channel_config *c, const struct channel_config *s)
{
    struct error err;
    pair_sockets();
    ck_assert_int_eq(channel_client_start(&client, sockets[0], c, &err), STATUS_OK);
    ck_assert_int_eq(channel_server_start(&server, sockets[1], s, &err), STATUS_OK);
    ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_WANT_READ);
    ck_assert_int_eq(channel_handshake_step(&server, &err), CHANNEL_READY);
    ck_assert_int_eq(channel_handshake_step(&client, &err), CHANNEL_READY);
}

static inline void pair_release(void)
{
    channel_release(&client);
    channel_release(&server);
    close(sockets[0]);
    close(sockets[1]);
}

static inline struct message_request pair_request(void)
{
    return (struct message_request){.method = {"GET", 3}, .target = {"/", 1}};
}

/* Client opens a stream and sends its request; the server's end of it is returned through *at_server. */
static inline struct channel_stream *pair_open(unsigned flags, struct channel_stream **at_server)
{
    struct error err;
    struct channel_frame f;
    struct message_request m = pair_request();
    struct channel_stream *s = channel_open(&client, NULL);
    ck_assert_ptr_nonnull(s);
    ck_assert_int_eq(channel_send_request(&client, s, &m, flags, &err), SEND_DONE);
    channel_publish(&client);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_REQUEST);
    ck_assert_uint_eq(f.stream->id, s->id);
    *at_server = f.stream;
    return s;
}

/* Sends an empty 200 head. */
static inline void pair_head(struct channel_stream *at_server)
{
    struct message_head h = {.status = 200};
    ck_assert_int_eq(channel_send_head(&server, at_server, &h, 0, NULL), SEND_DONE);
}

#endif
