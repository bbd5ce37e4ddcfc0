#define _GNU_SOURCE
#include "alloc/arena.h"
#include "alloc/arena_priv.h"

#include <errno.h>
#include <jemalloc/jemalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "alloc/poison_priv.h"
#include "core/base/background.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/xalloc.h"

/* Populating a slab takes tens of milliseconds of a CPU, which steps of the model would miss. */
#define HELPER_NICE 5

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* The names that jemalloc.sh gives to mallocx and its family. */
void *jemalloc_mallocx(size_t size, int flags);
void jemalloc_dallocx(void *ptr, int flags);
size_t jemalloc_nallocx(size_t size, int flags);
int jemalloc_mallctl(const char *name, void *old, size_t *old_len, void *new, size_t new_len);

#define MIB ((size_t)1 << 20)
#define HUGE_PAGE (2 * MIB)
#define SLAB_BEST (32 * MIB)
#define LARGE_PAD ((size_t)4096) /* jemalloc adds one page to every large block (cache_oblivious) */
#define RETRY_MS 100             /* the helper's pause after the system refused memory */

enum slot_state { SLOT_FREE, SLOT_WANTED, SLOT_READY, SLOT_OWNED, SLOT_RETURNING };

struct slot {
    enum slot_state state;
    void *base;
    struct arena_client *client;
};

struct arena {
    extent_hooks_t hooks; /* first: the hooks find the arena by it */
    size_t limit;
    size_t slab_bytes;
    size_t cut; /* address space a slab takes: slab and pad, rounded up to 2 MiB */
    uint32_t n_slots;
    int64_t claimed; /* owner's: slabs promised or held, all pools */

    unsigned char *base; /* the reservation, 2-MiB aligned */
    size_t reserved;
    void *mapping; /* what mmap returned, for munmap */
    size_t mapping_bytes;
    _Atomic size_t next; /* offset of the next cut */
    unsigned index;      /* jemalloc's number of the arena */

    pthread_mutex_t mutex;
    pthread_cond_t work; /* a slot became WANTED or RETURNING, or stop */
    pthread_cond_t idle; /* the helper found nothing to do */
    struct slot *slots;
    struct arena_client *clients;
    _Atomic uint32_t n_existing; /* slabs allocated from jemalloc */
    bool busy;
    bool stop;
    pthread_t helper;
};

/* The struct that experimental.arenas_create_ext takes; jemalloc 5.3 does not put it in its public
 * header. */
struct arena_config {
    extent_hooks_t *extent_hooks;
    bool metadata_use_hooks;
};

/* ---- extent hooks: called under jemalloc's locks, so they allocate and log nothing ---- */

static bool make_usable(void *addr, size_t size)
{
    if (mprotect(addr, size, PROT_READ | PROT_WRITE) != 0)
        return false;
    (void)madvise(addr, size, MADV_HUGEPAGE);
    return true;
}

/* Extents larger than a slab are refused: jemalloc first asks for the next size class, then for
 * exactly enough. */
static void *hook_alloc(extent_hooks_t *hooks, void *new_addr, size_t size, size_t alignment,
                        bool *zero, bool *commit, unsigned index)
{
    struct arena *a = (struct arena *)hooks;
    (void)index;
    if (new_addr != NULL || size > a->slab_bytes + LARGE_PAD || alignment > HUGE_PAGE)
        return NULL;
    size_t at = atomic_fetch_add(&a->next, a->cut);
    if (at + a->cut > a->reserved) {
        atomic_fetch_sub(&a->next, a->cut);
        return NULL;
    }
    if (!make_usable(a->base + at, size))
        return NULL;
    *zero = true;
    *commit = true;
    return a->base + at;
}

/* Refused: the address space stays with jemalloc, which decommits it and uses it again. */
static bool hook_dalloc(extent_hooks_t *hooks, void *addr, size_t size, bool committed,
                        unsigned index)
{
    (void)hooks, (void)addr, (void)size, (void)committed, (void)index;
    return true;
}

static bool hook_commit(extent_hooks_t *hooks, void *addr, size_t size, size_t offset,
                        size_t length, unsigned index)
{
    (void)hooks, (void)size, (void)index;
    return !make_usable((char *)addr + offset, length);
}

static bool hook_decommit(extent_hooks_t *hooks, void *addr, size_t size, size_t offset,
                          size_t length, unsigned index)
{
    (void)hooks, (void)size, (void)index;
    return mmap((char *)addr + offset, length, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED;
}

static bool hook_split(extent_hooks_t *hooks, void *addr, size_t size, size_t a, size_t b,
                       bool committed, unsigned index)
{
    (void)hooks, (void)addr, (void)size, (void)a, (void)b, (void)committed, (void)index;
    return false;
}

static bool hook_merge(extent_hooks_t *hooks, void *a, size_t size_a, void *b, size_t size_b,
                       bool committed, unsigned index)
{
    (void)hooks, (void)a, (void)size_a, (void)b, (void)size_b, (void)committed, (void)index;
    return false;
}

/* ---- the helper thread ---- */

/* Touches every byte's page, so that no later access faults. In pieces: a call keeps the lock of the
 * address space, for which others would wait while this thread has no CPU. */
static void populate(unsigned char *base, size_t size)
{
    size_t at = 0;
    while (at < size && madvise(base + at, size - at < HUGE_PAGE ? size - at : HUGE_PAGE,
                                MADV_POPULATE_WRITE) == 0)
        at += HUGE_PAGE;
    for (; at < size; at += 4096)
        ((volatile unsigned char *)base)[at] = 0;
}

static void *slab_new(struct arena *a)
{
    /* The alignment keeps jemalloc from moving the start by a random offset within its pad, away
     * from the border of the huge page. */
    unsigned char *base = jemalloc_mallocx(
        a->slab_bytes, MALLOCX_ARENA(a->index) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(4096));
    if (base == NULL)
        return NULL;
    unpoison(base, a->slab_bytes);
    populate(base, a->slab_bytes);
    atomic_fetch_add(&a->n_existing, 1);
    return base;
}

static void slab_delete(struct arena *a, void *base)
{
    jemalloc_dallocx(base, MALLOCX_ARENA(a->index) | MALLOCX_TCACHE_NONE);
    atomic_fetch_sub(&a->n_existing, 1);
}

/* Wakes every pool that waits; the mutex is held, so that arena_set_wake can rely on it. */
static void wake_clients(struct arena *a)
{
    for (struct arena_client *c = a->clients; c != NULL; c = c->next)
        if (atomic_exchange(&c->waits, false) && c->wake != NULL)
            c->wake(c->wake_data);
}

static struct slot *find_work(struct arena *a)
{
    struct slot *wanted = NULL;
    for (uint32_t i = 0; i < a->n_slots; i++) {
        if (a->slots[i].state == SLOT_RETURNING)
            return &a->slots[i];
        if (a->slots[i].state == SLOT_WANTED && wanted == NULL)
            wanted = &a->slots[i];
    }
    return wanted;
}

/* Does one slot's work; called and left with the mutex held, which is open meanwhile. Only this
 * thread leaves the states WANTED and RETURNING, so the slot cannot change. False if the system
 * refused memory. */
static bool do_work(struct arena *a, struct slot *slot)
{
    bool wanted = slot->state == SLOT_WANTED;
    void *base = slot->base;
    pthread_mutex_unlock(&a->mutex);
    if (wanted)
        base = slab_new(a);
    else
        slab_delete(a, base);
    pthread_mutex_lock(&a->mutex);
    if (wanted && base == NULL)
        return false;
    slot->base = wanted ? base : NULL;
    slot->state = wanted ? SLOT_READY : SLOT_FREE;
    if (wanted)
        atomic_fetch_add(&slot->client->n_ready, 1);
    wake_clients(a);
    return true;
}

static void pause_after_refusal(struct arena *a)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += RETRY_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&a->work, &a->mutex, &until);
}

static void *helper_main(void *data)
{
    struct arena *a = data;
    bool complained = false;
    (void)background_enter(HELPER_NICE);
    pthread_mutex_lock(&a->mutex);
    while (!a->stop) {
        struct slot *slot = find_work(a);
        a->busy = slot != NULL;
        if (slot == NULL) {
            pthread_cond_broadcast(&a->idle);
            pthread_cond_wait(&a->work, &a->mutex);
        } else if (!do_work(a, slot)) {
            if (!complained)
                log_warn(
                    "arena: the system refused a slab of %zu bytes (%u of %u exist); trying again",
                    a->slab_bytes, atomic_load(&a->n_existing), a->n_slots);
            complained = true;
            pause_after_refusal(a);
        } else {
            complained = false;
        }
    }
    a->busy = false;
    pthread_cond_broadcast(&a->idle);
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

/* ---- creation ---- */

size_t arena_slab_bytes(size_t limit, const size_t *page_bytes, unsigned n_page_bytes)
{
    size_t size = limit / 16 < SLAB_BEST ? limit / 16 : SLAB_BEST;
    if (size < HUGE_PAGE)
        size = HUGE_PAGE;
    for (; size <= limit; size++) {
        size = jemalloc_nallocx(size, 0);
        bool fits = size != 0 && size <= limit;
        for (unsigned i = 0; i < n_page_bytes && fits; i++)
            fits = size >= page_bytes[i] && size % page_bytes[i] <= size / 100 * 3;
        if (fits)
            return size;
        if (size == 0)
            return 0;
    }
    return 0;
}

static enum status control_failed(struct error *err, const char *name, int code)
{
    return error_set(err, STATUS_INTERNAL, "jemalloc refused %s: %s", name, strerror(code));
}

static enum status set_u64(struct arena *a, const char *what, void *value, size_t size,
                           struct error *err)
{
    char name[64];
    snprintf(name, sizeof(name), "arena.%u.%s", a->index, what);
    int code = jemalloc_mallctl(name, NULL, NULL, value, size);
    return code == 0 ? STATUS_OK : control_failed(err, name, code);
}

static enum status create_in_jemalloc(struct arena *a, struct error *err)
{
    a->hooks = (extent_hooks_t){.alloc = hook_alloc,
                                .dalloc = hook_dalloc,
                                .commit = hook_commit,
                                .decommit = hook_decommit,
                                .split = hook_split,
                                .merge = hook_merge};
    struct arena_config config = {&a->hooks, false};
    size_t len = sizeof(a->index);
    int code = jemalloc_mallctl("experimental.arenas_create_ext", &a->index, &len, &config,
                                sizeof(config));
    if (code != 0)
        return control_failed(err, "experimental.arenas_create_ext", code);
    ssize_t now = 0;
    enum status status = set_u64(a, "dirty_decay_ms", &now, sizeof(now), err);
    if (status == STATUS_OK)
        status = set_u64(a, "muzzy_decay_ms", &now, sizeof(now), err);
    if (status == STATUS_OK)
        status = set_u64(a, "retain_grow_limit", &a->slab_bytes, sizeof(a->slab_bytes), err);
    return status;
}

static enum status reserve(struct arena *a, struct error *err)
{
    a->cut = (a->slab_bytes + LARGE_PAD + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    a->reserved = a->cut * a->n_slots;
    a->mapping_bytes = a->reserved + HUGE_PAGE;
    a->mapping =
        mmap(NULL, a->mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->mapping == MAP_FAILED)
        return error_set(err, STATUS_NO_MEMORY,
                         "cannot reserve %zu bytes of address space for the KV arena: %s",
                         a->mapping_bytes, strerror(errno));
    size_t misfit = (size_t)((uintptr_t)a->mapping % HUGE_PAGE);
    a->base = (unsigned char *)a->mapping + (misfit == 0 ? 0 : HUGE_PAGE - misfit);
    return STATUS_OK;
}

static void release(struct arena *a)
{
    if (a->mapping != NULL && a->mapping != MAP_FAILED)
        munmap(a->mapping, a->mapping_bytes);
    free(a->slots);
    free(a);
}

enum status arena_create(const struct arena_options *options, struct arena **arena,
                         struct error *err)
{
    size_t largest = 0;
    for (unsigned i = 0; i < options->n_page_bytes; i++) {
        check(options->page_bytes[i] > 0 && options->page_bytes[i] % 64 == 0);
        largest = options->page_bytes[i] > largest ? options->page_bytes[i] : largest;
    }
    size_t slab = arena_slab_bytes(options->limit, options->page_bytes, options->n_page_bytes);
    if (slab == 0 || options->limit / slab < 4)
        return error_set(
            err, STATUS_NO_MEMORY,
            "the KV memory of %zu bytes is too small: it must hold 4 slabs of %zu bytes (pages of "
            "%zu bytes)",
            options->limit, slab == 0 ? (largest > HUGE_PAGE ? largest : HUGE_PAGE) : slab,
            largest);
    struct arena *a = xcalloc(1, sizeof(*a));
    a->limit = options->limit;
    a->slab_bytes = slab;
    a->n_slots =
        (uint32_t)(options->limit / slab < UINT32_MAX / 2 ? options->limit / slab : UINT32_MAX / 2);
    a->slots = xcalloc(a->n_slots, sizeof(*a->slots));
    enum status status = reserve(a, err);
    if (status == STATUS_OK)
        status = create_in_jemalloc(a, err);
    if (status != STATUS_OK) {
        release(a);
        return status;
    }
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->work, NULL);
    pthread_cond_init(&a->idle, NULL);
    check(pthread_create(&a->helper, NULL, helper_main, a) == 0);
    *arena = a;
    return STATUS_OK;
}

void arena_free(struct arena *a)
{
    if (a == NULL)
        return;
    check(a->clients == NULL);
    arena_settle(a);
    pthread_mutex_lock(&a->mutex);
    a->stop = true;
    pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->mutex);
    pthread_join(a->helper, NULL);
    for (uint32_t i = 0; i < a->n_slots; i++)
        check(a->slots[i].state == SLOT_FREE);
    char name[64];
    snprintf(name, sizeof(name), "arena.%u.destroy", a->index);
    check(jemalloc_mallctl(name, NULL, NULL, NULL, 0) == 0);
    pthread_mutex_destroy(&a->mutex);
    pthread_cond_destroy(&a->work);
    pthread_cond_destroy(&a->idle);
    release(a);
}

/* ---- for the pools ---- */

void arena_attach(struct arena *a, struct arena_client *client)
{
    pthread_mutex_lock(&a->mutex);
    client->next = a->clients;
    a->clients = client;
    pthread_mutex_unlock(&a->mutex);
}

void arena_detach(struct arena *a, struct arena_client *client)
{
    pthread_mutex_lock(&a->mutex);
    struct arena_client **at = &a->clients;
    while (*at != client)
        at = &(*at)->next;
    *at = client->next;
    pthread_mutex_unlock(&a->mutex);
}

void arena_set_wake(struct arena *a, struct arena_client *client, pages_wake_fn wake, void *data)
{
    pthread_mutex_lock(&a->mutex);
    client->wake = wake;
    client->wake_data = data;
    pthread_mutex_unlock(&a->mutex);
}

size_t arena_slab_size(const struct arena *a)
{
    return a->slab_bytes;
}

uint32_t arena_slabs_max(const struct arena *a)
{
    return a->n_slots;
}

bool arena_account(struct arena *a, int64_t more)
{
    if (more > 0 && a->claimed + more > (int64_t)a->n_slots)
        return false;
    a->claimed += more;
    check(a->claimed >= 0);
    return true;
}

bool arena_claim(struct arena *a, struct arena_client *client)
{
    bool found = false;
    pthread_mutex_lock(&a->mutex);
    for (uint32_t i = 0; i < a->n_slots && !found; i++) {
        if (a->slots[i].state != SLOT_FREE)
            continue;
        a->slots[i].state = SLOT_WANTED;
        a->slots[i].client = client;
        a->busy = true;
        found = true;
        pthread_cond_signal(&a->work);
    }
    pthread_mutex_unlock(&a->mutex);
    return found;
}

uint32_t arena_collect(struct arena *a, struct arena_client *client, void **base)
{
    uint32_t found = SLAB_NONE;
    if (atomic_load(&client->n_ready) == 0)
        return found;
    pthread_mutex_lock(&a->mutex);
    for (uint32_t i = 0; i < a->n_slots && found == SLAB_NONE; i++) {
        if (a->slots[i].state != SLOT_READY || a->slots[i].client != client)
            continue;
        a->slots[i].state = SLOT_OWNED;
        *base = a->slots[i].base;
        atomic_fetch_sub(&client->n_ready, 1);
        found = i;
    }
    pthread_mutex_unlock(&a->mutex);
    return found;
}

void arena_return(struct arena *a, uint32_t slab)
{
    pthread_mutex_lock(&a->mutex);
    check(a->slots[slab].state == SLOT_OWNED);
    a->slots[slab].state = SLOT_RETURNING;
    a->busy = true;
    pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->mutex);
}

void arena_settle(struct arena *a)
{
    pthread_mutex_lock(&a->mutex);
    while (a->busy)
        pthread_cond_wait(&a->idle, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
}

/* ---- figures ---- */

static uint64_t read_figure(const struct arena *a, const char *what)
{
    char name[64];
    size_t value = 0, len = sizeof(value);
    snprintf(name, sizeof(name), "stats.arenas.%u.%s", a->index, what);
    check(jemalloc_mallctl(name, &value, &len, NULL, 0) == 0);
    return value;
}

void arena_figures(struct arena *a, struct arena_figures *f)
{
    uint64_t epoch = 1;
    size_t len = sizeof(epoch);
    check(jemalloc_mallctl("epoch", &epoch, &len, &epoch, sizeof(epoch)) == 0);
    *f = (struct arena_figures){
        .limit = a->limit,
        .slab_bytes = a->slab_bytes,
        .slabs = atomic_load(&a->n_existing),
        .slabs_max = a->n_slots,
        .large_allocated = read_figure(a, "large.allocated"),
        .mapped = read_figure(a, "mapped"),
        .resident = read_figure(a, "resident"),
        .retained = read_figure(a, "retained"),
    };
}
