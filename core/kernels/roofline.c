#define _GNU_SOURCE
#include "core/kernels/roofline.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/clock.h"
#include "core/kernels/select.h"

#define MEMORY ((size_t)256 << 20)
#define CHUNK ((size_t)4 << 20) /* one hand-out: four streams of a quarter each */
#define READINGS 3
#define ROUNDS 20000 /* of one vpdpbusd hand-out */
#define BURSTS 16    /* hand-outs */

struct roofline_memory {
    char *bytes;
};

struct roofline_memory *roofline_memory_create(void)
{
    struct roofline_memory *m = malloc(sizeof(*m));
    if (m == NULL)
        return NULL;
    m->bytes = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->bytes == MAP_FAILED) {
        free(m);
        return NULL;
    }
    madvise(m->bytes, MEMORY, MADV_HUGEPAGE);
    memset(m->bytes, 1, MEMORY);
    return m;
}

void roofline_memory_free(struct roofline_memory *m)
{
    if (m == NULL)
        return;
    munmap(m->bytes, MEMORY);
    free(m);
}

static void read_all(void *arg, struct team_member *me)
{
    const struct roofline_memory *m = arg;
    uint32_t begin, end;
    while (team_next(me, (uint32_t)(MEMORY / CHUNK), 1, &begin, &end)) {
        /* Far apart on purpose: a quarter of a chunk is 1 MiB, and prefetchers follow one page a stream. */
        const char *p = m->bytes + begin * CHUNK;
        uint64_t sum = 0;
        for (size_t i = 0; i < CHUNK / 4; i += 64) {
            for (size_t stream = 0; stream < 4; stream++) {
                uint64_t v;
                memcpy(&v, p + stream * (CHUNK / 4) + i, sizeof(v));
                sum += v;
                __builtin_prefetch(p + stream * (CHUNK / 4) + i + 2304, 0, 3);
            }
        }
        __asm__ volatile("" : : "r"(sum));
    }
}

/* 12 independent accumulators: enough to hide the instruction's latency on both ports. */
static void multiply_rounds(long rounds)
{
    __asm__ volatile("vpxorq %%zmm12, %%zmm12, %%zmm12\n\t"
                     "1:\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm0\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm1\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm2\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm3\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm4\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm5\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm6\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm7\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm8\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm9\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm10\n\t"
                     "vpdpbusd %%zmm12, %%zmm12, %%zmm11\n\t"
                     "dec %0\n\t"
                     "jnz 1b\n\t"
                     "vzeroupper"
                     : "+r"(rounds)
                     :
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12");
}

static void multiply_all(void *arg, struct team_member *me)
{
    uint32_t begin, end;
    (void)arg;
    while (team_next(me, BURSTS, 1, &begin, &end))
        multiply_rounds(ROUNDS);
}

static double seconds_of(struct team *team, team_fn *fn, void *arg)
{
    double best = 1e9;
    for (int i = 0; i < READINGS; i++) {
        uint64_t start = clock_ns();
        team_run(team, fn, arg);
        double seconds = (double)(clock_ns() - start) * 1e-9;
        if (seconds < best)
            best = seconds;
    }
    return best;
}

struct roofline roofline_measure(struct team *team, struct roofline_memory *memory)
{
    struct roofline line = {.read_bytes = (double)MEMORY / seconds_of(team, read_all, memory)};
    if (kernels_tier_present("avx512"))
        line.int8_ops = 12.0 * 128 * ROUNDS * BURSTS / seconds_of(team, multiply_all, NULL);
    return line;
}
