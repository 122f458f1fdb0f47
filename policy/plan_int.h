/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the planner's parts share: the steps indexed (plan_steps.c), the rules run over them (plan_rules.c), the sizes
 * that follow (plan_sizes.c). plan.c tries numbers of lanes and keeps the best. Times are indices of events; a time
 * that never comes is the number of events.
 */
#ifndef PS_POLICY_PLAN_INT_H
#define PS_POLICY_PLAN_INT_H

#include "policy/lanes.h"
#include "policy/plan.h"

struct ps_planning_tensor {
    uint32_t site; /* PS_PLAN_NONE: never allocated */
    uint32_t born, died;
    uint32_t next; /* of its group */
};

struct ps_planning_group {
    uint32_t name; /* index into the sorted names */
    uint32_t push, pop, back;
    uint32_t born,
        died;       /* of the tensors that are no temporaries; born PS_PLAN_NONE: it has none */
    uint32_t first; /* tensor, or PS_PLAN_NONE */
    /* The pushes and returns next to its own, and to its pop: events, or PS_PLAN_NONE. */
    uint32_t before_push, after_push, after_pop, before_back, after_back;
    uint32_t edge; /* first of those it can't share a lane with, or PS_PLAN_NONE */
    /* With two lanes: groups that would rather not share one, as trees; see plan_edges.c. */
    uint32_t parent;
    bool other;      /* than the parent's */
    uint32_t anchor; /* of a root: the lane of the root, once one of the tree has a lane */
    /* Found by the rules. */
    uint32_t set;
    bool stash;
};

struct ps_planning_edge {
    uint32_t group, next;
};

struct ps_planning_step {
    const struct ps_plan_step *given;
    struct ps_planning_tensor *tensors;
    struct ps_planning_group *groups;
    struct ps_planning_edge *edges;
    uint32_t n_edges, edges_room;
};

struct ps_planning_site {
    uint32_t name, ordinal;
    bool temporary;
    bool known;          /* valid bytes of one at least */
    uint64_t bytes;      /* the largest */
    uint64_t mean_valid; /* of the known */
    uint64_t valid_sum;  /* of the known; then of the stashed */
    uint32_t n_known, n_tensors;
    /* Found by the sizes. */
    uint64_t home_bytes, tail_bytes;
    uint32_t slot;
};

struct ps_planning_name {
    uint32_t name;
    uint32_t first_site, n_sites; /* sorted by name */
    uint64_t home_bytes, tail_bytes;
    bool tails;
    uint32_t n_sets;
};

/* What the rules come to with one number of lanes. */
struct ps_planning_result {
    uint32_t n_conflicts, n_late;
    uint64_t moved_bytes, valid_bytes; /* the largest step's */
    uint64_t most_pages;
    uint64_t
        floating_bytes; /* the most of the job's other memory and of groups in no set or apart */
};

struct ps_planning {
    const struct ps_plan_settings *settings;
    struct ps_planning_step *steps;
    struct ps_planning_site *sites;
    struct ps_planning_name *names;
    uint32_t *name_list; /* the same as in `names`, for ps_lanes_init */
    uint64_t *scratch;   /* one for each tensor of all steps */
    struct ps_plan_set *sets;
    uint32_t n_extra_sets; /* made though one was free: its lane would not do */
    uint32_t n_steps, n_sites, n_names, n_sets, sets_room, n_lanes, n_slots;
    uint64_t slot_bytes[PS_PLAN_SLOTS_MAX];
    uint64_t temporary_bytes, plain_peak_bytes, bound_bytes;
};

enum ps_status ps_planning_init(struct ps_planning *p, const struct ps_plan_step *steps,
                                uint32_t n_steps, const struct ps_plan_settings *settings);
void ps_planning_fini(struct ps_planning *p);
/* Who can't share a lane with whom (steps[].edges), and who would rather not (the trees). */
enum ps_status ps_planning_edges(struct ps_planning *p);
/* The root of the group's tree; whether the group belongs into the lane that is not the root's. */
uint32_t ps_planning_root(struct ps_planning_step *s, uint32_t group, bool *other_p);
/* Gives each group its set (making sets), and marks those that are in the way of others. */
enum ps_status ps_planning_choose(struct ps_planning *p, uint32_t n_lanes);
/* Homes, tails and slots for the groups marked; says which names have tails. */
enum ps_status ps_planning_sizes(struct ps_planning *p);
/* Runs the rules with all that was found. moves: one a step, arrays allocated, or NULL. */
enum ps_status ps_planning_run(struct ps_planning *p, struct ps_plan_moves *moves,
                               struct ps_planning_result *result_p);

static inline uint64_t ps_planning_round(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* What is taken for the tensor's valid bytes. Only for a site whose valid bytes are known. */
static inline uint64_t ps_planning_valid(const struct ps_planning_site *site,
                                         const struct ps_plan_tensor *t)
{
    const uint64_t valid = t->valid == PS_PLAN_UNKNOWN ? site->mean_valid : t->valid;

    return valid < t->bytes ? valid : t->bytes;
}

#endif
