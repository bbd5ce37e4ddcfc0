/* tokenringd: serves a model to nginx over shared memory. Exit status: 0 after TERM or INT, 1 for any fault; the last
 * line on stderr then names it. */
#include <stdio.h>

#include "core/base/log.h"
#include "core/worker/options.h"
#include "core/worker/worker.h"

static int fail(const struct error *err)
{
    fprintf(stderr, "tokenringd: %s\n", err->text);
    return 1;
}

/* Checks that need more than one option. */
static enum status check_options(const struct options *o, struct error *err)
{
    enum log_level level;
    if (!log_level_parse(o->log_level, &level))
        return error_set(err, STATUS_INVALID,
                         "option log-level: \"%s\" is not error, warn, info or debug",
                         o->log_level);
    log_set_level(level);
    if (*o->model == '\0' && !o->test_echo)
        return error_set(err, STATUS_INVALID, "option model is missing (see --help)");
    return STATUS_OK;
}

static int run(const struct options *o)
{
    static struct worker w;
    struct error err = {0};
    if (worker_open(&w, o, &err) != STATUS_OK) {
        worker_close(&w);
        return fail(&err);
    }
    int status = worker_run(&w);
    err = w.error;
    worker_close(&w); /* with peers it logs their end: the fault comes behind that */
    return status != 0 ? fail(&err) : 0;
}

static int check_only(const struct options *o)
{
    struct error err = {0};
    if (*o->model != '\0' && engine_check(o, &err) != STATUS_OK)
        return fail(&err);
    fprintf(stderr, "tokenringd: the options%s are fine\n",
            *o->model != '\0' ? " and the model file" : "");
    return 0;
}

int main(int argc, char **argv)
{
    struct options o;
    struct error err = {0};
    int result = 0;
    options_init(&o);
    if (options_parse(&o, argc, argv, &err) != STATUS_OK) {
        result = fail(&err);
    } else if (o.show_help) {
        struct buffer text = {0};
        options_help(&text);
        fputs(text.ptr, stdout);
        buffer_release(&text);
    } else if (o.show_version) {
        printf("tokenringd %s\n", TOKENRING_VERSION);
    } else if (check_options(&o, &err) != STATUS_OK) {
        result = fail(&err);
    } else {
        result = o.check_only ? check_only(&o) : run(&o);
    }
    options_release(&o);
    return result;
}
