/* tokenring stat: shows a worker's stats file, whether the worker runs, is stopped or is dead. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/stats/render.h"
#include "tools/tool.h"

static const char help[] =
    "usage: tokenring stat [OPTION]... [NAME | PATH]\n"
    "\n"
    "Shows what a worker tells about itself. The figures are read from its stats file, so it works "
    "while the\n"
    "worker is loading, stopped or dead, and never disturbs it. NAME is a worker's --name, PATH "
    "(anything with a\n"
    "slash) a stats file; without either it is the only living worker, else the newest file.\n"
    "\n"
    "  --json        one flat JSON object: every figure, histograms as _count, _mean, _p50, _p90, "
    "_p99;\n"
    "                \"state\" is the worker's own word, or stopped or dead (then \"last_state\" "
    "has its last);\n"
    "                \"condition\" is how it is: ready, loading, draining, stalled, stopped, dead, "
    "...\n"
    "  --all         detail figures, too\n"
    "  --dir DIR     where the files are; default: $RUNTIME_DIRECTORY, as root /run/tokenring,\n"
    "                else ${XDG_RUNTIME_DIR:-/tmp}/tokenring-$UID\n"
    "  --check       tell the worker's condition by the exit status as well\n"
    "\n"
    "exit status: 0 the figures were shown; 1 there are none, or the file is damaged; 2 wrong "
    "usage;\n"
    "with --check also 3 the worker is dead, 4 it is stopped, 5 it is not ready (loading, "
    "draining, stalled).\n";

#define PATH_CAP 4096

static _Alignas(64) unsigned char buf[STATS_FILE_MAX];

/* Reads the path into the view. A worker that is just taking the file over is waited for, half a second at most. */
static bool view_read(struct stats_view *v, const char *path)
{
    int fd;
    struct error err;
    v->name = v->path = path;
    if (stats_open(path, &fd, &err) != STATUS_OK) {
        stats_view_none(v, &err, clock_wall_ns() / 1000000);
        return false;
    }
    for (int i = 0; i < 50; i++) {
        stats_view_read(v, fd, buf, sizeof(buf), clock_wall_ns() / 1000000);
        if (v->readable || v->err.status != STATUS_LOADING)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    close(fd);
    return v->readable;
}

/* The only living worker's file, else the one whose owner was seen last. */
static bool find_file(const char *dir, char *out, size_t cap)
{
    static char path[PATH_CAP];
    struct stats_view v;
    uint64_t newest = 0;
    unsigned live = 0;
    bool found = false;
    DIR *d = opendir(dir);
    if (d == NULL)
        return false;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name), suffix = strlen(STATS_SUFFIX);
        if (n <= suffix || strcmp(e->d_name + n - suffix, STATS_SUFFIX) != 0 ||
            (size_t)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name) >= sizeof(path))
            continue;
        bool readable = view_read(&v, path);
        bool lives = readable && v.life != STATS_DEAD;
        uint64_t seen = readable ? stats_last_seen_ms(&v.snapshot) : 0;
        live += lives;
        if ((lives && live == 1) || ((seen > newest || !found) && (lives || live == 0))) {
            newest = seen;
            found = (size_t)snprintf(out, cap, "%s", path) < cap;
        }
    }
    closedir(d);
    if (live > 1)
        fprintf(
            stderr,
            "tokenring stat: %u workers live in %s; this is the newest, name another to see it\n",
            live, dir);
    return found;
}

static const char *life_name(enum stats_life life)
{
    return life == STATS_LIVE ? "running" : life == STATS_STOPPED ? "stopped" : "dead";
}

static void show_json(const struct stats_view *v)
{
    struct stats_out out = {0};
    stats_render_json(&out, v);
    out = (struct stats_out){xmalloc(out.len), out.len, 0};
    stats_render_json(&out, v);
    fwrite(out.data, 1, out.len, stdout);
    putchar('\n');
    free(out.data);
}

static double tokens_per_step(const struct stats_snapshot *s)
{
    uint64_t steps = stats_number(s, "steps_total", 0);
    return steps != 0 ? (double)stats_number(s, "step_tokens_total", 0) / (double)steps : 0;
}

/* ---- for people ----------------------------------------------------------------------------------------- */

static void print_duration(char *out, size_t cap, double ns)
{
    if (ns < 1e6)
        snprintf(out, cap, "%.0f us", ns / 1e3);
    else if (ns < 1e9)
        snprintf(out, cap, "%.*f ms", ns < 1e8 ? 1 : 0, ns / 1e6);
    else
        snprintf(out, cap, "%.1f s", ns / 1e9);
}

static void print_since(char *out, size_t cap, uint64_t ms)
{
    uint64_t s = ms / 1000;
    if (s < 120)
        snprintf(out, cap, "%" PRIu64 " s", s);
    else if (s < 7200)
        snprintf(out, cap, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else
        snprintf(out, cap, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
}

static void print_value(char *out, size_t cap, const struct stats_point *p)
{
    static const char *const sizes[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    if (p->kind == STATS_HASH) {
        snprintf(out, cap, "%016" PRIx64, p->value);
    } else if (strcmp(p->unit, "bytes") == 0 && p->value >= 1024) {
        double value = (double)p->value;
        unsigned i = 0;
        for (; value >= 1024 && i < 4; i++)
            value /= 1024;
        snprintf(out, cap, "%.1f %s", value, sizes[i]);
    } else if (strcmp(p->unit, "percent") == 0) {
        snprintf(out, cap, "%" PRIu64 " %%", p->value);
    } else if (strcmp(p->unit, "ms") == 0) {
        snprintf(out, cap, "%" PRIu64 " ms", p->value);
    } else {
        snprintf(out, cap, "%" PRIu64, p->value);
    }
}

/* Texts come out of a file: nothing in them may drive the terminal. */
static void show_text(const char *text)
{
    for (; *text != '\0'; text++)
        putchar((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text);
}

static void show_histogram(const struct stats_point *p)
{
    char text[4][32];
    double values[4] = {p->value != 0 ? (double)p->sum / (double)p->value : 0,
                        stats_quantile(p, 0.5), stats_quantile(p, 0.9), stats_quantile(p, 0.99)};
    for (unsigned i = 0; i < 4; i++) {
        if (p->kind == STATS_TIME)
            print_duration(text[i], sizeof(text[i]), values[i]);
        else
            snprintf(text[i], sizeof(text[i]), "%.1f", values[i]);
    }
    printf("  %-26s mean %s, p50 %s, p90 %s, p99 %s (%" PRIu64 ")\n", p->name, text[0], text[1],
           text[2], text[3], p->value);
}

static void show_point(const struct stats_point *p, enum stats_life life, bool all)
{
    char value[64];
    if (p->kind == STATS_TEXT) {
        bool moot = life != STATS_LIVE && strcmp(p->name, "state") == 0;
        printf("  %-26s %s%s", p->name, moot ? life_name(life) : "", moot ? " (was " : "");
        show_text(p->text);
        puts(moot ? ")" : "");
    } else if (p->kind == STATS_TIME || p->kind == STATS_SIZE) {
        show_histogram(p);
    } else {
        print_value(value, sizeof(value), p);
        printf(all ? "  %-26s %16s   %s\n" : "  %-26s %16s\n", p->name, value, p->help);
    }
}

static void show_table(const struct stats_view *v, bool all)
{
    const struct stats_snapshot *s = &v->snapshot;
    struct stats_point p;
    char since[64], group[STATS_GROUP_MAX] = "";
    uint64_t seen = stats_last_seen_ms(s);
    print_since(since, sizeof(since), v->now_ms > seen ? v->now_ms - seen : 0);
    fputs("worker '", stdout);
    show_text(s->header.name);
    printf("', pid %" PRIu64 ": ", s->header.pid);
    if (v->life == STATS_DEAD) {
        char when[32] = "?";
        time_t at = (time_t)(seen / 1000);
        struct tm tm;
        if (localtime_r(&at, &tm) != NULL)
            strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
        printf("dead since %s (%s ago, %s)\n", when, since,
               s->header.stop_ms != 0 ? "ended in order" : "killed");
    } else if (v->life == STATS_STOPPED) {
        printf("stopped (last sign of life %s ago)\n", since);
    } else {
        print_since(since, sizeof(since),
                    v->now_ms > s->header.start_ms ? v->now_ms - s->header.start_ms : 0);
        printf("running for %s", since);
        if (v->condition == STATS_CONDITION_STALLED) {
            print_since(since, sizeof(since), stats_view_age_ms(v));
            printf(", but no sign of life for %s", since);
        }
        putchar('\n');
    }
    for (unsigned i = 0; stats_point_at(s, i, &p); i++) {
        if (p.level == STATS_DETAIL && !all)
            continue;
        if (strcmp(group, p.group) != 0) {
            snprintf(group, sizeof(group), "%s", p.group);
            printf("%s\n", group);
        }
        show_point(&p, v->life, all);
        if (strcmp(p.name, "step_tokens_total") == 0)
            printf("  %-26s %16.2f\n", "tokens_per_step", tokens_per_step(s));
    }
}

static int condition(const struct stats_view *v)
{
    if (v->life != STATS_LIVE)
        return v->life == STATS_DEAD ? 3 : 4;
    return v->condition == STATS_CONDITION_READY ? 0 : 5;
}

int cmd_stat(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'},  {"all", no_argument, NULL, 'a'},
        {"check", no_argument, NULL, 'c'}, {"dir", required_argument, NULL, 'd'},
        {"help", no_argument, NULL, 'h'},  {NULL, 0, NULL, 0}};
    static char path[PATH_CAP];
    struct stats_view v;
    char dir[PATH_CAP];
    bool json = false, all = false, check = false, found;
    const char *given = NULL;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (c) {
        case 'j':
            json = true;
            break;
        case 'a':
            all = true;
            break;
        case 'c':
            check = true;
            break;
        case 'd':
            given = optarg;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            fputs("`tokenring stat --help` tells the options.\n", stderr);
            return 2;
        }
    }
    if (argc - optind > 1) {
        fputs("tokenring stat: one NAME or PATH at most\n", stderr);
        return 2;
    }
    const char *name = argv[optind];
    found = given != NULL ? (size_t)snprintf(dir, sizeof(dir), "%s", given) < sizeof(dir)
                          : stats_default_dir(dir, sizeof(dir));
    if (name != NULL && strchr(name, '/') != NULL) {
        snprintf(path, sizeof(path), "%s", name);
    } else if (name != NULL) {
        if (!found || !stats_path(dir, name, path, sizeof(path))) {
            fprintf(stderr, "tokenring stat: '%s' cannot be a worker's name\n", name);
            return 2;
        }
    } else if (!found || !find_file(dir, path, sizeof(path))) {
        fprintf(stderr, "tokenring stat: no worker has left a stats file in %s\n", dir);
        return 1;
    }
    if (!view_read(&v, path)) {
        fprintf(stderr, "tokenring stat: %s: %s\n", path, v.err.text);
        return 1;
    }
    if (json)
        show_json(&v);
    else
        show_table(&v, all);
    if (fflush(stdout) != 0)
        return 1;
    return check ? condition(&v) : 0;
}
