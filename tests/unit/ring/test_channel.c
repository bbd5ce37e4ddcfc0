#include <stdlib.h>

#include "tests/unit/ring/pair.h"
#include "tests/check_main.h"

static struct channel_frame f;
static struct error err;

static void setup(void)
{
    pair_connect(NULL, NULL);
}

static void setup_small(void)
{
    struct channel_config c = {.slots = 8,
                               .up_size = RING_SIZE_MIN,
                               .down_size = RING_SIZE_MIN,
                               .up_window = 1u << 20,
                               .down_window = 1u << 20};
    pair_connect(&c, &c);
}

START_TEST(one_request_and_its_answer)
{
    struct channel_stream *s = channel_open(&client, &f), *at_server;
    struct message_request m = pair_request();
    message_add_pair(m.pairs, &m.n_pairs, slice_of("x-a"), slice_of("1"));
    ck_assert_int_eq(channel_send_request(&client, s, &m, 0, &err), SEND_DONE);
    size_t taken;
    ck_assert_int_eq(channel_send_data(&client, s, "hello", 5, FRAME_FIN, &taken), SEND_DONE);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_NONE);
    channel_publish(&client);

    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_REQUEST);
    ck_assert_uint_eq(f.flags, 0);
    at_server = f.stream;
    ck_assert_ptr_null(at_server->user);
    ck_assert_int_eq(message_request_decode(f.payload, f.len, &m, &err), STATUS_OK);
    ck_assert(slice_is(m.pairs[0].value, "1"));
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_DATA);
    ck_assert_uint_eq(f.flags, FRAME_FIN);
    ck_assert_int_eq(memcmp(f.payload, "hello", 5), 0);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_NONE);

    pair_head(at_server);
    ck_assert_int_eq(
        channel_send_data(&server, at_server, "data: x\n\n", 9, FRAME_EVENT_END, &taken),
        SEND_DONE);
    ck_assert_int_eq(channel_send_data(&server, at_server, NULL, 0, FRAME_FIN, &taken), SEND_DONE);
    ck_assert(!channel_is_open(at_server));
    ck_assert_int_eq(channel_send_data(&server, at_server, "x", 1, 0, &taken), SEND_INVALID);
    channel_publish(&server);
    static const int types[] = {FRAME_HEAD, FRAME_DATA, FRAME_DATA};
    static const unsigned flags[] = {0, FRAME_EVENT_END, FRAME_FIN};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
        ck_assert_int_eq(f.type, types[i]);
        ck_assert_uint_eq(f.flags, flags[i]);
        ck_assert_ptr_eq(f.stream, s);
    }
    ck_assert_ptr_eq(s->user, &f);
    channel_close(&client, s); /* no CANCEL: FIN has come */
    channel_publish(&client);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_NONE);
    ck_assert_uint_eq(client.open + server.open, 0);
    ck_assert_uint_eq(client.writer.tail, client.writer.published);
}
END_TEST

START_TEST(cancel_ends_the_stream_and_late_frames_are_dropped)
{
    struct channel_stream *at_server, *s = pair_open(FRAME_FIN, &at_server);
    size_t taken;
    at_server->user = &err;
    pair_head(at_server);
    channel_publish(&server);
    channel_close(&client, s);
    channel_publish(&client);
    /* The answer under way never reaches the owner, nor the slot's next user. */
    struct channel_stream *next = channel_open(&client, NULL);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_NONE);
    ck_assert_uint_eq(client.counters.late, 1);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_CANCEL);
    ck_assert_ptr_eq(f.stream->user, &err);
    ck_assert(!channel_is_open(at_server));
    ck_assert_int_eq(channel_send_data(&server, at_server, "x", 1, 0, &taken), SEND_INVALID);
    channel_close(&client, next); /* nothing was sent, nothing to cancel */
    channel_publish(&client);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_NONE);
}
END_TEST

START_TEST(reset_carries_its_code)
{
    struct channel_stream *at_server, *s = pair_open(0, &at_server);
    channel_reset(&server, at_server, RESET_DRAINING);
    channel_reset(&server, at_server, RESET_INTERNAL); /* harmless */
    channel_publish(&server);
    size_t taken; /* the client does not know yet */
    ck_assert_int_eq(channel_send_data(&client, s, "late", 4, FRAME_FIN, &taken), SEND_DONE);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_RESET);
    ck_assert_uint_eq(f.aux, RESET_DRAINING);
    channel_close(&client, s);
    channel_publish(&client);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_NONE);
    ck_assert_uint_eq(server.counters.late, 1);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_NONE);
}
END_TEST

START_TEST(trailer_ends_the_stream)
{
    struct channel_stream *at_server, *s = pair_open(FRAME_FIN, &at_server);
    struct message_head h = {.status = 200}, back;
    message_add_pair(h.pairs, &h.n_pairs, slice_of("x-tokens"), slice_of("17"));
    ck_assert_int_eq(channel_send_trailer(&server, at_server, &h, &err),
                     SEND_INVALID); /* before the head */
    pair_head(at_server);
    ck_assert_int_eq(channel_send_trailer(&server, at_server, &h, &err), SEND_DONE);
    ck_assert(!channel_is_open(at_server));
    channel_publish(&server);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_TRAILER);
    ck_assert_uint_eq(f.flags, FRAME_FIN);
    ck_assert_int_eq(message_head_decode(f.payload, f.len, &back, &err), STATUS_OK);
    ck_assert(slice_is(message_find(back.pairs, back.n_pairs, "x-tokens"), "17"));
    channel_close(&client, s);
    channel_publish(&client);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_NONE); /* no CANCEL: it was the end */
}
END_TEST

START_TEST(slots_run_out_and_come_back)
{
    struct channel_stream *all[8], *at_server;
    for (int i = 0; i < 8; i++)
        all[i] = pair_open(FRAME_FIN, &at_server);
    ck_assert_uint_eq(client.open, 8);
    ck_assert_ptr_null(channel_open(&client, NULL));
    uint32_t i = 0, n = 0;
    while (channel_each(&server, &i) != NULL)
        n++;
    ck_assert_uint_eq(n, 8);
    uint32_t old = all[3]->id;
    ck_assert_ptr_eq(channel_find(&client, old), all[3]);
    channel_close(&client, all[3]);
    ck_assert_ptr_null(channel_find(&client, old));
    struct channel_stream *s = channel_open(&client, NULL);
    ck_assert_ptr_eq(s, all[3]);
    ck_assert_uint_eq(stream_slot(s->id), stream_slot(old));
    ck_assert_uint_ne(s->id, old);
    ck_assert_ptr_null(channel_open(&client, NULL));
}
END_TEST

START_TEST(generations_wrap)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i <= STREAM_GENERATION_MASK + 5; i++) {
        struct channel_stream *s = channel_open(&client, NULL);
        if (stream_slot(s->id) != 0) {
            channel_close(&client, s);
            i--;
            continue;
        }
        if (i == 0)
            first = s->id;
        if (i == STREAM_GENERATION_MASK + 1)
            ck_assert_uint_eq(s->id, first); /* 2^20 uses later */
        channel_close(&client, s);
    }
    /* Across the wrap, requests still open and late ones are still late. */
    client.streams[1].id = stream_id(1, STREAM_GENERATION_MASK);
    struct channel_stream *s, *at_server;
    do
        s = pair_open(FRAME_FIN, &at_server);
    while (stream_slot(s->id) != 1);
    ck_assert_uint_eq(stream_generation(s->id), 0);
}
END_TEST

START_TEST(credit_bounds_data_and_comes_back)
{
    static char data[3 * WINDOW_DOWN_DEFAULT];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 7 / 5);
    struct channel_stream *at_server;
    pair_open(FRAME_FIN, &at_server);
    pair_head(at_server);
    size_t sent = 0, got = 0, taken;
    ck_assert_int_eq(channel_send_data(&server, at_server, data, sizeof(data), FRAME_FIN, &taken),
                     SEND_NO_CREDIT);
    ck_assert_uint_eq(taken, WINDOW_DOWN_DEFAULT);
    ck_assert_uint_eq(at_server->send_credit, 0);
    sent = taken;
    bool fin = false;
    for (int turn = 0; turn < 100 && !fin; turn++) {
        channel_publish(&server);
        while (channel_next(&client, &f, &err) == CHANNEL_FRAME) {
            if (f.type == FRAME_HEAD)
                continue;
            ck_assert_int_eq(memcmp(f.payload, data + got, f.len), 0);
            got += f.len;
            fin = f.flags & FRAME_FIN;
            channel_consumed(&client, f.stream, f.len);
        }
        channel_publish(&client);
        while (channel_next(&server, &f, &err) == CHANNEL_FRAME)
            ck_assert_int_eq(f.type, FRAME_CREDIT);
        if (channel_is_open(at_server)) {
            enum channel_send r = channel_send_data(&server, at_server, data + sent,
                                                    sizeof(data) - sent, FRAME_FIN, &taken);
            ck_assert(r == SEND_DONE || r == SEND_NO_CREDIT);
            sent += taken;
        }
    }
    ck_assert(fin);
    ck_assert_uint_eq(got, sizeof(data));
}
END_TEST

START_TEST(control_frames_survive_a_full_ring)
{
    static char data[1 << 20];
    struct channel_stream *s[8], *at_server[8];
    size_t taken;
    for (int i = 0; i < 8; i++)
        s[i] = pair_open(0, &at_server[i]);
    pair_head(at_server[1]);
    ck_assert_int_eq(channel_send_data(&client, s[0], data, sizeof(data), 0, &taken), SEND_NO_ROOM);
    ck_assert_uint_gt(taken, 0);
    /* Fill even the reserved room, as nothing honest could with so few streams. */
    uint32_t filler = stream_id(7, 99);
    while (ring_writer_reserve(&client.writer, 0, true) != NULL)
        ring_writer_commit(&client.writer, FRAME_CANCEL, 0, filler, 0, 0);
    for (int i = 0; i < 6; i++)
        channel_close(&client, s[i]);
    ck_assert_uint_eq(client.n_waiting, 6);
    ck_assert_uint_eq(client.open, 2);
    ck_assert_ptr_null(
        channel_open(&client, NULL)); /* their slots are not free before their CANCELs are out */
    channel_publish(&client);
    ck_assert(!channel_sleep(&client));
    unsigned cancels = 0;
    for (int turn = 0; turn < 4; turn++) {
        while (channel_next(&server, &f, &err) == CHANNEL_FRAME)
            cancels += f.type == FRAME_CANCEL;
        channel_publish(&server);
        if (turn == 0) /* room is worth a doorbell to one who sleeps for it */
            ck_assert_uint_eq(server.counters.doorbells_sent, 1);
        channel_publish(&client);
    }
    ck_assert_uint_eq(cancels, 6);
    ck_assert_uint_eq(client.n_waiting, 0);
    ck_assert(channel_take_room(&client));
    ck_assert(!channel_take_room(&client));
    ck_assert_ptr_nonnull(channel_open(&client, NULL));
}
END_TEST

START_TEST(waiting_credit_and_reset_go_out_too)
{
    static char data[700 << 10];
    struct channel_stream *s = NULL, *at_server, *other;
    size_t taken, sent = 0;
    s = pair_open(0, &at_server);
    pair_open(0, &other);
    while (ring_writer_reserve(&server.writer, 0, true) != NULL)
        ring_writer_commit(&server.writer, FRAME_RESET, 0, stream_id(7, 99), RESET_INTERNAL, 0);
    for (int turn = 0; turn < 64 && sent < sizeof(data); turn++) { /* in turns: the ring is small */
        if (channel_send_data(&client, s, data + sent, sizeof(data) - sent, 0, &taken) ==
            SEND_INVALID)
            ck_abort();
        sent += taken;
        channel_publish(&client);
        while (channel_next(&server, &f, &err) == CHANNEL_FRAME)
            channel_consumed(&server, f.stream, f.len);
        ring_reader_publish(&server.reader);
    }
    channel_reset(&server, other, RESET_NO_MEMORY);
    ck_assert_uint_eq(server.n_waiting, 2);
    channel_publish(&server);
    bool credit = false, reset = false;
    for (int turn = 0; turn < 4; turn++) {
        while (channel_next(&client, &f, &err) == CHANNEL_FRAME) {
            credit |= f.type == FRAME_CREDIT && f.stream == s && f.aux >= 512u << 10;
            reset |= f.type == FRAME_RESET && f.aux == RESET_NO_MEMORY;
        }
        channel_publish(&client);
        channel_publish(&server);
    }
    ck_assert(credit && reset);
    ck_assert_uint_eq(server.n_waiting, 0);
}
END_TEST

START_TEST(one_doorbell_per_sleep)
{
    struct channel_stream *at_server;
    size_t taken;
    ck_assert(!channel_sleep(&client));
    pair_open(FRAME_FIN, &at_server); /* the server is awake: no bell */
    ck_assert_uint_eq(client.counters.doorbells_sent, 0);
    pair_head(at_server);
    ck_assert(channel_publish(&server));
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(channel_send_data(&server, at_server, "x", 1, 0, &taken), SEND_DONE);
        ck_assert(!channel_publish(&server)); /* rung already for this sleep */
    }
    ck_assert_int_eq(channel_drain(&client), CHANNEL_ALIVE);
    ck_assert_uint_eq(client.counters.doorbells_received, 1);
    ck_assert(channel_has_work(&client));
    ck_assert(channel_sleep(&client)); /* there is work: no sleep */
    while (channel_next(&client, &f, &err) == CHANNEL_FRAME)
        ;
    ck_assert(!channel_has_work(&client));
    ck_assert(!channel_sleep(&client));
    ck_assert_int_eq(channel_send_data(&server, at_server, "x", 1, 0, &taken), SEND_DONE);
    ck_assert(channel_publish(&server)); /* a new sleep, a new bell */
    channel_awake(&client);
    ck_assert_int_eq(channel_send_data(&server, at_server, "x", 1, 0, &taken), SEND_DONE);
    ck_assert(!channel_publish(&server));
    ck_assert(!channel_publish(&server));
}
END_TEST

START_TEST(the_end_of_the_peer_is_seen_after_what_it_left)
{
    struct channel_stream *at_server;
    pair_open(FRAME_FIN, &at_server);
    pair_head(at_server);
    channel_publish(&server);
    close(sockets[1]);
    channel_release(&server);
    ck_assert_int_eq(channel_drain(&client), CHANNEL_EOF);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_HEAD);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_NONE);
    ck_assert_int_eq(channel_drain(&client), CHANNEL_EOF);
    ck_assert(!channel_publish(&client));
    ck_assert_ptr_null(channel_open(&client, NULL));
    sockets[1] = -1;
}
END_TEST

START_TEST(a_full_socket_does_not_hold_us)
{
    while (send(sockets[1], "", 1, MSG_DONTWAIT) == 1)
        ;
    struct channel_stream *at_server;
    ck_assert(!channel_sleep(&client));
    pair_open(FRAME_FIN, &at_server);
    pair_head(at_server);
    ck_assert(!channel_publish(&server)); /* EAGAIN: rung already */
    ck_assert_int_eq(channel_drain(&client), CHANNEL_ALIVE);
    ck_assert_uint_gt(client.counters.doorbells_received, 100);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
}
END_TEST

static void raw(struct channel *c, uint8_t type, uint8_t flags, uint32_t id, uint32_t aux,
                uint32_t len)
{
    uint8_t *out = ring_writer_reserve(&c->writer, len, true);
    ck_assert_ptr_nonnull(out);
    memset(out, 0, len);
    ring_writer_commit(&c->writer, type, flags, id, aux, len);
}

/* A hostile client: every line must break the channel, with a sentence that has these words. */
START_TEST(server_refuses_protocol_breaks)
{
    struct channel_stream *at_server, *s = pair_open(_i == 3 ? FRAME_FIN : 0, &at_server);
    uint32_t id = s->id;
    const char *words = "";
    switch (_i) {
    case 0:
        raw(&client, FRAME_REQUEST, FRAME_OPEN, stream_id(stream_slot(id), 9), 0, 8);
        words = "slot that is in use";
        break;
    case 1:
        raw(&client, FRAME_REQUEST, 0, stream_id(5, 9), 0, 8);
        words = "OPEN";
        break;
    case 2:
        channel_close(&client, s);
        raw(&client, FRAME_REQUEST, FRAME_OPEN, id, 0, 8);
        words = "last generation";
        break;
    case 3:
        raw(&client, FRAME_DATA, 0, id, 0, 1);
        words = "behind its last";
        break;
    case 4:
        for (int i = 0; i < 5; i++)
            raw(&client, FRAME_DATA, 0, id, 0, FRAME_PAYLOAD_MAX);
        words = "more DATA than its credit";
        break;
    case 5:
        raw(&client, FRAME_CREDIT, 0, id, 1, 0);
        words = "more credit";
        break;
    case 6:
        raw(&client, FRAME_CREDIT, 0, id, 0, 0);
        words = "aux field";
        break;
    case 7:
        raw(&client, FRAME_CANCEL, 0, id, 0, 16);
        words = "payload";
        break;
    case 8:
        raw(&client, FRAME_HEAD, 0, id, 0, 4);
        words = "only we may send";
        break;
    case 9:
        raw(&client, FRAME_RESET, 0, id, 1, 0);
        words = "only we may send";
        break;
    case 10:
        raw(&client, FRAME_DATA, FRAME_OPEN, id, 0, 1);
        words = "flag";
        break;
    case 11:
        raw(&client, FRAME_DATA, FRAME_EVENT_END, id, 0, 1);
        words = "flag";
        break;
    case 12:
        raw(&client, FRAME_DATA, 0, stream_id(SLOTS_DEFAULT, 1), 0, 1);
        words = "slot beyond";
        break;
    case 13:
        raw(&client, FRAME_DATA, 0, id, 0, 0);
        words = "empty DATA";
        break;
    case 14:
        atomic_store(&client.own->head, 16);
        raw(&client, FRAME_CANCEL, 0, id, 0, 0);
        pair_head(at_server);
        /* Only looked at when room is short. */
        for (size_t taken;
             channel_send_data(&server, at_server, "x", 1, 0, &taken) != SEND_NO_ROOM;)
            at_server->send_credit = 1 << 20;
        words = "index makes no sense";
        break;
    }
    channel_publish(&client);
    enum channel_event e;
    while ((e = channel_next(&server, &f, &err)) == CHANNEL_FRAME)
        ;
    ck_assert_int_eq(e, CHANNEL_BROKEN);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
    ck_assert_int_eq(err.status, STATUS_PEER);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_BROKEN);
    ck_assert(strstr(err.text, words) != NULL);
    ck_assert(!channel_publish(&server));
}
END_TEST

START_TEST(client_refuses_protocol_breaks)
{
    struct channel_stream *at_server, *s = pair_open(FRAME_FIN, &at_server);
    uint32_t id = s->id;
    const char *words = "";
    switch (_i) {
    case 0:
        raw(&server, FRAME_DATA, 0, id, 0, 1);
        words = "before HEAD";
        break;
    case 1:
        raw(&server, FRAME_HEAD, 0, id, 0, 4);
        raw(&server, FRAME_HEAD, 0, id, 0, 4);
        words = "second HEAD";
        break;
    case 2:
        raw(&server, FRAME_HEAD, FRAME_FIN, id, 0, 4);
        raw(&server, FRAME_DATA, 0, id, 0, 1);
        words = "behind its last";
        break;
    case 3:
        raw(&server, FRAME_RESET, 0, id, 1, 0);
        raw(&server, FRAME_RESET, 0, id, 1, 0);
        words = "behind its last";
        break;
    case 4:
        raw(&server, FRAME_RESET, 0, id, RESET_CODES, 0);
        words = "reset code";
        break;
    case 5:
        raw(&server, FRAME_REQUEST, FRAME_OPEN, id, 0, 8);
        words = "only we may send";
        break;
    case 6:
        raw(&server, FRAME_CANCEL, 0, id, 0, 0);
        words = "only we may send";
        break;
    case 7:
        raw(&server, FRAME_JOURNAL, 0, id, 0, 8);
        words = "without the feature";
        break;
    case 8: {
        struct channel_stream *unsent = channel_open(&client, NULL);
        raw(&server, FRAME_HEAD, 0, unsent->id, 0, 4);
        words = "not requested";
        break;
    }
    case 9:
        raw(&server, FRAME_HEAD, 0, id, 0, 4);
        for (int i = 0; i < 3; i++)
            raw(&server, FRAME_DATA, 0, id, 0, FRAME_PAYLOAD_MAX);
        words = "more DATA than its credit";
        break;
    case 10:
        raw(&server, FRAME_TRAILER, FRAME_FIN, id, 0, 4);
        words = "TRAILER before HEAD";
        break;
    case 11:
        raw(&server, FRAME_HEAD, 0, id, 0, 4);
        raw(&server, FRAME_TRAILER, 0, id, 0, 4);
        words = "without the FIN";
        break;
    }
    channel_publish(&server);
    enum channel_event e;
    while ((e = channel_next(&client, &f, &err)) == CHANNEL_FRAME)
        ;
    ck_assert_int_eq(e, CHANNEL_BROKEN);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
}
END_TEST

START_TEST(journal_needs_the_feature)
{
    struct channel_stream *at_server;
    pair_open(FRAME_FIN, &at_server);
    ck_assert_int_eq(channel_send_journal(&server, at_server, "abc", 3), SEND_INVALID);
    pair_release();
    struct channel_config c = {.features = FEATURE_JOURNAL};
    pair_connect(&c, &c);
    pair_open(FRAME_FIN, &at_server);
    ck_assert_int_eq(channel_send_journal(&server, at_server, "abc", 3), SEND_DONE);
    channel_publish(&server);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_JOURNAL);
    ck_assert_uint_eq(f.len, 3);
}
END_TEST

/* ---- gate ---- */

static void connect_with_gate(void)
{
    struct channel_config c = {.features = FEATURE_GATE};
    pair_release();
    pair_connect(&c, &c);
}

START_TEST(the_gate_is_seen_and_counted)
{
    connect_with_gate();
    ck_assert_uint_eq(channel_look_at_gate(&client).retry_after, 0);
    channel_set_gate(&server, &(struct channel_gate){.retry_after = 7, .waiting = 32});
    struct channel_gate gate = channel_look_at_gate(&client);
    ck_assert_uint_eq(gate.retry_after, 7);
    ck_assert_uint_eq(gate.waiting, 32);
    for (int i = 0; i < 5; i++)
        channel_turned_away(&client);
    ck_assert_uint_eq(channel_take_turned_away(&server), 5);
    ck_assert_uint_eq(channel_take_turned_away(&server), 0);
    channel_set_gate(&server, &(struct channel_gate){0});
    ck_assert_uint_eq(channel_look_at_gate(&client).retry_after, 0);
    channel_set_gate(&server, &(struct channel_gate){.retry_after = 1u << 30, .waiting = ~0u});
    gate = channel_look_at_gate(&client);
    ck_assert_uint_eq(gate.retry_after, GATE_RETRY_MAX);
    ck_assert_uint_eq(gate.waiting, ~0u);
    /* each has its own end of it */
    channel_set_gate(&client, &gate);
    channel_turned_away(&server);
    ck_assert_uint_eq(channel_look_at_gate(&server).retry_after, 0);
    ck_assert_uint_eq(channel_take_turned_away(&client), 0);
    ck_assert_uint_eq(channel_take_turned_away(&server), 0);
    /* a peer that is gone refuses nobody */
    shutdown(sockets[1], SHUT_RDWR);
    ck_assert_int_eq(channel_drain(&client), CHANNEL_EOF);
    ck_assert_uint_eq(channel_look_at_gate(&client).retry_after, 0);
}
END_TEST

START_TEST(the_gate_needs_the_feature)
{
    channel_set_gate(&server, &(struct channel_gate){.retry_after = 7});
    ck_assert_uint_eq(atomic_load(&server.own->gate), 0);
    atomic_store(&server.own->gate, GATE_FULL | 7 << 8);
    ck_assert_uint_eq(channel_look_at_gate(&client).retry_after, 0);
    atomic_store(&client.own->gate, 9);
    ck_assert_uint_eq(channel_take_turned_away(&server), 0);
}
END_TEST

START_TEST(what_a_gate_cannot_say_is_brought_within_its_limits)
{
    connect_with_gate();
    static const struct {
        uint64_t word;
        uint32_t retry_after;
    } words[] = {{0, 0},
                 {2, 0}, /* a reason of a later version */
                 {0xff00, 0},
                 {~0ull, 0},
                 {GATE_FULL, 1},
                 {GATE_FULL | 60 << 8, 60},
                 {GATE_FULL | 0xffff << 8, GATE_RETRY_MAX},
                 {GATE_FULL | 0xffffff000000ull, 1}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        atomic_store(&server.own->gate, words[i].word);
        ck_assert_uint_eq(channel_look_at_gate(&client).retry_after, words[i].retry_after);
    }
    /* counts that run back or leap */
    static const struct {
        uint64_t count, taken;
    } counts[] = {{100, 100}, {99, 0}, {101, 2}, {1ull << 40, 0}, {(1ull << 40) + 3, 3}, {0, 0}};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        atomic_store(&client.own->gate, counts[i].count);
        ck_assert_uint_eq(channel_take_turned_away(&server), counts[i].taken);
    }
}
END_TEST

START_TEST(a_trailer_ends_the_stream)
{
    struct channel_stream *at_server, *s = pair_open(FRAME_FIN, &at_server);
    struct message_head m = {.status = 200};
    message_add_pair(m.pairs, &m.n_pairs, slice_of("x-n"), slice_of("7"));
    ck_assert_int_eq(channel_send_trailer(&server, at_server, &m, &err),
                     SEND_INVALID); /* before HEAD */
    pair_head(at_server);
    ck_assert_int_eq(channel_send_trailer(&server, at_server, &m, &err), SEND_DONE);
    ck_assert(!channel_is_open(at_server));
    channel_publish(&server);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_HEAD);
    ck_assert_int_eq(channel_next(&client, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(f.type, FRAME_TRAILER);
    ck_assert_uint_eq(f.flags, FRAME_FIN);
    ck_assert_int_eq(message_head_decode(f.payload, f.len, &m, &err), STATUS_OK);
    ck_assert(slice_is(message_find(m.pairs, m.n_pairs, "x-n"), "7"));
    channel_close(&client, s); /* no CANCEL: FIN has come */
    channel_publish(&client);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_NONE);
}
END_TEST

START_TEST(the_owner_can_break_it_too)
{
    ck_assert_int_eq(channel_fail(&server, "the REQUEST does not decode"), STATUS_PEER);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_BROKEN);
    ck_assert_str_eq(err.text, "the REQUEST does not decode");
}
END_TEST

START_TEST(what_cannot_be_sent_says_so)
{
    static char big[FRAME_PAYLOAD_MAX];
    size_t taken;
    memset(big, 'x', sizeof(big));
    struct channel_stream *s = channel_open(&client, NULL);
    struct message_request m = pair_request();
    ck_assert_int_eq(channel_send_data(&client, s, "x", 1, 0, &taken),
                     SEND_INVALID); /* before REQUEST */
    message_add_pair(m.pairs, &m.n_pairs, slice_of("x-big"), slice_make(big, sizeof(big)));
    ck_assert_int_eq(channel_send_request(&client, s, &m, 0, &err), SEND_INVALID);
    ck_assert_int_eq(err.status, STATUS_TOO_LARGE);
    m.n_pairs = 0;
    m.target = slice_of("no slash");
    ck_assert_int_eq(channel_send_request(&client, s, &m, 0, &err), SEND_INVALID);
    ck_assert_int_eq(err.status, STATUS_INVALID);
    m.target = slice_of("/");
    ck_assert_int_eq(channel_send_request(&client, s, &m, FRAME_FIN, &err),
                     SEND_DONE); /* nothing was lost */
    ck_assert_int_eq(channel_send_request(&client, s, &m, 0, &err), SEND_INVALID);
    ck_assert_int_eq(channel_send_data(&client, s, "x", 1, 0, &taken),
                     SEND_INVALID); /* after FIN */
    channel_publish(&client);
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_FRAME);
    ck_assert_int_eq(channel_send_data(&server, f.stream, "x", 1, 0, &taken),
                     SEND_INVALID); /* before HEAD */
    ck_assert_int_eq(channel_next(&server, &f, &err), CHANNEL_NONE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("channel");
    TCase *tc = tcase_create("default"), *small = tcase_create("small");
    tcase_add_checked_fixture(tc, setup, pair_release);
    tcase_add_test(tc, one_request_and_its_answer);
    tcase_add_test(tc, cancel_ends_the_stream_and_late_frames_are_dropped);
    tcase_add_test(tc, reset_carries_its_code);
    tcase_add_test(tc, trailer_ends_the_stream);
    tcase_add_test(tc, credit_bounds_data_and_comes_back);
    tcase_add_test(tc, one_doorbell_per_sleep);
    tcase_add_test(tc, the_end_of_the_peer_is_seen_after_what_it_left);
    tcase_add_test(tc, a_full_socket_does_not_hold_us);
    tcase_add_loop_test(tc, server_refuses_protocol_breaks, 0, 15);
    tcase_add_loop_test(tc, client_refuses_protocol_breaks, 0, 12);
    tcase_add_test(tc, journal_needs_the_feature);
    tcase_add_test(tc, a_trailer_ends_the_stream);
    tcase_add_test(tc, the_owner_can_break_it_too);
    tcase_add_test(tc, what_cannot_be_sent_says_so);
    tcase_add_test(tc, the_gate_is_seen_and_counted);
    tcase_add_test(tc, the_gate_needs_the_feature);
    tcase_add_test(tc, what_a_gate_cannot_say_is_brought_within_its_limits);
    tcase_add_checked_fixture(small, setup_small, pair_release);
    tcase_set_timeout(small, 20);
    tcase_add_test(small, slots_run_out_and_come_back);
    tcase_add_test(small, generations_wrap);
    tcase_add_test(small, control_frames_survive_a_full_ring);
    tcase_add_test(small, waiting_credit_and_reset_go_out_too);
    suite_add_tcase(suite, tc);
    suite_add_tcase(suite, small);
    return check_run(suite);
}
