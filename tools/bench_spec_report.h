/* bench_spec_report.h: what `tokenring bench spec` has measured, and what it says of it.
 *
 * For each class of prompts: how many times as fast, how often the drafts that were verified were right, and two
 * bounds, both by
 *     (1 - a^(g+1)) / ((1 - a) * (v(g+1) + g*c))
 * with the best constant length g, a step of n rows v(n) and a guess c in steps of one row, as measured in these runs.
 *     bound    a is that of a third run, where -a tokens are drafted and verified in every step, whatever they cost: of
 *              all guesses that the target got to. What drafting always that far could bring at best.
 *     chosen   a is that of the guesses that the controller chose to verify. It chose the better ones, so no constant
 *              length reaches this: the harder of the two.
 * Then, where the time of the drafted runs went. */
#ifndef TOOLS_BENCH_SPEC_REPORT_H
#define TOOLS_BENCH_SPEC_REPORT_H

#include "core/spec/spec.h"

struct tally {
    uint64_t tokens, ns;
};

/* Without drafts; with as many as pay; with a constant number. */
enum mode { OFF, ON, ALWAYS, MODES };

struct outcome {
    struct tally tally;
    struct spec_account account;
    uint64_t tried[DRAFT_MAX], right[DRAFT_MAX]; /* by place */
};

struct class
{
    const char *name;
    struct outcome of[MODES];
};

struct spec_report {
    const struct class *classes;
    unsigned n_classes;
    uint32_t streams, always; /* always: the constant number, 0: no such runs */
    uint32_t n_unequal;
    const struct controller *controller; /* says what was not measured */
};

void add_outcome(struct outcome *sum, const struct outcome *o);

/* Prints the table and what stands behind it. */
void spec_report_print(const struct spec_report *r);

#endif
