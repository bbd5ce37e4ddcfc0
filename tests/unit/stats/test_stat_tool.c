/* `tokenring stat` against a worker that lives, is stopped, is dead, was never there. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/stats/writer.h"
#include "tests/check_main.h"

static char dir[64];
static char output[65536];
static pid_t pids[2];

static void setup(void)
{
    strcpy(dir, "/tmp/tokenring-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    pids[0] = pids[1] = 0;
}

static void teardown(void)
{
    char command[128];
    for (int i = 0; i < 2; i++) {
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
    }
    snprintf(command, sizeof(command), "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static void worker(int i, const char *name, const char *state)
{
    int up[2];
    char byte;
    ck_assert_int_eq(pipe(up), 0);
    if ((pids[i] = fork()) == 0) {
        struct stats_writer *w;
        if (stats_writer_create(dir, name, &w, NULL) != STATUS_OK)
            _exit(1);
        stats_set_text(w, STAT_state, state);
        stats_set_text(w, STAT_model, "qu\"ote\n\xff\xc3\xa4");
        stats_set(w, STAT_loading_percent, 40);
        stats_add(w, STATS_CELL_SCHED, STAT_requests_total, 17);
        stats_add(w, STATS_CELL_SCHED, STAT_steps_total, 4);
        stats_add(w, STATS_CELL_SCHED, STAT_step_tokens_total, 10);
        stats_set(w, STAT_last_logits_hash, 0xabc);
        stats_record(w, STATS_CELL_SCHED, STAT_itl, 9000000);
        stats_heartbeat(w);
        if (write(up[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(up[0], &byte, 1), 1);
    close(up[0]);
    close(up[1]);
}

/* Runs the tool, keeps stdout and stderr in output; its exit status. */
static int run(const char *args)
{
    char command[512];
    snprintf(command, sizeof(command), "RUNTIME_DIRECTORY=%s TZ=UTC '%s/tokenring' stat %s 2>&1",
             dir, getenv("TOKENRING_BUILD"), args);
    FILE *p = popen(command, "r");
    ck_assert_ptr_nonnull(p);
    output[fread(output, 1, sizeof(output) - 1, p)] = '\0';
    int status = pclose(p);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void shows(const char *text)
{
    ck_assert_msg(strstr(output, text) != NULL, "no '%s' in:\n%s", text, output);
}

START_TEST(living)
{
    worker(0, "alpha", "loading");
    ck_assert_int_eq(run(""), 0);
    shows("worker 'alpha'");
    shows("running for");
    shows("loading\n");
    shows("40 %");
    shows("2.50"); /* tokens per step */
    shows("qu\"ote?");
    ck_assert_ptr_null(strstr(output, "kv_arena_mapped"));
    ck_assert_int_eq(run("--all alpha"), 0);
    shows("kv_arena_mapped");
    ck_assert_int_eq(run("--check"), 5);
    ck_assert_int_eq(run("--json"), 0);
    shows("\"requests_total\": 17");
    shows("\"state\": \"loading\"");
    shows("\"process\": \"running\"");
    shows("\"last_logits_hash\": \"0000000000000abc\"");
    shows("\"model\": \"qu\\\"ote\\u000a\\ufffd\xc3\xa4\"");
    shows("\"itl_count\": 1");
    static const char *keys[] = {"requests_running",        "requests_waiting",
                                 "requests_total",          "prompt_tokens_total",
                                 "cached_tokens_total",     "prefilled_tokens_total",
                                 "completion_tokens_total", "kv_pages_used",
                                 "kv_pages_total",          "steps_total"};
    for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char key[64];
        snprintf(key, sizeof(key), "\n\"%s\": ", keys[i]);
        shows(key);
    }
}
END_TEST

START_TEST(stopped_and_dead)
{
    worker(0, "alpha", "ready");
    ck_assert_int_eq(run("--check"), 0);
    kill(pids[0], SIGSTOP);
    ck_assert_int_eq(waitpid(pids[0], NULL, WUNTRACED), pids[0]);
    ck_assert_int_eq(run("--check"), 4);
    shows("stopped (last sign of life");
    shows("stopped (was ready)");
    ck_assert_int_eq(run("--json"), 0);
    shows("\"state\": \"stopped\"");
    shows("\"last_state\": \"ready\"");
    kill(pids[0], SIGKILL);
    waitpid(pids[0], NULL, 0);
    pids[0] = 0;
    ck_assert_int_eq(run("--check"), 3);
    shows("dead since 20");
    shows("killed");
    ck_assert_int_eq(run("--json"), 0);
    shows("\"requests_total\": 17");
    shows("\"state\": \"dead\"");
}
END_TEST

START_TEST(which_file)
{
    ck_assert_int_eq(run(""), 1);
    shows("no worker has left a stats file");
    ck_assert_int_eq(run("alpha"), 1);
    worker(1, "beta", "ready");
    usleep(5000); /* milliseconds tell which one was seen last */
    worker(0, "alpha", "ready");
    kill(pids[0], SIGKILL);
    waitpid(pids[0], NULL, 0);
    ck_assert_int_eq(run(""), 0); /* the living one, though the other was begun later */
    shows("worker 'beta'");
    kill(pids[1], SIGKILL);
    waitpid(pids[1], NULL, 0);
    ck_assert_int_eq(run(""), 0);
    shows("worker 'alpha'");
    char command[160];
    snprintf(command, sizeof(command), "%s/beta.stats", dir);
    ck_assert_int_eq(run(command), 0);
    shows("worker 'beta'");
    worker(0, "alpha", "ready");
    worker(1, "beta", "ready");
    ck_assert_int_eq(run(""), 0);
    shows("2 workers live");
}
END_TEST

START_TEST(wrong_use_and_damage)
{
    ck_assert_int_eq(run("--nonsense"), 2);
    ck_assert_int_eq(run("a b"), 2);
    ck_assert_int_eq(run("'a b'"), 2);
    ck_assert_int_eq(run("--help"), 0);
    shows("exit status");
    char command[160];
    snprintf(command, sizeof(command), "head -c 3000 /dev/zero > %s/bad.stats", dir);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(run("bad"), 1);
    shows("no stats file");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stat");
    TCase *tc = tcase_create("stat");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, living);
    tcase_add_test(tc, stopped_and_dead);
    tcase_add_test(tc, which_file);
    tcase_add_test(tc, wrong_use_and_damage);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
