#include "core/base/readahead.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* What keeps a fast disk busy while the CPUs work on what it read before. */
#define ENOUGH (UINT64_C(4) << 20)

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
