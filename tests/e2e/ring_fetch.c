/* ring_fetch SOCKET METHOD TARGET [BODY]: one request to tokenringd over the ring, as curl -i does it over HTTP. */
#include <stdio.h>
#include <string.h>

#include "tests/e2e/ring_client.h"

int main(int argc, char **argv)
{
    struct client c;
    struct call a;
    if (argc < 4) {
        fprintf(stderr, "usage: ring_fetch SOCKET METHOD TARGET [BODY]\n");
        return 2;
    }
    struct slice body = slice_of(argc > 4 ? argv[4] : "");
    if (!client_open(&c, argv[1]) || !client_send(&c, &a, argv[2], argv[3], NULL, body, false)) {
        fprintf(stderr, "ring_fetch: %s\n", c.error);
        return 1;
    }
    bool complete = client_wait(&c, &a, 600000);
    printf("%u\n%s\n%s", a.status, a.headers.ptr != NULL ? a.headers.ptr : "",
           a.answer.ptr != NULL ? a.answer.ptr : "");
    if (!complete)
        fprintf(stderr, "ring_fetch: incomplete: reset %u, %s\n", a.reset, c.error);
    client_close(&c);
    call_release(&a);
    return !complete;
}
