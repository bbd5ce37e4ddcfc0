#define _GNU_SOURCE
#include "core/worker/options.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/check_main.h"

static struct options o;
static struct error err;

static void setup(void)
{
    memset(&err, 0, sizeof(err));
    options_init(&o);
}

static void teardown(void)
{
    options_release(&o);
}

/* Parses a command line of up to 7 words. */
static enum status parse(const char *a, const char *b, const char *c, const char *d)
{
    char *argv[6] = {(char *)"tokenringd", (char *)a, (char *)b, (char *)c, (char *)d, NULL};
    int argc = 1;
    while (argv[argc] != NULL)
        argc++;
    return options_parse(&o, argc, argv, &err);
}

static const char *write_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/test_options.XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static enum status read_config(const char *text)
{
    const char *path = write_file(text);
    enum status status = options_read_file(&o, path, &err);
    unlink(path);
    return status;
}

START_TEST(defaults)
{
    ck_assert_str_eq(o.name, "default");
    ck_assert_str_eq(o.kv_type, "auto");
    ck_assert_uint_eq(o.socket_mode, 0660);
    ck_assert_uint_eq(o.max_body, 16u << 20);
    ck_assert(!o.test_echo);
}
END_TEST

START_TEST(command_line)
{
    ck_assert_int_eq(parse("--model", "/m.gguf", "--threads=3", "--trace-logits"), STATUS_OK);
    ck_assert_str_eq(o.model, "/m.gguf");
    ck_assert_uint_eq(o.threads, 3);
    ck_assert(o.trace_logits);
    ck_assert_int_eq(parse("--trace-logits=off", "--kv-memory", "1.5g", "-t"), STATUS_OK);
    ck_assert(!o.trace_logits);
    ck_assert_uint_eq(o.kv_memory, 3ull << 29);
    ck_assert(o.check_only);
}
END_TEST

START_TEST(command_line_errors)
{
    ck_assert_int_eq(parse("--modle", "x", NULL, NULL), STATUS_INVALID);
    ck_assert_str_eq(err.text, "unknown option --modle (see --help)");
    ck_assert_int_eq(parse("--threads", NULL, NULL, NULL), STATUS_INVALID);
    ck_assert_str_eq(err.text, "option --threads needs a value (N)");
    ck_assert_int_eq(parse("--threads", "two", NULL, NULL), STATUS_INVALID);
    ck_assert_str_eq(err.text, "option threads: \"two\" is no whole number");
    ck_assert_int_eq(parse("--threads", "-1", NULL, NULL), STATUS_INVALID);
    ck_assert_int_eq(parse("--threads", "99999999999999999999", NULL, NULL), STATUS_INVALID);
    ck_assert_int_eq(parse("--threads", "1025", NULL, NULL), STATUS_INVALID);
    ck_assert_str_eq(err.text, "option threads: 1025 is not within 0 and 1024");
    ck_assert_int_eq(parse("--socket-mode", "0888", NULL, NULL), STATUS_INVALID);
    ck_assert_int_eq(parse("--socket-mode", "1777", NULL, NULL), STATUS_INVALID);
    ck_assert_int_eq(parse("stray", NULL, NULL, NULL), STATUS_INVALID);
    ck_assert_int_eq(parse("--config", NULL, NULL, NULL), STATUS_INVALID);
    ck_assert_int_eq(parse("--config", "/nonexistent/x", NULL, NULL), STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/x"));
}
END_TEST

START_TEST(sizes)
{
    uint64_t n;
    ck_assert(options_parse_size("0", &n) && n == 0);
    ck_assert(options_parse_size("4096", &n) && n == 4096);
    ck_assert(options_parse_size("64k", &n) && n == 65536);
    ck_assert(options_parse_size("64KiB", &n) && n == 65536);
    ck_assert(options_parse_size("2MB", &n) && n == 2u << 20);
    ck_assert(options_parse_size("0.5g", &n) && n == 1u << 29);
    const char *bad[] = {"",    "k",   "-1",  "1x",           "1kk", "1.",
                         "1.5", ".5g", "1 k", "99999999999t", "0x10"};
    for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ck_assert_msg(!options_parse_size(bad[i], &n), "%s", bad[i]);
}
END_TEST

START_TEST(config_file)
{
    ck_assert_int_eq(read_config("# a comment\n\n"
                                 "model  /srv/m odel.gguf   # trailing\n"
                                 "threads = 4\n"
                                 "max-queue=7\n"
                                 "alias = a#b\n"
                                 "trace-logits\n"
                                 "test-echo off"),
                     STATUS_OK);
    ck_assert_str_eq(o.model, "/srv/m odel.gguf");
    ck_assert_str_eq(o.alias, "a#b");
    ck_assert_uint_eq(o.threads, 4);
    ck_assert_uint_eq(o.max_queue, 7);
    ck_assert(o.trace_logits);
}
END_TEST

START_TEST(config_errors)
{
    ck_assert_int_eq(read_config("threads 1\nmodell x\n"), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, ":2: unknown option modell"));
    ck_assert_int_eq(read_config("threads 1\n\nthreads 2\n"), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, ":3: option threads is given twice"));
    ck_assert_int_eq(read_config("threads\n"), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, ":1: option threads needs a value (N)"));
    ck_assert_int_eq(read_config("threads many\n"), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, ":1: option threads: \"many\" is no whole number"));
    ck_assert_int_eq(read_config("config x\n"), STATUS_INVALID); /* no nesting */
    ck_assert_int_eq(read_config("trace-logits yes\n"), STATUS_INVALID);
    char *line = malloc(10001);
    memset(line, 'a', 10000);
    line[10000] = '\0';
    ck_assert_int_eq(read_config(line), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "longer than"));
    free(line);
}
END_TEST

START_TEST(command_line_wins)
{
    const char *path = write_file("threads 4\nmax-queue 9\n");
    ck_assert_int_eq(parse("--threads", "2", "--config", path), STATUS_OK);
    unlink(path);
    ck_assert_uint_eq(o.threads, 2);
    ck_assert_uint_eq(o.max_queue, 9);
}
END_TEST

START_TEST(help_names_every_option)
{
    struct buffer out = {0};
    options_help(&out);
#define OPTION(field, name, kind, value, min, max, argument, help)                                 \
    ck_assert_msg(strstr(out.ptr, "--" name) != NULL, "%s", name);
#include "core/worker/options.def"
#undef OPTION
    ck_assert_ptr_nonnull(strstr(out.ptr, "[default]"));
    buffer_release(&out);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker/options");
    TCase *tc = tcase_create("options");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, defaults);
    tcase_add_test(tc, command_line);
    tcase_add_test(tc, command_line_errors);
    tcase_add_test(tc, sizes);
    tcase_add_test(tc, config_file);
    tcase_add_test(tc, config_errors);
    tcase_add_test(tc, command_line_wins);
    tcase_add_test(tc, help_names_every_option);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
