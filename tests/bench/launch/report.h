/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured, as a table and as JSON, and what it is held against. One thread. */
#ifndef PS_BENCH_REPORT_H
#define PS_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/bench/launch/rig.h"

/* Of the averages of blocks of launches, in ns a launch. */
struct bench_spread {
    int64_t p10, p50, p90;
};

/* What the last words of the parameters name. */
enum bench_named {
    BENCH_NOTHING,
    BENCH_TENSOR, /* one of them: a tensor of ours */
    BENCH_STALE,  /* bench_stale_words of them: addresses of the window where nothing lives */
    BENCH_N_NAMED
};

struct bench_cell {
    const char *situation;
    enum bench_shape_id shape;
    bool extra; /* parameters by one packed buffer, not by kernelParams */
    enum bench_named named;
    struct bench_spread bare, hooked;
    struct bench_spread more; /* hooked less bare, of blocks measured one after the other */
};

struct bench_report {
    const struct bench_rig *rig;
    const char *library;
    unsigned pairs, block;
    struct bench_cell *cells;
    unsigned n;
};

/* As many as a launch of a training job has, if it has so many words. */
size_t bench_stale_words(enum bench_shape_id shape);
/* Sorts the values. */
struct bench_spread bench_spread(int64_t *values, unsigned n);
/* What a launch may cost more than the bare call, in ns; INT64_MAX: nothing is said. */
int64_t bench_limit(const struct bench_cell *c);
void bench_report_table(const struct bench_report *r);
/* The worst of each size: what is held against the limits. */
void bench_report_worst(const struct bench_report *r);
/* To a file; ends the program if that cannot be written. */
void bench_report_json(const struct bench_report *r, const char *path);

#endif
