#include "core/base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void check_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what);
    fflush(stderr);
    abort();
}
