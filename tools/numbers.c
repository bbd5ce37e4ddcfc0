#include "tools/numbers.h"

#include <errno.h>
#include <stdlib.h>

bool whole(const char *text, uint64_t least, uint64_t most, uint64_t *n)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < least || value > most)
        return false;
    *n = value;
    return true;
}

bool whole32(const char *text, uint32_t least, uint32_t most, uint32_t *n)
{
    uint64_t value;
    if (!whole(text, least, most, &value))
        return false;
    *n = (uint32_t)value;
    return true;
}

bool positive(const char *text, double most, double *x)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value > 0) || value > most)
        return false;
    *x = value;
    return true;
}
