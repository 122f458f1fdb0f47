/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `pagedstash replay`. One thread. */
#ifndef PS_TOOLS_REPLAY_H
#define PS_TOOLS_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"
#include "policy/spill.h"
#include "policy/trace.h"

struct ps_replay_args {
    const char *file, *svg;
    bool json;
    struct ps_plan_settings plan;
    struct ps_trace_settings trace; /* regions NULL, step NULL, min_bytes 0: as recorded */
    const char *assumed;            /* where valid_parts comes from; NULL: nowhere */
    uint64_t budget;                /* of homes and pages; UINT64_MAX: several are tried */
    uint64_t link_rate;             /* to the host and back, bytes a second */
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
    struct ps_replay_spill *spill;
};

#define PS_REPLAY_BUDGETS_MAX 8

/* What becomes of the step, the largest, when homes and pages get only so many bytes. */
struct ps_replay_budget {
    uint64_t bytes;         /* of both */
    uint32_t moved_percent; /* of the plan whose homes do best */
    uint64_t home_bytes, pool_bytes, lane_bytes, peak_bytes;
    uint64_t out_bytes, host_bytes; /* to the host in a step; there at once */
    uint64_t cost_ns;               /* waits and copies on the device: the least is taken */
    uint64_t wait_ns, first_come_ns, bound_ns;
};

struct ps_replay_spill {
    uint64_t other_bytes, group_bytes,
        lane_bytes;   /* the least memory: outside regions, a group, a lane */
    uint64_t step_ns; /* 0: the trace has no times */
    bool
        stretched; /* the calls of backward were made ahead of the device: their times are spread to the step's end */
    struct ps_replay_budget budgets[PS_REPLAY_BUDGETS_MAX];
    uint32_t n_budgets;
};

/* Bytes of the same names' sets; by name's number. */
struct ps_replay_name {
    uint32_t name, n_sets;
    uint64_t home_bytes, tail_bytes; /* of each */
};
/* The plan's names; at most `room`. */
uint32_t ps_replay_names(const struct ps_plan *plan, struct ps_replay_name *names, uint32_t room);

/*
 * Of the step's events, and step_ns and stretched. Times are those of the calls. A host that waits for the device at
 * the end of a step only makes the calls of backward far ahead of it; then they are spread over what is left of it.
 * False: there are no times.
 */
bool ps_replay_times(const struct ps_replay *r, uint32_t step, uint64_t *times,
                     struct ps_replay_spill *out);
/* Of step `step`. False: no memory. */
bool ps_replay_spill(const struct ps_replay *r, uint32_t step, struct ps_replay_spill *spill_p);
/* False: no memory. */
bool ps_replay_bound(const struct ps_replay *r, uint64_t *bytes_p);
/* False: standard output could not be written. */
bool ps_replay_print(const struct ps_replay *r);
bool ps_replay_print_json(const struct ps_replay *r);
/* False: said on standard error. */
bool ps_replay_draw(const struct ps_replay *r, const char *path, uint32_t step);

#endif
