/* SPDX-License-Identifier: Apache-2.0 */
/* What the demo's command line sets. Sizes left at 0 are chosen by the device. Main thread only. */
#ifndef DEMO_OPTIONS_H
#define DEMO_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct demo_options {
    int64_t steps, layers, microbatches;
    int64_t tokens, hidden, ffn, experts, topk;
    uint64_t seed;
    double capacity; /* rows of an expert buffer over balanced rows; 0: the rows there are */
    double skew;     /* relative spread of the rows that a layer receives */
    double rate;     /* of learning */
    bool padding_zeros;
    bool relu;       /* instead of SwiGLU */
    bool own_stream; /* backward runs on a stream of its own */
};

/*
 * Reads the arguments; says what is wrong and ends the program with 2 if something is. --help ends
 * it with 0.
 */
void demo_options_parse(struct demo_options *o, int argc, char **argv);
/* Fills the sizes left open. */
void demo_options_finish(struct demo_options *o, bool simulated);

#endif
