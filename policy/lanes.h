/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is in which set and which lane: the rules of plan.h as a state machine, for the planner's simulation and for the
 * engine alike. It decides, the caller acts: every answer is data. Pure; allocates in ps_lanes_init and ps_lanes_add
 * only; a call takes the time of the number of lanes (at most 4) and of the logarithm of the number of sets. Not
 * thread-safe: the engine's lock guards it.
 *
 * A *set* is free or has one owner, from its first allocation to its last free. A *lane* holds the bytes of at most
 * one group: of one that is in, or of one that is leaving (its bytes are there until another takes the lane).
 *
 *              acquire                boundary (marked)             another takes the lane
 *   (none) ──────────────► IN ───────────────────────► LEAVING ─────────────────────────► OUT
 *                          ▲  ◄──────── return, stay ─────┘                                 │
 *                          └───────────────── return, ahead (the lane is to be had) ────────┤
 *                        SPARE ◄────────────── return (it is not) ──────────────────────────┘
 *
 * A lane is *to be had* if nobody is in it, if its group is leaving, or if its group can leave now: closed, a boundary
 * since, not returned, not pinned. Who is open, returned or pinned stays.
 *
 * What the engine calls:
 *   push              ps_lanes_boundary: begin the stash of those named
 *   first allocation  ps_lanes_acquire (the group's first that is no temporary)
 *   pop               ps_lanes_close, then ps_lanes_leave, then ps_lanes_ahead for after_push
 *   first touch in    ps_lanes_boundary (with the group), then ps_lanes_return, then ps_lanes_ahead for after_return
 *   backward
 *   last free         ps_lanes_free: a group that waited for the lane may come in
 */
#ifndef PS_POLICY_LANES_H
#define PS_POLICY_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/base/status.h"

#define PS_LANES_MAX  4
#define PS_LANES_NONE UINT32_MAX

enum ps_lanes_place {
    PS_LANES_NOWHERE, /* it has no set, or one without tails: nothing of it moves */
    PS_LANES_IN,
    PS_LANES_LEAVING, /* its stash has begun, its lane is not taken yet */
    PS_LANES_OUT,
    PS_LANES_SPARE, /* it returned while its lane was taken: memory apart, until it is freed */
};

/* How a lane can be had; the lower, the better. */
enum ps_lanes_claim {
    PS_LANES_FREE,      /* nobody is in it */
    PS_LANES_FROM_OUT,  /* its group is leaving */
    PS_LANES_FROM_IN,   /* its group would leave now */
    PS_LANES_FROM_NEXT, /* the same, and it came in ahead of its return */
    PS_LANES_TAKEN,
};

/* In the caller's group; all zero before its first use. */
struct ps_lanes_group {
    /* The caller's, to be changed at any time. */
    bool stash;  /* marked: leaves at a boundary, not only when in the way */
    bool pinned; /* stays; call ps_lanes_stay as well if it is leaving */
    /* Read only. */
    bool closed;   /* popped */
    bool ripe;     /* a boundary since */
    bool returned; /* touched in backward: stays until freed */
    bool ahead;    /* came in before its return */
    uint8_t place; /* enum ps_lanes_place */
    bool owns;     /* a set: this */
    uint32_t set;
    uint64_t order; /* when it began to leave, else when it was popped */
};

struct ps_lanes_set {
    uint32_t name;
    uint32_t lane; /* PS_LANES_NONE: it has no tails */
    struct ps_lanes_group *owner;
    uint32_t left, right, rank; /* in the heap of that name and lane, */
    bool queued;                /* which holds all free sets, and owned ones until they come up */
};

struct ps_lanes {
    struct ps_lanes_set *sets;
    uint32_t *names;     /* sorted */
    uint32_t *free_sets; /* heaps, by name, then lane: the lowest free set */
    uint32_t n_sets, room, n_names, n_lanes;
    struct ps_lanes_group *holder[PS_LANES_MAX];  /* whose bytes it holds, or NULL */
    struct ps_lanes_group *waiting[PS_LANES_MAX]; /* out, comes in when the lane is free, or NULL */
    uint64_t order;
};

/* A lane (or none) taken by a group. */
struct ps_lanes_taken {
    uint32_t set;
    uint32_t lane;                 /* PS_LANES_NONE: a set without tails */
    struct ps_lanes_group *before; /* had the lane, is out now: wait for its stash. NULL: nobody */
    bool now;                      /* `before` had not begun to leave: begin its stash now */
};

enum ps_lanes_came {
    PS_LANES_CAME_NOT,   /* it has no tails to bring in */
    PS_LANES_WAS_IN,     /* nothing to do */
    PS_LANES_CAME_BACK,  /* it was leaving, its lane not taken: wait for its stash, drop the copy */
    PS_LANES_CAME_IN,    /* it was out: restore it, behind the stash of `before` */
    PS_LANES_CAME_APART, /* its lane is not to be had: remap to memory apart, restore it there */
};

/* No sets yet. The names, sorted and each once, are copied. */
enum ps_status PS_MUST_CHECK ps_lanes_init(struct ps_lanes *l, uint32_t n_lanes,
                                           const uint32_t *names, uint32_t n_names);
void ps_lanes_fini(struct ps_lanes *l);
/* One more set, free, with the next number. The name must be known. Allocates. */
enum ps_status PS_MUST_CHECK ps_lanes_add(struct ps_lanes *l, uint32_t name, uint32_t lane);

/*
 * A free set of that name for a new group: `wanted` if it is free and its lane is to be had, else the one whose lane
 * is free, else whose group began to leave first, else whose group was popped first; of those the lowest. False: there
 * is none, nothing has changed, the group needs memory of its own. The group must own none.
 */
bool ps_lanes_acquire(struct ps_lanes *l, struct ps_lanes_group *g, uint32_t name, uint32_t wanted,
                      struct ps_lanes_taken *taken_p);
/* Its pop. Also for a group that owns no set yet or never. */
void ps_lanes_close(struct ps_lanes *l, struct ps_lanes_group *g);
/* Its own pop is a boundary: if it is marked it begins to leave. True: it does. Closed groups only. */
bool ps_lanes_leave(struct ps_lanes *l, struct ps_lanes_group *g);
/*
 * A push (`but` NULL), or the first touch of `but` in backward. Who is in, closed, marked, not returned, not pinned
 * begins to leave, and is named in leave_p; their number is returned.
 */
uint32_t ps_lanes_boundary(struct ps_lanes *l, const struct ps_lanes_group *but,
                           struct ps_lanes_group *leave_p[PS_LANES_MAX]);
/* A leaving group whose lane is not taken is in again: it was touched, or its stash could not begin. Else no effect. */
void ps_lanes_stay(struct ps_lanes *l, struct ps_lanes_group *g);
/* First touch in backward; taken_p is set for PS_LANES_CAME_IN. A second one is answered the same way. */
enum ps_lanes_came ps_lanes_return(struct ps_lanes *l, struct ps_lanes_group *g,
                                   struct ps_lanes_taken *taken_p);
/*
 * It is expected to return next. True: it was out and its lane free or leaving; restore it now. False: it is in, or it
 * waits for its lane (ps_lanes_free names it then). NULL: false. One waits for a lane: the last that asked.
 */
bool ps_lanes_ahead(struct ps_lanes *l, struct ps_lanes_group *g, struct ps_lanes_taken *taken_p);
/*
 * Its last tensor is freed: it owns no set. The group that waited for its lane and is in now, to be restored behind
 * the free, or NULL. Also for a group that owns none.
 */
struct ps_lanes_group *ps_lanes_free(struct ps_lanes *l, struct ps_lanes_group *g);
enum ps_lanes_claim ps_lanes_claim(const struct ps_lanes *l, uint32_t lane);
/* The lowest free set of that name and lane, or PS_LANES_NONE. */
uint32_t ps_lanes_free_set(struct ps_lanes *l, uint32_t name, uint32_t lane);
/* Invariants, for tests and debug builds. */
bool ps_lanes_check(const struct ps_lanes *l);

#endif
