/* SPDX-License-Identifier: Apache-2.0 */
/* What the demo's command line sets. Sizes left at 0 are chosen by the device. Main thread only. */
#ifndef DEMO_OPTIONS_H
#define DEMO_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/demo/schedule.h"

/* What changes from the middle of the run on. */
enum demo_drift {
    DEMO_DRIFT_NONE,
    DEMO_DRIFT_MICROBATCHES, /* as many more as there are stages */
    DEMO_DRIFT_SIZES,        /* expert buffers of even layers grow by a quarter, others shrink */
    DEMO_DRIFT_ZERO,         /* every fourth layer receives no row */
    DEMO_DRIFT_SKIP,         /* a layer of each pass is left out */
    DEMO_DRIFT_RENAME,       /* the range around the experts */
    DEMO_N_DRIFTS
};

/* How many rows a layer receives, of which never more than fit into its buffers. */
enum demo_routing {
    DEMO_ROUTING_SPREAD,      /* balanced, and a relative spread */
    DEMO_ROUTING_CONSTANT,    /* balanced */
    DEMO_ROUTING_SPIKES,      /* balanced, and four times that in some layers of each step */
    DEMO_ROUTING_ONE_RANK,    /* all to one of four ranks in turn: full buffers here, or no row */
    DEMO_ROUTING_ZERO,        /* none in every other layer, and none at all in every third step */
    DEMO_ROUTING_ALTERNATING, /* an eighth of balanced in one step, full buffers in the next */
    DEMO_N_ROUTINGS
};

struct demo_options {
    int64_t steps, layers; /* layers: of this process, in all chunks */
    struct demo_schedule schedule;
    int64_t eval_layers; /* run forward only after each step */
    int64_t tokens, hidden, ffn, experts, topk;
    uint64_t seed;
    double capacity; /* rows of an expert buffer over balanced rows; 0: the rows there are */
    double spread;   /* relative, of the rows that a layer receives */
    double rate;     /* of learning */
    enum demo_routing routing;
    enum demo_drift drift;
    bool padding_zeros;
    bool mark_rows;  /* ranges name a counter of their rows */
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
/* Passes of one layer whose saved tensors live at the same time, at most. */
int64_t demo_options_in_flight(const struct demo_options *o);

#endif
