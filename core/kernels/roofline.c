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

/* 12 independent accumulators: enough to hide the instruction's latency on both ports. The encoding is said, since an
 * assembler would take the one of AVX-512 for either. */
#define MULTIPLY_ROUNDS(name, encoding, v)                                                         \
    static void name(long rounds)                                                                  \
    {                                                                                              \
        __asm__ volatile("vpxor %%xmm12, %%xmm12, %%xmm12\n"                                       \
                         "1:\n\t"                                                                  \
                         ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n\t" encoding               \
                         " vpdpbusd %%" v "mm12, %%" v "mm12, %%" v "mm\\n\n\t"                    \
                         ".endr\n\t"                                                               \
                         "dec %0\n\t"                                                              \
                         "jnz 1b\n\t"                                                              \
                         "vzeroupper"                                                              \
                         : "+r"(rounds)                                                            \
                         :                                                                         \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12");                             \
    }
MULTIPLY_ROUNDS(multiply_zmm, "%{evex%}", "z")
MULTIPLY_ROUNDS(multiply_ymm, "%{vex%}", "y")

struct multiply {
    void (*rounds)(long rounds);
    double ops; /* of one instruction */
};

static void multiply_all(void *arg, struct team_member *me)
{
    const struct multiply *m = arg;
    uint32_t begin, end;
    while (team_next(me, BURSTS, 1, &begin, &end))
        m->rounds(ROUNDS);
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
    struct multiply m = {multiply_zmm, 128};
    if (!kernels_tier_present("avx512"))
        m = (struct multiply){multiply_ymm, 64};
    if (kernels_tier_present("avx512") || kernels_tier_present("avxvnni"))
        line.int8_ops = 12 * m.ops * ROUNDS * BURSTS / seconds_of(team, multiply_all, &m);
    return line;
}
