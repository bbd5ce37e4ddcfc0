#include "core/sched/pace.h"

#include <math.h>

#define LINE_SCALE 1024.0 /* positions */
#define LINE_RATE 0.125   /* part of an error that one sample corrects */
#define MARGIN_FIRST 1.4
#define MARGIN_RATE 0.02
#define ODD_RATE 0.125
#define ODD_MOST 1.25
#define ODD_FADE 0.002   /* part that is forgotten at each step: what was avoided is tried again */
#define FEWER_LOSE 0.015 /* part of the rate that fewer rows may cost to be taken instead */
#define FEWER_MOST 3u

void pace_init(struct pace *p, double target)
{
    *p = (struct pace){.target = target, .margin = MARGIN_FIRST};
    for (unsigned i = 0; i <= PACE_ROWS; i++)
        p->odd[i] = 1;
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

/* By how much plans stay below the target. */
static double margin_of(const struct pace *p, const struct pace_work *w)
{
    if (w->prompts >= PACE_CROWD_PROMPTS && w->prompts * PACE_CROWD_DECODES >= w->decodes)
        return PACE_MARGIN_CROWD;
    return w->prompts > 1 && p->margin > PACE_MARGIN_SEVERAL ? PACE_MARGIN_SEVERAL : p->margin;
}

struct pace_room pace_room(const struct pace *p, const struct pace_work *w, uint32_t most)
{
    struct pace_room room = {.decodes = INFINITY,
                             .rows = w->decodes,
                             .margin = margin_of(p, w),
                             .least = most,
                             .most = most};
    if (w->decodes == 0)
        return room;
    unsigned size = size_of(w->decodes);
    bool measured = p->decodes[size].at0 != 0;
    if (p->unmeasured[size] >= (measured ? PACE_PROBE : PACE_PROBE_FIRST))
        return (struct pace_room){0};
    room.least = most < PACE_CHUNK_MIN ? most : PACE_CHUNK_MIN;
    double decodes = decodes_ns(p, w);
    if (decodes == 0 || each_line(p)->at0 == 0) {
        room.most = most < PACE_CHUNK_FIRST ? most : PACE_CHUNK_FIRST;
        return room;
    }
    room.decodes = room.ns = decodes;
    return room;
}

static double odd_at(const struct pace *p, uint32_t rows)
{
    return rows <= PACE_ROWS ? p->odd[rows] : 1;
}

/* What a step may take, in times of its decodes: r of them leave r - 1 for prompt tokens, which cost
 * `dearer` times what they do alone, so a prompt takes dearer · r / (r - 1) times its time alone. */
static double aim(const struct pace *p, const struct pace_room *room, double middle)
{
    double r = p->target / room->margin, most = p->target / PACE_MARGIN_MIN;
    if (p->alone.at0 == 0 || p->mixed.at0 == 0)
        return r;
    double dearer = line_at(&p->mixed, middle) / line_at(&p->alone, middle);
    double fair = dearer < PACE_PROMPTS ? PACE_PROMPTS / (PACE_PROMPTS - dearer) : most;
    fair = fair < most ? fair : most;
    return r > fair ? r : fair;
}

/* ns of the step with n more prompt tokens from `position` on. */
static double with(const struct pace *p, const struct pace_room *room, uint32_t position,
                   uint32_t n)
{
    double each = line_at(each_line(p), position + n / 2.0);
    return (room->ns + n * each) * odd_at(p, room->rows + n);
}

/* The most of `n` tokens, `least` or more, that keep to ns; or a few less where these take less time
 * a token. */
static uint32_t choose(const struct pace *p, const struct pace_room *room, uint32_t position,
                       double ns, uint32_t least, uint32_t n)
{
    while (n > least && with(p, room, position, n) > ns)
        n--;
    uint32_t best = n;
    double rate = n / with(p, room, position, n);
    for (uint32_t k = n; k-- > least && k + FEWER_MOST >= n;)
        if (k / with(p, room, position, k) > rate * (1 - FEWER_LOSE))
            best = k;
    return best;
}

uint32_t pace_fit(const struct pace *p, struct pace_room *room, uint32_t position, uint32_t wanted,
                  uint32_t whole)
{
    uint32_t n = wanted < room->most ? wanted : room->most;
    if (room->decodes < INFINITY && n > 0) {
        uint32_t least = n < room->least ? n : room->least;
        double ns = aim(p, room, whole / 2.0) * room->decodes,
               each = line_at(each_line(p), position);
        double fit = ns > room->ns ? (ns - room->ns) / each * ODD_MOST : 0;
        uint32_t most = fit < n ? (uint32_t)fit : n;
        n = choose(p, room, position, ns, least, most > least ? most : least);
        room->ns += n * line_at(each_line(p), position + n / 2.0);
    }
    room->rows += n;
    room->most -= n;
    room->least -= n < room->least ? n : room->least;
    return n;
}

void pace_charge(const struct pace *p, struct pace_room *room, double position, uint32_t n)
{
    room->rows += n;
    if (room->decodes < INFINITY)
        room->ns += n * line_at(each_line(p), position);
}

static double bounded(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

static void odd_learn(struct pace *p, uint32_t rows, double miss)
{
    for (unsigned i = 0; i <= PACE_ROWS; i++)
        p->odd[i] += (1 - p->odd[i]) * ODD_FADE;
    if (rows <= PACE_ROWS)
        p->odd[rows] = bounded(
            p->odd[rows] + (bounded(miss, 1 / ODD_MOST, ODD_MOST) - p->odd[rows]) * ODD_RATE,
            1 / ODD_MOST, ODD_MOST);
}

double pace_draft(const struct pace *p, uint32_t n_decodes, double position)
{
    unsigned size = size_of(n_decodes);
    if (p->decodes[size].at0 == 0 || p->mixed.at0 == 0 || p->unmeasured[size] >= PACE_PROBE)
        return 0;
    return line_at(&p->mixed, position);
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
    double lines = decodes + w->prefill * line_at(&p->mixed, position);
    uint32_t rows = w->decodes + w->prefill;
    if (p->mixed.at0 != 0) {
        bool late = (double)ns > p->margin * lines * odd_at(p, rows);
        p->margin += late ? MARGIN_RATE * PACE_KEPT : -MARGIN_RATE * (1 - PACE_KEPT);
        p->margin = bounded(p->margin, PACE_MARGIN_MIN, PACE_MARGIN_MAX);
        odd_learn(p, rows, (double)ns / lines);
    }
    double rest = (double)ns - decodes;
    line_learn(&p->mixed, position, rest > 0 ? rest / w->prefill : 0);
}
