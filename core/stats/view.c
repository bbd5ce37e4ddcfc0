#include "core/stats/view.h"

#include <string.h>

static const struct {
    const char *word;
    bool up;
} conditions[STATS_CONDITIONS] = {
#define CONDITION(name, word, up, help) {word, up},
#include "core/stats/conditions.def"
#undef CONDITION
};

const char *stats_condition_word(enum stats_condition condition)
{
    return conditions[condition].word;
}

bool stats_condition_up(enum stats_condition condition)
{
    return conditions[condition].up;
}

const char *stats_view_text(const struct stats_view *v, const char *name)
{
    struct stats_point p;
    return v->readable && stats_point_find(&v->snapshot, name, &p) && p.text != NULL ? p.text : "";
}

uint64_t stats_view_age_ms(const struct stats_view *v)
{
    uint64_t seen = v->readable ? stats_last_seen_ms(&v->snapshot) : v->now_ms;
    return v->now_ms > seen ? v->now_ms - seen : 0;
}

static enum stats_condition judge(const struct stats_view *v)
{
    if (v->life == STATS_DEAD)
        return STATS_CONDITION_DEAD;
    if (v->life == STATS_STOPPED)
        return STATS_CONDITION_STOPPED;
    uint64_t interval = stats_number(&v->snapshot, "stats_interval_ms", 0);
    uint64_t limit = interval > STATS_STALL_MS / 4 ? interval * 4 : STATS_STALL_MS;
    if (stats_view_age_ms(v) > limit)
        return STATS_CONDITION_STALLED;
    const char *state = stats_view_text(v, "state");
    for (unsigned i = STATS_CONDITION_READY; i <= STATS_CONDITION_STOPPING; i++)
        if (strcmp(state, conditions[i].word) == 0)
            return (enum stats_condition)i;
    return STATS_CONDITION_STARTING;
}

void stats_view_none(struct stats_view *v, const struct error *err, uint64_t now_ms)
{
    v->readable = false;
    v->life = STATS_DEAD;
    v->now_ms = now_ms;
    v->err = *err;
    v->condition =
        err->status == STATUS_NOT_FOUND ? STATS_CONDITION_MISSING : STATS_CONDITION_DAMAGED;
}

void stats_view_read(struct stats_view *v, int fd, void *buf, size_t cap, uint64_t now_ms)
{
    struct error err = {0};
    enum status status = STATUS_LOADING;
    for (int i = 0; i < 8 && status == STATUS_LOADING; i++)
        status = stats_snapshot_pread(fd, buf, cap, &v->snapshot, &err);
    if (status != STATUS_OK) {
        stats_view_none(v, &err, now_ms);
        if (status == STATUS_LOADING)
            v->condition = STATS_CONDITION_STARTING;
        return;
    }
    v->readable = true;
    v->now_ms = now_ms;
    v->err = (struct error){0};
    v->life = stats_life_of(fd, v->snapshot.header.pid);
    v->condition = judge(v);
}
