/* arena.h: big blocks of memory ("slabs") for page pools, supplied by jemalloc within one byte
 * limit.
 *
 *   one PROT_NONE reservation, cut in 2-MiB-aligned pieces by our own extent hooks
 *   +-----------------+----+-----------------+----+-----------------+----+---------
 *   | slab 0          |pad | slab 1          |pad | slab 2          |pad | not cut yet
 *   +-----------------+----+-----------------+----+-----------------+----+---------
 *     |- mallocx(slab size) -|  pad: jemalloc's 4 KiB and what is missing to 2 MiB (address space only)
 *
 * A slab is one mallocx of a jemalloc size class near min(32 MiB, limit / 16): the first class from
 * there on of which no pool wastes more than 3 % behind its last whole page. It belongs to one pool
 * at a time. Memory is anonymous with MADV_HUGEPAGE. A helper thread populates a slab (touches
 * every byte) before anybody sees it, and gives slabs back to the system, so that neither page
 * faults nor munmap happen inside a model step.
 *
 * jemalloc is reached by mallocx, dallocx and mallctl alone: the build links a copy of Debian's
 * static library in which those carry the prefix jemalloc_ and everything else, malloc and free
 * too, is local (jemalloc.sh). So the rest of the program uses libc's malloc in every build, and
 * the sanitizers and valgrind, which replace that malloc, see every block of it. Loading
 * libjemalloc.so.2 by dlopen is no way: it wants more static TLS than glibc keeps free. Under
 * AddressSanitizer and valgrind all of a slab but the pages in use is poisoned (poison_priv.h).
 *
 * Threads: arena_create and arena_free by one thread while no pool exists; arena_figures and the
 * counters by any thread; everything else belongs to the pools (pages.h), whose owner is the
 * scheduler thread. */
#ifndef ALLOC_ARENA_H
#define ALLOC_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/status.h"

struct arena;

struct arena_options {
    size_t limit;             /* bytes for the slabs of all pools together */
    const size_t *page_bytes; /* page size of every pool that will use the arena */
    unsigned n_page_bytes;
};

/* What jemalloc says of the arena, and our own view of it; bytes unless named otherwise. */
struct arena_figures {
    uint64_t limit;
    uint64_t slab_bytes;
    uint64_t slabs;     /* number of slabs that exist now; large_allocated = slabs * slab_bytes */
    uint64_t slabs_max; /* number of slabs that the limit allows */
    uint64_t large_allocated; /* stats.arenas.<i>.large.allocated */
    uint64_t mapped;   /* stats.arenas.<i>.mapped: also 4 KiB a slab and jemalloc's metadata */
    uint64_t resident; /* stats.arenas.<i>.resident */
    uint64_t retained; /* stats.arenas.<i>.retained: address space kept of slabs given back */
};

/* The slab size for a limit and page sizes, 0 when jemalloc has no fitting class within the limit. */
size_t arena_slab_bytes(size_t limit, const size_t *page_bytes, unsigned n_page_bytes);

/* Reserves address space and starts the helper thread; allocates no slab. A limit under 4 slabs is
 * refused (STATUS_NO_MEMORY) with the figures in err. */
enum status arena_create(const struct arena_options *options, struct arena **arena,
                         struct error *err);
/* Stops the helper and unmaps everything; the pools must be freed before. */
void arena_free(struct arena *arena);
/* Reads jemalloc's statistics (a few microseconds; any thread, not on the hot path). */
void arena_figures(struct arena *arena, struct arena_figures *figures);

#endif
