/* tokenring-draft: the program behind `tokenring draft` (tools/draft.c): a draft for a model. */
#include <stdio.h>

#include "tools/draft/make.h"

int draft_fail(const char *text)
{
    fprintf(stderr, "tokenring draft: %s\n", text);
    return 1;
}

int main(int argc, char **argv)
{
    struct draft_options o;
    int stop = draft_options_parse(argc, argv, &o);
    if (stop != 0)
        return stop - 1;
    return o.measure != NULL ? draft_measure(&o) : draft_make(&o);
}
