#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core/ring/layout.h"
#include "core/ring/message.h"
#include "tests/check_main.h"

static struct message_request request(void)
{
    struct message_request m = {.method = slice_of("POST"),
                                .target = slice_of("/v1/completions?x=1")};
    message_add_pair(m.pairs, &m.n_pairs, slice_of("content-type"), slice_of("application/json"));
    message_add_pair(m.pairs, &m.n_pairs, slice_of("x-empty"), slice_of(""));
    return m;
}

START_TEST(request_comes_back)
{
    struct message_request m = request(), back;
    struct error err;
    unsigned char buf[512];
    size_t len;
    ck_assert_int_eq(message_request_encode(&m, buf, sizeof(buf), &len, &err), STATUS_OK);
    ck_assert_uint_eq(len, message_request_size(&m));
    ck_assert_int_eq(message_request_decode(buf, len, &back, &err), STATUS_OK);
    ck_assert(slice_is(back.method, "POST"));
    ck_assert(slice_is(back.target, "/v1/completions?x=1"));
    ck_assert_uint_eq(back.n_pairs, 2);
    ck_assert(slice_is(message_find(back.pairs, back.n_pairs, "content-type"), "application/json"));
    ck_assert_ptr_null(message_find(back.pairs, back.n_pairs, "x-none").ptr);
    /* The bytes are ABI. */
    ck_assert_int_eq(memcmp(buf, "\x04\0\x02\0\x13\0\0\0POST/v1/comp", 20), 0);
}
END_TEST

START_TEST(head_comes_back)
{
    struct message_head m = {.status = 503}, back;
    message_add_pair(m.pairs, &m.n_pairs, slice_of("retry-after"), slice_of("2"));
    struct error err;
    unsigned char buf[64];
    size_t len;
    ck_assert_int_eq(message_head_encode(&m, buf, sizeof(buf), &len, &err), STATUS_OK);
    ck_assert_int_eq(message_head_decode(buf, len, &back, &err), STATUS_OK);
    ck_assert_uint_eq(back.status, 503);
    ck_assert(slice_is(back.pairs[0].value, "2"));
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    struct message_request m = request(), back;
    struct message_head h = {.status = 200}, hback;
    message_add_pair(h.pairs, &h.n_pairs, slice_of("a"), slice_of("b"));
    unsigned char buf[512];
    size_t len;
    ck_assert_int_eq(message_request_encode(&m, buf, sizeof(buf), &len, NULL), STATUS_OK);
    for (size_t n = 0; n < len; n++) {
        unsigned char *copy =
            malloc(n + 1); /* exact, so that a read past the end is seen by the sanitizers */
        memcpy(copy, buf, n);
        ck_assert_int_eq(message_request_decode(copy, n, &back, NULL), STATUS_PEER);
        free(copy);
    }
    buf[len] = 0;
    ck_assert_int_eq(message_request_decode(buf, len + 1, &back, NULL), STATUS_PEER);
    ck_assert_int_eq(message_head_encode(&h, buf, sizeof(buf), &len, NULL), STATUS_OK);
    for (size_t n = 0; n < len; n++)
        ck_assert_int_eq(message_head_decode(buf, n, &hback, NULL), STATUS_PEER);
}
END_TEST

/* What a header line must never carry is refused by the sender, and by the receiver of a sender that does not. */
START_TEST(bad_bytes_are_refused_on_both_sides)
{
    static const struct {
        const char *method, *target, *name, *value;
    } bad[] = {
        {"", "/", "a", "b"},       {"GE T", "/", "a", "b"},   {"GET", "", "a", "b"},
        {"GET", "x", "a", "b"},    {"GET", "/\n", "a", "b"},  {"GET", "/", "", "b"},
        {"GET", "/", "A", "b"},    {"GET", "/", "a:", "b"},   {"GET", "/", "a", "b\r\n"},
        {"GET", "/", "a", "\x7f"}, {"GET", "/", "a\x80", ""}, {"GET\n", "/", "a", ""},
    };
    struct message_request good = {.method = slice_of("GET"),
                                   .target = slice_of("/"),
                                   .n_pairs = 1},
                           back;
    good.pairs[0] = (struct message_pair){slice_of("a"), slice_of("b\xc3\xa4\t")};
    struct message_request m = good;
    m.method = slice_of(bad[_i].method);
    m.target = slice_of(bad[_i].target);
    m.pairs[0] = (struct message_pair){slice_of(bad[_i].name), slice_of(bad[_i].value)};
    unsigned char buf[256];
    size_t len;
    struct error err;
    ck_assert_int_eq(message_request_encode(&good, buf, sizeof(buf), &len, NULL), STATUS_OK);
    ck_assert_int_eq(message_request_encode(&m, buf, sizeof(buf), &len, &err), STATUS_INVALID);
    unsigned char *p = buf; /* by hand, as a hostile peer would */
    uint16_t u16 = (uint16_t)m.method.len, one = 1, name = (uint16_t)m.pairs[0].name.len;
    uint32_t target = (uint32_t)m.target.len, value = (uint32_t)m.pairs[0].value.len;
#define PUT(from, n) (memcpy(p, from, n), p += n)
    PUT(&u16, 2);
    PUT(&one, 2);
    PUT(&target, 4);
    PUT(m.method.ptr, m.method.len);
    PUT(m.target.ptr, m.target.len);
    PUT(&name, 2);
    PUT(&value, 4);
    PUT(m.pairs[0].name.ptr, m.pairs[0].name.len);
    PUT(m.pairs[0].value.ptr, m.pairs[0].value.len);
    ck_assert_int_eq(message_request_decode(buf, (size_t)(p - buf), &back, &err), STATUS_PEER);
    ck_assert_int_eq(err.status, STATUS_PEER);
    ck_assert_uint_gt(strlen(err.text), 10);
}
END_TEST

START_TEST(limits_are_named)
{
    struct error err;
    unsigned char buf[256];
    size_t len;
    struct message_request m = request();
    ck_assert_int_eq(message_request_encode(&m, buf, 20, &len, &err), STATUS_TOO_LARGE);
    ck_assert_ptr_nonnull(strstr(err.text, "at most 20"));
    m.n_pairs = MESSAGE_PAIRS_MAX + 1;
    ck_assert_int_eq(message_request_encode(&m, buf, sizeof(buf), &len, &err), STATUS_TOO_LARGE);
    struct message_head h = {.status = 199}, back;
    ck_assert_int_eq(message_head_encode(&h, buf, sizeof(buf), &len, &err), STATUS_INVALID);
    memcpy(buf, "\xc8\0\x41\0", 4); /* 65 pairs */
    ck_assert_int_eq(message_head_decode(buf, 4, &back, &err), STATUS_PEER);
    memcpy(buf, "\x58\x02\0\0", 4); /* status 600 */
    ck_assert_int_eq(message_head_decode(buf, 4, &back, &err), STATUS_PEER);
    /* Lengths whose sum leaves 32 bits. */
    memcpy(buf, "\xc8\0\x01\0\xff\xff\xff\xff\xff\xff", 10);
    ck_assert_int_eq(message_head_decode(buf, 10, &back, &err), STATUS_PEER);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("message");
    TCase *tc = tcase_create("message");
    tcase_add_test(tc, request_comes_back);
    tcase_add_test(tc, head_comes_back);
    tcase_add_test(tc, every_truncation_is_refused);
    tcase_add_loop_test(tc, bad_bytes_are_refused_on_both_sides, 0, 12);
    tcase_add_test(tc, limits_are_named);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
