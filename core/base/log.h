/* log.h: one line per event on stderr or in a file, from any thread; no allocation.
 *
 *     2026-11-29T16:39:12.123Z info  worker: listening on unix:/run/tokenring/default.sock
 *
 * A line is one write(2) of at most 4 KiB, so lines of several threads never mix. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Parses "error", "warn", "info" or "debug"; false if it is none of them. */
bool log_level_parse(const char *text, enum log_level *level);
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
/* Appends to path from now on ("" or NULL: stderr). False, and nothing changed, if it cannot be opened. */
bool log_open(const char *path);
/* Opens the same path again (after rotation); the old file stays in use if that fails. */
bool log_reopen(void);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
