/* cost.h: what a step costs by its number of rows, as measured on this machine.
 *
 *     cost(rows) = level * ratio[rows]        ratio[1] = 1
 *
 * The level follows at once what changes all steps alike (longer contexts, a busy machine); the
 * ratios, which are the machine's and the model's, slowly. Numbers of rows that were not measured
 * lie on the line between those that were; before anything is, a further row is taken to cost
 * COST_ROW_FIRST of a step. More rows never count as cheaper. What was measured long ago is
 * forgotten, so a wrong measurement is made good in time. Pure functions. */
#ifndef SPEC_COST_H
#define SPEC_COST_H

#include <stdint.h>

#define COST_ROWS 128u
#define COST_ROW_FIRST 0.2

struct cost {
    double level;                  /* ns of a step of one row; 0: nothing is measured */
    double ratio[COST_ROWS + 1];   /* by rows */
    uint8_t weight[COST_ROWS + 1]; /* what the ratio's measurements still count; 0: not measured */
    uint32_t n_learned;
    uint32_t top; /* the most rows that were ever measured */
};

/* Learns that a step of that many rows (at least 1) took ns. */
void cost_learn(struct cost *c, uint32_t rows, double ns);
/* ns of such a step; 0 if nothing is measured. */
double cost_of(const struct cost *c, uint32_t rows);

#endif
