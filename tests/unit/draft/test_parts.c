/* The trainer's small parts: blocks, lookup, acceptance, loops, AdamW, prompts. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/kernels/weights.h"
#include "tools/draft/acceptance.h"
#include "tools/draft/adam.h"
#include "tools/draft/generate.h"
#include "tools/draft/lookup.h"
#include "tools/draft/prompts.h"
#include "tools/draft/quantise.h"
#include "tests/check_main.h"

START_TEST(blocks_of_four_and_five_bits)
{
    /* What they can hold comes back exactly; else each number is at most a step off, and the block
     * no worse than with the plain scale, extreme / −8 or −16. */
    float x[64], back[64], zero = _i == 4 ? 8 : 16;
    uint8_t blocks[2 * Q5_0_BYTES];
    uint32_t bits = (uint32_t)_i;
    enum weight_type type = bits == 4 ? WEIGHT_Q4_0 : WEIGHT_Q5_0;
    struct random random = {1};
    for (int i = 0; i < 64; i++)
        x[i] = i < 32 ? 0.25f * ((float)(i % (1 << bits)) - zero) : 0;
    quantise(bits, x, 64, blocks);
    dequantise_row(type, blocks, 64, back);
    for (int i = 0; i < 64; i++)
        ck_assert_float_eq(back[i], x[i]);

    for (int round = 0; round < 100; round++) {
        float extreme = 0, plain = 0, mine = 0;
        for (int i = 0; i < 32; i++) {
            x[i] = (float)random_below(&random, 2001) / 1000 - 1;
            extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
        }
        quantise(bits, x, 32, blocks);
        dequantise_row(type, blocks, 32, back);
        for (int i = 0; i < 32; i++) {
            float d = extreme / -zero, q = rintf(x[i] / d);
            q = q > zero - 1 ? zero - 1 : q;
            plain += (x[i] - q * d) * (x[i] - q * d);
            mine += (x[i] - back[i]) * (x[i] - back[i]);
            ck_assert_float_lt(fabsf(x[i] - back[i]), fabsf(extreme) * 4 / (3 * zero));
        }
        ck_assert_float_le(mine, plain * 1.01f);
    }
}
END_TEST

START_TEST(lookup)
{
    const uint32_t text[] = {1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3};
    ck_assert_uint_eq(lookup_next(text, 12), 4);          /* 1 2 3 beats the later 2 3 */
    ck_assert_uint_eq(lookup_next(text + 1, 11), 5);      /* equal lengths: the latest */
    ck_assert_uint_eq(lookup_next(text, 7), 4);           /* 2 3 */
    ck_assert_uint_eq(lookup_next(text, 6), LOOKUP_NONE); /* one token is too few */
    ck_assert_uint_eq(lookup_next(text, 1), LOOKUP_NONE);
    const uint32_t same[] = {7, 7, 7, 7};
    ck_assert_uint_eq(lookup_next(same, 4), 7);
    ck_assert_uint_eq(lookup_next(same, 2), LOOKUP_NONE);
}
END_TEST

START_TEST(acceptance)
{
    /* k = 1: [1] [1] [0] [1] [1] ends  rounds at 0, 2, 4 (wrong), 5, 7
     * k = 4: rounds at 0 (4 right), 5 (3 right, the end) */
    const bool right[] = {1, 1, 1, 1, 0, 1, 1, 1};
    struct acceptance a = {0};
    acceptance_add(&a, right, 8);
    ck_assert_uint_eq(a.tokens, 8);
    ck_assert_uint_eq(a.right, 7);
    ck_assert_uint_eq(a.rounds[0], 5);
    ck_assert_uint_eq(a.accepted[0], 4);
    ck_assert_uint_eq(a.rounds[2], 2);
    ck_assert_uint_eq(a.accepted[2], 7);
    ck_assert_double_eq_tol(acceptance_mean(&a, 2), 3.5, 1e-12);
    ck_assert_double_eq(acceptance_mean(&(struct acceptance){0}, 0), 0);
}
END_TEST

START_TEST(loops)
{
    uint32_t text[200];
    for (uint32_t i = 0; i < 200; i++)
        text[i] = i;
    ck_assert(!generate_loops(text, 200));
    for (uint32_t period = 1; period <= 17; period++) {
        for (uint32_t i = 0; i < 48; i++)
            text[152 + i] = 1000 + i % period;
        ck_assert_msg(generate_loops(text, 200) == (period <= 16), "period %u", period);
        ck_assert(!generate_loops(text, 199)); /* not yet 48 tokens long */
    }
    ck_assert(!generate_loops(text, 0));
}
END_TEST

START_TEST(adam)
{
    /* The first step of AdamW moves every weight by the rate against its gradient's sign, whatever
     * the gradient's size; matrices decay besides. */
    struct net net;
    struct adam adam;
    struct net_shape shape = {1, 4, 1, 1, 4, 4, 1e-5f};
    net_init(&net, &shape, NULL, 1, 1);
    adam_init(&adam, net.n_weights);
    for (size_t i = 0; i < net.n_weights; i++) {
        net.w[i] = 2;
        net.grad[i] = i % 2 == 0 ? 100.0f : -100.0f;
    }
    float norm = adam_step(&adam, &net, 0.01);
    ck_assert_float_eq_tol(norm, 100 * sqrtf((float)net.n_weights), 0.1f);
    ck_assert_float_eq_tol(net.w[0], 1.99f, 1e-5f); /* attn_norm */
    ck_assert_float_eq_tol(net.w[1], 2.01f, 1e-5f);
    const struct net_tensor *q = &net.tensors[1];
    ck_assert_str_eq(q->name, "blk.0.attn_q.weight");
    ck_assert_float_eq_tol(net.w[q->at], 1.99f - 0.01f * 0.01f * 2, 1e-5f);
    net.grad[3] = NAN;
    float before = net.w[0];
    ck_assert(isnan(adam_step(&adam, &net, 0.01)));
    ck_assert_float_eq(net.w[0], before);
    ck_assert_uint_eq(adam.step, 1);

    ck_assert_double_eq_tol(adam_rate(1, 0, 0), 1.0 / ADAM_WARM_UP, 1e-12);
    ck_assert_double_eq_tol(adam_rate(1, ADAM_WARM_UP, 0), 1, 1e-12);
    ck_assert_double_eq_tol(adam_rate(2, 1000, 0.5), 2 * 0.515, 1e-9);
    ck_assert_double_eq_tol(adam_rate(1, 1000, 1), 0.03, 1e-12);
    adam_release(&adam);
    net_release(&net);
}
END_TEST

START_TEST(prompts)
{
    /* Every kind comes, none unfilled; the same seed says the same. */
    struct random random = {5}, again = {5};
    struct buffer words = {0}, same = {0};
    int kinds[3] = {0}, with_text = 0;
    for (int i = 0; i < 2000; i++) {
        enum prompt_kind kind = prompt_make(&random, slice_of("EARLIER 100%d"), &words);
        ck_assert_int_eq(prompt_make(&again, slice_of("EARLIER 100%d"), &same), kind);
        ck_assert(slice_equal(buffer_slice(&words), buffer_slice(&same)));
        kinds[kind]++;
        ck_assert((words.len == 0) == (kind == PROMPT_BARE));
        if (kind == PROMPT_BARE)
            continue;
        ck_assert_ptr_null(strstr(words.ptr, "%s"));
        with_text += strstr(words.ptr, "EARLIER 100%d") != NULL;
    }
    for (int k = 0; k < 3; k++)
        ck_assert_int_gt(kinds[k], 200);
    ck_assert_int_gt(with_text, 200);
    prompt_follow_up(&random, &words);
    ck_assert_uint_gt(words.len, 0);
    buffer_release(&words);
    buffer_release(&same);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("draft_parts");
    TCase *cases = tcase_create("draft_parts");
    const TTest *tests[] = {lookup, acceptance, loops, adam, prompts};
    tcase_add_loop_test(cases, blocks_of_four_and_five_bits, 4, 6);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        tcase_add_test(cases, tests[i]);
    suite_add_tcase(suite, cases);
    return check_run(suite);
}
