/* Views of workers as text: every byte of a stats file may be odd, every answer is well formed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/stats/render.h"
#include "core/stats/writer.h"
#include "tests/check_main.h"

static char dir[64], path[128];
static struct stats_writer *w;
static struct stats_view view;
static _Alignas(64) unsigned char buf[STATS_FILE_MAX];
static char text[1 << 20];

static void setup(void)
{
    strcpy(dir, "/tmp/tokenring-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/w.stats", dir);
    ck_assert_int_eq(stats_writer_create(dir, "w", &w, NULL), STATUS_OK);
    stats_set_text(w, STAT_state, "ready");
    stats_heartbeat(w);
}

static void teardown(void)
{
    stats_writer_free(w);
    unlink(path);
    rmdir(dir);
}

/* Looks at the file `later` milliseconds from now. */
static void look(uint64_t later)
{
    int fd;
    view.name = "w";
    view.path = path;
    ck_assert_int_eq(stats_open(path, &fd, NULL), STATUS_OK);
    stats_view_read(&view, fd, buf, sizeof(buf), clock_wall_ns() / 1000000 + later);
    close(fd);
}

static size_t prometheus(void)
{
    struct stats_out out = {text, sizeof(text) - 1, 0};
    stats_render_prometheus(&out, &view, 1);
    ck_assert_uint_lt(out.len, sizeof(text));
    text[out.len] = '\0';
    return out.len;
}

static void shows(const char *line)
{
    ck_assert_msg(strstr(text, line) != NULL, "no '%s' in:\n%.3000s", line, text);
}

START_TEST(conditions)
{
    static const struct {
        const char *state;
        enum stats_condition condition;
    } states[] = {{"ready", STATS_CONDITION_READY},       {"loading", STATS_CONDITION_LOADING},
                  {"draining", STATS_CONDITION_DRAINING}, {"stopping", STATS_CONDITION_STOPPING},
                  {"", STATS_CONDITION_STARTING},         {"dead", STATS_CONDITION_STARTING}};
    for (unsigned i = 0; i < 6; i++) {
        stats_set_text(w, STAT_state, states[i].state);
        look(0);
        ck_assert_int_eq(view.condition, states[i].condition);
    }
    stats_set_text(w, STAT_state, "ready");
    look(STATS_STALL_MS - 1000);
    ck_assert_int_eq(view.condition, STATS_CONDITION_READY);
    look(STATS_STALL_MS + 1);
    ck_assert_int_eq(view.condition, STATS_CONDITION_STALLED);
    ck_assert_uint_gt(stats_view_age_ms(&view), STATS_STALL_MS);
    stats_set(w, STAT_stats_interval_ms, 60000); /* it said that it would be silent that long */
    look(200000);
    ck_assert_int_eq(view.condition, STATS_CONDITION_READY);
    look(300000);
    ck_assert_int_eq(view.condition, STATS_CONDITION_STALLED);
    ck_assert(!stats_condition_up(view.condition));
    view.now_ms = 5; /* a clock that went back */
    ck_assert_uint_eq(stats_view_age_ms(&view), 0);
    stats_writer_free(w);
    w = NULL;
    look(0);
    ck_assert_int_eq(view.condition, STATS_CONDITION_DEAD);
    ck_assert_int_eq(truncate(path, 5000), 0);
    look(0);
    ck_assert_int_eq(view.condition, STATS_CONDITION_DAMAGED);
    struct error err;
    int fd;
    ck_assert_int_eq(stats_open("/nonexistent/x.stats", &fd, &err), STATUS_NOT_FOUND);
    stats_view_none(&view, &err, 1);
    ck_assert_int_eq(view.condition, STATS_CONDITION_MISSING);
}
END_TEST

START_TEST(values_in_base_units)
{
    stats_set_text(w, STAT_model, "a\\b\"c\nd\xff\xc3\xa4\x01");
    stats_set(w, STAT_load_time_ms, 1250);
    stats_set(w, STAT_loading_percent, 40);
    stats_set(w, STAT_kv_pages_total, 3);
    stats_set(w, STAT_kv_pages_used, 2);
    stats_set(w, STAT_kv_pages_cached, 1);
    stats_set(w, STAT_kv_page_bytes, 20480);
    stats_add(w, STATS_CELL_SCHED, STAT_completion_tokens_total, 1000);
    stats_add(w, STATS_CELL_LOOP, STAT_requests_failed, 7);
    stats_set(w, STAT_ring_bytes_sent, 10);
    stats_record(w, STATS_CELL_LOOP, STAT_ttft, 100000);        /* the bound itself: inside */
    stats_record(w, STATS_CELL_LOOP, STAT_ttft, 1500000001);    /* 1.5 s and a nanosecond */
    stats_record(w, STATS_CELL_SCHED, STAT_ttft, 200000000000); /* above all bounds */
    look(0);
    prometheus();
#define L "{worker=\"w\",model_name=\"a\\\\b\\\"c\\nd\xef\xbf\xbd\xc3\xa4 \""
    shows("\ntokenring_load_time_seconds" L "} 1.25\n");
    shows("\ntokenring_loading_ratio" L "} 0.4\n");
    shows("\ntokenring_kv_cache_usage_perc" L "} 0.666666\n");
    shows("\n# TYPE tokenring_kv_pages_limit gauge\ntokenring_kv_pages_limit" L "} 3\n");
    shows("\ntokenring_kv_page_bytes" L "} 20480\n");
    shows("\n# TYPE tokenring_generation_tokens_total counter\ntokenring_generation_tokens_total" L
          "} 1000\n");
    shows("\ntokenring_request_success_total" L ",finished_reason=\"error\"} 7\n");
    shows("\ntokenring_ring_bytes_sent_total" L "} 10\n");
    shows("\n# TYPE tokenring_time_to_first_token_seconds histogram\n"
          "tokenring_time_to_first_token_seconds_bucket" L ",le=\"0.0001\"} 1\n"
          "tokenring_time_to_first_token_seconds_bucket" L ",le=\"0.00015\"} 1\n");
    shows("_bucket" L ",le=\"1.5\"} 1\n");
    shows("_bucket" L ",le=\"2\"} 2\n");
    shows("_bucket" L ",le=\"100\"} 2\n");
    shows("tokenring_time_to_first_token_seconds_bucket" L ",le=\"+Inf\"} 3\n"
          "tokenring_time_to_first_token_seconds_sum" L "} 201.500100001\n"
          "tokenring_time_to_first_token_seconds_count" L "} 3\n");
    ck_assert_ptr_null(strstr(text, "heartbeat_ms"));
    ck_assert_ptr_null(strstr(text, "_ms{"));
}
END_TEST

/* A buffer that is too small is filled to its end, not past it, and the length wanted is told. */
START_TEST(cut_to_the_buffer)
{
    look(0);
    size_t whole = prometheus();
    static char small[1 << 20];
    for (size_t cap = 0; cap < whole; cap += 97) {
        struct stats_out out = {small, cap, 0};
        memset(small, '#', cap + 8);
        stats_render_prometheus(&out, &view, 1);
        ck_assert_uint_eq(out.len, whole);
        ck_assert_mem_eq(small, text, cap);
        ck_assert_mem_eq(small + cap, "########", 8);
    }
    struct stats_out out = {NULL, 0, 0};
    stats_render_json(&out, &view);
    stats_render_health(&out, &view, 1);
    stats_render_workers(&out, &view, 1);
    ck_assert_uint_gt(out.len, 2000);
}
END_TEST

START_TEST(health)
{
    struct stats_view views[2];
    look(0);
    views[0] = view;
    stats_view_none(&views[1], &(struct error){.status = STATUS_NOT_FOUND}, 0);
    views[1].name = "a\"b";
    views[1].path = "/p";
    struct stats_out out = {text, sizeof(text) - 1, 0};
    ck_assert(stats_render_health(&out, views, 2));
    text[out.len] = '\0';
    shows("{\"status\":\"ok\",\"workers\":[{\"name\":\"w\",\"status\":\"ok\",\"model\":\"\",");
    shows("\"requests_running\":0,\"requests_waiting\":0},{\"name\":\"a\\\"b\",\"status\":"
          "\"missing\"}]}\n");
    out.len = 0;
    ck_assert(!stats_render_health(&out, views + 1, 1));
    text[out.len] = '\0';
    shows("{\"status\":\"missing\",\"workers\":[");
}
END_TEST

/* Every byte of header and descriptions overwritten: refused, or text of the usual length. */
START_TEST(damaged_files)
{
    look(0);
    size_t bytes = view.snapshot.len;
    unsigned char *good = malloc(bytes);
    memcpy(good, buf, bytes);
    FILE *f = fopen(path, "r+");
    int fd = fileno(f);
    static const unsigned char bad[] = {0, 1, 0x7f, 0xff};
    size_t end = view.snapshot.header.points_at + 4 * sizeof(struct stats_point_desc);
    for (size_t at = 0; at < end; at += 3) {
        for (unsigned b = 0; b < sizeof(bad); b++) {
            ck_assert_int_eq(pwrite(fd, &bad[b], 1, (off_t)at), 1);
            look(0);
            struct stats_out out = {text, sizeof(text), 0};
            stats_render_prometheus(&out, &view, 1);
            stats_render_json(&out, &view);
            ck_assert_uint_lt(out.len, sizeof(text));
        }
        ck_assert_int_eq(pwrite(fd, good + at, 1, (off_t)at), 1);
    }
    fclose(f);
    free(good);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("render");
    TCase *tc = tcase_create("render");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, conditions);
    tcase_add_test(tc, values_in_base_units);
    tcase_add_test(tc, cut_to_the_buffer);
    tcase_add_test(tc, health);
    tcase_add_test(tc, damaged_files);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
