#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/stats/reader.h"
#include "core/stats/writer.h"
#include "tests/check_main.h"

static char dir[64], path[128];
static _Alignas(64) unsigned char buf[STATS_FILE_MAX];
static struct stats_snapshot snap;
static struct error err;

static void setup(void)
{
    strcpy(dir, "/tmp/tokenring-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert(stats_path(dir, "w", path, sizeof(path)));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static struct stats_writer *writer(void)
{
    struct stats_writer *w;
    enum status status = stats_writer_create(dir, "w", &w, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
    return w;
}

static int open_file(void)
{
    int fd;
    ck_assert_int_eq(stats_open(path, &fd, &err), STATUS_OK);
    return fd;
}

static void snapshot(int fd)
{
    enum status status = stats_snapshot_pread(fd, buf, sizeof(buf), &snap, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
}

START_TEST(figures_come_back)
{
    struct stats_writer *w = writer();
    struct stats_point p;
    ck_assert_str_eq(stats_writer_path(w), path);
    stats_add(w, STATS_CELL_LOOP, STAT_requests_total, 3);
    stats_add(w, STATS_CELL_SCHED, STAT_requests_total, 4);
    stats_add(w, STATS_CELL_LOOP, STAT_requests_running, 5);
    stats_add(w, STATS_CELL_SCHED, STAT_requests_running, (uint64_t)-2);
    stats_set(w, STAT_last_logits_hash, 0xfedcba9876543210);
    stats_set_text(w, STAT_model, "a model");
    stats_heartbeat(w);
    int fd = open_file();
    ck_assert_uint_gt(stats_file_bytes(fd), 4096);
    snapshot(fd);
    ck_assert_uint_eq(stats_number(&snap, "requests_total", 0), 7);
    ck_assert_uint_eq(stats_number(&snap, "requests_running", 0), 3);
    ck_assert_uint_eq(stats_number(&snap, "last_logits_hash", 0), 0xfedcba9876543210);
    ck_assert_uint_eq(stats_number(&snap, "no_such_figure", 42), 42);
    ck_assert_uint_eq(stats_number(&snap, "step_time", 42), 42);
    ck_assert_uint_eq(stats_value(w, STAT_requests_total), 7);
    ck_assert(stats_point_find(&snap, "model", &p));
    ck_assert_str_eq(p.text, "a model");
    ck_assert_int_eq(p.kind, STATS_TEXT);
    ck_assert_str_eq(snap.header.name, "w");
    ck_assert_uint_eq(snap.header.pid, (uint64_t)getpid());
    ck_assert_uint_eq(snap.header.starts, 1);
    ck_assert_int_eq(stats_life_of(fd, snap.header.pid), STATS_LIVE);
    ck_assert_uint_le(clock_wall_ns() / 1000000 - stats_last_seen_ms(&snap), 5000);
    unsigned n = 0;
    while (stats_point_at(&snap, n, &p))
        n++;
    ck_assert_uint_eq(n, STAT_COUNT);
    /* Values that are written later are seen by the next snapshot through the same descriptor. */
    stats_add(w, STATS_CELL_OTHER, STAT_requests_total, 1);
    ck_assert_uint_eq(stats_number(&snap, "requests_total", 0), 7);
    snapshot(fd);
    ck_assert_uint_eq(stats_number(&snap, "requests_total", 0), 8);
    stats_writer_free(w);
    ck_assert_int_eq(stats_life_of(fd, snap.header.pid), STATS_DEAD);
    snapshot(fd);
    ck_assert_uint_ne(snap.header.stop_ms, 0);
    close(fd);
}
END_TEST

START_TEST(histograms)
{
    struct stats_writer *w = writer();
    struct stats_point p;
    for (int i = 1; i <= 1000; i++)
        stats_record(w, i % 2 ? STATS_CELL_SCHED : STATS_CELL_LOOP, STAT_itl,
                     (uint64_t)i * 100000); /* 0.1..100 ms */
    stats_record(w, STATS_CELL_SCHED, STAT_itl, UINT64_MAX / 2);
    stats_record(w, STATS_CELL_SCHED, STAT_step_tokens, 0);
    stats_record(w, STATS_CELL_SCHED, STAT_step_tokens, 1);
    stats_record(w, STATS_CELL_SCHED, STAT_step_tokens, 2);
    int fd = open_file();
    snapshot(fd);
    ck_assert(stats_point_find(&snap, "itl", &p));
    ck_assert_int_eq(p.kind, STATS_TIME);
    ck_assert_uint_eq(p.value, 1001);
    ck_assert_uint_eq(p.buckets[p.n_bounds], 1);
    ck_assert_double_eq_tol(stats_quantile(&p, 0.5), 50e6, 2e6);
    ck_assert_double_eq_tol(stats_quantile(&p, 0.9), 90e6, 3e6);
    ck_assert_double_eq(stats_quantile(&p, 1.0), 100e9);
    ck_assert(stats_point_find(&snap, "step_tokens", &p));
    ck_assert_uint_eq(p.value, 3);
    ck_assert_uint_eq(p.sum, 3);
    ck_assert_uint_eq(p.buckets[0], 2);
    ck_assert_uint_eq(p.buckets[1], 1);
    ck_assert(stats_point_find(&snap, "ttft", &p));
    ck_assert_double_eq(stats_quantile(&p, 0.5), 0);
    close(fd);
    stats_writer_free(w);
}
END_TEST

START_TEST(texts_are_cut_at_a_character)
{
    char text[STATS_TEXT_MAX + 10];
    struct stats_point p;
    struct stats_writer *w = stats_writer_anonymous();
    stats_writer_free(w);
    w = writer();
    memset(text, 'x', sizeof(text));
    memcpy(text + STATS_TEXT_MAX - 2, "\xc3\xa4", 2);
    text[sizeof(text) - 1] = '\0';
    stats_set_text(w, STAT_model, text);
    int fd = open_file();
    snapshot(fd);
    ck_assert(stats_point_find(&snap, "model", &p));
    ck_assert_uint_eq(strlen(p.text), STATS_TEXT_MAX - 2);
    stats_set_text(w, STAT_model, "");
    snapshot(fd);
    ck_assert(stats_point_find(&snap, "model", &p));
    ck_assert_str_eq(p.text, "");
    close(fd);
    stats_writer_free(w);
}
END_TEST

START_TEST(no_writer_is_fine)
{
    stats_add(NULL, STATS_CELL_LOOP, STAT_requests_total, 1);
    stats_set(NULL, STAT_threads, 1);
    stats_record(NULL, STATS_CELL_LOOP, STAT_itl, 1);
    stats_set_text(NULL, STAT_model, "x");
    stats_heartbeat(NULL);
    ck_assert_uint_eq(stats_value(NULL, STAT_threads), 0);
    ck_assert_str_eq(stats_writer_path(NULL), "");
    stats_writer_free(NULL);
}
END_TEST

/* A worker process that counts `count` requests, writes a byte when it has, and then waits to be killed. */
static pid_t worker(unsigned count)
{
    int fds[2];
    char byte;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct stats_writer *w;
        if (stats_writer_create(dir, "w", &w, &err) != STATUS_OK)
            _exit(3);
        stats_add(w, STATS_CELL_LOOP, STAT_requests_total, count);
        stats_heartbeat(w);
        if (write(fds[1], "x", 1) != 1)
            _exit(4);
        for (;;)
            pause();
    }
    close(fds[1]);
    ck_assert_int_eq(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    return pid;
}

static void end(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
}

START_TEST(stopped_dead_and_adopted)
{
    pid_t pid = worker(11);
    int fd = open_file();
    snapshot(fd);
    ck_assert_uint_eq(snap.header.pid, (uint64_t)pid);
    ck_assert_int_eq(stats_life_of(fd, snap.header.pid), STATS_LIVE);

    kill(pid, SIGSTOP);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert_int_eq(stats_life_of(fd, snap.header.pid), STATS_STOPPED);
    struct stats_writer *w;
    ck_assert_int_eq(stats_writer_create(dir, "w", &w, &err), STATUS_IO); /* stopped is alive */
    ck_assert_ptr_nonnull(strstr(err.text, "living worker"));
    char text[32];
    snprintf(text, sizeof(text), "pid %d", (int)pid);
    ck_assert_msg(strstr(err.text, text) != NULL, "%s", err.text);
    ck_assert_ptr_null(w);

    end(pid);
    snapshot(fd);
    ck_assert_int_eq(stats_life_of(fd, snap.header.pid), STATS_DEAD);
    ck_assert_uint_eq(stats_number(&snap, "requests_total", 0), 11); /* what it left can be read */
    ck_assert_uint_eq(snap.header.stop_ms, 0);

    w = writer(); /* adopts the same file: a reader's descriptor stays good */
    ck_assert_int_eq(stats_life_of(fd, (uint64_t)getpid()), STATS_LIVE);
    snapshot(fd);
    ck_assert_uint_eq(snap.header.pid, (uint64_t)getpid());
    ck_assert_uint_eq(snap.header.starts, 2);
    ck_assert_uint_eq(stats_number(&snap, "requests_total", 42), 0);
    ck_assert_uint_ne(snap.header.start_ms, 0);
    stats_writer_free(w);
    close(fd);
}
END_TEST

/* Files of other layouts are replaced, not adopted. */
START_TEST(foreign_files_are_replaced)
{
    static const char *contents[] = {
        "", "x", "TOKNSTATxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};
    struct stats_writer *w;
    if (_i < 3) {
        FILE *f = fopen(path, "w");
        fputs(contents[_i], f);
        fclose(f);
    } else {
        w = writer();
        stats_writer_free(w);
        if (_i == 3)
            ck_assert_int_eq(truncate(path, 4096), 0);
        int fd = open(path, O_RDWR);
        uint32_t version = 99;
        if (_i == 4)
            ck_assert_int_eq(pwrite(fd, &version, 4, offsetof(struct stats_header, version)), 4);
        if (_i == 5) /* holes would be SIGBUS on a full disk */
            ck_assert(ftruncate(fd, 0) == 0 && ftruncate(fd, 65536) == 0);
        close(fd);
    }
    w = writer();
    int fd = open_file();
    snapshot(fd);
    ck_assert_uint_eq(snap.header.starts, 1);
    ck_assert_int_eq(stats_life_of(fd, snap.header.pid), STATS_LIVE);
    close(fd);
    stats_writer_free(w);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0644 & ~umask(0));
    ck_assert_uint_eq(st.st_nlink, 1);
}
END_TEST

START_TEST(links_and_names_are_refused)
{
    struct stats_writer *w;
    ck_assert_int_eq(stats_writer_create(dir, "../x", &w, &err), STATUS_INVALID);
    ck_assert_int_eq(stats_writer_create(dir, ".x", &w, &err), STATUS_INVALID);
    ck_assert_int_eq(stats_writer_create(dir, "", &w, &err), STATUS_INVALID);
    ck_assert_int_eq(symlink("/tmp/elsewhere", path), 0);
    ck_assert_int_eq(stats_writer_create(dir, "w", &w, &err), STATUS_IO);
    int fd;
    ck_assert_int_eq(stats_open(path, &fd, &err), STATUS_IO);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(stats_open(path, &fd, &err), STATUS_NOT_FOUND);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(stats_open(path, &fd, &err), STATUS_IO);
    ck_assert_int_eq(stats_writer_create(dir, "w", &w, &err), STATUS_IO);
    ck_assert_int_eq(stats_writer_create("/proc/nowhere", "w", &w, &err), STATUS_IO);
}
END_TEST

/* Many start at once: exactly one gets the name. */
START_TEST(one_of_many_wins)
{
    pid_t pids[8];
    int go[2], up[2];
    ck_assert(pipe(go) == 0 && pipe(up) == 0);
    for (int i = 0; i < 8; i++) {
        if ((pids[i] = fork()) != 0)
            continue;
        struct stats_writer *w;
        char byte;
        close(go[1]);
        if (read(go[0], &byte, 1) != 0)
            _exit(9);
        enum status status = stats_writer_create(dir, "w", &w, &err);
        if (write(up[1], status == STATUS_OK ? "y" : "n", 1) != 1)
            _exit(9);
        if (status == STATUS_OK)
            for (;;)
                pause();
        _exit(0);
    }
    close(go[1]);
    int won = 0, lost = 0;
    char byte;
    while (won + lost < 8 && read(up[0], &byte, 1) == 1)
        *(byte == 'y' ? &won : &lost) += 1;
    ck_assert_int_eq(won, 1);
    ck_assert_int_eq(lost, 7);
    for (int i = 0; i < 8; i++)
        end(pids[i]);
    char command[128];
    snprintf(command, sizeof(command), "test \"$(ls -A %s)\" = w.stats", dir);
    ck_assert_int_eq(system(command), 0); /* nothing temporary left */
    close(go[0]);
    close(up[0]);
    close(up[1]);
}
END_TEST

/* A reader survives any file: every truncation, and every byte of header and descriptions overwritten. */
START_TEST(damage_is_refused_or_harmless)
{
    struct stats_writer *w = writer();
    stats_writer_free(w);
    int fd = open(path, O_RDWR);
    snapshot(fd);
    size_t bytes = snap.len;
    unsigned char *good = malloc(bytes);
    memcpy(good, buf, bytes);
    for (size_t n = 0; n < bytes; n += n < 512 ? 1 : 997) {
        ck_assert_int_eq(ftruncate(fd, (off_t)n), 0);
        ck_assert_int_eq(stats_snapshot_pread(fd, buf, sizeof(buf), &snap, &err), STATUS_CORRUPT);
    }
    ck_assert_int_eq(pwrite(fd, good, bytes, 0), (ssize_t)bytes);
    snapshot(fd);
    ck_assert_int_eq(stats_snapshot_pread(fd, buf, bytes - 1, &snap, &err), STATUS_TOO_LARGE);
    unsigned refused = 0;
    static const unsigned char bad[] = {0, 1, 0x7f, 0x80, 0xff};
    for (size_t at = 0; at < snap.header.points_at + 6 * sizeof(struct stats_point_desc); at++) {
        for (unsigned b = 0; b < sizeof(bad); b++) {
            ck_assert_int_eq(pwrite(fd, &bad[b], 1, (off_t)at), 1);
            if (stats_snapshot_pread(fd, buf, sizeof(buf), &snap, &err) != STATUS_OK) {
                refused++;
                continue;
            }
            struct stats_point p;
            for (unsigned i = 0; stats_point_at(&snap, i, &p); i++)
                ck_assert_uint_lt(strlen(p.name) + strlen(p.help), 1000);
            stats_last_seen_ms(&snap);
        }
        ck_assert_int_eq(pwrite(fd, good + at, 1, (off_t)at), 1);
    }
    ck_assert_uint_gt(refused, 200);
    free(good);
    close(fd);
}
END_TEST

START_TEST(a_takeover_in_progress_is_told)
{
    struct stats_writer *w = writer();
    int fd = open(path, O_RDWR);
    uint64_t odd = 7;
    ck_assert_int_eq(pwrite(fd, &odd, 8, offsetof(struct stats_header, epoch)), 8);
    ck_assert_int_eq(stats_snapshot_pread(fd, buf, sizeof(buf), &snap, &err), STATUS_LOADING);
    close(fd);
    stats_writer_free(w);
    w = writer(); /* died in the middle of it: the next one gets out of it */
    fd = open_file();
    snapshot(fd);
    close(fd);
    stats_writer_free(w);
}
END_TEST

START_TEST(default_places)
{
    char out[256];
    setenv("RUNTIME_DIRECTORY", "/run/a:/run/b", 1);
    ck_assert(stats_default_dir(out, sizeof(out)));
    ck_assert_str_eq(out, "/run/a");
    ck_assert(stats_path(NULL, "default", out, sizeof(out)));
    ck_assert_str_eq(out, "/run/a/default.stats");
    ck_assert(!stats_path(NULL, "default", out, 10));
    unsetenv("RUNTIME_DIRECTORY");
    setenv("XDG_RUNTIME_DIR", "/run/user/5", 1);
    ck_assert(stats_default_dir(out, sizeof(out)));
    if (geteuid() == 0)
        ck_assert_str_eq(out, "/run/tokenring");
    else
        ck_assert_int_eq(strncmp(out, "/run/user/5/tokenring-", 22), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stats");
    TCase *tc = tcase_create("stats");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, figures_come_back);
    tcase_add_test(tc, histograms);
    tcase_add_test(tc, texts_are_cut_at_a_character);
    tcase_add_test(tc, no_writer_is_fine);
    tcase_add_test(tc, stopped_dead_and_adopted);
    tcase_add_loop_test(tc, foreign_files_are_replaced, 0, 6);
    tcase_add_test(tc, links_and_names_are_refused);
    tcase_add_test(tc, one_of_many_wins);
    tcase_add_test(tc, damage_is_refused_or_harmless);
    tcase_add_test(tc, a_takeover_in_progress_is_told);
    tcase_add_test(tc, default_places);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
