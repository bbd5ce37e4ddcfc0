/* bench.h: the --bench mode: one thread, no fork, medians of short readings.
 *
 * What it reports is set against two figures measured in the same process: what a plain read loop
 * gets from memory, and the integer products that a loop of the tier's multiply instruction makes.
 */
#ifndef TESTS_KERNELS_BENCH_H
#define TESTS_KERNELS_BENCH_H

#include <stdint.h>

#include "pairs.h"

struct machine {
    double read_gbs;  /* memory read by one thread, 4 streams, GB/s */
    double peak_gops; /* vpdpbusd (or vpmaddubsw) in registers, 10^9 multiplications and additions a
                         second; 0: none */
};

/* Measures the figures for a tier. */
struct machine machine_measure(const char *tier);

/* Median seconds of fn(arg), from readings of ≥ 0.2 ms each, within about `budget` seconds. */
double bench_seconds(void (*fn)(void *), void *arg, double budget);

void bench_product(const struct pair *pair, const struct machine *m);
void bench_attention(const struct pair *pair, const struct machine *m);
void bench_vector(const struct pair *pair, const struct machine *m);

/* The peak loops; each in a file with its tier's flags. Executes about 10^6 integer operations;
 * returns how many. */
double peak_avx2(void);
double peak_avx512(void);

#endif
