/* render.h: views of workers as text: JSON, Prometheus' exposition format, and the short answer of a health check.
 *
 * The only place where figures get their outside form, shared by `tokenring stat` and nginx's tokenring_status. It
 * writes into a buffer of the caller and counts on when that is full, as snprintf does:
 *
 *     struct stats_out out = {NULL, 0, 0};
 *     stats_render_json(&out, &view);                     len is what it takes
 *     out = (struct stats_out){memory, out.len, 0};
 *     stats_render_json(&out, &view);                     the same bytes: a view does not change
 *
 * Texts of a stats file may be anything; what is no UTF-8 comes out as U+FFFD, control characters escaped. No
 * check(), no allocation. */
#ifndef STATS_RENDER_H
#define STATS_RENDER_H

#include <stddef.h>

#include "core/stats/view.h"

struct stats_out {
    char *data;
    size_t cap;
    size_t len; /* wanted so far; more than cap: cut */
};

/* One flat object, a key a line, no newline behind it. Of a file that cannot be read: name, path, condition, error. */
void stats_render_json(struct stats_out *out, const struct stats_view *v);
/* {"status": the best condition, "workers": [objects as above]} */
void stats_render_workers(struct stats_out *out, const struct stats_view *views, unsigned n);
/* {"status":"ok", or the best condition, "workers":[{"name","status","model",...}]}; true: at least one is ready. */
bool stats_render_health(struct stats_out *out, const struct stats_view *views, unsigned n);
/* Text format 0.0.4. Families with vLLM's meanings carry vLLM's names behind "tokenring_"; every other figure of the
 * files follows under its own name in base units. Labels worker (the view's name; the names must differ) and
 * model_name. The gauges of a dead worker are left out, its counters are not. */
void stats_render_prometheus(struct stats_out *out, const struct stats_view *views, unsigned n);

#endif
