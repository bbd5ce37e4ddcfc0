#include <stdio.h>
#include <string.h>

#include "core/stats/render_priv.h"

#define PREFIX "tokenring_"
#define FAMILY_NAME_MAX 96

static const struct family {
    const char *name, *stat, *label, *value, *help;
} families[] = {
#define FAMILY(name, stat, label, value, help) {name, stat, label, value, help},
#include "core/stats/families.def"
#undef FAMILY
};

#define N_FAMILIES (sizeof(families) / sizeof(families[0]))

struct page {
    struct stats_out *out;
    const struct stats_view *views;
    unsigned n;
};

/* A label's value or, without quotes to mind, a HELP text. */
static void escaped(struct stats_out *out, const char *text, bool quotes)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        unsigned n = utf8_length(p);
        if (n == 0 || *p < 0x20 || *p == 0x7f) {
            out_text(out, *p == '\n' ? "\\n" : n == 0 ? "\xef\xbf\xbd" : " ");
            p++;
        } else if (*p == '\\' || (*p == '"' && quotes)) {
            out_text(out, *p++ == '"' ? "\\\"" : "\\\\");
        } else {
            out_bytes(out, (const char *)p, n);
            p += n;
        }
    }
}

static void head(struct stats_out *out, const char *name, const char *type, const char *help)
{
    out_text(out, "# HELP " PREFIX);
    out_text(out, name);
    out_text(out, " ");
    escaped(out, help, false);
    out_text(out, "\n# TYPE " PREFIX);
    out_text(out, name);
    out_text(out, " ");
    out_text(out, type);
    out_text(out, "\n");
}

static void label(struct stats_out *out, const char *name, const char *value)
{
    out_text(out, ",");
    out_text(out, name);
    out_text(out, "=\"");
    escaped(out, value, true);
    out_text(out, "\"");
}

/* tokenring_<name><more>{worker="..",model_name=".."   left open for further labels. */
static void series(struct stats_out *out, const struct stats_view *v, const char *name,
                   const char *more)
{
    out_text(out, PREFIX);
    out_text(out, name);
    out_text(out, more);
    out_text(out, "{worker=\"");
    escaped(out, v->name, true);
    out_text(out, "\"");
    label(out, "model_name", stats_view_text(v, "model"));
}

static void value(struct stats_out *out, uint64_t number, unsigned digits)
{
    out_text(out, "} ");
    out_decimal(out, number, digits);
    out_text(out, "\n");
}

/* The buckets are cumulative here; the count is taken from them, so that both agree while the worker counts on. */
static void histogram(struct stats_out *out, const struct stats_view *v, const char *name,
                      const struct stats_point *p)
{
    unsigned digits = p->kind == STATS_TIME ? 9 : 0;
    uint64_t below = 0;
    for (unsigned b = 0; b <= p->n_bounds; b++) {
        below += p->buckets[b];
        series(out, v, name, "_bucket");
        out_text(out, ",le=\"");
        if (b < p->n_bounds)
            out_decimal(out, p->bounds[b], digits);
        else
            out_text(out, "+Inf");
        out_text(out, "\"");
        value(out, below, 0);
    }
    series(out, v, name, "_sum");
    value(out, p->sum, digits);
    series(out, v, name, "_count");
    value(out, below, 0);
}

/* Decimal digits behind the point when a figure of this unit is written in its base unit. */
static unsigned digits_of(const char *unit)
{
    return strcmp(unit, "ms") == 0 || strcmp(unit, "unix ms") == 0 ? 3
           : strcmp(unit, "percent") == 0                          ? 2
                                                                   : 0;
}

/* Is this figure of this view told? A dead worker's gauges would say what is no more. */
static bool point_of(const struct stats_view *v, const char *stat, struct stats_point *p)
{
    return v->readable && stats_point_find(&v->snapshot, stat, p) &&
           (v->condition != STATS_CONDITION_DEAD || p->kind != STATS_GAUGE);
}

static const char *type_of(enum stats_kind kind)
{
    return kind == STATS_COUNTER ? "counter" : kind == STATS_GAUGE ? "gauge" : "histogram";
}

/* All samples of one line of a family; the head before the first of the family. True if there was one. */
static bool samples(const struct page *g, const struct family *f, bool first)
{
    struct stats_point p;
    bool any = false;
    for (unsigned i = 0; i < g->n; i++) {
        const struct stats_view *v = &g->views[i];
        if (!point_of(v, f->stat, &p) || p.kind == STATS_TEXT || p.kind == STATS_HASH)
            continue;
        if (first && !any)
            head(g->out, f->name, type_of(p.kind), f->help);
        any = true;
        if (p.n_bounds != 0) {
            histogram(g->out, v, f->name, &p);
            continue;
        }
        series(g->out, v, f->name, "");
        if (f->label[0] != '\0')
            label(g->out, f->label, f->value);
        value(g->out, p.value, digits_of(p.unit));
    }
    return any;
}

static void known_families(const struct page *g)
{
    bool told = false;
    for (unsigned i = 0; i < N_FAMILIES; i++) {
        if (i == 0 || strcmp(families[i].name, families[i - 1].name) != 0)
            told = false;
        /* The help stands in a family's first line, whose figure every worker has, as it has those of the others. */
        told = samples(g, &families[i], !told) || told;
    }
}

/* ---- figures under their own names ---------------------------------------------------------------------- */

static bool cut_end(char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    if (n <= m || strcmp(name + n - m, end) != 0)
        return false;
    name[n - m] = '\0';
    return true;
}

/* "load_time_ms", gauge, ms -> "load_time_seconds". */
static void own_name(const struct stats_point *p, char *out)
{
    static const struct {
        const char *unit, *cut, *suffix;
    } units[] = {{"ms", "_ms", "_seconds"},
                 {"unix ms", "_ms", "_timestamp_seconds"},
                 {"us", "_us", "_seconds"},
                 {"percent", "_percent", "_ratio"},
                 {"bytes", "_bytes", "_bytes"}};
    snprintf(out, FAMILY_NAME_MAX, "%s", p->name);
    cut_end(out, "_total"); /* counters end in it, nothing else may */
    for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(p->unit, units[i].unit) == 0 && strstr(out, "_bytes_") == NULL) {
            cut_end(out, units[i].cut);
            strcat(out, units[i].suffix); /* STATS_NAME_MAX and two suffixes fit */
        }
    }
    if (p->kind == STATS_COUNTER)
        strcat(out, "_total");
}

/* May this stand as a name? The file may have been written by anybody. */
static bool name_is_fine(const char *name)
{
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
           strlen(name);
}

static bool is_known(const char *stat, const char *name)
{
    for (unsigned i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].stat, stat) == 0 || strcmp(families[i].name, name) == 0)
            return true;
    return strcmp(stat, "heartbeat_ms") == 0; /* last_seen_timestamp_seconds */
}

/* Has view 0..before, or an earlier point of view `before`, this figure already? */
static bool seen_before(const struct page *g, unsigned before, unsigned at, const char *stat)
{
    struct stats_point p;
    for (unsigned i = 0; i < before; i++)
        if (point_of(&g->views[i], stat, &p))
            return true;
    for (unsigned k = 0; k < at && stats_point_at(&g->views[before].snapshot, k, &p); k++)
        if (strcmp(p.name, stat) == 0)
            return true;
    return false;
}

static void own_families(const struct page *g)
{
    char name[FAMILY_NAME_MAX];
    struct stats_point p, same;
    for (unsigned i = 0; i < g->n; i++) {
        for (unsigned k = 0; g->views[i].readable && stats_point_at(&g->views[i].snapshot, k, &p);
             k++) {
            if (p.kind == STATS_TEXT || p.kind == STATS_HASH ||
                !point_of(&g->views[i], p.name, &same) || seen_before(g, i, k, p.name))
                continue;
            own_name(&p, name);
            if (name_is_fine(name) && !is_known(p.name, name))
                samples(g, &(struct family){name, p.name, "", "", p.help}, true);
        }
    }
}

/* ---- the worker itself ---------------------------------------------------------------------------------- */

static void conditions(const struct page *g)
{
    head(g->out, "up", "gauge", "1: the worker's process runs and gives signs of life");
    for (unsigned i = 0; i < g->n; i++) {
        series(g->out, &g->views[i], "up", "");
        value(g->out, stats_condition_up(g->views[i].condition), 0);
    }
    head(g->out, "worker_condition", "gauge", "1 for the condition that the worker is in");
    for (unsigned i = 0; i < g->n; i++) {
        for (unsigned c = 0; c < STATS_CONDITIONS; c++) {
            series(g->out, &g->views[i], "worker_condition", "");
            label(g->out, "condition", stats_condition_word((enum stats_condition)c));
            value(g->out, g->views[i].condition == c, 0);
        }
    }
}

static void info(const struct page *g)
{
    static const char *const texts[] = {"build", "model_arch", "kernel_tier", "kv_type"};
    bool any = false;
    for (unsigned i = 0; i < g->n; i++) {
        if (!g->views[i].readable)
            continue;
        if (!any)
            head(g->out, "worker_info", "gauge", "what the worker is, in labels");
        any = true;
        series(g->out, &g->views[i], "worker_info", "");
        for (unsigned k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
            label(g->out, texts[k], stats_view_text(&g->views[i], texts[k]));
        value(g->out, 1, 0);
    }
}

/* A figure that is worked out of the view: false if this one has none. */
typedef bool (*figure_fn)(const struct stats_view *v, uint64_t *number);

static bool start_time(const struct stats_view *v, uint64_t *ms)
{
    *ms = v->snapshot.header.start_ms;
    return true;
}

static bool last_seen(const struct stats_view *v, uint64_t *ms)
{
    *ms = stats_last_seen_ms(&v->snapshot);
    return true;
}

static bool starts(const struct stats_view *v, uint64_t *number)
{
    *number = v->snapshot.header.starts;
    return true;
}

/* Pages that only the prefix cache holds are free for the asking, and not counted as used. */
static bool kv_usage(const struct stats_view *v, uint64_t *millionths)
{
    uint64_t total = stats_number(&v->snapshot, "kv_pages_total", 0);
    uint64_t used = stats_number(&v->snapshot, "kv_pages_used", 0);
    if (total == 0 || v->condition == STATS_CONDITION_DEAD)
        return false;
    *millionths = (used < total ? used : total) * 1000000 / total;
    return true;
}

static void figure(const struct page *g, const char *name, const char *type, const char *help,
                   figure_fn of, unsigned digits)
{
    bool any = false;
    uint64_t number;
    for (unsigned i = 0; i < g->n; i++) {
        if (!g->views[i].readable || !of(&g->views[i], &number))
            continue;
        if (!any)
            head(g->out, name, type, help);
        any = true;
        series(g->out, &g->views[i], name, "");
        value(g->out, number, digits);
    }
}

void stats_render_prometheus(struct stats_out *out, const struct stats_view *views, unsigned n)
{
    const struct page g = {out, views, n};
    conditions(&g);
    info(&g);
    figure(&g, "start_time_seconds", "gauge", "unix time of the worker's start", start_time, 3);
    figure(&g, "last_seen_timestamp_seconds", "gauge", "unix time of its last sign of life",
           last_seen, 3);
    figure(&g, "worker_starts_total", "counter", "workers that have used the stats file", starts,
           0);
    figure(&g, "kv_cache_usage_perc", "gauge",
           "share of the KV pages that running requests hold, 1 is all", kv_usage, 6);
    known_families(&g);
    own_families(&g);
}
