#include "core/api/route.h"

/* The exact paths, without /v1. */
static const struct {
    const char *path;
    enum api_endpoint endpoint;
    const char *allow;
} routes[] = {
    {"/chat/completions", API_CHAT, "POST"},
    {"/completions", API_COMPLETIONS, "POST"},
    {"/models", API_MODELS, "GET, HEAD"},
    {"/health", API_HEALTH, "GET, HEAD"},
};

static bool method_fits(struct slice method, const char *allow)
{
    if (allow[0] == 'P')
        return slice_is(method, "POST");
    return slice_is(method, "GET") || slice_is(method, "HEAD");
}

struct api_route api_route(struct slice method, struct slice path)
{
    struct api_route route = {.endpoint = API_NOT_FOUND, .allow = ""};
    const char *query = path.len > 0 ? memchr(path.ptr, '?', path.len) : NULL;
    if (query != NULL)
        path.len = (size_t)(query - path.ptr);
    while (path.len > 1 && path.ptr[path.len - 1] == '/')
        path.len--;
    if (slice_starts(path, slice_of("/v1/"))) {
        path.ptr += 3;
        path.len -= 3;
    }
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (slice_is(path, routes[i].path)) {
            route.endpoint = routes[i].endpoint;
            route.allow = routes[i].allow;
        }
    }
    struct slice models = slice_of("/models/");
    if (slice_starts(path, models)) {
        route.endpoint = API_MODEL;
        route.allow = "GET, HEAD";
        route.model = slice_make(path.ptr + models.len, path.len - models.len);
    }
    if (route.endpoint != API_NOT_FOUND && !method_fits(method, route.allow))
        route.endpoint = API_METHOD;
    return route;
}

enum status api_route_error(const struct api_route *route, struct slice method, struct slice path,
                            struct error *err)
{
    int path_len = (int)(path.len < 200 ? path.len : 200);
    int method_len = (int)(method.len < 20 ? method.len : 20);
    if (route->endpoint == API_METHOD)
        return error_set(err, STATUS_METHOD, "%.*s is not allowed for %.*s; allowed: %s",
                         method_len, method.ptr, path_len, path.ptr, route->allow);
    return error_set(err, STATUS_NOT_FOUND,
                     "there is no %.*s here; there are POST /v1/chat/completions, "
                     "POST /v1/completions, GET /v1/models and GET /health",
                     path_len, path.ptr);
}
