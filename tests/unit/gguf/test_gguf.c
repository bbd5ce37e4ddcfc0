#define _GNU_SOURCE
#include <check.h>
#include <unistd.h>

#include "tests/gguf_builder.h"
#include "tests/check_main.h"

/* A small good file with one key of every type and tensors of several types. */
static void build(struct gguf_builder *b)
{
    static const struct slice words[] = {{"one", 3}, {"", 0}, {"three", 5}};
    int8_t i8 = -8;
    int16_t i16 = -16;
    uint16_t u16 = 16;
    int32_t i32 = -32;
    int64_t i64 = -64;
    uint64_t u64 = UINT64_MAX;
    double f64 = 2.5;
    uint8_t u8 = 200;
    builder_str(b, "general.architecture", "llama");
    builder_u32(b, "u32", 7);
    builder_raw_key(b, "i8", GGUF_I8), builder_put(&b->keys, &i8, 1);
    builder_raw_key(b, "u8", GGUF_U8), builder_put(&b->keys, &u8, 1);
    builder_raw_key(b, "i16", GGUF_I16), builder_put(&b->keys, &i16, 2);
    builder_raw_key(b, "u16", GGUF_U16), builder_put(&b->keys, &u16, 2);
    builder_raw_key(b, "i32", GGUF_I32), builder_put(&b->keys, &i32, 4);
    builder_raw_key(b, "i64", GGUF_I64), builder_put(&b->keys, &i64, 8);
    builder_raw_key(b, "u64", GGUF_U64), builder_put(&b->keys, &u64, 8);
    builder_raw_key(b, "f64", GGUF_F64), builder_put(&b->keys, &f64, 8);
    builder_f32(b, "f32", 1.5f);
    builder_f32(b, "nan", __builtin_nanf(""));
    builder_bool(b, "yes", true);
    builder_strings(b, "words", words, 3);
    builder_array(b, "numbers", GGUF_I32, (int32_t[]){1, -2, 3}, 3, 4);
    builder_array(b, "floats", GGUF_F32, (float[]){0.5f, -1}, 2, 4);
    builder_array(b, "doubles", GGUF_F64, (double[]){0.25}, 1, 8);
    builder_tensor(b, "a.weight", TENSOR_F32, 2, (uint64_t[]){3, 2}, (float[]){1, 2, 3, 4, 5, 6},
                   24);
    builder_tensor(b, "b.weight", TENSOR_Q4_0, 2, (uint64_t[]){64, 3}, NULL, 108);
    builder_tensor(b, "c.weight", TENSOR_F16, 4, (uint64_t[]){2, 1, 2, 2}, NULL, 16);
}

/* A file whose keys are copies of another's has the same bytes as that one up to its tensors. */
START_TEST(test_key_bytes)
{
    struct gguf_builder b = {0}, copy = {0};
    build(&b);
    struct gguf *g = builder_open(&b);
    for (uint64_t i = 0; i < gguf_key_count(g); i++) {
        enum gguf_type type;
        struct slice name = gguf_key_name(g, i, &type), value = gguf_key_bytes(g, i);
        char text[64] = "";
        memcpy(text, name.ptr, name.len);
        builder_raw_key(&copy, text, type);
        builder_put(&copy.keys, value.ptr, value.len);
    }
    ck_assert(slice_equal(buffer_slice(&copy.keys), buffer_slice(&b.keys)));
    gguf_free(g);
    builder_release(&b);
    builder_release(&copy);
}
END_TEST

START_TEST(test_values)
{
    struct gguf_builder b = {0};
    struct error err = {0};
    build(&b);
    struct gguf *g = builder_open(&b);
    ck_assert_str_eq(gguf_path(g), "made");
    ck_assert_uint_eq(gguf_version(g), 3);
    ck_assert_uint_eq(gguf_file_size(g), b.out.len);
    ck_assert(slice_is(gguf_str(g, "general.architecture", slice_of(""), &err), "llama"));
    ck_assert(slice_is(gguf_str(g, "absent", slice_of("x"), &err), "x"));
    ck_assert_uint_eq(gguf_u32(g, "u32", 1, &err), 7);
    ck_assert_uint_eq(gguf_u32(g, "absent", 1, &err), 1);
    ck_assert_uint_eq(gguf_u32(g, "u8", 1, &err), 200);
    ck_assert_uint_eq(gguf_u32(g, "u16", 1, &err), 16);
    ck_assert_uint_eq(gguf_u64(g, "u64", 1, &err), UINT64_MAX);
    ck_assert_uint_eq(gguf_need_u32(g, "u32", &err), 7);
    ck_assert_float_eq(gguf_f32(g, "f32", 0, &err), 1.5f);
    ck_assert_float_eq(gguf_f32(g, "f64", 0, &err), 2.5f);
    ck_assert_float_eq(gguf_f32(g, "absent", 3, &err), 3);
    ck_assert_float_eq(gguf_need_f32(g, "f32", &err), 1.5f);
    ck_assert(gguf_bool(g, "yes", false, &err));
    ck_assert(gguf_bool(g, "absent", true, &err));
    ck_assert(gguf_has(g, "yes") && !gguf_has(g, "ye") && !gguf_has(g, "yess"));
    ck_assert_uint_eq(gguf_u32_at(g, "numbers", 2, 0, &err), 3);
    ck_assert_uint_eq(gguf_u32_at(g, "u32", 99, 0, &err), 7);
    ck_assert_uint_eq(gguf_u32_at(g, "absent", 0, 5, &err), 5);
    ck_assert_int_eq(err.status, STATUS_OK);

    struct gguf_array a;
    size_t at = 0;
    ck_assert(gguf_array(g, "words", &a, &err) && a.count == 3 && a.type == GGUF_STRING);
    ck_assert(slice_is(gguf_array_string(&a, &at), "one"));
    ck_assert(slice_is(gguf_array_string(&a, &at), ""));
    ck_assert(slice_is(gguf_array_string(&a, &at), "three"));
    ck_assert(gguf_array(g, "numbers", &a, &err));
    ck_assert_int_eq((int64_t)gguf_array_u64(&a, 1), -2);
    ck_assert(gguf_array(g, "floats", &a, &err));
    ck_assert_float_eq(gguf_array_f32(&a, 1), -1);
    ck_assert(gguf_array(g, "doubles", &a, &err));
    ck_assert_float_eq(gguf_array_f32(&a, 0), 0.25f);
    ck_assert(!gguf_array(g, "absent", &a, &err));
    ck_assert_int_eq(err.status, STATUS_OK);

    enum gguf_type type;
    ck_assert_uint_eq(gguf_key_count(g), b.n_keys);
    ck_assert(slice_is(gguf_key_name(g, 1, &type), "u32") && type == GGUF_U32);
    gguf_free(g);
    builder_release(&b);
}
END_TEST

/* Each wrong use names the key, gives the fallback, and the first error stays. */
START_TEST(test_type_errors)
{
    struct gguf_builder b = {0};
    struct gguf_array a;
    build(&b);
    struct gguf *g = builder_open(&b);
#define REFUSED(call, key, word)                                                                   \
    do {                                                                                           \
        struct error err = {0};                                                                    \
        ck_assert(call);                                                                           \
        ck_assert_int_eq(err.status, STATUS_CORRUPT);                                              \
        ck_assert_msg(strstr(err.text, "'" key "'") && strstr(err.text, word), "%s", err.text);    \
    } while (0)
    REFUSED(gguf_u32(g, "general.architecture", 3, &err) == 3, "general.architecture", "string");
    REFUSED(gguf_u32(g, "i8", 3, &err) == 3, "i8", "-8");
    REFUSED(gguf_u32(g, "i64", 3, &err) == 3, "i64", "-64");
    REFUSED(gguf_u32(g, "u64", 3, &err) == 3, "u64", "4294967295");
    REFUSED(gguf_u64(g, "i16", 3, &err) == 3, "i16", "-16");
    REFUSED(gguf_u32(g, "yes", 3, &err) == 3, "yes", "bool");
    REFUSED(gguf_u32(g, "f32", 3, &err) == 3, "f32", "whole number");
    REFUSED(gguf_u32(g, "numbers", 3, &err) == 3, "numbers", "array");
    REFUSED(gguf_f32(g, "u32", 3, &err) == 3, "u32", "f32");
    REFUSED(gguf_f32(g, "nan", 3, &err) == 3, "nan", "finite");
    REFUSED(gguf_bool(g, "u32", true, &err), "u32", "bool");
    REFUSED(gguf_str(g, "u32", slice_of("x"), &err).len == 1, "u32", "string");
    REFUSED(!gguf_array(g, "u32", &a, &err), "u32", "array");
    REFUSED(gguf_need_u32(g, "absent", &err) == 0, "absent", "no key");
    REFUSED(gguf_need_f32(g, "absent", &err) == 0, "absent", "no key");
    REFUSED(gguf_u32_at(g, "numbers", 3, 9, &err) == 9, "numbers", "3 elements");
    REFUSED(gguf_u32_at(g, "numbers", 1, 9, &err) == 9, "numbers", "-2");
    REFUSED(gguf_u32_at(g, "words", 1, 9, &err) == 9, "words", "whole number");

    struct error err = {0};
    ck_assert_uint_eq(gguf_need_u32(g, "first", &err), 0);
    ck_assert_uint_eq(gguf_u32(g, "u32", 1, &err), 1);
    ck_assert_uint_eq(gguf_need_u32(g, "second", &err), 0);
    ck_assert_ptr_nonnull(strstr(err.text, "'first'"));
    gguf_free(g);
    builder_release(&b);
}
END_TEST

START_TEST(test_tensors)
{
    struct gguf_builder b = {.alignment = 64};
    uint64_t n;
    builder_u32(&b, "general.alignment", 64);
    build(&b);
    struct gguf *g = builder_open(&b);
    const struct gguf_tensor *all = gguf_tensors(g, &n), *t = gguf_tensor(g, "b.weight");
    ck_assert_uint_eq(n, 3);
    ck_assert_ptr_eq(t, &all[1]);
    ck_assert_int_eq(t->type, TENSOR_Q4_0);
    ck_assert_uint_eq(t->n_dims, 2);
    ck_assert_uint_eq(t->dims[0], 64);
    ck_assert_uint_eq(t->dims[1], 3);
    ck_assert_uint_eq(t->dims[2], 1);
    ck_assert_uint_eq(t->bytes, 108);
    ck_assert_uint_eq(t->offset % 64, 0);
    ck_assert_float_eq(((const float *)all[0].data)[5], 6);
    ck_assert_ptr_null(gguf_tensor(g, "b.weigh"));
    ck_assert_ptr_null(gguf_tensor(g, "d"));
    ck_assert_uint_eq(gguf_tensor(g, "c.weight")->bytes, 16);
    gguf_free(g);
    builder_release(&b);

    ck_assert_str_eq(tensor_type_name(TENSOR_Q6_K), "Q6_K");
    ck_assert_ptr_null(tensor_type_name(4));
    ck_assert_ptr_null(tensor_type_name(99999));
    ck_assert_uint_eq(tensor_type_block(4) + tensor_type_bytes(36) + tensor_type_block(UINT32_MAX),
                      0);
    ck_assert_uint_eq(tensor_row_bytes(TENSOR_Q4_K, 512), 288);
}
END_TEST

/* The same file from disk: read, mapped, dropped, read again; and when it has become shorter. */
START_TEST(test_file)
{
    char path[] = "/tmp/test_gguf.XXXXXX";
    struct gguf_builder b = {.version = 2};
    struct error err = {0};
    struct gguf *g;
    build(&b);
    builder_tensor(&b, "big", TENSOR_F32, 1, (uint64_t[]){65536}, NULL, 262144);
    builder_finish(&b);
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, b.out.ptr, b.out.len), (ssize_t)b.out.len);
    close(fd);
    ck_assert_msg(gguf_open(path, &g, &err) == STATUS_OK, "%s", err.text);
    ck_assert_uint_eq(gguf_version(g), 2);
    const struct gguf_tensor *big = gguf_tensor(g, "big"), *a = gguf_tensor(g, "a.weight");
    gguf_fetch(g, 0, UINT64_MAX);
    float numbers[6];
    ck_assert_ptr_null(a->data);
    ck_assert_int_eq(gguf_read(g, a->offset, numbers, sizeof(numbers), &err), STATUS_OK);
    ck_assert_float_eq(numbers[5], 6);
    ck_assert_int_eq(gguf_read(g, gguf_file_size(g) - 2, numbers, 3, &err), STATUS_INVALID);
    ck_assert_int_eq(gguf_map(g, &err), STATUS_OK);
    gguf_forget(g, big->offset, big->offset + big->bytes);
    gguf_forget(g, a->offset, a->offset + a->bytes);
    gguf_forget(g, 0, UINT64_MAX);
    ck_assert_float_eq(((const float *)a->data)[5], 6);
    ck_assert_float_eq(((const float *)big->data)[65535], 0);
    gguf_free(g);
    ck_assert_int_eq(gguf_open(path, &g, &err), STATUS_OK);
    big = gguf_tensor(g, "big");
    off_t cut = (off_t)big->offset + 100;
    char there[64];
    snprintf(there, sizeof(there), "ends at byte %lld", (long long)cut);
    ck_assert_int_eq(truncate(path, cut), 0);
    ck_assert_int_eq(gguf_read(g, big->offset + 96, numbers, 4, &err), STATUS_OK);
    ck_assert_int_eq(gguf_read(g, big->offset + 96, numbers, 8, &err), STATUS_CORRUPT);
    ck_assert_msg(strstr(err.text, path) != NULL && strstr(err.text, there) != NULL, "%s",
                  err.text);
    ck_assert_str_eq(tensor_type_name(big->type), "F32"); /* what was read stays */
    gguf_free(g);
    unlink(path);
    ck_assert_int_eq(gguf_open(path, &g, &err), STATUS_IO);
    ck_assert_ptr_null(g);
    ck_assert_ptr_nonnull(strstr(err.text, path));
    ck_assert_int_eq(gguf_open("/tmp", &g, &err), STATUS_IO);
    gguf_free(NULL);
    builder_release(&b);
}
END_TEST

/* Opens bytes that must be refused, with a sentence that contains each of the words. */
static void refuse(const void *bytes, size_t len, const char *word)
{
    struct gguf *g;
    struct error err = {0};
    enum status status = gguf_open_memory(bytes, len, "bad", &g, &err);
    ck_assert_msg(status != STATUS_OK, "accepted, expected: %s", word);
    ck_assert_ptr_null(g);
    ck_assert_int_eq(err.status, status);
    ck_assert_msg(strstr(err.text, word) && strstr(err.text, "bad: ") && strstr(err.text, "(byte "),
                  "%s: %s", word, err.text);
}

static void refuse_built(struct gguf_builder *b, const char *word)
{
    builder_finish(b);
    refuse(b->out.ptr, b->out.len, word);
    builder_release(b);
}

/* Every proper prefix of a good file is refused, and changing any byte never crashes. */
START_TEST(test_truncated_and_flipped)
{
    struct gguf_builder b = {0};
    build(&b);
    builder_finish(&b);
    for (size_t len = 0; len < b.out.len; len++) {
        char *copy = malloc(
            len != 0 ? len : 1); /* of its own, so that a sanitizer sees reads past the end */
        memcpy(copy, b.out.ptr, len);
        refuse(copy, len, "");
        free(copy);
    }
    static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
    unsigned refused = 0;
    for (size_t i = 0; i < b.out.len; i++)
        for (size_t v = 0; v < sizeof(values); v++) {
            char old = b.out.ptr[i];
            struct gguf *g;
            struct error err = {0};
            b.out.ptr[i] = (char)values[v];
            refused += gguf_open_memory(b.out.ptr, b.out.len, "flipped", &g, &err) != STATUS_OK;
            gguf_free(g);
            b.out.ptr[i] = old;
        }
    ck_assert_uint_gt(refused, 500);
    builder_release(&b);
}
END_TEST

START_TEST(test_bad_header)
{
    struct gguf_builder b = {0};
    build(&b);
    builder_finish(&b);
    char *p = b.out.ptr;
    uint64_t huge[] = {UINT64_MAX, 1ull << 62, 1ull << 61, UINT32_MAX, b.out.len};
    for (size_t i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        uint64_t old;
        memcpy(&old, p + 8, 8);
        memcpy(p + 8, &huge[i], 8);
        refuse(p, b.out.len, "tensors");
        memcpy(p + 8, &old, 8);
        memcpy(&old, p + 16, 8);
        memcpy(p + 16, &huge[i], 8);
        refuse(p, b.out.len, "keys");
        memcpy(p + 16, &old, 8);
    }
    memcpy(p + 4, "\0\0\0\3", 4);
    refuse(p, b.out.len, "big-endian");
    memcpy(p + 4, "\1\0\0\0", 4);
    refuse(p, b.out.len, "version 1");
    memcpy(p + 4, "\143\0\0\0", 4);
    refuse(p, b.out.len, "version 99");
    memcpy(p, "GGML", 4);
    refuse(p, b.out.len, "no GGUF file");
    refuse(p, 0, "empty");
    refuse("GGU", 3, "no GGUF file");
    builder_release(&b);
}
END_TEST

START_TEST(test_bad_keys)
{
    struct gguf_builder b = {0};
    builder_u32(&b, "twice", 1), builder_u32(&b, "once", 1), builder_u32(&b, "twice", 2);
    refuse_built(&b, "key 'twice' occurs twice");
    builder_raw_key(&b, "strange", 77), builder_put_u64(&b.keys, 0);
    refuse_built(&b, "key 'strange' has the unknown value type 77");
    builder_raw_key(&b, "nested", GGUF_ARRAY), builder_put_u32(&b.keys, GGUF_ARRAY),
        builder_put_u64(&b.keys, 0);
    refuse_built(&b, "key 'nested' is an array of arrays");
    builder_array(&b, "odd", 13, NULL, 0, 0);
    refuse_built(&b, "key 'odd' is an array of the unknown type 13");
    builder_array(&b, "many", GGUF_U64, NULL, 1ull << 61, 0);
    refuse_built(&b, "key 'many' is an array of 2305843009213693952 elements");
    builder_array(&b, "words", GGUF_STRING, NULL, 2, 0), builder_put_string(&b.keys, "a", 1),
        builder_put_u64(&b.keys, 1ull << 63);
    refuse_built(&b, "element 1 of the key 'words'");
    builder_array(&b, "words", GGUF_STRING, NULL, 2, 0),
        builder_put_string(&b.keys, "abcdefghi", 9), builder_put_u32(&b.keys, 1);
    refuse_built(&b, "the file ends inside element 1 of the key 'words'");
    builder_raw_key(&b, "truth", GGUF_BOOL), builder_put(&b.keys, "\2", 1);
    refuse_built(&b, "key 'truth' is a bool with the value 2");
    builder_u32(&b, "", 1);
    refuse_built(&b, "key 0 has no name");
    builder_raw_key(&b, "long", GGUF_STRING), builder_put_u64(&b.keys, 1ull << 40);
    refuse_built(&b, "the value of key 'long' has 1099511627776 bytes");
    builder_put_u64(&b.keys, 1ull << 63), builder_put_u64(&b.keys, 0), b.n_keys = 1;
    refuse_built(&b, "the name of key 0 has an impossible length");
    builder_raw_key(&b, "control\n\x1b[31mcharacters", 99), builder_put_u64(&b.keys, 0);
    refuse_built(&b, "'control??[31mcharacters'");
    builder_raw_key(
        &b,
        "a name that is much longer than what a message may quote of it, as it is 110 bytes long",
        99),
        builder_put_u64(&b.keys, 0);
    refuse_built(&b, "...'");
    for (uint32_t alignment = 0; alignment < 1u << 31; alignment = alignment * 2 + 3)
        builder_u32(&b, "general.alignment", alignment), refuse_built(&b, "general.alignment");
    builder_str(&b, "general.alignment", "32");
    refuse_built(&b, "general.alignment");
}
END_TEST

START_TEST(test_bad_tensors)
{
    struct gguf_builder b = {0};
    uint64_t two[] = {32, 2};
#define TENSOR(type, n, dims, offset)                                                              \
    builder_raw_tensor(&b, "t", type, n, dims, offset), buffer_reserve(&b.data, 1)
    TENSOR(TENSOR_F32, 0, two, 0), builder_put_u64(&b.infos, 0);
    refuse_built(&b, "tensor 't' has 0 dimensions");
    TENSOR(TENSOR_F32, 5, ((uint64_t[]){1, 1, 1, 1, 1}), 0);
    refuse_built(&b, "tensor 't' has 5 dimensions");
    TENSOR(TENSOR_F32, 2, ((uint64_t[]){4, 0}), 0);
    refuse_built(&b, "tensor 't' has a dimension of 0");
    TENSOR(TENSOR_F32, 2, ((uint64_t[]){1ull << 32, 1ull << 32}), 0);
    refuse_built(&b, "tensor 't' has more elements");
    TENSOR(TENSOR_F64, 2, ((uint64_t[]){1ull << 31, 1ull << 31}), 0);
    refuse_built(&b, "tensor 't' has more bytes");
    TENSOR(TENSOR_F32, 1, ((uint64_t[]){1ull << 40}), 0);
    refuse_built(&b, "tensor 't' (F32, 4398046511104 bytes) lies outside the file");
    TENSOR(4, 2, two, 0);
    refuse_built(&b, "tensor 't' has the unknown type 4");
    TENSOR(999, 2, two, 0);
    refuse_built(&b, "tensor 't' has the unknown type 999");
    TENSOR(TENSOR_Q4_K, 2, two, 0);
    refuse_built(&b, "no multiple of Q4_K's block of 256");
    TENSOR(TENSOR_F32, 2, two, 7);
    refuse_built(&b, "offset 7, no multiple of the alignment 32");
    TENSOR(TENSOR_F32, 2, two, 1ull << 63);
    refuse_built(&b, "lies outside the file");
    TENSOR(TENSOR_F32, 2, two, UINT64_MAX - 31);
    refuse_built(&b, "lies outside the file");
    builder_tensor(&b, "same", TENSOR_F32, 2, two, NULL, 256),
        builder_tensor(&b, "same", TENSOR_F32, 2, two, NULL, 256);
    refuse_built(&b, "tensor 'same' occurs twice");
    builder_tensor(&b, "one", TENSOR_F32, 2, two, NULL, 256),
        builder_raw_tensor(&b, "two", TENSOR_F32, 2, two, 224);
    builder_tensor(&b, "three", TENSOR_F32, 2, two, NULL, 256);
    refuse_built(&b, "tensors 'one' and 'two' overlap");
    builder_raw_tensor(&b, "", TENSOR_F32, 2, two, 0);
    refuse_built(&b, "tensor 0 has no name");
    builder_raw_tensor(&b, "a name of more than sixty-four bytes, which the format does not allow",
                       TENSOR_F32, 2, two, 0);
    refuse_built(&b, "the name of tensor 0 has an impossible length");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf");
    TCase *t = tcase_create("gguf");
    tcase_add_test(t, test_values);
    tcase_add_test(t, test_key_bytes);
    tcase_add_test(t, test_type_errors);
    tcase_add_test(t, test_tensors);
    tcase_add_test(t, test_file);
    tcase_add_test(t, test_truncated_and_flipped);
    tcase_add_test(t, test_bad_header);
    tcase_add_test(t, test_bad_keys);
    tcase_add_test(t, test_bad_tensors);
    suite_add_tcase(s, t);
    return check_run(s);
}
