/* arena_priv.h: how pools (pages.c) get slabs from an arena.
 *
 * Every slab that the limit allows has a slot. Life of a slot:
 *
 *      FREE --arena_claim (owner)--> WANTED --populated (helper)--> READY --arena_collect (owner)--> OWNED
 *        ^---------- given back to jemalloc (helper) ---------- RETURNING <--arena_return (owner)-----/
 *
 * The slots are guarded by the arena's mutex; `claimed` belongs to the owner of the pools. */
#ifndef ALLOC_ARENA_PRIV_H
#define ALLOC_ARENA_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/arena.h"
#include "alloc/pages.h"

#define SLAB_NONE UINT32_MAX

/* What the helper knows of a pool; part of struct pages. Guarded by the mutex but for the atomics. */
struct arena_client {
    struct arena_client *next;
    pages_wake_fn wake;
    void *wake_data;
    _Atomic bool waits;       /* set by the owner when it found too little, cleared by the helper */
    _Atomic uint32_t n_ready; /* slots READY for this pool */
};

/* Adds a pool to, takes it out of the arena's list. */
void arena_attach(struct arena *arena, struct arena_client *client);
void arena_detach(struct arena *arena, struct arena_client *client);
void arena_set_wake(struct arena *arena, struct arena_client *client, pages_wake_fn wake,
                    void *data);

size_t arena_slab_size(const struct arena *arena);
uint32_t arena_slabs_max(const struct arena *arena);

/* Accounting of promises in slabs: true, and `more` slabs claimed, if the limit allows them.
 * Negative gives back. */
bool arena_account(struct arena *arena, int64_t more);

/* Asks the helper for one more slab for client. False if no slot is FREE now. */
bool arena_claim(struct arena *arena, struct arena_client *client);
/* The index and address of a slab that became READY for client, now OWNED; SLAB_NONE if there is
 * none. */
uint32_t arena_collect(struct arena *arena, struct arena_client *client, void **base);
/* Gives an OWNED slab (not poisoned) back through the helper. */
void arena_return(struct arena *arena, uint32_t slab);
/* Waits until the helper has nothing to do (for pages_free and arena_free). */
void arena_settle(struct arena *arena);

#endif
