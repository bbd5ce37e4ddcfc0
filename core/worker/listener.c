#include "core/worker/listener.h"

#include <errno.h>
#include <stdint.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/ring/channel.h"

#define BACKLOG 128

enum status listener_path(const char *listen, const char **path, struct error *err)
{
    struct sockaddr_un address;
    if (strncmp(listen, "unix:", 5) != 0 || listen[5] == '\0')
        return error_set(err, STATUS_INVALID, "option listen: \"%s\" is not unix:PATH", listen);
    *path = listen + 5;
    /* the temporary name is longer than the path */
    if (strlen(*path) + sizeof(".new") > sizeof(address.sun_path))
        return error_set(
            err, STATUS_INVALID,
            "option listen: the path is longer than the %zu bytes a socket may have: %s",
            sizeof(address.sun_path) - sizeof(".new"), *path);
    return STATUS_OK;
}

enum status group_find(const char *option, const char *text, gid_t *gid, struct error *err)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == '\0' && number < UINT32_MAX) {
        *gid = (gid_t)number;
        return STATUS_OK;
    }
    struct group entry, *found = NULL;
    char storage[65536];
    if (getgrnam_r(text, &entry, storage, sizeof(storage), &found) != 0 || found == NULL)
        return error_set(err, STATUS_INVALID, "option %s: there is no group \"%s\"", option, text);
    *gid = found->gr_gid;
    return STATUS_OK;
}

/* listener_path has made sure that path and suffix fit. */
static void fill_address(struct sockaddr_un *address, const char *path, const char *suffix)
{
    size_t n = strlen(path);
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, path, n);
    memcpy(address->sun_path + n, suffix, strlen(suffix));
}

/* Whether path is free to be replaced: absent, or a socket on which nobody listens. */
static enum status check_old(const char *path, struct error *err)
{
    struct stat st;
    struct sockaddr_un address;
    if (lstat(path, &st) != 0)
        return errno == ENOENT
                   ? STATUS_OK
                   : error_set(err, STATUS_IO, "cannot look at %s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return error_set(err, STATUS_INVALID, "%s exists and is no socket", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, STATUS_IO, "cannot make a socket: %s", strerror(errno));
    fill_address(&address, path, "");
    int rc = connect(fd, (struct sockaddr *)&address, sizeof(address));
    bool alive = rc == 0 || errno == EAGAIN;
    close(fd);
    if (alive)
        return error_set(err, STATUS_INVALID, "another program listens on %s", path);
    return STATUS_OK;
}

static enum status take_lock(struct listener *l, struct error *err)
{
    char path[128];
    snprintf(path, sizeof(path), "%s.lock", l->path);
    l->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->lock_fd < 0)
        return error_set(err, STATUS_IO, "cannot open %s: %s", path, strerror(errno));
    if (flock(l->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return error_set(err, STATUS_INVALID, "another worker listens on %s (it holds %s)", l->path,
                         path);
    return STATUS_OK;
}

static enum status bind_and_rename(struct listener *l, mode_t mode, gid_t gid, struct error *err)
{
    struct sockaddr_un address;
    struct stat st;
    fill_address(&address, l->path, ".new");
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return error_set(err, STATUS_IO, "cannot make a socket: %s", strerror(errno));
    unlink(address.sun_path);
    /* fchmod before bind is what bind gives the file: no moment with wider permissions */
    if (fchmod(l->fd, mode) != 0 || bind(l->fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        return error_set(err, STATUS_IO, "cannot make the socket %s: %s", l->path, strerror(errno));
    const char *what = NULL;
    if (gid != (gid_t)-1 && chown(address.sun_path, (uid_t)-1, gid) != 0)
        what = "set the group of";
    else if (chmod(address.sun_path, mode) != 0)
        what = "set the mode of";
    else if (listen(l->fd, BACKLOG) != 0)
        what = "listen on";
    else if (lstat(address.sun_path, &st) != 0 || rename(address.sun_path, l->path) != 0)
        what = "put in place";
    if (what != NULL) {
        int cause = errno;
        unlink(address.sun_path);
        return error_set(err, STATUS_IO, "cannot %s the socket %s: %s", what, l->path,
                         strerror(cause));
    }
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    return STATUS_OK;
}

enum status listener_open(struct listener *l, const char *path, mode_t mode, gid_t gid,
                          struct error *err)
{
    memset(l, 0, sizeof(*l));
    l->fd = l->lock_fd = -1;
    snprintf(l->path, sizeof(l->path), "%s", path);
    enum status status = take_lock(l, err);
    if (status == STATUS_OK)
        status = check_old(path, err);
    if (status == STATUS_OK)
        status = bind_and_rename(l, mode, gid, err);
    if (status != STATUS_OK)
        listener_close(l);
    return status;
}

void listener_close(struct listener *l)
{
    struct stat st;
    if (l->fd >= 0) {
        if (l->ino != 0 && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
            unlink(l->path);
        close(l->fd);
    }
    if (l->lock_fd >= 0)
        close(l->lock_fd);
    l->fd = l->lock_fd = -1;
}

/* Whether a process of these credentials is in group gid, by its primary group or its supplementary ones. */
static bool peer_in_group(int fd, const struct ucred *peer, gid_t gid)
{
    if (peer->gid == gid)
        return true;
    gid_t groups[256];
    socklen_t len = sizeof(groups);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) != 0)
        return false;
    for (size_t i = 0; i < len / sizeof(gid_t); i++)
        if (groups[i] == gid)
            return true;
    return false;
}

static bool admitted(int fd, const struct peer_rule *rule)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0) {
        log_warn("listener: no credentials of a peer: %s", strerror(errno));
        return false;
    }
    if (peer.uid == rule->uid || peer.uid == 0 ||
        (rule->has_group && peer_in_group(fd, &peer, rule->gid)))
        return true;
    char why[128];
    snprintf(why, sizeof(why), "user %u, group %u may not connect (see --allow-group)",
             (unsigned)peer.uid, (unsigned)peer.gid);
    log_warn("listener: refused process %d: %s", (int)peer.pid, why);
    channel_turn_away(fd, why);
    return false;
}

int listener_accept(struct listener *l, const struct peer_rule *rule, bool *failed)
{
    *failed = false;
    for (;;) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            *failed = errno != EAGAIN;
            if (*failed)
                log_error("listener: cannot accept: %s", strerror(errno));
            return -1;
        }
        if (admitted(fd, rule))
            return fd;
        close(fd);
    }
}
