/* tokenring draft: runs tokenring-draft, which stands beside this program. It is a program of its own because OpenBLAS
 * starts its threads and takes its memory when it is loaded, which no other command should pay for. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/tool.h"

int cmd_draft(int argc, char **argv)
{
    char path[PATH_MAX];
    (void)argc;
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof("-draft"));
    if (n < 0)
        n = 0;
    strcpy(path + n, "-draft");
    execv(path, argv);
    fprintf(stderr, "tokenring draft: cannot run %s: %s\n", path, strerror(errno));
    return 1;
}
