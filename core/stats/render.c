#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/stats/render_priv.h"

/* ---- out ------------------------------------------------------------------------------------------------ */

void out_bytes(struct stats_out *out, const char *bytes, size_t n)
{
    if (out->len < out->cap) {
        size_t room = out->cap - out->len;
        memcpy(out->data + out->len, bytes, n < room ? n : room);
    }
    out->len += n;
}

void out_text(struct stats_out *out, const char *text)
{
    out_bytes(out, text, strlen(text));
}

void out_number(struct stats_out *out, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    out_text(out, text);
}

void out_decimal(struct stats_out *out, uint64_t value, unsigned digits)
{
    char text[48];
    uint64_t unit = 1;
    for (unsigned i = 0; i < digits; i++)
        unit *= 10;
    int n = snprintf(text, sizeof(text), "%" PRIu64 ".%0*" PRIu64, value / unit, (int)digits,
                     value % unit);
    while (text[n - 1] == '0')
        n--;
    if (text[n - 1] == '.')
        n--;
    out_bytes(out, text, (size_t)n);
}

unsigned utf8_length(const unsigned char *p)
{
    unsigned n = p[0] < 0x80                   ? 1
                 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                 : (p[0] & 0xf0) == 0xe0       ? 3
                 : (p[0] & 0xf8) == 0xf0       ? 4
                                               : 0;
    for (unsigned i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || p[0] > 0xf4 || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

/* ---- JSON ----------------------------------------------------------------------------------------------- */

static void json_escaped(struct stats_out *out, const char *text)
{
    char escaped[8];
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        unsigned n = utf8_length(p);
        if (n == 0) {
            out_text(out, "\\ufffd");
            p++;
        } else if (*p == '"' || *p == '\\') {
            out_bytes(out, *p++ == '"' ? "\\\"" : "\\\\", 2);
        } else if (*p < 0x20 || *p == 0x7f) {
            snprintf(escaped, sizeof(escaped), "\\u%04x", *p++);
            out_text(out, escaped);
        } else {
            out_bytes(out, (const char *)p, n);
            p += n;
        }
    }
}

static void json_string(struct stats_out *out, const char *text)
{
    out_text(out, "\"");
    json_escaped(out, text);
    out_text(out, "\"");
}

/* ,\n"<name><more>": */
static void json_key(struct stats_out *out, const char *name, const char *more)
{
    out_text(out, ",\n\"");
    json_escaped(out, name);
    out_text(out, more);
    out_text(out, "\": ");
}

static void json_text(struct stats_out *out, const char *name, const char *text)
{
    json_key(out, name, "");
    json_string(out, text);
}

static void json_number(struct stats_out *out, const char *name, uint64_t value)
{
    json_key(out, name, "");
    out_number(out, value);
}

static void json_real(struct stats_out *out, const char *name, const char *more, double value)
{
    char text[64];
    snprintf(text, sizeof(text), "%.3f", value);
    json_key(out, name, more);
    out_text(out, text);
}

/* Time histograms are shown in microseconds; their keys end in _us. */
static void json_histogram(struct stats_out *out, const struct stats_point *p)
{
    static const struct {
        const char *plain, *time;
        double q;
    } quantiles[] = {{"_p50", "_p50_us", 0.5}, {"_p90", "_p90_us", 0.9}, {"_p99", "_p99_us", 0.99}};
    bool time = p->kind == STATS_TIME;
    double scale = time ? 1e-3 : 1;
    double mean = p->value != 0 ? (double)p->sum / (double)p->value : 0;
    json_key(out, p->name, "_count");
    out_number(out, p->value);
    json_real(out, p->name, time ? "_mean_us" : "_mean", mean * scale);
    for (unsigned i = 0; i < 3; i++)
        json_real(out, p->name, time ? quantiles[i].time : quantiles[i].plain,
                  stats_quantile(p, quantiles[i].q) * scale);
}

static void json_point(struct stats_out *out, const struct stats_point *p, enum stats_life life)
{
    char hash[24];
    if (p->kind == STATS_TEXT) {
        bool moot = life != STATS_LIVE && strcmp(p->name, "state") == 0;
        json_text(out, moot ? "last_state" : p->name, p->text);
        if (moot)
            json_text(out, "state", life == STATS_STOPPED ? "stopped" : "dead");
    } else if (p->kind == STATS_HASH) {
        snprintf(hash, sizeof(hash), "%016" PRIx64, p->value);
        json_text(out, p->name, hash);
    } else if (p->kind == STATS_TIME || p->kind == STATS_SIZE) {
        json_histogram(out, p);
    } else {
        json_number(out, p->name, p->value);
    }
}

void stats_render_json(struct stats_out *out, const struct stats_view *v)
{
    const struct stats_header *h = &v->snapshot.header;
    struct stats_point p;
    out_text(out, "{\"name\": ");
    json_string(out, v->readable ? h->name : v->name);
    json_text(out, "path", v->path);
    json_text(out, "condition", stats_condition_word(v->condition));
    if (!v->readable) {
        json_text(out, "error", v->err.text);
        out_text(out, "}");
        return;
    }
    json_text(out, "process",
              v->life == STATS_LIVE      ? "running"
              : v->life == STATS_STOPPED ? "stopped"
                                         : "dead");
    json_number(out, "pid", h->pid);
    json_number(out, "starts", h->starts);
    json_number(out, "start_ms", h->start_ms);
    json_number(out, "stop_ms", h->stop_ms);
    json_number(out, "last_seen_ms", stats_last_seen_ms(&v->snapshot));
    uint64_t steps = stats_number(&v->snapshot, "steps_total", 0);
    uint64_t tokens = stats_number(&v->snapshot, "step_tokens_total", 0);
    json_real(out, "tokens_per_step", "", steps != 0 ? (double)tokens / (double)steps : 0);
    for (unsigned i = 0; stats_point_at(&v->snapshot, i, &p); i++)
        json_point(out, &p, v->life);
    out_text(out, "}");
}

static enum stats_condition best_of(const struct stats_view *views, unsigned n)
{
    enum stats_condition best = STATS_CONDITION_MISSING;
    for (unsigned i = 0; i < n; i++)
        if (views[i].condition < best)
            best = views[i].condition;
    return best;
}

void stats_render_workers(struct stats_out *out, const struct stats_view *views, unsigned n)
{
    out_text(out, "{\"status\": ");
    json_string(out, stats_condition_word(best_of(views, n)));
    out_text(out, ",\n\"workers\": [");
    for (unsigned i = 0; i < n; i++) {
        out_text(out, i > 0 ? ",\n" : "\n");
        stats_render_json(out, &views[i]);
    }
    out_text(out, "]}\n");
}

static const char *health_word(enum stats_condition condition)
{
    return condition == STATS_CONDITION_READY ? "ok" : stats_condition_word(condition);
}

bool stats_render_health(struct stats_out *out, const struct stats_view *views, unsigned n)
{
    static const char *const figures[] = {"loading_percent", "requests_running",
                                          "requests_waiting"};
    enum stats_condition best = best_of(views, n);
    out_text(out, "{\"status\":");
    json_string(out, health_word(best));
    out_text(out, ",\"workers\":[");
    for (unsigned i = 0; i < n; i++) {
        out_text(out, i > 0 ? ",{\"name\":" : "{\"name\":");
        json_string(out, views[i].name);
        out_text(out, ",\"status\":");
        json_string(out, health_word(views[i].condition));
        if (views[i].readable) {
            out_text(out, ",\"model\":");
            json_string(out, stats_view_text(&views[i], "model"));
            out_text(out, ",\"seen_ms_ago\":");
            out_number(out, stats_view_age_ms(&views[i]));
        }
        for (unsigned k = 0; k < 3 && stats_condition_up(views[i].condition); k++) {
            out_text(out, ",\"");
            out_text(out, figures[k]);
            out_text(out, "\":");
            out_number(out,
                       views[i].readable ? stats_number(&views[i].snapshot, figures[k], 0) : 0);
        }
        out_text(out, "}");
    }
    out_text(out, "]}\n");
    return best == STATS_CONDITION_READY;
}
