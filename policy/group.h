/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of a tensor and the rules by which a group moves. Pure: the engine fills the views from its own structures,
 * under its lock.
 */
#ifndef PS_POLICY_GROUP_H
#define PS_POLICY_GROUP_H

#include <stdbool.h>
#include <stdint.h>

enum ps_residency {
    PS_RESIDENT, /* in its place, no copy */
    PS_CACHED,   /* stashed, place intact: a touch takes it back */
    PS_OUT,      /* only the copy exists; its addresses are unmapped */
    PS_MOVING,   /* one thread is mapping or unmapping it */
    PS_DEAD,     /* freed; its mapped memory may serve another */
};

/* Legal transitions; the engine asserts each. */
bool ps_residency_may(enum ps_residency from, enum ps_residency to);

struct ps_group_view {
    bool open;            /* its instance has not ended */
    bool returned;        /* backward is using it */
    bool crowded;         /* named on more streams than are followed */
    bool same_thread;     /* the boundary is on the thread that made it */
    bool foreign_pending; /* a use on another stream is not complete */
    bool lane_busy;       /* stashes of groups of another stream are on their way */
    uint32_t n_pinned;    /* members named by a call in flight */
    uint32_t n_movable;   /* resident members that may leave */
};

/* May the group's resident members be stashed at this boundary? Its last touch lies before it by construction. */
bool ps_group_may_leave(const struct ps_group_view *v);

enum ps_scope {
    PS_SCOPE_TENSOR, /* the tensors named, given back at the next boundary: the touch may be a stale word */
    PS_SCOPE_GROUP, /* the whole group, for safety: a member's backward use may be one we cannot see */
    PS_SCOPE_RETURN, /* the whole group, until freed: backward has come to it */
};

/*
 * What to bring back when a member that is out is named. last_alive: no later group is open or has live members, which
 * is how backward comes to a group; proven: every member's site has been seen named after being out.
 */
enum ps_scope ps_group_scope(bool last_alive, bool proven);

/* A tensor brought back on its own this often stays: something names it all the time. */
#define PS_UNPLANNED_MAX 3

#endif
