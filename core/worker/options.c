#include "core/worker/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/xalloc.h"

enum option_kind { TEXT, NUMBER, SIZE, MODE, FLAG };

/* Longest line of a config file. */
#define LINE_MAX_BYTES 4096

struct option {
    const char *name;
    enum option_kind kind;
    const char *value;
    uint64_t min, max;
    const char *argument, *help;
    size_t offset;
};

static const struct option table[] = {
#define OPTION(field, name, kind, value, min, max, argument, help)                                 \
    {name, kind, value, min, max, argument, help, offsetof(struct options, field)},
#include "core/worker/options.def"
#undef OPTION
};
#define N_OPTIONS (sizeof(table) / sizeof(*table))

static const struct option *find(const char *name)
{
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

static void *field_of(struct options *o, const struct option *opt)
{
    return (char *)o + opt->offset;
}

bool options_parse_size(const char *text, uint64_t *bytes)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    uint64_t whole = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    double fraction = 0, digit = 0.1;
    if (*end == '.') {
        if (!isdigit((unsigned char)*++end))
            return false;
        for (; isdigit((unsigned char)*end); end++, digit /= 10)
            fraction += (*end - '0') * digit;
    }
    unsigned shift = 0;
    if (*end != '\0') {
        const char *units = "kmgt";
        const char *unit = strchr(units, tolower((unsigned char)*end));
        if (unit == NULL)
            return false;
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if ((*end == 'i' || *end == 'I') && tolower((unsigned char)end[1]) == 'b')
            end += 2;
        else if (tolower((unsigned char)*end) == 'b')
            end++;
    }
    if (*end != '\0' || (fraction != 0 && shift == 0) || whole > (UINT64_MAX >> shift) - 1)
        return false;
    *bytes = (whole << shift) + (uint64_t)(fraction * (double)(1ull << shift));
    return true;
}

void options_format_size(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    unsigned u = 0;
    for (; value >= 1024 && u < 5; u++)
        value /= 1024;
    if (u == 0)
        snprintf(out, 32, "%" PRIu64 " B", bytes);
    else
        snprintf(out, 32, "%.1f %s", value, units[u]);
}

static bool parse_number(const char *text, int base, uint64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    *value = strtoull(text, &end, base);
    return errno == 0 && *end == '\0';
}

static enum status set(struct options *o, const struct option *opt, const char *value,
                       const char *where, struct error *err)
{
    void *field = field_of(o, opt);
    uint64_t number = 0;
    switch (opt->kind) {
    case TEXT:
        free(*(char **)field);
        *(char **)field = xmemdup(value, strlen(value));
        return STATUS_OK;
    case FLAG:
        if (strcmp(value, "on") == 0 || strcmp(value, "off") == 0) {
            *(bool *)field = value[1] == 'n';
            return STATUS_OK;
        }
        return error_set(err, STATUS_INVALID, "%soption %s: \"%s\" is neither on nor off", where,
                         opt->name, value);
    case NUMBER:
    case MODE:
        if (!parse_number(value, opt->kind == MODE ? 8 : 10, &number))
            return error_set(err, STATUS_INVALID, "%soption %s: \"%s\" is no %s", where, opt->name,
                             value, opt->kind == MODE ? "octal mode" : "whole number");
        break;
    case SIZE:
        if (!options_parse_size(value, &number))
            return error_set(err, STATUS_INVALID,
                             "%soption %s: \"%s\" is no size (bytes, or with k, m, g or t behind)",
                             where, opt->name, value);
        break;
    }
    if (number < opt->min || number > opt->max) {
        if (opt->kind == MODE)
            return error_set(err, STATUS_INVALID, "%soption %s: %s is not within 0 and 0%" PRIo64,
                             where, opt->name, value, opt->max);
        return error_set(err, STATUS_INVALID,
                         "%soption %s: %s is not within %" PRIu64 " and %" PRIu64, where, opt->name,
                         value, opt->min, opt->max);
    }
    *(uint64_t *)field = number;
    return STATUS_OK;
}

void options_init(struct options *o)
{
    memset(o, 0, sizeof(*o));
    o->config = xmemdup("", 0);
    for (size_t i = 0; i < N_OPTIONS; i++)
        set(o, &table[i], table[i].value, "", NULL);
}

void options_release(struct options *o)
{
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (table[i].kind == TEXT)
            free(*(char **)field_of(o, &table[i]));
    free(o->config);
    memset(o, 0, sizeof(*o));
}

/* Cuts blanks and a comment (# at the start or behind a blank) off both ends; text is changed. */
static char *trim(char *text)
{
    for (char *p = text; *p != '\0'; p++) {
        if (*p == '#' && (p == text || isspace((unsigned char)p[-1]))) {
            *p = '\0';
            break;
        }
    }
    while (isspace((unsigned char)*text))
        text++;
    size_t n = strlen(text);
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        text[--n] = '\0';
    return text;
}

/* Splits "name value", "name = value" or "name"; value is NULL for the last. */
static void split(char *line, char **name, char **value)
{
    *name = line;
    *value = NULL;
    char *p = line + strcspn(line, " \t=");
    if (*p == '\0')
        return;
    bool equals = *p == '=';
    *p++ = '\0';
    p += strspn(p, " \t");
    if (!equals && *p == '=') {
        p++;
        p += strspn(p, " \t");
    }
    *value = p;
}

enum status options_read_file(struct options *o, const char *path, struct error *err)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return error_set(err, STATUS_IO, "cannot open config file %s: %s", path, strerror(errno));
    bool seen[N_OPTIONS] = {false};
    char line[LINE_MAX_BYTES], where[512];
    enum status status = STATUS_OK;
    for (unsigned number = 1; status == STATUS_OK && fgets(line, sizeof(line), file) != NULL;
         number++) {
        snprintf(where, sizeof(where), "%.400s:%u: ", path, number);
        if (strchr(line, '\n') == NULL && !feof(file)) {
            status = error_set(err, STATUS_INVALID, "%sthe line is longer than %d bytes", where,
                               LINE_MAX_BYTES - 2);
            break;
        }
        char *text = trim(line), *name, *value;
        if (*text == '\0')
            continue;
        split(text, &name, &value);
        const struct option *opt = find(name);
        if (opt == NULL) {
            status = error_set(err, STATUS_INVALID, "%sunknown option %s", where, name);
        } else if (seen[opt - table]) {
            status = error_set(err, STATUS_INVALID, "%soption %s is given twice", where, name);
        } else if (value == NULL && opt->kind != FLAG) {
            status = error_set(err, STATUS_INVALID, "%soption %s needs a value (%s)", where, name,
                               opt->argument);
        } else {
            seen[opt - table] = true;
            status = set(o, opt, value == NULL ? "on" : value, where, err);
        }
    }
    if (status == STATUS_OK && ferror(file))
        status = error_set(err, STATUS_IO, "cannot read config file %s: %s", path, strerror(errno));
    fclose(file);
    return status;
}

/* One pass over the arguments. only_config: look for --config and the options that print and leave.
 */
static enum status parse_arguments(struct options *o, int argc, char **argv, bool only_config,
                                   struct error *err)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "-t") == 0) {
            o->check_only = true;
            continue;
        } else if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0) {
            o->show_help = true;
            continue;
        } else if (strcmp(arg, "-V") == 0 || strcmp(arg, "--version") == 0) {
            o->show_version = true;
            continue;
        } else if (strncmp(arg, "--", 2) != 0 || arg[2] == '\0') {
            return error_set(err, STATUS_INVALID, "unexpected argument \"%s\" (see --help)", arg);
        }
        char name[64];
        const char *equals = strchr(arg + 2, '=');
        size_t len = equals != NULL ? (size_t)(equals - arg - 2) : strlen(arg + 2);
        snprintf(name, sizeof(name), "%.*s", (int)(len < 63 ? len : 63), arg + 2);
        bool is_config = strcmp(name, "config") == 0;
        const struct option *opt = is_config ? NULL : find(name);
        if (!is_config && opt == NULL)
            return error_set(err, STATUS_INVALID, "unknown option --%s (see --help)", name);
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (value == NULL && opt != NULL && opt->kind == FLAG) {
            value = "on";
        } else if (value == NULL) {
            if (i + 1 >= argc)
                return error_set(err, STATUS_INVALID, "option --%s needs a value (%s)", name,
                                 is_config ? "FILE" : opt->argument);
            value = argv[++i];
        }
        if (only_config) {
            if (is_config) {
                free(o->config);
                o->config = xmemdup(value, strlen(value));
            }
        } else if (!is_config) {
            enum status status = set(o, opt, value, "", err);
            if (status != STATUS_OK)
                return status;
        }
    }
    return STATUS_OK;
}

enum status options_parse(struct options *o, int argc, char **argv, struct error *err)
{
    enum status status = parse_arguments(o, argc, argv, true, err);
    if (status != STATUS_OK || o->show_help || o->show_version)
        return status;
    if (*o->config != '\0')
        status = options_read_file(o, o->config, err);
    return status != STATUS_OK ? status : parse_arguments(o, argc, argv, false, err);
}

void options_help(struct buffer *out)
{
    buffer_add_text(out,
                    "usage: tokenringd [options]\n"
                    "Serves a model to nginx over shared memory.\n\n"
                    "  -h, --help                    this text\n"
                    "  -V, --version                 the version\n"
                    "  -t                            check options and model file, then exit\n"
                    "  --config FILE                 a file of these options, one `name value` a "
                    "line; the command line wins\n");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        char left[64];
        snprintf(left, sizeof(left), "--%s %s", table[i].name, table[i].argument);
        buffer_printf(out, "  %-29s %s", left, table[i].help);
        if (*table[i].value != '\0')
            buffer_printf(out, " [%s]", table[i].value);
        buffer_add_byte(out, '\n');
    }
}
