/* Paths and methods to endpoints. */
#include <check.h>
#include <stdlib.h>

#include "core/api/route.h"
#include "tests/check_main.h"

static struct api_route route(const char *method, const char *path)
{
    return api_route(slice_of(method), slice_of(path));
}

START_TEST(endpoints)
{
    static const struct {
        const char *method, *path;
        enum api_endpoint endpoint;
        const char *allow;
    } cases[] = {
        {"POST", "/v1/chat/completions", API_CHAT, "POST"},
        {"POST", "/chat/completions", API_CHAT, "POST"},
        {"POST", "/v1/chat/completions/", API_CHAT, "POST"},
        {"POST", "/v1/chat/completions?x=/v1/models", API_CHAT, "POST"},
        {"POST", "/v1/completions", API_COMPLETIONS, "POST"},
        {"POST", "/completions//?", API_COMPLETIONS, "POST"},
        {"GET", "/v1/models", API_MODELS, "GET, HEAD"},
        {"GET", "/v1/models/", API_MODELS, "GET, HEAD"},
        {"HEAD", "/models", API_MODELS, "GET, HEAD"},
        {"GET", "/health", API_HEALTH, "GET, HEAD"},
        {"GET", "/v1/health", API_HEALTH, "GET, HEAD"},
        {"HEAD", "/health?verbose", API_HEALTH, "GET, HEAD"},
        {"POST", "/health", API_METHOD, "GET, HEAD"},
        {"GET", "/v1/chat/completions", API_METHOD, "POST"},
        {"OPTIONS", "/v1/completions", API_METHOD, "POST"},
        {"DELETE", "/v1/models/x", API_METHOD, "GET, HEAD"},
        {"post", "/v1/completions", API_METHOD, "POST"},
        {"", "/v1/completions", API_METHOD, "POST"},
        {"GET", "/", API_NOT_FOUND, ""},
        {"GET", "", API_NOT_FOUND, ""},
        {"GET", "/v1", API_NOT_FOUND, ""},
        {"GET", "/v1/", API_NOT_FOUND, ""},
        {"POST", "/v1/chat", API_NOT_FOUND, ""},
        {"POST", "/v2/chat/completions", API_NOT_FOUND, ""},
        {"POST", "/v1/v1/completions", API_NOT_FOUND, ""},
        {"POST", "/v1/completions/x", API_NOT_FOUND, ""},
        {"POST", "/v1/Completions", API_NOT_FOUND, ""},
        {"GET", "?/health", API_NOT_FOUND, ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct api_route r = route(cases[i].method, cases[i].path);
        ck_assert_msg(r.endpoint == cases[i].endpoint, "%s %s: endpoint %d, not %d",
                      cases[i].method, cases[i].path, r.endpoint, cases[i].endpoint);
        ck_assert_str_eq(r.allow, cases[i].allow);
    }
}
END_TEST

START_TEST(model_id)
{
    struct api_route r = route("GET", "/v1/models/org%2Ffake-1/?a");
    ck_assert_int_eq(r.endpoint, API_MODEL);
    ck_assert(slice_is(r.model, "org%2Ffake-1"));
    r = route("GET", "/models/org/fake");
    ck_assert_int_eq(r.endpoint, API_MODEL);
    ck_assert(slice_is(r.model, "org/fake"));
}
END_TEST

START_TEST(errors)
{
    struct error err = {0};
    struct slice method = slice_of("PUT"), path = slice_of("/v1/completions");
    struct api_route r = api_route(method, path);
    ck_assert_int_eq(api_route_error(&r, method, path, &err), STATUS_METHOD);
    ck_assert_str_eq(err.text, "PUT is not allowed for /v1/completions; allowed: POST");
    path = slice_of("/nowhere");
    r = api_route(method, path);
    ck_assert_int_eq(api_route_error(&r, method, path, &err), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("route");
    TCase *cases = tcase_create("all");
    tcase_add_test(cases, endpoints);
    tcase_add_test(cases, model_id);
    tcase_add_test(cases, errors);
    suite_add_tcase(suite, cases);
    return check_run(suite);
}
