/* daemon.h: starts and watches a tokenringd of its own, in a folder of its own, for tests in C. */
#ifndef E2E_DAEMON_H
#define E2E_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct daemon {
    pid_t pid;
    char dir[64];
    char socket[80];
    char log[128]; /* its stderr */
};

/* Starts build/tokenringd with --listen, --name and --stats-dir for its own folder and these arguments (NULL ends
 * them; up to 24), and waits until the socket takes connections. TOKENRING_WRAP (a command and its arguments) stands
 * in front if it is set; a --model without --tier gets TOKENRING_TIER's if that is set. Fails the test if that takes over
 * 30 s. */
void daemon_start(struct daemon *d, const char *const *arguments);
/* Starts another one in the same folder; the old one must be dead. */
void daemon_start_again(struct daemon *d, const char *const *arguments);
/* Sends the signal and waits for the end: the exit status, or 128 + the signal that ended it. Fails the test after
 * 20 s. */
int daemon_stop(struct daemon *d, int signal);
/* Waits for the end. */
int daemon_wait(struct daemon *d);
/* Removes the folder; the worker must have ended. */
void daemon_clean(struct daemon *d);
/* Open descriptors and threads. */
unsigned daemon_fds(const struct daemon *d);
unsigned daemon_threads(const struct daemon *d);
/* A figure of its stats file. */
uint64_t daemon_stat(const struct daemon *d, const char *name);
/* Waits up to 10 s until the figure has this value; fails the test otherwise. */
void daemon_expect(const struct daemon *d, const char *name, uint64_t value);
/* Whether text stands in its log. */
bool daemon_logged(const struct daemon *d, const char *text);
/* "ready" or "loading" and so on, out of /health; "" if nobody answers. Valid until the next call. */
const char *daemon_health(const struct daemon *d);

#endif
