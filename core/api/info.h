/* info.h: bodies that are no completion: errors, the models, health. All are whole JSON documents.
 */
#ifndef API_INFO_H
#define API_INFO_H

#include <stdint.h>

#include "core/base/buffer.h"
#include "core/base/slice.h"
#include "core/base/status.h"

struct api_context;

/* Appends {"error":{"message","type","param","code"}}; all four are always there, param is null
 * without a field. */
void api_error_json(const struct error *err, struct buffer *out);

/* The same as the last events of a stream: `data: {"error":...}`, then `data: [DONE]`. */
void api_error_event(const struct error *err, struct buffer *out);

/* The answer of GET /v1/models: one entry a name. */
void api_models_json(const struct api_context *ctx, struct buffer *out);

/* The answer of GET /v1/models/ID, where id may be percent-encoded. STATUS_MODEL_NOT_FOUND: err is
 * filled, out as it was. */
enum status api_model_json(const struct api_context *ctx, struct slice id, struct buffer *out,
                           struct error *err);

enum api_health_state { API_HEALTH_OK, API_HEALTH_LOADING, API_HEALTH_DRAINING, API_HEALTH_ERROR };

struct api_health {
    enum api_health_state state;
    int percent;               /* loading: 0 to 100 */
    const char *model;         /* name of the model; NULL: left out */
    const char *version;       /* of the worker; NULL: left out */
    const char *error;         /* API_HEALTH_ERROR: what is wrong; else NULL */
    uint32_t running, waiting; /* requests */
};

/* Appends {"status":"ok"|"loading"|"draining"|"error",...}; returns the HTTP status: 200 when ok,
 * else 503. */
int api_health_json(const struct api_health *health, struct buffer *out);

#endif
