#include "core/sched/pace.h"

#include <math.h>

#define LINE_SCALE 1024.0 /* positions */
#define LINE_RATE 0.125   /* part of an error that one sample corrects */
#define MARGIN_FIRST 1.2
#define MARGIN_RATE 0.01

void pace_init(struct pace *p, double target)
{
    *p = (struct pace){.target = target, .margin = MARGIN_FIRST};
}

static double line_at(const struct pace_line *l, double position)
{
    return l->at0 + l->slope * position / LINE_SCALE;
}

/* Normalised least mean squares. A step during which the thread lost its CPU says nothing about the
 * machine's speed: outliers count little. */
static void line_learn(struct pace_line *l, double position, double sample)
{
    double x = position / LINE_SCALE, forecast = line_at(l, position);
    if (l->at0 == 0) {
        l->at0 = sample > 1 ? sample : 1;
        return;
    }
    double miss = sample - forecast;
    miss = miss > forecast ? forecast : miss;
    double part = LINE_RATE * miss / (1 + x * x);
    l->at0 = l->at0 + part > 1 ? l->at0 + part : 1;
    l->slope = l->slope + part * x > 0 ? l->slope + part * x : 0;
}

static unsigned size_of(uint32_t n_decodes)
{
    unsigned i = 0;
    while (i < PACE_SIZES - 1 && 1u << i < n_decodes)
        i++;
    return i;
}

/* A prompt token beside decodes costs less than alone: the weights are read anyway. Until that is
 * measured, the full cost stands for it. */
static const struct pace_line *each_line(const struct pace *p)
{
    return p->mixed.at0 != 0 ? &p->mixed : &p->alone;
}

static double mean(double positions, uint32_t n)
{
    return n > 0 ? positions / n : 0;
}

/* A step of these decodes alone: as measured, or else from fewer (a further decode for as much as a
 * prompt token) or from more that were measured; 0 if none was. */
static double decodes_ns(const struct pace *p, const struct pace_work *w)
{
    double position = mean(w->decode_positions, w->decodes);
    unsigned size = size_of(w->decodes);
    for (unsigned i = size + 1; i-- > 0;) {
        if (p->decodes[i].at0 == 0)
            continue;
        double more = i < size ? w->decodes - (double)(1u << i) : 0;
        return line_at(&p->decodes[i], position) + more * line_at(each_line(p), position);
    }
    for (unsigned i = size + 1; i < PACE_SIZES; i++)
        if (p->decodes[i].at0 != 0)
            return line_at(&p->decodes[i], position);
    return 0;
}

struct pace_room pace_room(const struct pace *p, const struct pace_work *w, uint32_t most)
{
    struct pace_room room = {INFINITY, most, most};
    if (w->decodes == 0)
        return room;
    unsigned size = size_of(w->decodes);
    bool measured = p->decodes[size].at0 != 0;
    if (p->unmeasured[size] >= (measured ? PACE_PROBE : PACE_PROBE_FIRST))
        return (struct pace_room){0, 0, 0};
    room.least = most < PACE_CHUNK_MIN ? most : PACE_CHUNK_MIN;
    double decodes = decodes_ns(p, w);
    if (decodes == 0 || each_line(p)->at0 == 0) {
        room.most = most < PACE_CHUNK_FIRST ? most : PACE_CHUNK_FIRST;
        return room;
    }
    bool crowd = w->prompts >= PACE_CROWD_PROMPTS && w->prompts * PACE_CROWD_DECODES >= w->decodes;
    room.ns = (p->target / (crowd ? PACE_MARGIN_CROWD : p->margin) - 1) * decodes;
    return room;
}

uint32_t pace_fit(const struct pace *p, struct pace_room *room, uint32_t position, uint32_t wanted)
{
    const struct pace_line *line = each_line(p);
    uint32_t n = wanted < room->most ? wanted : room->most;
    if (room->ns < INFINITY) {
        double ns = room->ns > 0 ? room->ns : 0;
        double fit = ns / line_at(line, position);
        fit = ns / line_at(line, position + fit / 2);
        if (fit < n)
            n = (uint32_t)fit;
        uint32_t least = wanted < room->least ? wanted : room->least;
        n = n < least ? least : n;
        room->ns -= n * line_at(line, position + n / 2.0);
    }
    room->most -= n;
    room->least -= n < room->least ? n : room->least;
    return n;
}

void pace_charge(const struct pace *p, struct pace_room *room, double position, uint32_t n)
{
    if (room->ns < INFINITY)
        room->ns -= n * line_at(each_line(p), position);
}

void pace_learn(struct pace *p, const struct pace_work *w, uint64_t ns)
{
    unsigned size = size_of(w->decodes);
    if (w->prefill == 0) {
        line_learn(&p->decodes[size], mean(w->decode_positions, w->decodes), (double)ns);
        p->unmeasured[size] = 0;
        return;
    }
    double position = mean(w->prefill_positions, w->prefill);
    if (w->decodes == 0) {
        if (w->prefill >= PACE_CHUNK_MIN)
            line_learn(&p->alone, position, (double)ns / w->prefill);
        return;
    }
    p->unmeasured[size]++;
    double decodes = decodes_ns(p, w);
    if (decodes == 0 || w->prefill < PACE_CHUNK_MIN)
        return;
    if (p->mixed.at0 == 0)
        p->mixed = p->alone;
    double forecast = decodes + w->prefill * line_at(&p->mixed, position);
    if (p->mixed.at0 != 0) {
        p->margin += (double)ns > p->margin * forecast ? MARGIN_RATE * PACE_KEPT
                                                       : -MARGIN_RATE * (1 - PACE_KEPT);
        p->margin = p->margin < PACE_MARGIN_MIN   ? PACE_MARGIN_MIN
                    : p->margin > PACE_MARGIN_MAX ? PACE_MARGIN_MAX
                                                  : p->margin;
    }
    double rest = (double)ns - decodes;
    line_learn(&p->mixed, position, rest > 0 ? rest / w->prefill : 0);
}
