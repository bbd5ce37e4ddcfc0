#define _GNU_SOURCE /* preadv2 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/background.h"
#include "core/base/buffer.h"
#include "core/base/list.h"
#include "core/base/map.h"
#include "core/base/readahead.h"
#include "core/base/sha256.h"
#include "core/base/siphash.h"
#include "core/base/status.h"

START_TEST(buffer_grows_and_consumes)
{
    struct buffer b = {0};
    for (int i = 0; i < 1000; i++)
        buffer_printf(&b, "%d,", i);
    ck_assert_uint_eq(b.len, 3890);
    ck_assert_int_eq(memcmp(b.ptr, "0,1,2,", 6), 0);
    buffer_consume(&b, 4);
    ck_assert_int_eq(memcmp(b.ptr, "2,3,", 4), 0);
    ck_assert_int_eq(b.ptr[b.len], '\0');
    buffer_clear(&b);
    ck_assert_uint_eq(b.len, 0);
    buffer_release(&b);
    ck_assert_ptr_null(b.ptr);
}
END_TEST

START_TEST(map_agrees_with_an_array)
{
    static int values[512];
    bool in[512] = {0};
    struct map m = {0};
    uint32_t seed = 1;
    size_t count = 0;
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1664525 + 1013904223;
        unsigned k = (seed >> 8) % 512;
        uint64_t key = (uint64_t)k << 32 | 7;
        if ((seed >> 28) & 1) {
            ck_assert_ptr_eq(map_set(&m, key, &values[k]), in[k] ? &values[k] : NULL);
            count += !in[k];
            in[k] = true;
        } else {
            ck_assert_ptr_eq(map_take(&m, key), in[k] ? &values[k] : NULL);
            count -= in[k];
            in[k] = false;
        }
        ck_assert_uint_eq(m.count, count);
    }
    for (unsigned k = 0; k < 512; k++)
        ck_assert_ptr_eq(map_get(&m, (uint64_t)k << 32 | 7), in[k] ? &values[k] : NULL);
    size_t i = 0, seen = 0;
    while (map_next(&m, &i, NULL) != NULL)
        seen++;
    ck_assert_uint_eq(seen, count);
    map_release(&m);
}
END_TEST

struct item {
    int value;
    struct list node;
};

START_TEST(list_keeps_order)
{
    struct list head;
    struct item items[4] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
    list_init(&head);
    for (int i = 0; i < 4; i++)
        list_append(&head, &items[i].node);
    list_remove(&items[2].node);
    list_remove(&items[2].node);
    list_prepend(&head, &items[2].node);
    static const int want[] = {2, 0, 1, 3};
    int n = 0;
    list_each(it, next, &head)
    {
        ck_assert_int_eq(list_entry(it, struct item, node)->value, want[n++]);
        list_remove(it);
    }
    ck_assert_int_eq(n, 4);
    ck_assert(list_empty(&head));
}
END_TEST

START_TEST(errors_name_the_field)
{
    struct error err = {0};
    ck_assert_int_eq(error_param(&err, STATUS_INVALID, "top_p", "top_p must be in %d..%d", 0, 1),
                     STATUS_INVALID);
    ck_assert_str_eq(err.param, "top_p");
    ck_assert_str_eq(err.text, "top_p must be in 0..1");
    ck_assert_int_eq(status_http(err.status), 400);
    ck_assert_str_eq(status_code(STATUS_CONTEXT_LENGTH), "context_length_exceeded");
    ck_assert_str_eq(status_name((enum status)9999), "INTERNAL");
}
END_TEST

/* The first of the reference implementation's vectors for 128 bits: key 0..15, input 0..n-1. */
START_TEST(siphash_is_siphash)
{
    static const unsigned char want[3][16] = {{0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d,
                                               0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93},
                                              {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34,
                                               0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45},
                                              {0x81, 0x77, 0x22, 0x8d, 0xa4, 0xa4, 0x5d, 0xc7, 0xfc,
                                               0xa3, 0x8b, 0xde, 0xf6, 0x0a, 0xff, 0xe4}};
    unsigned char key[16];
    for (unsigned char i = 0; i < 16; i++)
        key[i] = i;
    for (size_t n = 0; n < 3; n++) {
        struct siphash h = siphash(key, key, n);
        for (int i = 0; i < 16; i++)
            ck_assert_uint_eq(h.word[i / 8] >> i % 8 * 8 & 255, want[n][i]);
    }
    unsigned char long_one[100] = {0};
    struct siphash a = siphash(key, long_one, 100), b;
    long_one[97] = 1;
    b = siphash(key, long_one, 100);
    ck_assert(a.word[0] != b.word[0] && a.word[1] != b.word[1]);
}
END_TEST

START_TEST(sha256_is_sha256)
{
    /* FIPS 180-4's examples, and a million times "a" in uneven pieces. */
    static const struct {
        const char *text, *hex;
    } examples[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    char hex[SHA256_HEX], as[997];
    for (size_t i = 0; i < sizeof(examples) / sizeof(*examples); i++) {
        sha256(examples[i].text, strlen(examples[i].text), hex);
        ck_assert_str_eq(hex, examples[i].hex);
    }
    struct sha256 s;
    sha256_init(&s);
    memset(as, 'a', sizeof(as));
    for (size_t left = 1000000, now = 1; left > 0; left -= now) {
        now = (now * 7 + 1) % sizeof(as) + 1;
        now = now < left ? now : left;
        sha256_add(&s, as, now);
    }
    sha256_finish(&s, hex);
    ck_assert_str_eq(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
END_TEST

/* The length of our turns, in ns, as sched_getattr says it since Linux 6.12; 0: the kernel does not tell. */
static uint64_t slice_ns(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof(attributes)};
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0)
        return 0;
    return attributes.runtime;
}

START_TEST(background_gives_way)
{
    const uint64_t before = slice_ns();
    ck_assert_uint_ne(before, BACKGROUND_SLICE_NS);
    ck_assert(background_enter(19));
    ck_assert_int_eq(sched_getscheduler(0), SCHED_BATCH);
    ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), 19);
    if (before != 0)
        ck_assert_uint_eq(slice_ns(), BACKGROUND_SLICE_NS);
}
END_TEST

/* A disk, a partition (whose folder is the link's target, below its disk), one that says nonsense, none. */
START_TEST(readahead_of_devices)
{
    char sys[] = "/tmp/test_base.XXXXXX", command[600];
    ck_assert_ptr_nonnull(mkdtemp(sys));
    snprintf(command, sizeof(command),
             "cd %s && mkdir -p class/bdi/254:0 class/bdi/7:1 dev/block devices/sda/sda1 "
             "devices/sda/queue && ln -s ../../devices/sda/sda1 dev/block/8:1 && "
             "echo 8192 > class/bdi/254:0/read_ahead_kb && echo none > class/bdi/7:1/read_ahead_kb "
             "&& echo 128 > devices/sda/queue/read_ahead_kb",
             sys);
    ck_assert_int_eq(system(command), 0);
    ck_assert_uint_eq(readahead_bytes(sys, 254, 0), 8u << 20);
    ck_assert_uint_eq(readahead_bytes(sys, 8, 1), 128u << 10);
    ck_assert_uint_eq(readahead_bytes(sys, 7, 1), 0);
    ck_assert_uint_eq(readahead_bytes(sys, 9, 9), 0);
    snprintf(command, sizeof(command), "rm -r %s", sys);
    ck_assert_int_eq(system(command), 0);
    ck_assert(!readahead_is_short(-1));
}
END_TEST

/* What was fetched is read without waiting for the disk, on file systems that can tell. */
START_TEST(readahead_fetches)
{
    enum { BYTES = 3 << 20 };
    char path[] = "/tmp/test_base.XXXXXX", byte = 0;
    struct iovec one = {&byte, 1};
    int fd = mkstemp(path);
    char *bytes = calloc(1, BYTES);
    memset(bytes, 7, BYTES);
    ck_assert_int_eq(write(fd, bytes, BYTES), BYTES);
    ck_assert_int_eq(fsync(fd), 0);
    for (int is_short = 0; is_short < 2; is_short++) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        readahead_fetch(fd, is_short, 1000, BYTES - 1000);
        readahead_fetch(fd, is_short, 1000, 1000);
        for (off_t at = 1000; at < BYTES - 1000 && !is_short;
             at += 4096) { /* orders are not waited for */
            ssize_t got = preadv2(fd, &one, 1, at, RWF_NOWAIT);
            ck_assert(got == 1 ? byte == 7 : errno == EOPNOTSUPP);
        }
    }
    readahead_fetch(-1, false, 0, 10); /* says nothing: reading will */
    free(bytes);
    close(fd);
    unlink(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *tc = tcase_create("base");
    tcase_add_test(tc, buffer_grows_and_consumes);
    tcase_add_test(tc, map_agrees_with_an_array);
    tcase_add_test(tc, list_keeps_order);
    tcase_add_test(tc, siphash_is_siphash);
    tcase_add_test(tc, sha256_is_sha256);
    tcase_add_test(tc, errors_name_the_field);
    tcase_add_test(tc, background_gives_way);
    tcase_add_test(tc, readahead_of_devices);
    tcase_add_test(tc, readahead_fetches);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
