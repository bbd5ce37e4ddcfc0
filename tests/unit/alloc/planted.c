/* planted.c WHAT: commits one planted mistake, which a checker must report.
 *
 *   read     reads a page after its last unref        (AddressSanitizer, valgrind)
 *   beyond   reads behind the last page of a slab     (AddressSanitizer, valgrind)
 *   leak     loses a block of malloc                  (LeakSanitizer, valgrind): shows that jemalloc in the
 *            program does not hide malloc from the checker
 *   none     uses and frees everything properly
 *
 * Prints "done" at the end. Not a test by itself: test_planted.sh runs it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/pages.h"
#include "core/base/check.h"

/* Leaves nothing behind in registers or on the stack that points to the block. */
static __attribute__((noinline)) void lose_a_block(void)
{
    char *volatile block = malloc(12345);
    block[0] = 1;
    block = NULL;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "none";
    const size_t page = 40960;
    struct arena *arena = NULL;
    struct pages *pool = NULL;
    struct error err = {0};
    struct arena_options o = {.limit = 16 << 20, .page_bytes = &page, .n_page_bytes = 1};
    check(arena_create(&o, &arena, &err) == STATUS_OK);
    check(pages_create(arena, page, &pool, &err) == STATUS_OK);
    uint32_t id;
    while (!pages_take(pool, &id))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    volatile unsigned char *bytes = pages_at(pool, id);
    memset(pages_at(pool, id), 1, page);
    unsigned sum = bytes[100];
    size_t per_slab = arena_slab_bytes(o.limit, &page, 1) / page;
    if (strcmp(what, "beyond") == 0)
        sum += bytes[per_slab * page];
    pages_unref(pool, id);
    if (strcmp(what, "read") == 0)
        sum += bytes[100];
    if (strcmp(what, "leak") == 0)
        lose_a_block();
    pages_free(pool);
    arena_free(arena);
    printf("done %u\n", sum);
    return 0;
}
