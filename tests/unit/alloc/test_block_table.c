/* Block tables against an oracle: each table is an array of the values written at its positions;
 * random append, write, fork, truncate and release; after every operation the pages show exactly
 * the oracle's values and the pool's references are those that the tables hold. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/block_table.h"
#include "tests/check_main.h"

#define TABLES 8
#define LONGEST 300u
#define PAGE_BYTES 4096u
#define OPERATIONS 20000

struct model {
    bool live;
    uint32_t n;
    uint32_t values[LONGEST];
    struct block_table table;
};

static uint64_t seed = 20261129;

static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* The place of a position's value inside its page: the bytes of a position are spread as a real
 * page's are. */
static uint32_t *value_at(struct block_table *t, uint32_t position)
{
    uint32_t *page = pages_at(t->pool, t->ids[position / BLOCK_POSITIONS]);
    return page + position % BLOCK_POSITIONS * (PAGE_BYTES / 4 / BLOCK_POSITIONS);
}

static void compare(struct pages *pool, struct model *models)
{
    static uint32_t refs[4096];
    uint32_t used = 0;
    struct pages_counts counts;
    memset(refs, 0, sizeof(refs));
    for (int m = 0; m < TABLES; m++) {
        if (!models[m].live)
            continue;
        struct block_table *t = &models[m].table;
        ck_assert_uint_eq(t->n_positions, models[m].n);
        ck_assert_uint_eq(t->n_pages, block_pages_for(models[m].n));
        for (uint32_t i = 0; i < models[m].n; i++)
            ck_assert_uint_eq(*value_at(t, i), models[m].values[i]);
        for (uint32_t i = 0; i < t->n_pages; i++)
            used += refs[t->ids[i]]++ == 0;
        for (uint32_t i = 0; i < t->n_pages; i++)
            ck_assert_uint_ge(pages_refs(pool, t->ids[i]), refs[t->ids[i]]);
    }
    for (int m = 0; m < TABLES; m++)
        for (uint32_t i = 0; models[m].live && i < models[m].table.n_pages; i++)
            ck_assert_uint_eq(pages_refs(pool, models[m].table.ids[i]),
                              refs[models[m].table.ids[i]]);
    pages_counts(pool, &counts);
    ck_assert_uint_eq(counts.used, used);
}

static void append(struct model *m)
{
    uint32_t count = random_below(50);
    if (m->n + count > LONGEST)
        count = LONGEST - m->n;
    while (!block_table_append(&m->table, count))
        nanosleep(&(struct timespec){0, 100000}, NULL);
    for (uint32_t i = 0; i < count; i++) {
        m->values[m->n] = random_below(UINT32_MAX);
        *value_at(&m->table, m->n) = m->values[m->n];
        m->n++;
    }
}

START_TEST(tables_agree_with_arrays)
{
    static struct model models[TABLES];
    struct arena *arena = NULL;
    struct pages *pool = NULL;
    struct error err = {0};
    const size_t page = PAGE_BYTES;
    struct arena_options o = {.limit = 16 << 20, .page_bytes = &page, .n_page_bytes = 1};
    ck_assert_int_eq(arena_create(&o, &arena, &err), STATUS_OK);
    ck_assert_int_eq(pages_create(arena, page, &pool, &err), STATUS_OK);
    const int steps = getenv("TOKENRING_VALGRIND") != NULL ? OPERATIONS / 5 : OPERATIONS;
    for (int step = 0; step < steps; step++) {
        struct model *m = &models[random_below(TABLES)];
        uint32_t op = random_below(10);
        if (!m->live) {
            struct model *from = &models[random_below(TABLES)];
            if (from->live && op < 7) {
                m->n = from->n;
                memcpy(m->values, from->values, sizeof(m->values));
                block_table_fork(&m->table, &from->table);
            } else {
                m->n = 0;
                block_table_init(&m->table, pool);
            }
            m->live = true;
        } else if (op < 6) {
            append(m);
        } else if (op < 9) {
            m->n = random_below(m->n + 1);
            block_table_truncate(&m->table, m->n);
        } else {
            block_table_release(&m->table);
            m->live = false;
        }
        if (step % 8 == 0)
            compare(pool, models);
    }
    struct pages_counts counts;
    pages_counts(pool, &counts);
    ck_assert_uint_gt(counts.copied, 100);
    for (int m = 0; m < TABLES; m++)
        if (models[m].live)
            block_table_release(&models[m].table);
    pages_counts(pool, &counts);
    ck_assert_uint_eq(counts.used, 0);
    pages_free(pool);
    arena_free(arena);
}
END_TEST

/* Open pages: appended to with the pages, shared by forks until one writes, dropped when no position of theirs can be
 * written again. */
START_TEST(open_pages)
{
    size_t page = PAGE_BYTES;
    struct arena_options o = {.limit = 16 << 20, .page_bytes = &page, .n_page_bytes = 1};
    struct arena *arena;
    struct pages *pool;
    struct error err = {0};
    struct block_table a, b;
    ck_assert_int_eq(arena_create(&o, &arena, &err), STATUS_OK);
    ck_assert_int_eq(pages_create(arena, page, &pool, &err), STATUS_OK);
    ck_assert_ptr_null(pages_open(pool));
    pages_set_open(pool, 128);
    struct open_pages *open = pages_open(pool);
    ck_assert(pages_reserve(pool, 20));
    while (!pages_want(pool, 20))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    block_table_init(&a, pool);
    ck_assert(block_table_append(&a, 0));
    ck_assert_uint_eq(a.n_open, 0);
    ck_assert(block_table_append(&a, 70));
    ck_assert(a.n_open == 3 && a.open_first == 0 && open->used == 3);
    strcpy(a.open[2], "kept");
    block_table_truncate(&a, 70); /* a step is over */
    ck_assert(a.n_open == 1 && a.open_first == 2 && open->used == 1);
    ck_assert_str_eq(a.open[0], "kept");

    ck_assert(block_table_append(&a, 40)); /* drafts over the end of the page, half of them wrong */
    ck_assert(a.n_open == 2 && a.open_first == 2);
    block_table_truncate(&a, 90);
    ck_assert(a.n_open == 1 && a.open_first == 2);
    ck_assert_str_eq(a.open[0], "kept");

    block_table_fork(&b, &a);
    ck_assert(open->used == 1 && open_page_refs(a.open[0]) == 2 && b.open[0] == a.open[0]);
    ck_assert(block_table_append(&b, 1));
    ck_assert(open->used == 2 && b.open[0] != a.open[0]);
    ck_assert_str_eq(b.open[0], "kept");
    void *own = a.open[0];
    ck_assert(block_table_append(&a, 6)); /* the last one left writes where it is */
    ck_assert_ptr_eq(a.open[0], own);
    block_table_truncate(&a, 96);
    ck_assert(a.n_open == 0 && open->used == 1);
    ck_assert(block_table_append(&a, 1));
    ck_assert(a.n_open == 1 && a.open_first == 3);
    block_table_truncate(&a, 0);
    block_table_adopt(&a, b.ids[0]);
    ck_assert(block_table_append(&a, 32));
    ck_assert(a.n_open == 1 && a.open_first == 1);
    block_table_release(&a);
    block_table_release(&b);
    ck_assert(open->used == 0);
    pages_unreserve(pool, 20);
    pages_free(pool);
    arena_free(arena);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("block_table");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, tables_agree_with_arrays);
    tcase_add_test(tc, open_pages);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
