/* fuzz_stats.c: a stats file with any contents, read and rendered in every form.
 *
 * sources: core/stats/reader.c core/stats/view.c core/stats/render.c core/stats/prometheus.c core/base/status.c
 * covers: core/stats/view.c core/stats/render.c core/stats/prometheus.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/stats/render.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Rendered twice: the second time into a buffer of just the length that the first one told. */
static void twice(void (*render)(struct stats_out *, const struct stats_view *, unsigned), const struct stats_view *views, unsigned n)
{
    struct stats_out out = {NULL, 0, 0};
    render(&out, views, n);
    size_t len = out.len;
    out = (struct stats_out){malloc(len), len, 0};
    render(&out, views, n);
    if (out.len != len || (len > 0 && memchr(out.data, '\0', len) != NULL))
        abort();
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)out.data[i] < 0x20 && out.data[i] != '\n')
            abort();
    free(out.data);
}

static void health(struct stats_out *out, const struct stats_view *views, unsigned n)
{
    stats_render_health(out, views, n);
}

/* The first byte is how old the file looks, the rest is the file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Alignas(64) unsigned char buf[2][65536];
    static int fd = -1;
    struct stats_view views[2];
    if (size < 1)
        return 0;
    if (fd < 0)
        fd = memfd_create("stats", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data + 1, size - 1, 0) != (ssize_t)size - 1)
        abort();
    for (unsigned i = 0; i < 2; i++) {
        views[i].name = i == 0 ? "one" : "an\"other";
        views[i].path = "/p";
        stats_view_read(&views[i], fd, buf[i], sizeof(buf[i]), (uint64_t)data[0] * 1000);
        /* A dead worker is all that nobody's lock tells; some of them are made to live. */
        if (views[i].readable && (data[0] & 1) != 0) {
            views[i].condition = (enum stats_condition)(data[0] % STATS_CONDITION_DAMAGED);
            views[i].life = STATS_LIVE;
        }
    }
    twice(stats_render_prometheus, views, 2);
    twice(stats_render_workers, views, 2);
    twice(health, views, 2);
    stats_view_age_ms(&views[0]);
    return 0;
}
