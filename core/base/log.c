#define _GNU_SOURCE
#include "core/base/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {"error", "warn", "info", "debug"};
static _Atomic int threshold = LOG_LEVEL_INFO;
static int target = STDERR_FILENO; /* a reopen replaces the file behind it by dup3, never the number */
static char target_path[512];

bool log_level_parse(const char *text, enum log_level *level)
{
    for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcmp(text, names[i]) == 0) {
            *level = (enum log_level)i;
            return true;
        }
    }
    return false;
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&threshold, memory_order_relaxed);
}

bool log_open(const char *path)
{
    if (path == NULL || *path == '\0')
        return true;
    if (strlen(path) >= sizeof(target_path))
        return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0)
        return false;
    if (target == STDERR_FILENO) {
        target = fd;
    } else {
        dup3(fd, target, O_CLOEXEC);
        close(fd);
    }
    strcpy(target_path, path);
    return true;
}

bool log_reopen(void)
{
    char path[sizeof(target_path)];
    strcpy(path, target_path);
    return log_open(path);
}

void log_line(enum log_level level, const char *format, ...)
{
    if (!log_enabled(level))
        return;
    char line[4096];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ %-5s ", now.tv_nsec / 1000000, names[level]);
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof(line) - n - 1, format, args);
    va_end(args);
    if (m > 0)
        n += (size_t)m < sizeof(line) - n - 1 ? (size_t)m : sizeof(line) - n - 2;
    line[n++] = '\n';
    ssize_t written = write(target, line, n);
    (void)written; /* nowhere left to report it */
}
