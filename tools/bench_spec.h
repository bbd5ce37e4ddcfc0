/* bench_spec.h: `tokenring bench spec`, what drafts bring; a part of the bench command. */
#ifndef TOOLS_BENCH_SPEC_H
#define TOOLS_BENCH_SPEC_H

/* argv[0] is "spec". Exit status: 0 all answers were the same with and without drafts, 1 not, 2 wrong usage. */
int bench_spec(int argc, char **argv);

#endif
