/* RoPE tables against the formulas in libm's double. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/rope.h"
#include "tests/gguf_builder.h"
#include "tests/check_main.h"

#define PI 3.141592653589793

enum { DIMS = 64, PAIRS = DIMS / 2 };

static float factors[PAIRS];

struct wanted {
    double base, frequencies[PAIRS], scale;
};

/* Compares at positions near and far; a float's rounding and the angle's own error are allowed. */
static void compare(struct gguf_builder *b, const struct wanted *want)
{
    static const uint32_t positions[] = {0, 1, 2, 511, 8191, 131071, 1000003};
    struct error err = {0};
    struct rope rope;
    struct gguf *g = builder_open(b);
    enum status status = rope_init(&rope, g, "llama", DIMS, 4096, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
    ck_assert_uint_eq(rope.pairs, PAIRS);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        float c[PAIRS], s[PAIRS];
        rope_table(&rope, positions[i], c, s);
        for (uint32_t p = 0; p < PAIRS; p++) {
            double angle = positions[i] * want->frequencies[p];
            double slack = 1.5e-7 * want->scale + angle * 1e-14;
            ck_assert_double_le(fabs((double)c[p] - want->scale * cos(angle)), slack);
            ck_assert_double_le(fabs((double)s[p] - want->scale * sin(angle)), slack);
        }
    }
    rope_release(&rope);
    gguf_free(g);
    builder_release(b);
}

static struct wanted plain(double base)
{
    struct wanted w = {.base = base, .scale = 1};
    for (uint32_t p = 0; p < PAIRS; p++)
        w.frequencies[p] = pow(base, -2.0 * p / DIMS);
    return w;
}

START_TEST(none)
{
    struct gguf_builder b = {0};
    struct wanted want = plain(10000);
    builder_str(&b, "general.architecture", "llama");
    compare(&b, &want);
    builder_f32(&b, "llama.rope.freq_base", 500000);
    want = plain(500000);
    compare(&b, &want);
}
END_TEST

START_TEST(linear)
{
    struct gguf_builder b = {0};
    struct wanted want = plain(10000);
    for (uint32_t p = 0; p < PAIRS; p++)
        want.frequencies[p] /= 4;
    builder_str(&b, "llama.rope.scaling.type", "linear");
    builder_f32(&b, "llama.rope.scaling.factor", 4);
    compare(&b, &want);
    builder_f32(&b, "llama.rope.scaling.factor", 4); /* the type is linear then */
    compare(&b, &want);
    builder_f32(&b, "llama.rope.scale_linear", 4); /* old files */
    compare(&b, &want);
}
END_TEST

START_TEST(yarn)
{
    struct gguf_builder b = {0};
    struct wanted want = plain(10000);
    double original = 2048, factor = 8;
    /* Pairs that turn 32 times in 2048 positions: 8.06 → 8; once: 20.1 → 21. */
    double low = floor(DIMS * log(original / (32 * 2 * PI)) / (2 * log(10000.0)));
    double high = ceil(DIMS * log(original / (1 * 2 * PI)) / (2 * log(10000.0)));
    ck_assert_double_eq(low, 8);
    ck_assert_double_eq(high, 21);
    for (uint32_t p = 0; p < PAIRS; p++) {
        double keep = p <= low ? 1 : p >= high ? 0 : 1 - (p - low) / (high - low);
        want.frequencies[p] =
            want.frequencies[p] / factor * (1 - keep) + want.frequencies[p] * keep;
    }
    want.scale = 0.1 * log(factor) + 1;
    builder_str(&b, "llama.rope.scaling.type", "yarn");
    builder_f32(&b, "llama.rope.scaling.factor", 8);
    builder_u32(&b, "llama.rope.scaling.original_context_length", 2048);
    compare(&b, &want);
}
END_TEST

START_TEST(freqs)
{
    struct gguf_builder b = {0};
    struct wanted want = plain(10000);
    for (uint32_t p = 0; p < PAIRS; p++) {
        factors[p] = 1 + (float)p / 4;
        want.frequencies[p] /= (double)factors[p];
    }
    builder_tensor(&b, "rope_freqs.weight", TENSOR_F32, 1, (uint64_t[]){PAIRS}, factors,
                   sizeof factors);
    compare(&b, &want);
}
END_TEST

START_TEST(refused)
{
    struct gguf_builder b = {0};
    struct error err = {0};
    struct rope rope;
    builder_str(&b, "llama.rope.scaling.type", "yarn");
    builder_f32(&b, "llama.rope.scaling.factor", -1);
    struct gguf *g = builder_open(&b);
    ck_assert_int_eq(rope_init(&rope, g, "llama", DIMS, 4096, &err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err.text, "factor -1"));
    ck_assert_int_eq(rope_init(&rope, g, "llama", 7, 4096, &err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err.text, "dimension_count 7"));
    gguf_free(g);
    builder_release(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rope");
    TCase *c = tcase_create("rope");
    tcase_add_test(c, none);
    tcase_add_test(c, linear);
    tcase_add_test(c, yarn);
    tcase_add_test(c, freqs);
    tcase_add_test(c, refused);
    suite_add_tcase(suite, c);
    return check_run(suite);
}
