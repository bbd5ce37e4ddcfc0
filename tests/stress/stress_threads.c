/* stress_threads.c: what two processes or several threads do together, done by threads of this one, so that
 * ThreadSanitizer sees both sides: the ring's frames (stress_ring.c has the processes), and counting in the stats while
 * they are read. Without the sanitizer it still checks every byte and every count.
 *
 *     stress_threads [FRAMES]      20000 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/check.h"
#include "core/base/xalloc.h"
#include "core/ring/ring.h"
#include "core/stats/writer.h"

#define SIZE RING_SIZE_MIN
#define CONTROL 4096u
#define COUNTERS 3

static struct region *up, *down;
static uint32_t frames;

/* Length and bytes of a frame are made of its number. */
static uint32_t length_of(uint32_t id)
{
    return id * 2654435761u % 3000;
}

static void *produce(void *arg)
{
    struct ring_writer *w = arg;
    for (uint32_t id = 0; id < frames; id++) {
        const uint32_t len = length_of(id);
        uint8_t *out;
        while ((out = ring_writer_reserve(w, len, false)) == NULL) {
            ring_writer_publish(w);
            sched_yield();
        }
        memset(out, (int)(id & 255), len);
        ring_writer_commit(w, FRAME_DATA, 0, id, 0, len);
        if (id % 3 == 0)
            ring_writer_publish(w);
    }
    ring_writer_publish(w);
    return NULL;
}

static void consume(struct ring_reader *r)
{
    struct ring_frame f;
    for (uint32_t id = 0; id < frames;) {
        const enum ring_peek seen = ring_reader_peek(r, &f);
        check(seen != RING_BROKEN);
        if (seen == RING_EMPTY) {
            ring_reader_publish(r);
            sched_yield();
            continue;
        }
        check(f.header.id == id && f.header.len == length_of(id));
        for (uint32_t i = 0; i < f.header.len; i++)
            check(f.payload[i] == (id & 255));
        ring_reader_consume(r);
        if (++id % 5 == 0)
            ring_reader_publish(r);
    }
}

static void ring_between_threads(void)
{
    struct ring_writer w;
    struct ring_reader r;
    pthread_t producer;

    up = aligned_alloc(4096, region_bytes(SIZE));
    down = aligned_alloc(4096, region_bytes(SIZE));
    check(up != NULL && down != NULL);
    memset(up, 0, region_bytes(SIZE));
    memset(down, 0, region_bytes(SIZE));
    ring_writer_init(&w, up, down, SIZE, CONTROL);
    ring_reader_init(&r, down, up, SIZE);
    check(pthread_create(&producer, NULL, produce, &w) == 0);
    consume(&r);
    check(pthread_join(producer, NULL) == 0);
    free(up);
    free(down);
    printf("ok ring: %u frames\n", frames);
}

static void *count(void *arg)
{
    for (uint32_t i = 0; i < frames; i++) {
        stats_add(arg, STATS_CELL_OTHER, STAT_steps_total, 1);
        stats_record(arg, STATS_CELL_OTHER, STAT_step_time, i);
    }
    return NULL;
}

static void stats_between_threads(void)
{
    struct stats_writer *w = stats_writer_anonymous();
    pthread_t counters[COUNTERS];
    uint64_t before = 0;

    for (int i = 0; i < COUNTERS; i++)
        check(pthread_create(&counters[i], NULL, count, w) == 0);
    for (uint32_t i = 0; i < frames; i++) {
        const uint64_t now = stats_value(w, STAT_steps_total);
        check(now >= before);
        before = now;
        stats_set(w, STAT_threads, i);
        stats_set_text(w, STAT_kernel_tier, i & 1 ? "one" : "other");
    }
    for (int i = 0; i < COUNTERS; i++)
        check(pthread_join(counters[i], NULL) == 0);
    check(stats_value(w, STAT_steps_total) == (uint64_t)COUNTERS * frames);
    stats_writer_free(w);
    printf("ok stats: %u counts of %d threads\n", frames, COUNTERS);
}

int main(int argc, char **argv)
{
    frames = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20000;
    ring_between_threads();
    stats_between_threads();
    return 0;
}
