/* golden.h: reading golden files and comparing a model with them; header only.
 *
 * A golden: prompt_ids, the log-probability of each prompt token after the first, then greedy steps
 * with their id and the five most likely tokens. The model is fed the golden's own ids (teacher
 * forced), so one deviation does not hide the rest. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/xalloc.h"
#include "core/model/sample.h"
#include "core/model/session.h"

struct golden {
    json_t *json;
    uint32_t *ids; /* prompt, then answer */
    uint32_t n_prompt, n;
};

/* What a comparison found. */
struct golden_report {
    uint32_t steps, ids_equal;   /* greedy steps; those with the golden's argmax */
    uint32_t clear, clear_equal; /* steps whose golden gap is ≥ 0.25; those with its argmax */
    uint32_t last_missed;        /* the last clear step without it */
    uint32_t listed;             /* log-probabilities in the listed tops */
    double worst;                /* largest |Δ log-probability| of all that the golden lists */
    double mean_top;             /* mean |Δ log-probability| of the listed tops */
};

static inline void golden_from_json(struct golden *g, json_t *json)
{
    json_t *prompt = json_object_get(json, "prompt_ids"), *ids = json_object_get(json, "ids");
    g->json = json;
    g->n_prompt = (uint32_t)json_array_size(prompt);
    g->n = g->n_prompt + (uint32_t)json_array_size(ids);
    g->ids = xreallocarray(NULL, g->n + 1, sizeof *g->ids);
    for (uint32_t i = 0; i < g->n; i++)
        g->ids[i] = (uint32_t)json_integer_value(
            i < g->n_prompt ? json_array_get(prompt, i) : json_array_get(ids, i - g->n_prompt));
}

static inline void golden_open(struct golden *g, const char *path)
{
    json_error_t why;
    json_t *json = json_load_file(path, 0, &why);
    if (json == NULL) {
        fprintf(stderr, "%s: %s\n", path, why.text);
        exit(1);
    }
    golden_from_json(g, json);
}

static inline void golden_close(struct golden *g)
{
    json_decref(g->json);
    free(g->ids);
}

static inline float *golden_rows(const struct session *s, uint32_t n)
{
    return xaligned((size_t)n * model_logits_stride(s->model) * sizeof(float));
}

static inline void golden_fail(const struct error *err)
{
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

/* Feeds the golden's ids in chunks (0: as large as goes) and compares. */
static inline struct golden_report golden_compare(struct session *s, const struct golden *g,
                                                  uint32_t chunk)
{
    struct golden_report r = {0};
    struct error err = {0};
    uint32_t stride = model_logits_stride(s->model), vocab = model_info(s->model)->vocab;
    struct sampler *sampler = sampler_create(&s->kernels, vocab);
    float *rows = golden_rows(s, g->n);
    json_t *prompt = json_object_get(g->json, "prompt_logprobs");
    json_t *tops = json_object_get(g->json, "top");
    session_reset(s);
    if (session_feed(s, g->ids, g->n, chunk, SESSION_LOGITS_ALL, rows, &err) != STATUS_OK)
        golden_fail(&err);
    for (uint32_t i = 0; i + 1 < g->n; i++) {
        const float *row = rows + (size_t)i * stride;
        double sum = sampler_log_sum(sampler, row);
        if (i + 1 < g->n_prompt) {
            if (prompt == NULL || json_array_size(prompt) <= i)
                continue; /* long prompts' are not listed */
            double want = json_number_value(json_array_get(prompt, i));
            r.worst = fmax(r.worst, fabs((double)row[g->ids[i + 1]] - sum - want));
            continue;
        }
        json_t *top = json_array_get(tops, i + 1 - g->n_prompt);
        double first = 0, second = 0;
        for (size_t t = 0; t < json_array_size(top); t++) {
            json_t *pair = json_array_get(top, t);
            uint32_t id = (uint32_t)json_integer_value(json_array_get(pair, 0));
            double want = json_number_value(json_array_get(pair, 1));
            double delta = fabs((double)row[id] - sum - want);
            r.worst = fmax(r.worst, delta);
            r.mean_top += delta;
            r.listed++;
            first = t == 0 ? want : first;
            second = t == 1 ? want : second;
        }
        bool equal = s->kernels.argmax(row, vocab) == g->ids[i + 1];
        r.steps++;
        r.ids_equal += equal;
        if (first - second >= 0.25) {
            r.clear++;
            r.clear_equal += equal;
            r.last_missed = equal ? r.last_missed : r.steps - 1;
        }
    }
    r.mean_top /= r.listed > 0 ? r.listed : 1;
    free(rows);
    sampler_free(sampler);
    return r;
}

#endif
