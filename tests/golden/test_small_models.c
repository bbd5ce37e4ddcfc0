/* The small models of the shared data against their goldens: stories260K, llama-2-tiny-random and
 * random-256 (one file a weight type and RoPE kind). */
#include <string.h>

#include "tests/golden/golden.h"
#include "tests/shared.h"

static const struct small {
    const char *model, *golden;
    enum kv_type kv;
    double within; /* of every listed log-probability */
    bool ids;      /* every argmax must be the golden's */
} cases[] = {
    {"stories260K/stories260K-f32", "stories260K/golden/empty-f64", KV_F32, 1e-3, true},
    {"stories260K/stories260K-f32", "stories260K/golden/once-f64", KV_F32, 1e-3, true},
    {"stories260K/stories260K-f32", "stories260K/golden/unicode-f64", KV_F32, 1e-3, true},
    {"stories260K/stories260K-f16", "stories260K/golden/once-f16", KV_F32, 1e-3, true},
    {"stories260K/stories260K-f32", "stories260K/golden/empty-f64", KV_F16, 0.02, true},
    {"stories260K/stories260K-f32", "stories260K/golden/once-f64", KV_F16, 0.02, true},
    {"stories260K/stories260K-f32", "stories260K/golden/unicode-f64", KV_F16, 0.02, true},
    {"stories260K/stories260K-f16", "stories260K/golden/once-f16", KV_F16, 0.02, true},
    {"stories260K/stories260K-q8_0", "stories260K/golden/once-q8_0", KV_F32, 0.25, false},
    {"stories260K/stories260K-q8_0", "stories260K/golden/once-q8_0", KV_F16, 0.25, false},
    {"llama-2-tiny-random/llama-2-tiny-random", "llama-2-tiny-random/golden/once-f64", KV_F32, 5e-3,
     true},
    {"random-256/f32", "random-256/f32", KV_F32, 5e-3, true},
    {"random-256/f16", "random-256/f16", KV_F32, 5e-3, true},
    {"random-256/bf16", "random-256/bf16", KV_F32, 5e-3, true},
    {"random-256/tied-f16", "random-256/tied-f16", KV_F32, 5e-3, true},
    {"random-256/rope-linear-f16", "random-256/rope-linear-f16", KV_F32, 5e-3, true},
    {"random-256/rope-yarn-f16", "random-256/rope-yarn-f16", KV_F32, 5e-3, true},
    {"random-256/rope-llama3-f16", "random-256/rope-llama3-f16", KV_F32, 5e-3, true},
    {"random-256/q8_0", "random-256/q8_0", KV_F32, 0.25, false},
    {"random-256/q4_0", "random-256/q4_0", KV_F32, 0.25, false},
    {"random-256/q4_1", "random-256/q4_1", KV_F32, 0.25, false},
    {"random-256/q5_0", "random-256/q5_0", KV_F32, 0.25, false},
    {"random-256/q4_k", "random-256/q4_k", KV_F32, 0.25, false},
    {"random-256/q6_k", "random-256/q6_k", KV_F32, 0.25, false},
    {"random-256/iq4_nl", "random-256/iq4_nl", KV_F32, 0.25, false},
    {"random-256/mxfp4", "random-256/mxfp4", KV_F32, 0.25, false},
    {"random-256/q2_k", "random-256/q2_k", KV_F32, 0.25, false},
    {"random-256/q3_k", "random-256/q3_k", KV_F32, 0.25, false},
};

static bool run_case(const char *shared, const struct small *c, const char *tier)
{
    char model[4096], path[4096];
    struct session s;
    struct golden g;
    struct error err = {0};
    snprintf(model, sizeof model, "%s/data/models/%s.gguf", shared, c->model);
    snprintf(path, sizeof path, "%s/data/models/%s.json", shared, c->golden);
    struct session_options options = {.path = model, .tier = tier, .threads = 2, .kv_type = c->kv};
    if (session_open(&s, &options, &err) != STATUS_OK)
        golden_fail(&err);
    golden_open(&g, path);
    struct golden_report r = golden_compare(&s, &g, 0);
    bool fine = r.worst <= c->within && (!c->ids || r.ids_equal == r.steps);
    printf("%s %-40s %-8s KV %s: %u of %u ids, worst %.6f (limit %g), mean %.6f\n",
           fine ? "ok  " : "FAIL", c->golden, s.kernels.tier, kv_type_name(c->kv), r.ids_equal,
           r.steps, r.worst, c->within, r.mean_top);
    golden_close(&g);
    session_close(&s);
    return fine;
}

int main(int argc, char **argv)
{
    const char *shared = shared_folder("small_models"), *tier = argc > 1 ? argv[1] : NULL;
    bool fine = true;
    if (shared == NULL)
        return 77;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        fine &= run_case(shared, &cases[i], tier);
    return fine ? 0 : 1;
}
