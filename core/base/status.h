/* status.h: one code for every way in which input or resources can fail.
 *
 * Functions that can fail return enum status (STATUS_OK = 0). Those that know more than the code fill a
 * struct error, which carries a sentence for people and, where the input was a request, the field at fault.
 * A broken invariant is no status: it asserts (in the worker) or drops the channel (in nginx). */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdarg.h>

enum status {
#define STATUS(name, http, type, code, text) STATUS_##name,
#include "core/base/status.def"
#undef STATUS
    STATUS_COUNT
};

/* What went wrong, where. A zeroed error is "no error". */
struct error {
    enum status status;
    char param[64];  /* request field at fault, "" if none */
    char text[384]; /* one sentence, no newline */
};

/* The name ("CONTEXT_LENGTH"), HTTP status, OpenAI error type and code, default text of a status. Never NULL. */
const char *status_name(enum status status);
int status_http(enum status status);
const char *status_type(enum status status);
const char *status_code(enum status status);
const char *status_text(enum status status);

/* Fills err (which may be NULL) and returns status, so that `return error_set(err, STATUS_X, ...)` works.
 * Text longer than the field is cut. error_set clears param; error_param sets it. */
enum status error_set(struct error *err, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum status error_param(struct error *err, enum status status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
