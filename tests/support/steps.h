/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes steps for the planner: the schedules of real jobs (one pass, gradient accumulation, 1F1B, interleaved virtual
 * pipeline, activation recomputation, evaluation in between), steps at random, and steps read from recorded traces.
 * The same seed makes the same step. Not thread-safe.
 */
#ifndef PS_TESTS_STEPS_H
#define PS_TESTS_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"

#define STEPS_MIB (UINT64_C(1) << 20)

struct made_step {
    struct ps_plan_step step; /* points into what follows */
    struct ps_plan_event *events;
    struct ps_plan_tensor *tensors;
    uint32_t *names;
    uint32_t events_room, tensors_room, groups_room;
    uint64_t random;
    uint64_t other_bytes;
};

enum steps_schedule { STEPS_SEQUENTIAL, STEPS_1F1B, STEPS_INTERLEAVED };

/* What one rank does in one step. */
struct steps_shape {
    enum steps_schedule schedule;
    uint32_t stages, stage; /* pipeline ranks, and which this is */
    uint32_t virtual_stages;
    uint32_t microbatches;
    uint32_t layers;           /* of a stage, or of a virtual one */
    uint32_t capacity_percent; /* 100: balanced; 0: exact sizes, no padding */
    uint32_t spread_percent;
    uint32_t evaluations; /* layers of evaluation passes between microbatches */
    bool recompute;
    bool temporaries;
    uint64_t row_bytes;   /* of a layer's five saved tensors together, at balanced routing */
    uint64_t other_bytes; /* the job's other memory */
    uint64_t seed;
};

void steps_make(const struct steps_shape *given, struct made_step *made);
/* Anything that can happen, about so many groups: instances overlap, frees in any order, missing returns and frees. */
void steps_random(uint64_t seed, uint32_t n_groups, struct made_step *made);
/* Step number `step` of a trace in the old form (reference traces); false: it has none. */
bool steps_read(const char *path, uint32_t step, uint64_t min_bytes, struct made_step *made);
void steps_free(struct made_step *made);

/* A number below n. */
uint32_t steps_below(uint64_t *random, uint32_t n);

#endif
