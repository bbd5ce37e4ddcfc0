/* bench_serve.h: `tokenring bench serve`, the load client; a part of the bench command. */
#ifndef TOOLS_BENCH_SERVE_H
#define TOOLS_BENCH_SERVE_H

/* argv[0] is "serve". Exit status: 0 all requests were answered or refused in order, 1 some failed, 2 wrong usage. */
int bench_serve(int argc, char **argv);

#endif
