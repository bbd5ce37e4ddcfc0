#include "tests/e2e/daemon.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/stats/reader.h"
#include "tests/e2e/ring_client.h"

#define SECOND UINT64_C(1000000000)

static void pause_ms(unsigned ms)
{
    usleep(ms * 1000);
}

static bool takes_connections(const struct daemon *d)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", d->socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    close(fd);
    return yes;
}

static void execute(const struct daemon *d, const char *const *arguments)
{
    char program[400], listen[100], wrap[400];
    const char *argv[64];
    unsigned n = 0;
    const char *build = getenv("TOKENRING_BUILD"), *prefix = getenv("TOKENRING_WRAP");
    snprintf(program, sizeof(program), "%s/tokenringd", build != NULL ? build : "build");
    snprintf(listen, sizeof(listen), "unix:%s", d->socket);
    snprintf(wrap, sizeof(wrap), "%s", prefix != NULL ? prefix : "");
    for (char *word = strtok(wrap, " "); word != NULL && n < 16; word = strtok(NULL, " "))
        argv[n++] = word;
    argv[n++] = program;
    argv[n++] = "--listen";
    argv[n++] = listen;
    argv[n++] = "--stats-dir";
    argv[n++] = d->dir;
    argv[n++] = "--name";
    argv[n++] = "test";
    const char *tier = getenv("TOKENRING_TIER");
    bool model = false, own = false;
    for (unsigned i = 0; arguments[i] != NULL && i < 24; i++) {
        model |= strcmp(arguments[i], "--model") == 0;
        own |= strcmp(arguments[i], "--tier") == 0;
        argv[n++] = arguments[i];
    }
    if (tier != NULL && *tier != '\0' && model && !own) {
        argv[n++] = "--tier";
        argv[n++] = tier;
    }
    argv[n] = NULL;
    int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, 2);
    dup2(log, 1);
    close(log);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

void daemon_start_again(struct daemon *d, const char *const *arguments)
{
    d->pid = fork();
    ck_assert_int_ge(d->pid, 0);
    if (d->pid == 0)
        execute(d, arguments);
    uint64_t end = clock_ns() + 30 * SECOND;
    while (!takes_connections(d)) {
        ck_assert_msg(clock_ns() < end, "the worker does not listen");
        ck_assert_msg(waitpid(d->pid, NULL, WNOHANG) == 0, "the worker ended, see %s", d->log);
        pause_ms(5);
    }
}

void daemon_start(struct daemon *d, const char *const *arguments)
{
    memset(d, 0, sizeof(*d));
    snprintf(d->dir, sizeof(d->dir), "/tmp/tokenring-test.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(d->dir));
    snprintf(d->socket, sizeof(d->socket), "%s/w.sock", d->dir);
    snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
    daemon_start_again(d, arguments);
}

int daemon_wait(struct daemon *d)
{
    int status;
    uint64_t end = clock_ns() + 20 * SECOND;
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        if (clock_ns() > end) {
            kill(d->pid, SIGKILL);
            waitpid(d->pid, &status, 0);
            ck_abort_msg("the worker does not end");
        }
        pause_ms(2);
    }
    d->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int daemon_stop(struct daemon *d, int signal)
{
    kill(d->pid, signal);
    return daemon_wait(d);
}

void daemon_clean(struct daemon *d)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", d->dir);
    ck_assert_int_eq(system(command), 0);
}

static unsigned count_entries(const struct daemon *d, const char *what)
{
    char path[64];
    unsigned n = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)d->pid, what);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

unsigned daemon_fds(const struct daemon *d)
{
    return count_entries(d, "fd");
}

unsigned daemon_threads(const struct daemon *d)
{
    return count_entries(d, "task");
}

uint64_t daemon_stat(const struct daemon *d, const char *name)
{
    char path[128];
    static _Alignas(8) char storage[STATS_FILE_MAX];
    struct stats_snapshot snapshot;
    struct stats_point point;
    struct error err = {0};
    int fd = -1;
    ck_assert(stats_path(d->dir, "test", path, sizeof(path)));
    ck_assert_int_eq(stats_open(path, &fd, &err), STATUS_OK);
    ck_assert_msg(stats_snapshot_pread(fd, storage, sizeof(storage), &snapshot, &err) == STATUS_OK,
                  "%s", err.text);
    close(fd);
    for (unsigned i = 0; stats_point_at(&snapshot, i, &point); i++)
        if (strcmp(point.name, name) == 0)
            return point.value;
    ck_abort_msg("no figure is called %s", name);
}

void daemon_expect(const struct daemon *d, const char *name, uint64_t value)
{
    uint64_t end = clock_ns() + 10 * SECOND, now = 0;
    while ((now = daemon_stat(d, name)) != value) {
        ck_assert_msg(clock_ns() < end, "%s is %llu, not %llu", name, (unsigned long long)now,
                      (unsigned long long)value);
        pause_ms(5);
    }
}

bool daemon_logged(const struct daemon *d, const char *text)
{
    FILE *file = fopen(d->log, "r");
    char line[4200];
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = strstr(line, text) != NULL;
    if (file != NULL)
        fclose(file);
    return found;
}

const char *daemon_health(const struct daemon *d)
{
    static char state[32];
    struct client c;
    struct call a;
    state[0] = '\0';
    if (client_open(&c, d->socket) &&
        client_send(&c, &a, "GET", "/health", NULL, (struct slice){0}, false)) {
        if (client_wait(&c, &a, 5000) && a.answer.ptr != NULL)
            sscanf(a.answer.ptr, "{\"status\":\"%31[a-z]", state);
        call_release(&a);
    }
    client_close(&c);
    return state;
}
