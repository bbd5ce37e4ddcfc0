#include "core/spec/cost.h"

#include <stdbool.h>

#define WEIGHT_MOST 15u
#define FORGET_EVERY 256u /* measurements until all count half */
#define KNOWN 4u          /* measurements from which on a ratio is trusted */
#define DISTURBED                                                                                  \
    1.25            /* a step that took so much longer than expected was disturbed, most likely */
#define OUTLIER 2.0 /* a step during which the thread lost its CPU counts as twice as long */

static double ratio_of(const struct cost *c, uint32_t rows)
{
    uint32_t below = rows, above = rows;
    if (rows <= 1)
        return 1;
    while (below > 1 && c->weight[below] == 0)
        below--;
    while (above <= c->top && c->weight[above] == 0)
        above++;
    double low = below > 1 ? c->ratio[below] : 1;
    if (above > c->top) {
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

/* Of two neighbours that were measured, the one of more rows is no cheaper. */
static void order(struct cost *c, uint32_t low, uint32_t high)
{
    double sum = c->weight[low] + c->weight[high];
    if (c->ratio[low] <= c->ratio[high])
        return;
    double both = (c->ratio[low] * c->weight[low] + c->ratio[high] * c->weight[high]) / sum;
    c->ratio[low] = c->ratio[high] = both;
}

static void learn_ratio(struct cost *c, uint32_t rows, double error)
{
    double share = 1.0 / (c->weight[rows] + 1);
    if (error > DISTURBED && c->weight[rows] >= KNOWN)
        share /= 4;
    double ratio = ratio_of(c, rows) * (1 + (error - 1) * share);
    c->ratio[rows] = ratio < 1 ? 1 : ratio;
    c->weight[rows] += c->weight[rows] < WEIGHT_MOST;
    c->top = rows > c->top ? rows : c->top;
    uint32_t below = rows - 1, above = rows + 1;
    while (below > 1 && c->weight[below] == 0)
        below--;
    while (above <= COST_ROWS && c->weight[above] == 0)
        above++;
    if (below > 1)
        order(c, below, rows);
    if (above <= COST_ROWS)
        order(c, rows, above);
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
        /* A row count that is hardly known says nothing about the level. */
        bool known = c->weight[rows] >= KNOWN;
        learn_ratio(c, rows, error);
        error = known ? error : 1;
    }
    c->level *= 1 + (error - 1) / 8;
    if (++c->n_learned % FORGET_EVERY == 0)
        forget(c);
}
