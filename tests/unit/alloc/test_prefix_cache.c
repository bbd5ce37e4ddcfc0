/* The prefix cache against an oracle: made-up texts over a small alphabet are looked up, computed,
 * kept and let go at random, under little memory. The bytes of a page are made from the text that it
 * ends, so a page under a wrong text shows; after every operation pages in use, idle and promised
 * are those that the texts say. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/prefix_cache.h"
#include "tests/check_main.h"

#define PAGE_BYTES 262144u /* 4 slabs of 2 MiB hold 32 of them */
#define TEXTS 6
#define DEEPEST 6u
#define OPERATIONS 20000

static const unsigned char key[16] = "sixteen bytes...";
static uint64_t seed = 20261129;
static struct arena *arena;
static struct pages *pool;
static struct prefix_cache *cache;

static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static void init(void)
{
    struct error err = {0};
    size_t page = PAGE_BYTES;
    struct arena_options o = {.limit = 8 << 20, .page_bytes = &page, .n_page_bytes = 1};
    ck_assert(arena_create(&o, &arena, &err) == STATUS_OK);
    ck_assert(pages_create(arena, page, &pool, &err) == STATUS_OK);
    cache = prefix_cache_create(pool, key);
}

static void release(void)
{
    struct pages_counts counts;
    prefix_cache_free(cache);
    pages_counts(pool, &counts);
    ck_assert_uint_eq(counts.used + counts.idle + counts.reserved, 0);
    pages_free(pool);
    arena_free(arena);
}

static uint32_t take(void)
{
    uint32_t id;
    for (int i = 0; i < 5000; i++) {
        if (pages_take(pool, &id))
            return id;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    ck_abort_msg("no page for 5 s");
}

/* A text of full pages: page k's tokens are all `letters[k]`. Texts of different salts differ. */
struct text {
    bool live;
    uint32_t salt, n, letters[DEEPEST];
    struct block_table table;
    struct prefix_entry *entry;
};

static void tokens_of(uint32_t letter, uint32_t tokens[BLOCK_POSITIONS])
{
    for (uint32_t i = 0; i < BLOCK_POSITIONS; i++)
        tokens[i] = letter;
}

/* What is written into page k of a text. */
static uint64_t content(const struct text *t, uint32_t k)
{
    uint64_t x = t->salt + 1;
    for (uint32_t i = 0; i <= k; i++)
        x = x * 1000003 + t->letters[i] + 1;
    return x;
}

static struct siphash root_of(const struct text *t)
{
    return prefix_cache_root(cache, &t->salt, sizeof(t->salt));
}

/* Computes a text, taking from the cache what is there; false if the memory is promised away. */
static bool begin(struct text *t, unsigned priority, uint64_t now)
{
    struct siphash hash[DEEPEST], before = root_of(t);
    uint32_t tokens[BLOCK_POSITIONS], hits = 0, idle = 0;
    struct prefix_entry *e, *last = NULL;
    for (uint32_t k = 0; k < t->n; k++) {
        tokens_of(t->letters[k], tokens);
        before = hash[k] = prefix_cache_next(cache, before, tokens);
        if (hits == k && (e = prefix_cache_find(cache, last, before, tokens)) != NULL) {
            idle += pages_idle(pool, prefix_entry_page(e));
            last = e;
            hits++;
        }
    }
    if (!pages_reserve(pool, t->n - hits + idle))
        return false;
    block_table_init(&t->table, pool);
    t->entry = NULL;
    for (uint32_t k = 0; k < t->n; k++) {
        tokens_of(t->letters[k], tokens);
        if (k < hits) {
            e = prefix_cache_find(cache, t->entry, hash[k], tokens);
            ck_assert_ptr_nonnull(e);
            block_table_adopt(&t->table, prefix_entry_page(e));
        } else {
            ck_assert_ptr_null(prefix_cache_find(cache, t->entry, hash[k], tokens));
            while (!block_table_append(&t->table, BLOCK_POSITIONS))
                nanosleep(&(struct timespec){0, 1000000}, NULL);
            uint64_t *at = pages_at(pool, t->table.ids[k]);
            ck_assert(*at == 0);
            *at = content(t, k);
            e = prefix_cache_add(cache, t->entry, hash[k], tokens, t->table.ids[k], priority, now);
        }
        t->entry = e;
    }
    t->live = true;
    return true;
}

static void end(struct text *t, unsigned priority, uint64_t now)
{
    prefix_cache_touch(cache, t->entry, priority, now);
    block_table_release(&t->table);
    t->live = false;
}

static void compare(const struct text *texts)
{
    static bool used[64];
    struct pages_counts counts;
    struct prefix_counts cached;
    uint32_t n_used = 0;
    memset(used, 0, sizeof(used));
    for (int i = 0; i < TEXTS; i++) {
        for (uint32_t k = 0; texts[i].live && k < texts[i].n; k++) {
            uint32_t id = texts[i].table.ids[k];
            ck_assert(*(uint64_t *)pages_at(pool, id) == content(&texts[i], k));
            n_used += !used[id];
            used[id] = true;
        }
    }
    pages_counts(pool, &counts);
    prefix_cache_counts(cache, &cached);
    ck_assert_uint_eq(counts.used, n_used);
    ck_assert_uint_eq(counts.reserved, n_used); /* each page in use once, whoever holds it */
    ck_assert_uint_eq(counts.used + counts.idle, cached.entries);
    ck_assert_uint_le(cached.entries, pages_total(pool));
}

START_TEST(random_texts_agree_with_the_oracle)
{
    static struct text texts[TEXTS];
    uint64_t began = 0, found = 0;
    init();
    for (uint64_t step = 1; step <= OPERATIONS; step++) {
        struct text *t = &texts[random_below(TEXTS)];
        unsigned priority = random_below(PREFIX_PRIORITIES);
        if (t->live) {
            end(t, priority, step);
        } else {
            t->salt = random_below(2);
            t->n = 1 + random_below(DEEPEST);
            for (uint32_t k = 0; k < t->n; k++)
                t->letters[k] = random_below(2);
            struct pages_counts before, after;
            pages_counts(pool, &before);
            if (begin(t, priority, step)) {
                pages_counts(pool, &after);
                began += t->n;
                found += t->n - (after.taken - before.taken);
            }
        }
        if (random_below(50) == 0)
            prefix_cache_evict(cache, random_below(4));
        if (random_below(200) == 0)
            prefix_cache_expire(cache, step, random_below(40));
        compare(texts);
    }
    ck_assert_uint_gt(found, began / 10); /* it does find things */
    struct prefix_counts counts;
    prefix_cache_counts(cache, &counts);
    ck_assert_uint_gt(counts.evicted, 100);
    ck_assert_uint_gt(counts.expired, 100);
    for (int i = 0; i < TEXTS; i++)
        if (texts[i].live)
            end(&texts[i], 0, OPERATIONS);
    release();
}
END_TEST

/* Makes a text of n pages that begins with `letters`, and lets it go. */
static void use(const char *letters, unsigned priority, uint64_t now)
{
    struct text t = {.n = (uint32_t)strlen(letters)};
    for (uint32_t k = 0; k < t.n; k++)
        t.letters[k] = (unsigned char)letters[k];
    ck_assert(begin(&t, priority, now));
    end(&t, priority, now);
}

/* How many pages of it are in the cache; *why: what is behind them. */
static uint32_t depth(const char *letters, enum prefix_miss *why)
{
    struct prefix_entry *e = NULL;
    struct text none = {0};
    struct siphash hash = root_of(&none);
    uint32_t tokens[BLOCK_POSITIONS], n = 0;
    for (; letters[n] != '\0'; n++) {
        tokens_of((unsigned char)letters[n], tokens);
        hash = prefix_cache_next(cache, hash, tokens);
        struct prefix_entry *next = prefix_cache_find(cache, e, hash, tokens);
        if (next == NULL) {
            *why = prefix_cache_why(cache, e, hash);
            return n;
        }
        e = next;
    }
    *why = PREFIX_WHOLE;
    return n;
}

START_TEST(the_oldest_leaf_goes_first)
{
    enum prefix_miss why;
    init();
    use("abc", 0, 1);
    use("abd", 0, 2);
    use("x", 0, 3);
    ck_assert_uint_eq(prefix_cache_evict(cache, 1), 1);
    ck_assert_uint_eq(depth("abc", &why), 2);
    ck_assert_int_eq(why, PREFIX_EVICTED);
    ck_assert_uint_eq(prefix_cache_evict(cache, 1), 1);
    ck_assert_uint_eq(depth("abd", &why), 2);
    ck_assert_uint_eq(prefix_cache_evict(cache, 2), 2); /* b, then a; x is younger */
    ck_assert_uint_eq(depth("ab", &why), 0);
    ck_assert_uint_eq(depth("x", &why), 1);
    ck_assert_uint_eq(depth("y", &why), 0);
    ck_assert_int_eq(why, PREFIX_NEW);
    ck_assert_uint_eq(depth("xy", &why), 1);
    ck_assert_int_eq(why, PREFIX_DIVERGED);
    release();
}
END_TEST

START_TEST(low_priority_goes_first)
{
    enum prefix_miss why;
    init();
    use("ab", 5, 1);
    use("xy", 1, 2);
    prefix_cache_evict(cache, 2);
    ck_assert_uint_eq(depth("ab", &why), 2);
    ck_assert_uint_eq(depth("xy", &why), 0);
    use("xy", 1, 3);
    use("ac", 9, 4); /* a is as important as its most important use */
    prefix_cache_evict(cache, 3);
    ck_assert_uint_eq(depth("ac", &why), 2);
    ck_assert_uint_eq(depth("ab", &why), 1);
    ck_assert_uint_eq(depth("xy", &why), 0);
    release();
}
END_TEST

START_TEST(idle_time_ends_and_use_renews)
{
    enum prefix_miss why;
    init();
    use("ab", 0, 100);
    use("x", 9, 100);
    use("a", 0, 150);
    ck_assert_uint_eq(prefix_cache_expire(cache, 199, 100), 0);
    ck_assert_uint_eq(prefix_cache_expire(cache, 200, 100), 2);
    ck_assert_uint_eq(depth("ab", &why), 1);
    ck_assert_uint_eq(prefix_cache_expire(cache, 250, 100), 1);
    release();
}
END_TEST

START_TEST(what_is_in_use_stays)
{
    struct text t = {.n = 3, .letters = {'a', 'b', 'c'}};
    enum prefix_miss why;
    init();
    ck_assert(begin(&t, 0, 1));
    use("abcd", 0, 2);
    use("ax", 0, 3);
    ck_assert_uint_eq(prefix_cache_evict(cache, 100), 2);
    ck_assert_uint_eq(prefix_cache_expire(cache, 1000, 1), 0);
    ck_assert_uint_eq(depth("abcd", &why), 3);
    ck_assert_uint_eq(depth("ax", &why), 1);
    end(&t, 0, 4);
    ck_assert_uint_eq(prefix_cache_evict(cache, 100), 3);
    release();
}
END_TEST

START_TEST(cached_pages_are_free_memory)
{
    enum prefix_miss why;
    char letters[2] = "A";
    init();
    uint32_t total = pages_total(pool), ids[64];
    ck_assert_uint_le(total, 64);
    for (uint32_t i = 0; i < total; i++, letters[0]++)
        use(letters, 0, i + 1);
    ck_assert_uint_eq(depth("A", &why), 1);
    ck_assert(pages_reserve(pool, total));
    for (uint32_t i = 0; i < total; i++)
        ids[i] = take();
    ck_assert_uint_eq(depth("A", &why), 0);
    ck_assert_int_eq(why, PREFIX_EVICTED);
    for (uint32_t i = 0; i < total; i++)
        pages_unref(pool, ids[i]);
    pages_unreserve(pool, total);
    release();
}
END_TEST

CHECK_MAIN("prefix cache", random_texts_agree_with_the_oracle, the_oldest_leaf_goes_first,
           low_priority_goes_first, idle_time_ends_and_use_renews, what_is_in_use_stays,
           cached_pages_are_free_memory)
