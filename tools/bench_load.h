/* bench_load.h: sends requests to an OpenAI endpoint and times what comes back, over epoll in one thread.
 *
 *     closed loop   `clients` lanes, each sends its next request when its last one has ended
 *     open loop     requests arrive at random moments (Poisson) at `rate` a second, whatever becomes of the others; a
 *                   request's time counts from the moment at which it was due
 *
 * Connections are kept for further requests where the server allows it, as clients' libraries do; `keepalive` false: one
 * connection a request. Time to the first token ends, and the time
 * between tokens is taken, when an event with text has been read; an event may carry several tokens. */
#ifndef TOOLS_BENCH_LOAD_H
#define TOOLS_BENCH_LOAD_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/status.h"
#include "tools/bench_prompts.h"

/* Everything in seconds; an array that grows. */
struct samples {
    double *values;
    size_t n, cap;
};

void samples_add(struct samples *s, double value);
/* Sorts; the value that a share q of all is below, 0 if there is none. */
double samples_quantile(struct samples *s, double q);

struct load {
    /* what to do */
    const char *host, *port, *path;
    const char *headers; /* further header lines, each with its end; "" */
    struct prompts prompts;
    uint32_t clients; /* open loop: the most at once, 0 no limit */
    uint64_t requests;
    double rate; /* 0: closed loop */
    bool keepalive;
    double timeout;
    /* what came of it */
    uint64_t ok, refused, failed, no_done;
    uint64_t tokens;        /* made, of good answers */
    uint64_t cached_tokens; /* by the servers' word */
    uint64_t stops, lengths;
    double wall;
    struct samples ttft, gaps, whole, refusal, prompt_tokens, request_rate;
    /* Closed loop: pieces of text for each client up to the moment when the first of them had nothing more to ask. */
    uint64_t fair_max, fair_min;
    char failure[512]; /* the first one */
};

/* Runs to the end. Fails only if nothing can be begun (no such host). */
enum status load_run(struct load *l, struct error *err);
void load_release(struct load *l);

#endif
