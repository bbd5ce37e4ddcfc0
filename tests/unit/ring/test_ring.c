#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/ring/ring.h"
#include "tests/check_main.h"

#define SIZE RING_SIZE_MIN
#define CONTROL 4096u

static struct region *up, *down; /* up: the writer's region, with the ring; down: the reader's */
static struct ring_writer w;
static struct ring_reader r;

static void setup(void)
{
    up = aligned_alloc(4096, region_bytes(SIZE));
    down = aligned_alloc(4096, region_bytes(SIZE));
    memset(up, 0, region_bytes(SIZE));
    memset(down, 0, region_bytes(SIZE));
    ring_writer_init(&w, up, down, SIZE, CONTROL);
    ring_reader_init(&r, down, up, SIZE);
}

static void teardown(void)
{
    free(up);
    free(down);
}

static bool put(uint32_t id, uint32_t len, uint8_t fill, bool control)
{
    uint8_t *out = ring_writer_reserve(&w, len, control);
    if (out == NULL)
        return false;
    memset(out, fill, len);
    ring_writer_commit(&w, FRAME_DATA, 0, id, 0, len);
    return true;
}

START_TEST(nothing_is_seen_before_publish)
{
    struct ring_frame f;
    ck_assert(put(7, 5, 'a', false));
    ck_assert_int_eq(ring_reader_peek(&r, &f), RING_EMPTY);
    ck_assert(!ring_reader_ready(&r));
    ck_assert(ring_writer_publish(&w));
    ck_assert(!ring_writer_publish(&w));
    ck_assert(ring_reader_ready(&r));
    ck_assert_int_eq(ring_reader_peek(&r, &f), RING_FRAME);
    ck_assert_uint_eq(f.header.id, 7);
    ck_assert_uint_eq(f.header.len, 5);
    ck_assert_int_eq(memcmp(f.payload, "aaaaa", 5), 0);
    ring_reader_consume(&r);
    ck_assert_int_eq(ring_reader_peek(&r, &f), RING_EMPTY);
    ck_assert(!ring_writer_moved(&w));
    ck_assert(ring_reader_publish(&r));
    ck_assert(ring_writer_moved(&w));
}
END_TEST

START_TEST(every_length_wraps_intact)
{
    uint64_t sent = 0, got = 0;
    uint32_t seed = 1;
    for (int turn = 0; turn < 4000; turn++) {
        for (int i = 0; i < 8; i++) {
            seed = seed * 1664525 + 1013904223;
            uint32_t len = (seed >> 8) % (FRAME_PAYLOAD_MAX + 1);
            if (!put((uint32_t)sent, len, (uint8_t)(sent * 31 + len), false))
                break;
            sent++;
        }
        ring_writer_publish(&w);
        struct ring_frame f;
        while (ring_reader_peek(&r, &f) == RING_FRAME && (seed >> 16) % 7 != got % 7) {
            ck_assert_uint_eq(f.header.id, (uint32_t)got);
            for (uint32_t i = 0; i < f.header.len; i++)
                if (f.payload[i] != (uint8_t)(got * 31 + f.header.len))
                    ck_abort_msg("byte %u of frame %llu", i, (unsigned long long)got);
            got++;
            ring_reader_consume(&r);
        }
        ring_reader_publish(&r);
        ck_assert(!w.broken && !r.broken);
    }
    ck_assert_uint_gt(got, 4000);
    ck_assert_uint_gt(w.tail, 100 * (uint64_t)SIZE);
}
END_TEST

START_TEST(control_room_is_kept)
{
    while (put(1, 1000, 0, false))
        ;
    ck_assert(put(1, 0, 0, true));
    unsigned n = 1;
    while (put(1, 0, 0, true))
        n++;
    ck_assert_uint_ge(n, CONTROL / FRAME_ALIGN);
    ck_assert_uint_eq(w.tail - w.head, SIZE); /* to the last byte */
    ck_assert(!w.broken);
}
END_TEST

START_TEST(indices_near_the_end_of_64_bits)
{
    uint64_t start = (uint64_t)0 - 4096; /* the free-running indices wrap in this test */
    w.tail = w.head = w.published = r.head = r.tail = r.published = start;
    atomic_store(&up->tail, start);
    atomic_store(&down->head, start);
    struct ring_frame f;
    for (int i = 0; i < 1000; i++) {
        ck_assert(put((uint32_t)i, 100, (uint8_t)i, false));
        ring_writer_publish(&w);
        ck_assert_int_eq(ring_reader_peek(&r, &f), RING_FRAME);
        ck_assert_uint_eq(f.header.id, (uint32_t)i);
        ring_reader_consume(&r);
        ring_reader_publish(&r);
    }
    ck_assert_uint_lt(w.tail, start);
}
END_TEST

static struct frame_header *header_at(uint64_t offset)
{
    return (struct frame_header *)(void *)((uint8_t *)up + LAYOUT_PAGE + offset);
}

/* Each case breaks one thing that the reader must notice. */
START_TEST(reader_refuses_nonsense)
{
    struct ring_frame f;
    ck_assert(put(1, 100, 0, false));
    ring_writer_publish(&w);
    struct frame_header *h = header_at(0);
    switch (_i) {
    case 0:
        h->type = 0;
        break;
    case 1:
        h->type = FRAME_TYPES;
        break;
    case 2:
        h->len = FRAME_PAYLOAD_MAX + 1;
        break;
    case 3:
        h->len = 0xffffffff;
        break;
    case 4:
        h->len = 1000; /* past the tail */
        break;
    case 5:
        h->reserved = 1;
        break;
    case 6:
        h->flags = 0x80;
        break;
    case 7:
        *h = (struct frame_header){.type = FRAME_PAD, .len = 96}; /* not up to the end */
        break;
    case 8:
        atomic_store(&up->tail, (uint64_t)SIZE + 16);
        break;
    case 9:
        atomic_store(&up->tail, 8);
        break;
    case 10:
        atomic_store(&up->tail, (uint64_t)0 - 16);
        break;
    default:
        ck_abort();
    }
    ck_assert_int_eq(ring_reader_peek(&r, &f), RING_BROKEN);
    h->type = FRAME_DATA;
    ck_assert_int_eq(ring_reader_peek(&r, &f), RING_BROKEN); /* for good */
}
END_TEST

START_TEST(reader_notices_a_tail_that_goes_back)
{
    struct ring_frame f;
    for (int i = 0; i < 4; i++)
        ck_assert(put(1, 16, 0, false));
    ring_writer_publish(&w);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(ring_reader_peek(&r, &f), RING_FRAME);
        ring_reader_consume(&r);
    }
    atomic_store(&up->tail, 64); /* behind what was consumed, ahead of what was published */
    ck_assert_int_eq(ring_reader_peek(&r, &f), RING_BROKEN);
}
END_TEST

START_TEST(writer_stops_at_a_head_that_lies)
{
    static const uint64_t lies[] = {16, 8, (uint64_t)0 - 16, (uint64_t)1 << 63};
    while (put(1, 16000, 0, false))
        ;
    /* Published nothing: any head but 0 is a lie. */
    atomic_store(&down->head, lies[_i]);
    ck_assert(!put(1, 16000, 0, false));
    ck_assert(w.broken);
    ck_assert(!put(1, 0, 0, true));
}
END_TEST

START_TEST(a_frame_across_the_end_is_refused)
{
    struct ring_frame f;
    while ((w.tail & (SIZE - 1)) != SIZE - 64) {
        ck_assert(put(1, 32, 0, false));
        ring_writer_publish(&w);
        ck_assert_int_eq(ring_reader_peek(&r, &f), RING_FRAME);
        ring_reader_consume(&r);
        ring_reader_publish(&r);
        if ((w.tail & (SIZE - 1)) == SIZE - 80)
            ck_assert(put(1, 0, 0, false));
    }
    *header_at(SIZE - 64) = (struct frame_header){.type = FRAME_DATA, .len = 64};
    atomic_store(&up->tail, w.tail + 80);
    while (ring_reader_peek(&r, &f) == RING_FRAME && f.header.len == 0)
        ring_reader_consume(&r);
    ck_assert_int_eq(ring_reader_peek(&r, &f), RING_BROKEN);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ring");
    TCase *tc = tcase_create("ring");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, nothing_is_seen_before_publish);
    tcase_add_test(tc, every_length_wraps_intact);
    tcase_add_test(tc, control_room_is_kept);
    tcase_add_test(tc, indices_near_the_end_of_64_bits);
    tcase_add_loop_test(tc, reader_refuses_nonsense, 0, 11);
    tcase_add_test(tc, reader_notices_a_tail_that_goes_back);
    tcase_add_loop_test(tc, writer_stops_at_a_head_that_lies, 0, 4);
    tcase_add_test(tc, a_frame_across_the_end_is_refused);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
