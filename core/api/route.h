/* route.h: which endpoint a method and a path mean.
 *
 * The query string is ignored, trailing slashes are tolerated, and the `/v1` in front may be
 * missing, as in llama-server. Paths are compared as they are: nginx has already normalised and
 * decoded them, or passes the client's own bytes, so only the model id of /v1/models/ID is
 * percent-decoded. */
#ifndef API_ROUTE_H
#define API_ROUTE_H

#include "core/base/slice.h"
#include "core/base/status.h"

enum api_endpoint {
    API_NOT_FOUND,   /* no such path */
    API_METHOD,      /* the path exists, the method is wrong: see api_route.allow */
    API_CHAT,        /* POST /v1/chat/completions */
    API_COMPLETIONS, /* POST /v1/completions */
    API_MODELS,      /* GET /v1/models */
    API_MODEL,       /* GET /v1/models/ID; api_route.model is ID */
    API_HEALTH,      /* GET /health */
};

struct api_route {
    enum api_endpoint endpoint;
    const char *allow; /* value of the Allow header ("POST" or "GET, HEAD"); "" for API_NOT_FOUND */
    struct slice model; /* API_MODEL: the id, a part of the path given, still percent-encoded */
};

/* Never fails. HEAD counts as GET: nginx drops the body. */
struct api_route api_route(struct slice method, struct slice path);

/* Fills err for the two endpoints that are none (404, 405); the sentence names the path and the
 * method. */
enum status api_route_error(const struct api_route *route, struct slice method, struct slice path,
                            struct error *err);

#endif
