/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: from recorded steps to sets of places, lanes, and what moves when. Pure C, no CUDA, no state of its own,
 * no threads. Sizes are bytes, logical times are indices of events.
 *
 * Terms. A *set* is what one group needs: for each stash site a *home* (private memory, never copied) and behind it a
 * *tail*, mapped for good onto one slot of the set's *lane*. Tails of all sets of a lane share that lane's memory: one
 * group of a lane is in at a time. A group takes a free set of its region name at its first allocation, and gives it
 * back when its last tensor is freed (or at its pop, if that is later). Temporaries count as no tensors here.
 *
 * Rules, at each event in order; lanes.h carries them out, for the planner's simulation and for the engine alike. A
 * *boundary* is a push, or a return of another group.
 *   boundary  groups that are in, closed, not returned and marked `stash` begin to leave: their lane may be taken, at
 *             once, behind their stash. (Unknown schedule: every such group is marked.)
 *   ALLOC     first of its group: the set that the plan gives it (moves.set), if it is free and its lane to be had.
 *             Else the lowest free set of its name whose lane nobody is in; else whose lane's group began to leave
 *             first; else (an unmarked group is in the way) that group leaves now. Else it has no set.
 *   RETURN g  after the boundary. The first touch in backward: g must be in. If out, it comes in: its lane's group is
 *             dead, leaving, or leaves now; if that is open or returned: a conflict, g's tails go to memory apart.
 *             Then after_return[g] comes in, if its lane is free or its group leaving; else when the lane is freed.
 *   POP k     after_push[k] comes in likewise.
 *   FREE      the last of a group: its set and lane are free.
 * The runtime makes these choices as the planner did, so it makes the same in the same order of events; in another
 * order it makes others, and nothing breaks.
 */
#ifndef PS_POLICY_PLAN_H
#define PS_POLICY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/base/status.h"
#include "policy/lanes.h"

#define PS_PLAN_NONE      PS_LANES_NONE
#define PS_PLAN_UNKNOWN   UINT64_MAX
#define PS_PLAN_LANES_MAX PS_LANES_MAX
#define PS_PLAN_SLOTS_MAX 48 /* tails of one group */

enum ps_plan_kind {
    PS_PLAN_PUSH,   /* group */
    PS_PLAN_POP,    /* group */
    PS_PLAN_ALLOC,  /* tensor */
    PS_PLAN_FREE,   /* tensor */
    PS_PLAN_RETURN, /* group: its first touch after a boundary at which it could have left */
};

struct ps_plan_event {
    uint8_t kind;         /* enum ps_plan_kind */
    uint32_t index;       /* group or tensor */
    uint64_t other_bytes; /* the most of all other memory of the job from here to the next event */
    uint64_t time_ns;     /* since the step's begin; 0: not known */
};

struct ps_plan_tensor {
    uint32_t group;
    uint32_t ordinal; /* of the site: among all allocations of the instance */
    uint64_t bytes;   /* as the job asked */
    uint64_t valid;   /* up to the end of its last page that is not uniform; PS_PLAN_UNKNOWN */
};

/* One kind of step: from a push at which no group is alive to the next such push. Groups are numbered in push order. */
struct ps_plan_step {
    const struct ps_plan_event *events;
    const struct ps_plan_tensor *tensors;
    const uint32_t *names; /* of the groups' regions: n_groups */
    uint32_t n_events, n_tensors, n_groups;
};

struct ps_plan_settings {
    uint64_t granularity; /* of mappings */
    uint64_t page_bytes;
    uint32_t moved_percent; /* of the valid bytes may move: 10 */
    uint32_t pool_percent;  /* device pages beyond the most seen: 10 */
};

enum ps_plan_class {
    /* Freed before its group could leave: memory of its own that the next one of its site takes over. */
    PS_PLAN_TEMPORARY,
    PS_PLAN_STASH,    /* home and tail */
    PS_PLAN_RESIDENT, /* home only: nothing to gain */
};

/* Sites, sorted by name, then ordinal. */
struct ps_plan_site {
    uint32_t name;
    uint32_t ordinal;
    enum ps_plan_class class;
    uint32_t slot;       /* of the lane, for PS_PLAN_STASH; else PS_PLAN_NONE */
    uint64_t bytes;      /* the largest seen, rounded to the granularity */
    uint64_t home_bytes; /* of it; a multiple of the granularity; 0 for PS_PLAN_TEMPORARY */
};

struct ps_plan_set {
    uint32_t name;
    uint32_t lane; /* PS_PLAN_NONE: its name has no tails */
};

/*
 * When a group's tails move, by the rules: events of the step. From `leave` its stash may run, from `gone` another has
 * the lane; from `come` the lane is its own again; at `due` it returns. PS_PLAN_NONE: it does not. A group that is
 * freed while it is out has no `come`; one whose lane nobody took only a `leave`, and maybe a `due`. Of a group that
 * leaves twice it is the second time.
 */
struct ps_plan_trip {
    uint32_t leave, gone, come, due;
};

/*
 * What is known of one kind of step; arrays by group. A group's `after` is the group to come in once it was popped
 * (returned): the next boundary after its push (return) is the return of that one, which is out by then. Else
 * PS_PLAN_NONE.
 */
struct ps_plan_moves {
    bool *stash;
    uint32_t *after_push;
    uint32_t *after_return;
    uint32_t *set; /* PS_PLAN_NONE: it has no stash or resident tensor, or found none */
    struct ps_plan_trip *trips;
    uint32_t n_groups;
};

struct ps_plan {
    struct ps_plan_site *sites;
    struct ps_plan_set *sets;
    struct ps_plan_moves *moves; /* one for each step given */
    uint32_t n_sites, n_sets, n_moves, n_lanes, n_slots;
    uint64_t slot_bytes[PS_PLAN_SLOTS_MAX]; /* of each lane; multiples of the granularity */
    uint64_t pool_bytes;                    /* device pages */
    uint64_t group_tail_bytes;              /* largest sum of the tails of a group */
    /* What it comes to. */
    uint64_t home_bytes, lane_bytes;
    uint64_t temporary_bytes;  /* the most alive at once: the job's own allocator serves them */
    uint64_t spare_bytes;      /* memory for one tail aside */
    uint64_t peak_bytes;       /* job's other memory and all of ours, over the steps given */
    uint64_t plain_peak_bytes; /* without us */
    /* No plan can be below: valid bytes, and whole tensors while their region is open or returned. */
    uint64_t bound_bytes;
    uint64_t valid_bytes; /* of the stashed groups, a step (the largest step) */
    uint64_t moved_bytes; /* out and back, a step */
    uint32_t n_conflicts; /* returns into a taken lane (each a remap), groups without a set */
    uint32_t n_late;      /* returns of groups that were out: they could not come in ahead */
    bool adopt;           /* peak_bytes < plain_peak_bytes and something is stashed */
};

/* PS_ERR_MEMORY, or PS_ERR_INVALID for an impossible sequence of events. On failure *plan_p is untouched. */
enum ps_status PS_MUST_CHECK ps_plan_make(const struct ps_plan_step *steps, uint32_t n_steps,
                                          const struct ps_plan_settings *settings,
                                          struct ps_plan *plan_p);
void ps_plan_fini(struct ps_plan *plan);
/* NULL: not planned. */
const struct ps_plan_site *ps_plan_find(const struct ps_plan *plan, uint32_t name,
                                        uint32_t ordinal);
/* The sets and lanes of the plan, all free. */
enum ps_status PS_MUST_CHECK ps_plan_lanes(const struct ps_plan *plan, struct ps_lanes *lanes_p);

#endif
