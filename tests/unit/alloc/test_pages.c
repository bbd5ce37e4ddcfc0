/* Arena and page pools: limits, references, promises, give-back, jemalloc's figures. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/arena.h"
#include "alloc/block_table.h"
#include "alloc/pages.h"
#include "tests/check_main.h"

#define MIB ((size_t)1 << 20)

static pthread_mutex_t wake_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake_cond = PTHREAD_COND_INITIALIZER;
static int wakes;

static void count_wake(void *data)
{
    (void)data;
    pthread_mutex_lock(&wake_mutex);
    wakes++;
    pthread_cond_signal(&wake_cond);
    pthread_mutex_unlock(&wake_mutex);
}

/* Takes a page, waiting for the wake function whenever the pool is not ready; a lost wake hangs
 * (Check's timeout). */
static uint32_t take(struct pages *p)
{
    uint32_t id;
    for (;;) {
        pthread_mutex_lock(&wake_mutex);
        int seen = wakes;
        pthread_mutex_unlock(&wake_mutex);
        if (pages_take(p, &id))
            return id;
        pthread_mutex_lock(&wake_mutex);
        while (wakes == seen)
            pthread_cond_wait(&wake_cond, &wake_mutex);
        pthread_mutex_unlock(&wake_mutex);
    }
}

static struct arena *make_arena(size_t limit, size_t page)
{
    struct arena *a = NULL;
    struct error err = {0};
    struct arena_options o = {.limit = limit, .page_bytes = &page, .n_page_bytes = 1};
    ck_assert_msg(arena_create(&o, &a, &err) == STATUS_OK, "%s", err.text);
    return a;
}

static struct pages *make_pool(struct arena *a, size_t page)
{
    struct pages *p = NULL;
    struct error err = {0};
    ck_assert_msg(pages_create(a, page, &p, &err) == STATUS_OK, "%s", err.text);
    pages_set_wake(p, count_wake, NULL);
    return p;
}

START_TEST(slab_sizes)
{
    const size_t smol = 737280, small = 40960, big = 4 * MIB;
    /* 32 MiB hold 45 pages of 720 KiB with 1.1 % left over. */
    ck_assert_uint_eq(arena_slab_bytes(1024 * MIB, &smol, 1), 32 * MIB);
    ck_assert_uint_eq(arena_slab_bytes(1024 * MIB, &big, 1), 32 * MIB);
    ck_assert_uint_eq(arena_slab_bytes(64 * MIB, &small, 1), 4 * MIB);
    /* 2 MiB would waste 30 %, 5 MiB waste 1.6 %. */
    ck_assert_uint_eq(arena_slab_bytes(32 * MIB, &smol, 1), 5 * MIB);
    const size_t both[] = {smol, small};
    size_t slab = arena_slab_bytes(64 * MIB, both, 2);
    ck_assert_uint_le(slab % smol * 100, slab * 3);
    ck_assert_uint_le(slab % small * 100, slab * 3);
}
END_TEST

START_TEST(a_limit_under_four_slabs_is_refused)
{
    struct arena *a = NULL;
    struct error err = {0};
    const size_t page = 737280;
    struct arena_options o = {.limit = 16 * MIB, .page_bytes = &page, .n_page_bytes = 1};
    ck_assert_int_eq(arena_create(&o, &a, &err), STATUS_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(err.text, "16777216"));
    ck_assert_ptr_nonnull(strstr(err.text, "5242880"));
    ck_assert_ptr_nonnull(strstr(err.text, "737280"));
    o.limit = 1000;
    ck_assert_int_eq(arena_create(&o, &a, &err), STATUS_NO_MEMORY);
    o.limit = 20 * MIB;
    ck_assert_int_eq(arena_create(&o, &a, &err), STATUS_OK);
    arena_free(a);
}
END_TEST

START_TEST(every_page_of_the_limit_can_be_taken)
{
    const size_t page = 65536;
    struct arena *a = make_arena(16 * MIB, page);
    struct pages *p = make_pool(a, page);
    uint32_t total = pages_total(p);
    ck_assert_uint_eq(total, 16 * MIB / page);
    ck_assert(!pages_reserve(p, total + 1));
    ck_assert(pages_reserve(p, total));
    ck_assert(!pages_reserve(p, 1));
    uint32_t *ids = calloc(total, sizeof(*ids));
    for (uint32_t i = 0; i < total; i++) {
        ids[i] = take(p);
        unsigned char *bytes = pages_at(p, ids[i]);
        ck_assert_uint_eq((uintptr_t)bytes % 64, 0);
        for (size_t k = 0; k < page; k += 64)
            ck_assert_uint_eq(bytes[k], 0);
        memset(bytes, 0xa5, page);
        bytes[0] = (unsigned char)i;
    }
    uint32_t id;
    ck_assert(!pages_take(p, &id));
    for (uint32_t i = 0; i < total; i++)
        ck_assert_uint_eq(*(unsigned char *)pages_at(p, ids[i]), (unsigned char)i);
    for (uint32_t i = 0; i < total; i++)
        if (ids[i] % (arena_slab_bytes(16 * MIB, &page, 1) / page) == 0)
            ck_assert_uint_eq((uintptr_t)pages_at(p, ids[i]) % (2 * MIB), 0);
    struct pages_counts c;
    pages_counts(p, &c);
    ck_assert_uint_eq(c.used, total);
    ck_assert_uint_eq(c.total, total);
    ck_assert_uint_eq(c.taken, total);
    struct arena_figures f;
    arena_figures(a, &f);
    ck_assert_uint_eq(f.slabs, f.slabs_max);
    ck_assert_uint_eq(f.large_allocated, f.slabs * f.slab_bytes);
    ck_assert_uint_le(f.mapped, f.large_allocated + f.large_allocated / 100 + 4 * MIB);
    /* A used page comes back zeroed. */
    pages_unref(p, ids[7]);
    ids[7] = take(p);
    for (size_t k = 0; k < page; k++)
        ck_assert_uint_eq(((unsigned char *)pages_at(p, ids[7]))[k], 0);
    for (uint32_t i = 0; i < total; i++)
        pages_unref(p, ids[i]);
    pages_unreserve(p, total);
    pages_counts(p, &c);
    ck_assert_uint_eq(c.used, 0);
    ck_assert_uint_eq(c.reserved, 0);
    free(ids);
    pages_free(p);
    arena_figures(a, &f);
    ck_assert_uint_eq(f.slabs, 0);
    arena_free(a);
}
END_TEST

START_TEST(memory_follows_use_not_promises)
{
    const size_t page = 65536;
    struct arena *a = make_arena(64 * MIB, page);
    struct pages *p = make_pool(a, page);
    struct arena_figures f;
    ck_assert(pages_reserve(p, pages_total(p)));
    pages_unref(p, take(p));
    arena_figures(a, &f);
    ck_assert_uint_le(f.slabs, 2);
    pages_unreserve(p, pages_total(p));
    pages_free(p);
    arena_free(a);
}
END_TEST

START_TEST(empty_slabs_go_back)
{
    const size_t page = 65536;
    struct arena *a = make_arena(32 * MIB, page);
    struct pages *p = make_pool(a, page);
    uint32_t n = 200, ids[200];
    struct arena_figures f;
    for (int round = 0; round < 3; round++) {
        ck_assert(pages_reserve(p, n));
        for (uint32_t i = 0; i < n; i++)
            ids[i] = take(p);
        arena_figures(a, &f);
        ck_assert_uint_ge(f.slabs * f.slab_bytes, n * page);
        for (uint32_t i = 0; i < n; i++)
            pages_unref(p, ids[i]);
        ck_assert_uint_eq(pages_trim(p, 1000, 500), 0);
        pages_unreserve(p, n);
        ck_assert_uint_eq(pages_trim(p, 1000 + 499, 500), 0);
        ck_assert_uint_gt(pages_trim(p, 1000 + 500, 500), 0);
        for (int wait = 0; wait < 1000; wait++) {
            arena_figures(a, &f);
            if (f.slabs == 1)
                break;
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
        ck_assert_uint_eq(f.slabs, 1);
        ck_assert_uint_eq(f.large_allocated, f.slab_bytes);
        ck_assert_uint_le(f.mapped, f.slab_bytes + f.slab_bytes / 100 + 4 * MIB);
        ck_assert_uint_le(f.resident, f.slab_bytes + 4 * MIB);
    }
    pages_free(p);
    arena_free(a);
}
END_TEST

START_TEST(pools_share_the_limit)
{
    const size_t sizes[] = {65536, 131072};
    struct arena *a = NULL;
    struct error err = {0};
    struct arena_options o = {.limit = 16 * MIB, .page_bytes = sizes, .n_page_bytes = 2};
    ck_assert_int_eq(arena_create(&o, &a, &err), STATUS_OK);
    struct pages *p = make_pool(a, sizes[0]), *q = make_pool(a, sizes[1]);
    uint32_t half = pages_total(p) / 2;
    ck_assert(pages_reserve(p, half));
    ck_assert(!pages_reserve(q, pages_total(q)));
    ck_assert(pages_reserve(q, pages_total(q) / 2));
    ck_assert(!pages_reserve(p, 1));
    /* Both can use what they were promised. */
    uint32_t *ids = calloc(half, sizeof(*ids));
    for (uint32_t i = 0; i < half; i++)
        ids[i] = take(p);
    for (uint32_t i = 0; i < pages_total(q) / 2; i++)
        take(q);
    /* Free slabs of p that were not given back are p's still. */
    for (uint32_t i = 0; i < half; i++)
        pages_unref(p, ids[i]);
    pages_unreserve(p, half);
    ck_assert(!pages_reserve(q, pages_total(q) / 2));
    pages_trim(p, 10, 0);
    pages_trim(p, 20, 5);
    ck_assert(pages_reserve(q, pages_total(q) / 4));
    for (uint32_t i = 0; i < pages_total(q); i++)
        while (pages_refs(q, i) > 0)
            pages_unref(q, i);
    free(ids);
    pages_free(p);
    pages_free(q);
    arena_free(a);
}
END_TEST

START_TEST(append_copies_a_shared_last_page)
{
    const size_t page = 4096;
    struct arena *a = make_arena(16 * MIB, page);
    struct pages *p = make_pool(a, page);
    struct block_table t, u;
    block_table_init(&t, p);
    while (!block_table_append(&t, 40))
        nanosleep(&(struct timespec){0, 100000}, NULL);
    ck_assert_uint_eq(t.n_pages, 2);
    memset(pages_at(p, t.ids[1]), 7, page);
    block_table_fork(&u, &t);
    ck_assert_uint_eq(pages_refs(p, t.ids[0]), 2);
    uint32_t shared = t.ids[1];
    ck_assert(block_table_append(&u, 1));
    ck_assert_uint_eq(u.ids[0], t.ids[0]);
    ck_assert_uint_ne(u.ids[1], shared);
    ck_assert_uint_eq(t.ids[1], shared);
    ck_assert_uint_eq(pages_refs(p, shared), 1);
    ck_assert_int_eq(memcmp(pages_at(p, u.ids[1]), pages_at(p, shared), page), 0);
    /* Its own again: the next append of either copies nothing. */
    struct pages_counts c;
    ck_assert(block_table_append(&t, 1));
    ck_assert(block_table_append(&u, 1));
    pages_counts(p, &c);
    ck_assert_uint_eq(c.copied, 1);
    ck_assert_uint_eq(t.ids[1], shared);
    block_table_release(&t);
    block_table_release(&u);
    pages_free(p);
    arena_free(a);
}
END_TEST

START_TEST(truncate_never_touches_a_shared_page)
{
    const size_t page = 4096;
    struct arena *a = make_arena(16 * MIB, page);
    struct pages *p = make_pool(a, page);
    struct block_table t, u;
    block_table_init(&t, p);
    while (!block_table_append(&t, 100))
        nanosleep(&(struct timespec){0, 100000}, NULL);
    for (int i = 0; i < 4; i++)
        memset(pages_at(p, t.ids[i]), 1 + i, page);
    block_table_fork(&u, &t);
    block_table_truncate(&u, 70);
    ck_assert_uint_eq(u.n_pages, 3);
    ck_assert_uint_eq(u.ids[2], t.ids[2]); /* still shared, nothing copied */
    block_table_truncate(&u, 33);
    ck_assert_uint_eq(u.n_pages, 2);
    ck_assert_uint_eq(pages_refs(p, t.ids[2]), 1);
    ck_assert_uint_eq(pages_refs(p, t.ids[1]), 2);
    ck_assert(block_table_append(&u, 1)); /* this is what copies */
    memset(pages_at(p, u.ids[1]), 99, page);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(((unsigned char *)pages_at(p, t.ids[i]))[page - 1], 1 + i);
    block_table_truncate(&u, 0);
    ck_assert_uint_eq(u.n_pages, 0);
    block_table_release(&u);
    ck_assert_uint_eq(pages_refs(p, t.ids[0]), 1);
    block_table_release(&t);
    pages_free(p);
    arena_free(a);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pages");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, slab_sizes);
    tcase_add_test(tc, a_limit_under_four_slabs_is_refused);
    tcase_add_test(tc, every_page_of_the_limit_can_be_taken);
    tcase_add_test(tc, memory_follows_use_not_promises);
    tcase_add_test(tc, empty_slabs_go_back);
    tcase_add_test(tc, pools_share_the_limit);
    tcase_add_test(tc, append_copies_a_shared_last_page);
    tcase_add_test(tc, truncate_never_touches_a_shared_page);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
