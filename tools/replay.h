/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `pagedstash replay`. One thread. */
#ifndef PS_TOOLS_REPLAY_H
#define PS_TOOLS_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"
#include "policy/trace.h"

struct ps_replay_args {
    const char *file, *svg;
    bool json;
    struct ps_plan_settings plan;
    struct ps_trace_settings trace; /* regions NULL, step NULL, min_bytes 0: as recorded */
    const char *assumed;            /* where valid_parts comes from; NULL: nowhere */
    uint64_t context;               /* UINT64_MAX: the busiest */
    uint32_t kind;                  /* for the picture; PS_TRACE_NONE: the largest */
};

struct ps_replay {
    const struct ps_replay_args *args;
    struct ps_trace trace;
    struct ps_trace_play play;
    struct ps_trace_context *context;
    uint32_t kinds[PS_KINDS_MAX]; /* which are planned */
    struct ps_plan_step steps[PS_KINDS_MAX];
    uint32_t n_steps;
    struct ps_plan plan;
    uint64_t moved_bound; /* the least that homes of that much memory could move */
};

/* Bytes of the same names' sets; by name's number. */
struct ps_replay_name {
    uint32_t name, n_sets;
    uint64_t home_bytes, tail_bytes; /* of each */
};
/* The plan's names; at most `room`. */
uint32_t ps_replay_names(const struct ps_plan *plan, struct ps_replay_name *names, uint32_t room);

/* False: no memory. */
bool ps_replay_bound(const struct ps_replay *r, uint64_t *bytes_p);
/* False: standard output could not be written. */
bool ps_replay_print(const struct ps_replay *r);
bool ps_replay_print_json(const struct ps_replay *r);
/* False: said on standard error. */
bool ps_replay_draw(const struct ps_replay *r, const char *path, uint32_t step);

#endif
