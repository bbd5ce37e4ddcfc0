#include "core/base/status.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *type, *code, *text;
    int http;
} table[STATUS_COUNT] = {
#define STATUS(name, http, type, code, text) {#name, type, code, text, http},
#include "core/base/status.def"
#undef STATUS
};

static unsigned index_of(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? (unsigned)status : STATUS_INTERNAL;
}

const char *status_name(enum status status)
{
    return table[index_of(status)].name;
}

int status_http(enum status status)
{
    return table[index_of(status)].http;
}

const char *status_type(enum status status)
{
    return table[index_of(status)].type;
}

const char *status_code(enum status status)
{
    return table[index_of(status)].code;
}

const char *status_text(enum status status)
{
    return table[index_of(status)].text;
}

static enum status fill(struct error *err, enum status status, const char *param, const char *format,
                        va_list args)
{
    if (err != NULL) {
        err->status = status;
        snprintf(err->param, sizeof(err->param), "%s", param);
        vsnprintf(err->text, sizeof(err->text), format, args);
    }
    return status;
}

enum status error_set(struct error *err, enum status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, status, "", format, args);
    va_end(args);
    return status;
}

enum status error_param(struct error *err, enum status status, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, status, param, format, args);
    va_end(args);
    return status;
}
