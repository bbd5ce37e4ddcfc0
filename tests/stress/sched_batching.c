/* sched_batching.c [MODEL STREAMS THREADS TOKENS PROMPT]: batching is real. Equal greedy streams
 * together against one alone: tokens a second, passes over the weights (one for all streams, not
 * one for each), and what a step costs outside the model. Fails if 8 streams never give 2.5 times
 * the rate of one, or if a pass was not shared. Without arguments: the default model, 8 streams. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/xalloc.h"
#include "core/model/session.h"
#include "core/sched/sched.h"
#include "core/stats/writer.h"

struct run {
    double rate; /* tokens a second, all streams together, from the first token to the last */
    uint64_t steps;
    double step_ns, model_ns; /* a step of decodes: from one to the next, inside the model */
    double prefill_rate;
};

static uint64_t model_ns, model_steps;

/* The model's step, timed. */
static void timed_step(void *data, const struct step *step, float *logits)
{
    uint64_t start = clock_ns();
    model_step(data, step, logits);
    model_ns += clock_ns() - start;
    model_steps++;
}

static struct run run(struct session *m, unsigned n, uint32_t tokens, uint32_t prompt)
{
    struct sched_engine engine = sched_engine_of(m->model, &m->kernels, m->team);
    struct sched_options o = {.max_queue = n, .max_running = n};
    struct stats_writer *stats = stats_writer_anonymous();
    struct sched *s = NULL;
    struct error err = {0};
    engine.step = timed_step;
    check(sched_create(&engine, m->pool, stats, &o, &s, &err) == STATUS_OK);
    uint64_t start = clock_ns(), first = 0, last = 0, first_model_ns = 0;
    for (unsigned id = 0; id < n; id++) {
        uint32_t *ids = xmalloc(prompt * sizeof(*ids));
        for (uint32_t i = 0; i < prompt; i++)
            ids[i] = 100 + (i * 7919 + id) % 20000;
        struct generation *g = generation_new(id, ids, prompt);
        g->max_tokens = tokens;
        g->sampling.temperature = 0;
        check(sched_submit(s, g, NULL, &err) == STATUS_OK);
    }
    struct sched_event e;
    struct pollfd p = {.fd = sched_event_fd(s), .events = POLLIN};
    uint64_t steps_at_first = 0, made = 0;
    unsigned started = 0;
    for (unsigned ended = 0; ended < n;) {
        while (sched_next_event(s, &e)) {
            ended += e.kind == SCHED_DONE || e.kind == SCHED_FAILED;
            if (e.kind != SCHED_TOKEN)
                continue;
            last = clock_ns();
            started += e.token.index == 0;
            made += first != 0;
            if (started == n && first == 0) { /* all decode from here on */
                first = last;
                first_model_ns = model_ns;
                steps_at_first = model_steps;
            }
        }
        if (ended < n)
            poll(&p, 1, -1);
    }
    struct run r = {.rate = (double)made / ((double)(last - first) / 1e9),
                    .steps = model_steps - steps_at_first};
    r.step_ns = (double)(last - first) / (double)r.steps;
    r.model_ns = (double)(model_ns - first_model_ns) / (double)r.steps;
    r.prefill_rate = (double)n * prompt / ((double)(first - start) / 1e9);
    sched_free(s);
    stats_writer_free(stats);
    return r;
}

/* The default model's path, fetched by tools/get_model.sh if need be; "" if it cannot be had. */
static void default_model(char *path, size_t size)
{
    const char *source = getenv("TOKENRING_SOURCE");
    char command[4096];
    snprintf(command, sizeof(command), "%s/tools/get_model.sh 2>/dev/null",
             source != NULL ? source : ".");
    FILE *pipe = popen(command, "r");
    path[0] = '\0';
    if (pipe == NULL || fgets(path, (int)size, pipe) == NULL)
        path[0] = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (pipe != NULL)
        pclose(pipe);
}

static unsigned argument(int argc, char **argv, int i, unsigned otherwise)
{
    return argc > i ? (unsigned)strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    char path[4096];
    unsigned n = argument(argc, argv, 2, 8), threads = argument(argc, argv, 3, 2);
    uint32_t tokens = argument(argc, argv, 4, 64), prompt = argument(argc, argv, 5, 32);
    if (argc > 1)
        snprintf(path, sizeof(path), "%s", argv[1]);
    else
        default_model(path, sizeof(path));
    if (access(path, R_OK) != 0) {
        printf("SKIP: sched_batching: the default model cannot be had\n");
        return 77;
    }
    struct session m;
    struct error err = {0};
    struct session_options o = {
        .path = path, .threads = threads, .kv_type = KV_F16, .context = 4096};
    if (session_open(&m, &o, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    double best = 0;
    bool shared = true;
    for (int round = 0; round < 3 && best < 2.5; round++) {
        struct run one = run(&m, 1, tokens, prompt), many = run(&m, n, tokens, prompt);
        printf("1 stream: %.1f tokens/s, step %.2f ms of which model %.2f; %u streams: %.1f "
               "tokens/s (%.2fx), step %.2f ms "
               "of which model %.2f, %llu passes; prefill %.0f, %.0f tokens/s\n",
               one.rate, one.step_ns / 1e6, one.model_ns / 1e6, n, many.rate, many.rate / one.rate,
               many.step_ns / 1e6, many.model_ns / 1e6, (unsigned long long)many.steps,
               one.prefill_rate, many.prefill_rate);
        best = many.rate / one.rate > best ? many.rate / one.rate : best;
        shared = shared && many.steps < 2 * tokens;
    }
    session_close(&m);
    return shared && (n != 8 || best >= 2.5) ? 0 : 1;
}
