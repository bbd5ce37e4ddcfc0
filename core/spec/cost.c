#include "core/spec/cost.h"

#define WEIGHT_MOST 15u
#define FORGET_EVERY 256u /* measurements until all count half */
#define OUTLIER 2.0       /* a step during which the thread lost its CPU counts as twice as long */

static double ratio_of(const struct cost *c, uint32_t rows)
{
    uint32_t below = rows, above = rows;
    if (rows <= 1)
        return 1;
    while (below > 1 && c->weight[below] == 0)
        below--;
    while (above <= COST_ROWS && c->weight[above] == 0)
        above++;
    double low = below > 1 ? c->ratio[below] : 1;
    if (above > COST_ROWS) {
        double slope = below > 1 ? (low - 1) / (below - 1) : COST_ROW_FIRST;
        return low + slope * (rows - below);
    }
    double high = c->ratio[above] > low ? c->ratio[above] : low;
    return above == below ? high : low + (high - low) * (rows - below) / (above - below);
}

double cost_of(const struct cost *c, uint32_t rows)
{
    return c->level * ratio_of(c, rows < COST_ROWS ? rows : COST_ROWS);
}

static void forget(struct cost *c)
{
    for (uint32_t r = 2; r <= COST_ROWS; r++)
        c->weight[r] /= 2;
}

void cost_learn(struct cost *c, uint32_t rows, double ns)
{
    rows = rows < COST_ROWS ? rows : COST_ROWS;
    if (c->level == 0) {
        c->level = ns / ratio_of(c, rows);
        return;
    }
    double error = ns / cost_of(c, rows);
    error = error > OUTLIER ? OUTLIER : error < 1 / OUTLIER ? 1 / OUTLIER : error;
    if (rows > 1) {
        double ratio = ratio_of(c, rows), weight = c->weight[rows];
        ratio *= 1 + (error - 1) / (weight + 1);
        c->ratio[rows] = ratio < 1 ? 1 : ratio;
        c->weight[rows] += weight < WEIGHT_MOST;
        /* A row count met for the first time says nothing about the level. */
        error = weight < 4 ? 1 : error;
    }
    c->level *= 1 + (error - 1) / 8;
    if (++c->n_learned % FORGET_EVERY == 0)
        forget(c);
}
