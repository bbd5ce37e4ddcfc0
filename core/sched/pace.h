/* pace.h: how many prompt tokens a step may have beside decodes, so that the time between two tokens
 * of a stream keeps to `target` times what it is without prompts.
 *
 *      time of a step = (decodes(how many, how far) + prompt tokens · each(how far)) · odd(rows)
 *
 * The first two are measured as straight lines over the position, since attention grows with it; the
 * first one apart for 1, 2, 3-4, 5-8, ... decodes. The last is by how much steps of that many tokens
 * in all depart from the lines: kernels take rows in tiles, so a ninth may cost as much as two more,
 * and then eight are as fast a token and leave the stream more time.
 *
 *      target  |-------------------------------------------|
 *      margin                              |---------------|  so far do steps miss their forecast
 *      prompts |------------------------|                     else prompts take too long
 *      plan    |---------------------------|
 *
 * How far steps miss their forecast is measured, too: plans leave so much room that PACE_KEPT of the
 * mixed steps keep the target; but not so much that a prompt would take more than PACE_PROMPTS times
 * its time alone, as far as the least margin lets it. Where several prompts are to be computed they
 * wait for one another, too, and the margin is small; where many wait for their first token beside few
 * that decode (a crowd), it is smaller still: its caution is worth less than their waiting, which a
 * sixth more of every step shortens by much more.
 *
 * While prompts come without a pause there are no steps of decodes alone to measure. So one mixed
 * step in PACE_PROBE leaves the prompts out (after PACE_PROBE_FIRST where that number of decodes was
 * never measured). Owner: the scheduler thread. */
#ifndef SCHED_PACE_H
#define SCHED_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define PACE_CHUNK_FIRST 16u /* prompt tokens of a mixed step while nothing is measured yet */
#define PACE_CHUNK_MIN 4u    /* those that it may always have */
#define PACE_KEPT 0.99
#define PACE_MARGIN_MIN 1.2 /* bounds of the room left for missed forecasts */
#define PACE_MARGIN_MAX 1.5
#define PACE_MARGIN_SEVERAL 1.3 /* most for several prompts */
#define PACE_MARGIN_CROWD 1.1
#define PACE_CROWD_PROMPTS 2u /* so many prompts, and one for every PACE_CROWD_DECODES */
#define PACE_CROWD_DECODES 4u
#define PACE_PROMPTS 1.8
#define PACE_PROBE 32u
#define PACE_PROBE_FIRST 3u
#define PACE_SIZES 13
#define PACE_ROWS 32u /* steps of more tokens are not odd */

/* A cost in ns at a position: at0 + slope · position / 1024. at0 = 0: not measured yet. */
struct pace_line {
    double at0, slope;
};

struct pace {
    double target;                        /* at least 1 */
    struct pace_line decodes[PACE_SIZES]; /* a step of decodes alone, over their mean position */
    uint32_t unmeasured[PACE_SIZES];      /* mixed steps since */
    struct pace_line mixed;               /* a prompt token beside decodes: beyond their time */
    struct pace_line alone;               /* a prompt token in a step without decodes */
    double odd[PACE_ROWS + 1]; /* of a mixed step of so many tokens: actual by forecast */
    double margin; /* actual by forecast time that PACE_KEPT of the mixed steps keep to */
};

/* What a step is made of. Positions are sums over the tokens. */
struct pace_work {
    uint32_t decodes, prefill;
    double decode_positions, prefill_positions;
    uint32_t prompts; /* sequences that have some of their prompt to compute */
};

/* What prompts may still take in a step. */
struct pace_room {
    double decodes; /* ns of the decodes alone; INFINITY: there is no limit */
    double ns;      /* of all that is in the step */
    uint32_t rows;  /* tokens in the step */
    double margin;  /* of the plan */
    uint32_t least; /* tokens that prompts may have in any case */
    uint32_t most;
};

void pace_init(struct pace *p, double target);
/* The room beside the decodes of w, in a step of at most `most` prompt tokens. */
struct pace_room pace_room(const struct pace *p, const struct pace_work *w, uint32_t most);
/* How many of `wanted` tokens from `position` on, of a prompt of `whole`, fit; they are in the step from now on. */
uint32_t pace_fit(const struct pace *p, struct pace_room *room, uint32_t position, uint32_t wanted,
                  uint32_t whole);
/* n tokens are in the step anyway (drafts to verify). */
void pace_charge(const struct pace *p, struct pace_room *room, double position, uint32_t n);
/* ns of such a token beside n decodes and prompts; 0 where that is not known yet, and where the next step
 * measures the decodes alone. */
double pace_draft(const struct pace *p, uint32_t n_decodes, double position);
/* Learns from a step that took ns. */
void pace_learn(struct pace *p, const struct pace_work *w, uint64_t ns);

#endif
