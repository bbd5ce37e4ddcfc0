/* The JSON reader: structure, limits, errors with place and field, numbers, strings. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/api/json_read.h"
#include "tests/check_main.h"

static struct json json;
static struct error err;

static enum status parse(const char *text)
{
    json_release(&json);
    err = (struct error){0};
    return json_parse(&json, slice_of(text), &err);
}

static void teardown(void)
{
    json_release(&json);
}

START_TEST(tree)
{
    ck_assert_int_eq(parse(" {\"a\":[1,[2],{}],\"b\":{\"c\":null},\"d\":\"x\"} "), STATUS_OK);
    const struct json_node *root = json_root(&json);
    ck_assert_int_eq(root->type, JSON_OBJECT);
    ck_assert_uint_eq(root->count, 3);
    ck_assert_uint_eq(root->span, 9);
    const struct json_node *a = json_child(root);
    ck_assert_int_eq(a->type, JSON_ARRAY);
    ck_assert_uint_eq(a->count, 3);
    const struct json_node *b = json_next(a);
    ck_assert_int_eq(b->type, JSON_OBJECT);
    ck_assert_ptr_eq(b, json_get(&json, root, "b"));
    ck_assert_int_eq(json_child(b)->type, JSON_NULL);
    ck_assert(json_string_is(&json, json_next(b), "x"));
    ck_assert_ptr_null(json_get(&json, root, "x"));
    const struct json_node *last = json_next(json_next(json_child(a)));
    ck_assert_int_eq(last->type, JSON_OBJECT);
    ck_assert_uint_eq(last->count, 0);
    ck_assert(slice_is(json_raw(&json, a), "[1,[2],{}]"));
}
END_TEST

START_TEST(last_of_equal_keys_wins)
{
    ck_assert_int_eq(parse("{\"a\":1,\"b\":2,\"\\u0061\":3}"), STATUS_OK);
    int64_t value;
    ck_assert(json_int64(&json, json_get(&json, json_root(&json), "a"), &value));
    ck_assert_int_eq(value, 3);
}
END_TEST

START_TEST(errors_have_place_and_field)
{
    static const struct {
        const char *text, *param, *part;
    } cases[] = {
        {"", "", "empty"},
        {"  \n ", "", "empty"},
        {"{\"a\":\n 1,}", "", "line 2, column 4: a key in double quotes"},
        {"[1 2]", "", "',' or ']'"},
        {"{\"a\":1 \"b\"}", "", "',' or '}'"},
        {"{\"a\" 1}", "", "':'"},
        {"{a:1}", "", "a key in double quotes"},
        {"[tru]", "", "a value was expected"},
        {"[", "", "ends where a value"},
        {"{\"a\":[{\"b\":\"x\xff\"}]}", "a[0].b", "not valid UTF-8"},
        {"{\"a\":{\"b\":[1,\"\\ud800\"]}}", "a.b[1]", "high surrogate"},
        {"{\"a\":\"\\udc00\"}", "a", "low surrogate"},
        {"{\"a\":\"\\ud800\\u0041\"}", "a", "high surrogate"},
        {"{\"a\":\"\\uD83D\\uDE0\"}", "a", "high surrogate"},
        {"{\"a\":\"\\u12\"}", "a", "hex"},
        {"{\"a\":\"\\x\"}", "a", "escape"},
        {"{\"a\":\"\t\"}", "a", "control character"},
        {"{\"a\":\"b", "a", "no end"},
        {"{\"a\":\"b\\", "a", "no end"},
        {"{\"a\":01}", "", "',' or '}'"},
        {"{\"a\":-}", "a", "number"},
        {"{\"a\":1.}", "a", "number"},
        {"{\"a\":1e}", "a", "number"},
        {"{\"\xff\":1}", "", "not valid UTF-8"},
        {"{} x", "", "follows"},
        {"\xef\xbb\xbf{}", "", "a value was expected"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_msg(parse(cases[i].text) == STATUS_INVALID_JSON, "accepted: %s", cases[i].text);
        ck_assert_str_eq(err.param, cases[i].param);
        ck_assert_msg(strstr(err.text, cases[i].part) != NULL, "\"%s\" lacks \"%s\"", err.text,
                      cases[i].part);
    }
}
END_TEST

START_TEST(depth_and_size)
{
    char deep[2 * JSON_DEPTH_MAX + 3];
    memset(deep, '[', JSON_DEPTH_MAX);
    memset(deep + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
    deep[2 * JSON_DEPTH_MAX] = '\0';
    ck_assert_int_eq(parse(deep), STATUS_OK);
    memset(deep, '[', JSON_DEPTH_MAX + 1);
    memset(deep + JSON_DEPTH_MAX + 1, ']', JSON_DEPTH_MAX + 1);
    deep[2 * JSON_DEPTH_MAX + 2] = '\0';
    ck_assert_int_eq(parse(deep), STATUS_INVALID_JSON);
    ck_assert_ptr_nonnull(strstr(err.text, "128 levels"));

    struct buffer many = {0};
    buffer_add_byte(&many, '[');
    for (int i = 0; i < JSON_NODES_MAX; i++)
        buffer_add_text(&many, i > 0 ? ",1" : "1");
    buffer_add_byte(&many, ']');
    ck_assert_int_eq(parse(many.ptr), STATUS_INVALID_JSON);
    ck_assert_ptr_nonnull(strstr(err.text, "2097152"));
    buffer_release(&many);
}
END_TEST

START_TEST(strings)
{
    struct buffer out = {0};
    ck_assert_int_eq(
        parse(
            "[\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\ud83d\\ude00z\",\"\\u0000\",\"plain\"]"),
        STATUS_OK);
    const struct json_node *node = json_child(json_root(&json));
    ck_assert(json_string(&json, node, &out));
    ck_assert_str_eq(out.ptr, "a\"\\/\b\f\n\r\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
    buffer_clear(&out);
    node = json_next(node);
    ck_assert(!json_string(&json, node, &out));
    ck_assert_uint_eq(out.len, 1);
    buffer_clear(&out);
    node = json_next(node);
    ck_assert(json_string(&json, node, &out));
    ck_assert_str_eq(out.ptr, "plain");
    buffer_clear(&out);
    ck_assert_int_eq(parse("{\"k\\u0065y\":1}"), STATUS_OK);
    ck_assert(json_key(&json, json_child(json_root(&json)), &out));
    ck_assert_str_eq(out.ptr, "key");
    buffer_release(&out);
}
END_TEST

START_TEST(numbers)
{
    static const struct {
        const char *text;
        bool whole;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"-17", true, -17},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"99999999999999999999999999", false, 0},
        {"5.0", true, 5},
        {"5e2", true, 500},
        {"5.5", false, 0},
        {"1e400", false, 0},
        {"-1e400", false, 0},
        {"1e300", false, 0},
        {"1.0000000000000000000000000000000000000000000000000000000000000000000000000", true, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t value = 0;
        ck_assert_int_eq(parse(cases[i].text), STATUS_OK);
        ck_assert_msg(json_int64(&json, json_root(&json), &value) == cases[i].whole, "%s",
                      cases[i].text);
        if (cases[i].whole)
            ck_assert_int_eq(value, cases[i].value);
    }
    ck_assert_int_eq(parse("-1.25e-2"), STATUS_OK);
    ck_assert_double_eq(json_double(&json, json_root(&json)), -0.0125);
    ck_assert_int_eq(parse("1e999"), STATUS_OK);
    ck_assert(isinf(json_double(&json, json_root(&json))));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_read");
    TCase *cases = tcase_create("all");
    tcase_add_checked_fixture(cases, NULL, teardown);
    tcase_add_test(cases, tree);
    tcase_add_test(cases, last_of_equal_keys_wins);
    tcase_add_test(cases, errors_have_place_and_field);
    tcase_add_test(cases, depth_and_size);
    tcase_add_test(cases, strings);
    tcase_add_test(cases, numbers);
    suite_add_tcase(suite, cases);
    return check_run(suite);
}
