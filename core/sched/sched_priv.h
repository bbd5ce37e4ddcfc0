/* sched_priv.h: the scheduler's inside, shared by the loop's side (sched.c) and the thread
 * (loop.c). */
#ifndef SCHED_SCHED_PRIV_H
#define SCHED_SCHED_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/prefix_cache.h"
#include "core/base/map.h"
#include "core/sched/batch.h"
#include "core/sched/doorbell.h"
#include "core/sched/draw.h"
#include "core/sched/fair.h"
#include "core/sched/mailbox.h"
#include "core/sched/queue.h"
#include "core/sched/sched.h"
#include "core/sched/spsc.h"

enum command_kind {
    COMMAND_SUBMIT,
    COMMAND_CANCEL,
    COMMAND_ABANDON,
    COMMAND_FINISH,
    COMMAND_PAUSE,
    COMMAND_STOP
};

struct command {
    struct letter letter; /* first */
    enum command_kind kind;
    uint64_t id;
    uint32_t choice;               /* FINISH */
    bool paused;                   /* PAUSE */
    struct generation *generation; /* SUBMIT, with what sched_submit worked out: */
    uint32_t limit;
    bool grows;
};

struct sched {
    struct sched_engine engine;
    struct sched_options options;
    uint32_t *eog;
    struct pages *pool;
    struct prefix_cache *cache; /* NULL: off */
    unsigned char key[16];      /* of all hashes; random */
    struct stats_writer *stats;
    pthread_t thread;

    /* between the threads */
    struct mailbox commands;
    struct doorbell bell; /* wakes the scheduler: commands, pages */
    _Atomic bool pages_came;
    struct spsc events;
    struct doorbell event_bell;    /* wakes the loop */
    _Atomic uint64_t published_ns; /* clock_ns() of the last publication of events */
    _Atomic bool quit;
    _Atomic uint32_t n_sent, n_received; /* SUBMIT commands: by the loop, by the scheduler */
    _Atomic uint32_t n_new, n_put_back, n_running; /* as the scheduler last said: sequences that
                                                      wait and never ran, that had run, that run */
    _Atomic uint64_t queued_tokens;                /* prompts sent and not admitted yet */
    _Atomic uint64_t
        end_interval_ns; /* average time between two ends while others waited; 0: unknown */

    /* the loop's */
    bool draining;

    /* the scheduler thread's */
    struct letter *letters; /* commands that were taken and not obeyed yet */
    struct map by_id;       /* one of the generation's sequences; the others are its kin */
    struct queue waiting, running;
    struct fair fair;
    uint64_t next_serial;
    struct batch batch;
    struct drawer drawer;
    struct pace pace;
    struct draft_text **texts; /* of the step: those that decode */
    float *logits;
    uint64_t *failed; /* ids, while the results of a step are taken */
    uint64_t last_end_ns;
    uint64_t last_trim_ns;
    uint64_t n_dropped; /* pages that the cache had given up when the stats last said so */
    bool stopped;
};

/* The scheduler thread; data is the struct sched. */
void *sched_main(void *data);

#endif
