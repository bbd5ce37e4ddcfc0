/* listener.h: the unix stream socket that nginx workers connect to.
 *
 * Taking the path: a lock file beside it (PATH.lock, held while the worker lives) settles who may; then the socket is
 * bound under a temporary name, given its mode and group, set listening and renamed onto PATH. So PATH never names a
 * socket that refuses or has wrong permissions, and a dead worker's file is replaced in one step. A file on which
 * somebody else listens, or that is no socket, is refused. */
#ifndef WORKER_LISTENER_H
#define WORKER_LISTENER_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/base/status.h"

struct listener {
    int fd;      /* listening, non-blocking; -1: closed */
    int lock_fd; /* holds the lock */
    char path[108];
    dev_t dev; /* which file is ours: only that one is removed at the end */
    ino_t ino;
};

/* Peers that may connect. */
struct peer_rule {
    uid_t uid;      /* ours: the same user, and root, always may */
    bool has_group; /* --allow-group */
    gid_t gid;
};

/* Opens the socket at path with these permissions; gid (gid_t)-1 leaves the group. Errors name path and cause. */
enum status listener_open(struct listener *l, const char *path, mode_t mode, gid_t gid,
                          struct error *err);
/* Closes it, removes the file if it is still ours, gives up the lock. */
void listener_close(struct listener *l);
/* The next waiting peer's socket (non-blocking, close-on-exec) that the rule admits, or -1: none waits. Peers that
 * the rule refuses are closed and logged. *failed is set when accepting itself failed (out of descriptors). */
int listener_accept(struct listener *l, const struct peer_rule *rule, bool *failed);

/* A group by name or number; STATUS_INVALID if there is none. */
enum status group_find(const char *option, const char *text, gid_t *gid, struct error *err);
/* The path of "unix:PATH"; STATUS_INVALID for anything else and for paths that a socket address can't hold. */
enum status listener_path(const char *listen, const char **path, struct error *err);

#endif
