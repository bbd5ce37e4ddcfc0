#define _GNU_SOURCE /* preadv2 */
#include "core/base/readahead.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

/* What keeps a fast disk busy while the CPUs work on what it read before. */
#define ENOUGH (UINT64_C(4) << 20)
/* Taken for cached if its ends are. */
#define PIECE_BYTES (UINT64_C(1) << 20)

uint64_t readahead_bytes(const char *sys, unsigned major, unsigned minor)
{
    /* disks and network file systems; partitions */
    static const char *const places[][2] = {{"class/bdi", "read_ahead_kb"},
                                            {"dev/block", "../queue/read_ahead_kb"}};
    for (unsigned i = 0; i < 2; i++) {
        char path[256];
        uint64_t kb;
        snprintf(path, sizeof(path), "%s/%s/%u:%u/%s", sys, places[i][0], major, minor,
                 places[i][1]);
        FILE *file = fopen(path, "re");
        if (file == NULL)
            continue;
        int read = fscanf(file, "%" SCNu64, &kb);
        fclose(file);
        if (read == 1)
            return kb < UINT64_MAX >> 10 ? kb << 10 : UINT64_MAX;
    }
    return 0;
}

bool readahead_is_short(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 &&
           readahead_bytes("/sys", major(st.st_dev), minor(st.st_dev)) < ENOUGH;
}

static bool is_cached(int fd, uint64_t at)
{
    char byte;
    struct iovec one = {&byte, 1};
    return preadv2(fd, &one, 1, (off_t)at, RWF_NOWAIT) == 1;
}

void readahead_fetch(int fd, bool is_short, uint64_t from, uint64_t to)
{
    int null = is_short ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (uint64_t end; from < to; from = end) {
        end = from + PIECE_BYTES < to ? from + PIECE_BYTES : to;
        if (is_cached(fd, from) && is_cached(fd, end - 1))
            continue;
        off_t at = (off_t)from;
        if (is_short)
            posix_fadvise(fd, at, (off_t)(end - from), POSIX_FADV_WILLNEED);
        else {
            ssize_t n = 1;
            while (at < (off_t)end && n > 0)
                n = sendfile(null, fd, &at, end - (uint64_t)at);
            if (n < 0) /* not every file system can be read without copying */
                posix_fadvise(fd, at, (off_t)end - at, POSIX_FADV_WILLNEED);
        }
    }
    if (null >= 0)
        close(null);
}
