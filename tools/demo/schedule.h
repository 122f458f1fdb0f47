/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of forward and backward passes that one process of a pipeline runs in a step, as
 * Megatron-LM orders them. Pure: no state, any thread.
 *
 * default: each microbatch's backward pass follows its forward pass. 1f1b: a warm-up of forward
 * passes, one for each stage behind this one; then forward and backward in turn; then the backward
 * passes left. interleaved: the same over model chunks, the microbatches of a chunk taken in groups
 * of as many as there are stages; the warm-up is two passes for each stage behind and one group for
 * each chunk but the last.
 */
#ifndef DEMO_SCHEDULE_H
#define DEMO_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

enum demo_schedule_kind {
    DEMO_SCHEDULE_DEFAULT,
    DEMO_SCHEDULE_1F1B,
    DEMO_SCHEDULE_INTERLEAVED,
    DEMO_N_SCHEDULES
};

struct demo_schedule {
    enum demo_schedule_kind kind;
    int64_t stages, stage; /* of the pipeline, and which one this is; 1 and 0 for default */
    int64_t chunks;        /* of the model in this process; 1 unless interleaved */
    int64_t microbatches;  /* a multiple of the stages if interleaved */
};

/* One pass of one microbatch through one chunk of the model. */
struct demo_turn {
    bool backward;
    int64_t microbatch, chunk;
};

/* Passes of a step, forward and backward. */
int64_t demo_schedule_turns(const struct demo_schedule *s);
struct demo_turn demo_schedule_turn(const struct demo_schedule *s, int64_t i);
/* Forward passes whose backward passes are still to come, at most. */
int64_t demo_schedule_in_flight(const struct demo_schedule *s);
/* The chunk's output goes to another stage. */
bool demo_schedule_sends(const struct demo_schedule *s, int64_t chunk);

#endif
