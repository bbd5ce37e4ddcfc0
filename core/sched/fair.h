/* fair.h: who comes next, of those that wait for a place and of those that wait for their prompt to
 * be computed.
 *
 *   1. level: the priority (0 to 9), and one more for every FAIR_AGE_NS of waiting, up to 9: so
 *      nobody waits for ever
 *   2. who was put back in mid-answer
 *   3. the tenant that was served least, in steps of FAIR_QUANTUM
 *   4. order of arrival
 *
 * Served is counted in tokens, those made FAIR_MADE times. A tenant that comes (back) begins at the
 * least of those that are there, so that nobody saves up time by being away ("virtual token counter":
 * Sheng et al., Fairness in Serving Large Language Models).
 *
 * Among the first FAIR_WINDOW of equals, the one of which the prefix cache has most is admitted; none is
 * passed over more than FAIR_PASSES times. Owner: the scheduler thread. */
#ifndef SCHED_FAIR_H
#define SCHED_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/map.h"
#include "core/sched/queue.h"

#define FAIR_AGE_NS UINT64_C(10000000000)
#define FAIR_QUANTUM 512u
#define FAIR_MADE 2u
#define FAIR_WINDOW 8u
#define FAIR_PASSES 4u
#define FAIR_TENANTS 1024u /* that are remembered while they have nothing to do */

struct tenant {
    uint64_t key;
    uint64_t served;
    uint32_t living; /* sequences */
};

struct fair {
    struct map tenants; /* by key */
    uint64_t last_left; /* what the tenant had that left last */
};

void fair_release(struct fair *f);
/* The sequence is there, and gone. */
void fair_join(struct fair *f, struct sequence *s);
void fair_leave(struct fair *f, struct sequence *s);
/* n tokens of its text went through the model; made: each of them gave a token. */
void fair_serve(struct sequence *s, uint32_t n, bool made);

/* Works out where s stands at now_ns, for fair_before. */
void fair_rank(struct sequence *s, uint64_t now_ns);
/* Whether a comes before b; both ranked at one time. */
bool fair_before(const struct sequence *a, const struct sequence *b);
/* The one to admit next, or NULL if nobody waits that is not paused. */
struct sequence *fair_next(struct queue *waiting, uint64_t now_ns);
/* It was admitted: those that came before it were passed over. */
void fair_admitted(struct queue *waiting, const struct sequence *s);

#endif
