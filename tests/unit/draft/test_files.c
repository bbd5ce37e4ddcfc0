/* The trainer's files: corpus, GGUF, exports, state; and that a resumed run is the same run. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/xalloc.h"
#include "tests/check_main.h"
#include "tests/unit/model/toy.h"
#include "core/model/context_rows.h"
#include "tools/draft/export.h"
#include "tools/gguf_write.h"
#include "tools/draft/trainer.h"

enum { TEXTS = 50, WIDTH = 64 };

static char folder[] = "/tmp/tokenring-draft-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[2][256];
    static int i;
    i = 1 - i;
    snprintf(path[i], sizeof path[i], "%s/%s", folder, name);
    return path[i];
}

static void fine(enum status status, const struct error *err)
{
    ck_assert_msg(status == STATUS_OK, "%s", err->text);
}

static void refused(enum status status, const struct error *err, const char *words)
{
    ck_assert_int_ne(status, STATUS_OK);
    ck_assert_msg(strstr(err->text, words) != NULL, "'%s' does not say '%s'", err->text, words);
}

/* Texts that a student can learn: each token is the one before plus a step of the text's own. */
static void fill_corpus(struct corpus *c, uint32_t vocab)
{
    struct error err = {0};
    uint64_t seed = 3;
    fine(corpus_open(c, in_folder("corpus"), WIDTH, "abc", false, &err), &err);
    for (uint32_t i = 0; i < TEXTS; i++) {
        uint32_t n = 60 + i, tokens[200];
        uint8_t origins[200];
        uint16_t states[200 * WIDTH];
        for (uint32_t k = 0; k < n; k++) {
            tokens[k] = (i + k * (1 + i % 3)) % vocab;
            origins[k] = k < 10 ? ORIGIN_FORCED : k < 20 ? ORIGIN_DRAWN : ORIGIN_GREEDY;
        }
        for (uint32_t k = 0; k < n * WIDTH; k++) /* bf16 of ±0.5 … 2 */
            states[k] =
                (uint16_t)(0x3f00 + toy_random(&seed) % 0x100 + (toy_random(&seed) & 0x8000));
        fine(corpus_add(c, n, tokens, origins, states, &err), &err);
    }
}

START_TEST(corpus)
{
    struct corpus c;
    struct error err = {0};
    struct stat st;
    fill_corpus(&c, 97);
    uint64_t tokens = c.n_tokens, size = c.size;
    fine(corpus_map(&c, &err), &err);
    struct corpus_text text = corpus_text(&c, 7);
    ck_assert_uint_eq(text.n, 67);
    ck_assert_uint_eq(text.tokens[3], 7 + 3 * 2);
    ck_assert_uint_eq(text.origins[66], ORIGIN_GREEDY);
    ck_assert_uint_eq(text.states[67 * WIDTH - 1] & 0x7f00, 0x3f00);
    corpus_close(&c);

    /* A crash in the middle of the last text costs that text. */
    ck_assert_int_eq(truncate(in_folder("corpus"), (off_t)size - 5), 0);
    fine(corpus_open(&c, in_folder("corpus"), WIDTH, "abc", true, &err), &err);
    ck_assert_uint_eq(c.n_texts, TEXTS - 1);
    ck_assert_uint_eq(c.n_tokens, tokens - (60 + TEXTS - 1));
    ck_assert_int_eq(stat(in_folder("corpus"), &st), 0);
    ck_assert_uint_eq((uint64_t)st.st_size, c.size);
    corpus_close(&c);

    refused(corpus_open(&c, in_folder("corpus"), WIDTH, "abd", true, &err), &err,
            "holds no texts of this model");
    refused(corpus_open(&c, in_folder("corpus"), WIDTH + 1, "abc", true, &err), &err,
            "holds no texts of this model");
    refused(corpus_open(&c, in_folder("none/corpus"), WIDTH, "abc", true, &err), &err,
            "cannot open");
    fine(corpus_open(&c, in_folder("corpus"), WIDTH, "abc", false, &err), &err);
    ck_assert_uint_eq(c.n_texts, 0);
    corpus_close(&c);
}
END_TEST

/* A target with a toy's weights, without tokenizer. */
static struct toy toy_target(struct target *t, struct gguf_builder *b, enum weight_type type)
{
    struct error err = {0};
    struct toy toy = toy_default();
    toy.layers = 3;
    toy.width = toy.ffn = WIDTH;
    toy.head_size = 16;
    toy.q = toy.k = toy.v = toy.output = toy.gate = toy.up = toy.down = toy.head = type;
    *t = (struct target){.gguf = toy_open(&toy, b), .eps = 1e-5f, .sha256 = "abc"};
    fine(model_inspect(t->gguf, &t->info, &err), &err);
    fine(rope_init(&t->rope, t->gguf, "llama", toy.head_size, toy.context, &err), &err);
    return toy;
}

static void drop_target(struct target *t, struct gguf_builder *b)
{
    target_close(t);
    builder_release(b);
}

START_TEST(resumed_is_the_same)
{
    static const uint32_t layers[] = {0, 2};
    uint32_t map[40];
    struct gguf_builder b;
    struct target target;
    struct corpus c;
    struct trainer t, resumed;
    struct error err = {0};
    bool there;
    toy_target(&target, &b, WEIGHT_Q8_0);
    fill_corpus(&c, target.info.vocab);
    fine(corpus_map(&c, &err), &err);
    trainer_map(&c, target.info.vocab, 40, map);
    for (int i = 1; i < 40; i++)
        ck_assert_uint_gt(map[i], map[i - 1]);

    fine(trainer_init(&t, &target, &c, layers, 2, map, 40, 1, &err), &err);
    ck_assert_uint_eq(t.n_train, 48);
    ck_assert_uint_eq(t.n_held, 2);
    float first = trainer_step(&t, 0.004), last = 0;
    for (int i = 0; i < 4; i++)
        trainer_step(&t, 0.004);
    t.seconds = 12.5;
    fine(trainer_save(&t, in_folder("state"), &err), &err);
    /* A step takes half a minute under valgrind. */
    const int more = getenv("TOKENRING_VALGRIND") != NULL ? 2 : 15;
    for (int i = 0; i < more; i++)
        last = trainer_step(&t, 0.004);
    ck_assert_float_lt(last, first);
    ck_assert_uint_gt(t.rounds, 0);

    fine(trainer_load(&resumed, &target, &c, in_folder("state"), &there, &err), &err);
    ck_assert(there);
    ck_assert_double_eq(resumed.seconds, 12.5);
    ck_assert_uint_eq(resumed.adam.step, 5);
    for (int i = 0; i < more; i++)
        trainer_step(&resumed, 0.004);
    ck_assert_int_eq(memcmp(resumed.student.net.w, t.student.net.w, t.adam.n * sizeof(float)), 0);

    struct acceptance alone = {0}, both = {0};
    trainer_measure(&t, 10, &alone, &both);
    ck_assert_uint_eq(alone.tokens, (60 + 24 - 20) + (60 + 49 - 20));

    /* A number that is none stops the training, not the weights. */
    float weight = resumed.student.net.w[100];
    resumed.student.head.rows[0] = __builtin_nanf("");
    ck_assert(!__builtin_isfinite(trainer_step(&resumed, 0.004)));
    ck_assert_float_eq(resumed.student.net.w[100], weight);
    trainer_release(&resumed);

    ck_assert_int_eq(access(in_folder("state.new"), F_OK), -1);
    snprintf(target.sha256, sizeof target.sha256, "other");
    refused(trainer_load(&resumed, &target, &c, in_folder("state"), &there, &err), &err,
            "is of another model (SHA-256 abc)");
    snprintf(target.sha256, sizeof target.sha256, "abc");
    ck_assert_int_eq(truncate(in_folder("state"), 5000), 0);
    refused(trainer_load(&resumed, &target, &c, in_folder("state"), &there, &err), &err,
            "is damaged");
    fine(trainer_load(&resumed, &target, &c, in_folder("no state"), &there, &err), &err);
    ck_assert(!there);
    refused(trainer_save(&t, in_folder("none/state"), &err), &err, "cannot write");
    ck_assert_int_eq(unlink(in_folder("state")) | mkdir(in_folder("state"), 0700), 0);
    refused(trainer_save(&t, in_folder("state"), &err), &err, "Is a directory");
    ck_assert_int_eq(access(in_folder("state.new"), F_OK), -1);
    ck_assert_int_eq(rmdir(in_folder("state")), 0);
    trainer_release(&t);
    corpus_close(&c);
    drop_target(&target, &b);
}
END_TEST

/* The likeliest of n tokens behind state h, and its logit. */
static uint32_t likeliest(const struct student *s, const float *h, const uint32_t *tokens, int n,
                          float *logit)
{
    float row[512];
    uint32_t best = 0;
    for (int i = 0; i < n; i++) {
        float sum = 0;
        target_head(s->target, tokens[i], row);
        for (uint32_t k = 0; k < s->target->info.width; k++)
            sum += row[k] * h[k];
        if (i == 0 || sum > *logit) {
            *logit = sum;
            best = tokens[i];
        }
    }
    return best;
}

START_TEST(exported_student)
{
    static const uint32_t layers[] = {0, 2}, map[] = {1, 5, 6, 50, 96},
                          text[] = {4, 8, 15, 16, 23, 42};
    struct gguf_builder b;
    struct target target;
    struct student s, back;
    struct error err = {0};
    toy_target(&target, &b, WEIGHT_Q4_0);
    fine(student_init(&s, &target, 2, map, 5, 16, 16, &err), &err);
    fine(target_weights(target.gguf, layers, &s.net, &err), &err);
    fine(export_student(&s, in_folder("x.draft.gguf"), layers, "made so", &err), &err);

    struct gguf *g;
    struct gguf_array array;
    fine(gguf_open(in_folder("x.draft.gguf"), &g, &err), &err);
    fine(gguf_map(g, &err), &err);
    ck_assert_uint_eq(gguf_need_u32(g, "llama.block_count", &err), 2);
    ck_assert_uint_eq(gguf_need_u32(g, "llama.vocab_size", &err), 97);
    ck_assert_uint_eq(gguf_need_u32(g, "llama.attention.head_count", &err), 4);
    ck_assert(slice_is(gguf_str(g, "tokenring.draft.target_sha256", slice_of(""), &err), "abc"));
    ck_assert(slice_is(gguf_str(g, "general.description", slice_of(""), &err), "made so"));
    ck_assert(gguf_array(g, "tokenring.draft.token_map", &array, &err));
    ck_assert_uint_eq(array.count, 5);
    ck_assert_uint_eq(array.type, GGUF_I32);
    ck_assert_uint_eq(gguf_array_u64(&array, 3), 50);
    ck_assert_int_eq(gguf_tensor(g, "blk.1.ffn_down.weight")->type, TENSOR_Q4_0);
    ck_assert_int_eq(gguf_tensor(g, "blk.1.ffn_norm.weight")->type, TENSOR_F32);
    ck_assert_ptr_null(gguf_tensor(g, "token_embd.weight"));
    gguf_free(g);

    /* The target's blocks were Q4_0, whose values this quantiser nearly keeps. */
    fine(student_read(&back, &target, in_folder("x.draft.gguf"), 16, &err), &err);
    float most = 0;
    for (size_t i = 0; i < s.net.n_weights; i++) {
        float off = s.net.w[i] - back.net.w[i];
        most = off > most ? off : -off > most ? -off : most;
    }
    ck_assert_float_lt(most, 0.01f);
    const uint32_t *guesses = student_guess(&back, text, 6);
    int rare = 0;
    for (int i = 0; i < 6; i++) {
        const float *h = back.net.h + i * target.info.width;
        float common = 0, own = 0;
        uint32_t by_map = likeliest(&back, h, map, 5, &common);
        uint32_t by_text = likeliest(&back, h, text, i + 1, &own);
        ck_assert_uint_eq(guesses[i], own + CONTEXT_ROWS_LEAD > common ? by_text : by_map);
        for (int k = 0; k <= i; k++)
            rare += guesses[i] == text[k];
    }
    ck_assert_int_gt(rare, 0);
    refused(export_student(&s, in_folder("none/x"), layers, "", &err), &err, "cannot write");
    refused(export_student(&s, folder, layers, "", &err), &err, "Is a directory");
    student_release(&back);
    student_release(&s);

    struct gguf_writer w = {0};
    gguf_write_text(&w, "general.architecture", "llama");
    fine(gguf_writer_finish(&w, gguf_writer_begin(&w, in_folder("plain.gguf"), &err), &err), &err);
    refused(student_read(&back, &target, in_folder("plain.gguf"), 16, &err), &err,
            "it has no token map");
    w = (struct gguf_writer){0};
    gguf_write_text(&w, "general.architecture", "llama");
    gguf_write_array(&w, "tokenring.draft.token_map", GGUF_STRING, 1);
    gguf_write_element(&w, "1");
    fine(gguf_writer_finish(&w, gguf_writer_begin(&w, in_folder("plain.gguf"), &err), &err), &err);
    refused(student_read(&back, &target, in_folder("plain.gguf"), 16, &err), &err,
            "it has no token map");
    drop_target(&target, &b);
}
END_TEST

START_TEST(requantised)
{
    struct gguf_builder b;
    struct target target;
    struct error err = {0};
    struct gguf *g;
    struct model_info info;
    toy_target(&target, &b, WEIGHT_F16);
    fine(export_requantised(&target, in_folder("q.gguf"), 4, &err), &err);
    fine(gguf_open(in_folder("q.gguf"), &g, &err), &err);
    fine(gguf_map(g, &err), &err);
    fine(model_inspect(g, &info, &err), &err);
    ck_assert_uint_eq(info.parameters, target.info.parameters);
    uint64_t n;
    const struct gguf_tensor *tensors = gguf_tensors(g, &n);
    for (uint64_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = &tensors[i];
        size_t count = t->dims[0] * t->dims[1];
        char name[64] = "";
        memcpy(name, t->name.ptr, t->name.len);
        ck_assert_int_eq(t->type, t->n_dims == 2 ? TENSOR_Q4_0 : TENSOR_F32);
        float *want = xcalloc(count, sizeof *want), *have = xcalloc(count, sizeof *have);
        uint32_t rows = t->n_dims == 2 ? (uint32_t)t->dims[1] : 0, cols = (uint32_t)t->dims[0];
        fine(target_tensor(target.gguf, name, rows, cols, want, &err), &err);
        fine(target_tensor(g, name, rows, cols, have, &err), &err);
        for (size_t k = 0; k < count; k++)
            ck_assert_float_eq_tol(have[k], want[k], 0.02f);
        free(want);
        free(have);
    }
    /* Once more is of no use. */
    target_close(&target);
    target = (struct target){.gguf = g};
    refused(export_requantised(&target, in_folder("qq.gguf"), 4, &err), &err,
            "0 % smaller in Q4_0");
    drop_target(&target, &b);
}
END_TEST

static int run(void)
{
    const TTest *tests[] = {corpus, resumed_is_the_same, exported_student, requantised};
    Suite *suite = suite_create("draft_files");
    TCase *cases = tcase_create("draft_files");
    tcase_set_timeout(cases, 60);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        tcase_add_test(cases, tests[i]);
    suite_add_tcase(suite, cases);
    return check_run(suite);
}

int main(void)
{
    static const char *const names[] = {"corpus", "state", "x.draft.gguf", "plain.gguf", "q.gguf"};
    if (mkdtemp(folder) == NULL)
        return 1;
    int code = run();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in_folder(names[i]));
    if (rmdir(folder) != 0) {
        printf("%s is not empty\n", folder);
        code = 1;
    }
    return code;
}
