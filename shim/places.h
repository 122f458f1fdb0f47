/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planned memory of an engine: sets of places and the lanes behind them (policy/plan.h has the terms and rules).
 * Everything is mapped when it is made; afterwards a tensor gets its place, and a tail its slot of the lane, without a
 * mapping call. Only a touch that no plan foresaw, of a tail whose slot another tensor is in, maps: the tail goes
 * *aside*, to memory of its own, until it is next out or freed; ps_places_tidy maps the lane again.
 *
 * A slot's memory has one owner at a time, the tensor whose bytes are in it. The next owner's stream is put behind
 * the last one's end, or its stash, before the slot changes hands; the page flags say which pages the last scan found
 * not uniform, and those are zeroed then.
 *
 * Any thread; the engine's lock is held, but where it says otherwise.
 */
#ifndef PS_SHIM_PLACES_H
#define PS_SHIM_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"
#include "shim/driver.h"
#include "shim/window.h"

struct ps_engine;
struct ps_fence;
struct ps_group;
struct ps_site;
struct ps_tensor;

struct ps_lane_slot {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    bool compressible;         /* it is read faster than written while it holds zeros */
    uint64_t flags;            /* device address: a byte a page, 0: zero */
    struct ps_tensor *owner;   /* whose tail is in it */
    struct ps_fence *ready[2]; /* no owner: what the last one's end is behind */
    bool elsewhere;            /* that may be on another stream than its group's */
    bool scanned;              /* nobody can have written it since the scan that made the flags, */
    uint64_t scanned_bytes;    /* which speak for so much of it */
};

/*
 * Memory for one tail that is aside: as large as its slot or a larger one, in parts of which the first few are just as
 * large as any smaller slot, since no handle can be mapped by half (CUDA_ERROR_NOT_SUPPORTED, driver 580).
 */
struct ps_spare {
    struct ps_spare *next;
    uint64_t bytes; /* of the parts it has */
    CUmemGenericAllocationHandle part[PS_PLAN_SLOTS_MAX];
};

struct ps_place {
    struct ps_slot slot; /* home, then tail */
    CUmemGenericAllocationHandle home;
    uint64_t home_bytes;
    struct ps_lane_slot *tail; /* NULL: none */
    struct ps_tensor *owner;   /* NULL: free */
    struct ps_fence *ready[2]; /* free: what the last owner's end is behind */
    bool elsewhere;            /* that may be on another stream than its group's */
    bool aside;                /* the tail's addresses are not mapped to the lane, */
    struct ps_spare *spare;    /* but to this, or (NULL) to nothing */
    bool busy;                 /* being mapped anew */
};

struct ps_place_set {
    uint32_t name;
    uint32_t lane;
    uint32_t first_site; /* index of the name's first site in the plan */
    uint32_t n_places;
    struct ps_place
        *places; /* one for each site of the name; without memory for those that need none */
    struct ps_group *group; /* NULL: free */
};

struct ps_places {
    struct ps_plan plan;
    struct ps_place_set *sets;  /* plan.n_sets */
    struct ps_lane_slot *slots; /* n_lanes times n_slots */
    struct ps_slot flags;
    CUmemGenericAllocationHandle flags_handle;
    struct ps_spare *spares;                /* nothing is mapped to them */
    uint64_t part_bytes[PS_PLAN_SLOTS_MAX]; /* of each spare */
    uint32_t n_parts;
    uint64_t spare_bytes; /* their sum: the largest slot */
    uint64_t bytes;       /* of all homes, lanes, flags and spares */
    uint32_t n_aside;
};

/* Makes all of it; takes the plan over when that works. NULL: no memory or no addresses. Lock not held. */
struct ps_places *ps_places_make(struct ps_engine *e, struct ps_plan *plan);
/* Of all tails. */
uint64_t ps_places_pages(const struct ps_engine *e, const struct ps_places *p);
/* Nothing in it is in use, and the device is done with it. Lock not held. */
void ps_places_free(struct ps_engine *e, struct ps_places *p);
/* A peer has come: it may read all that is mapped. */
void ps_places_grant(const struct ps_engine *e, const struct ps_places *p);
/* No group has a set, and nothing is aside. */
bool ps_places_idle(const struct ps_places *p);
/* What its end is behind, if that is not known to be over; NULL: idle. */
struct ps_fence *ps_places_pending(const struct ps_places *p);
/* Some end on another stream than its group's is not known to be over: it may depend on what this thread has yet to do,
 * and is not to be waited for. */
bool ps_places_open_elsewhere(const struct ps_places *p);

enum ps_placing {
    PS_PLACED,     /* *t_p is made, clean and ready for the stream */
    PS_PLACE_NONE, /* the plan has no place for this site: as without a plan */
    PS_PLACE_LEFT, /* it gains nothing: the job's allocator serves it */
    PS_PLACE_MISS, /* the plan has none that can be had now */
    PS_PLACE_TAKEN, /* the same: another tensor's tail is in the slot, and this one's cannot begin aside */
};
/* A place for a new tensor of the group. */
enum ps_placing ps_places_alloc(struct ps_engine *e, struct ps_group *g, struct ps_site *site,
                                uint64_t bytes, CUstream stream, struct ps_tensor **t_p);
/* The tensor dies; `was_stashed`: its slot still holds what was stashed. Takes over t->ready. */
void ps_place_leave(struct ps_engine *e, struct ps_tensor *t, bool was_stashed);
void ps_places_group_gone(const struct ps_group *g);

/* An OUT tensor's tail gets its slot back, for `stream` to fill. False: another is in it, or it is aside. */
bool ps_place_enter(struct ps_engine *e, struct ps_tensor *t, CUstream stream);
/* It entered, but could not be restored: it is out again. Not idle: what was enqueued may run on; its memory stays. */
void ps_place_exit(struct ps_engine *e, struct ps_tensor *t, bool idle);
/* Another group whose backward runs is in the lane: so the group's own has not begun, as far as the plan goes. */
bool ps_places_in_return(const struct ps_engine *e, const struct ps_group *g);
/* Is its slot free, or its owner stashed? */
bool ps_place_vacant(const struct ps_engine *e, const struct ps_tensor *t);
/* The stash of the tensor is enqueued: its slot's flags are being made. */
void ps_place_scanned(struct ps_tensor *t);
/* The tensor may be written from here on. */
void ps_place_touched(struct ps_tensor *t);
/* An OUT tensor's tail (PS_MOVING now) gets memory of its own. Lock let go and taken again. */
CUresult ps_place_step_aside(struct ps_engine *e, struct ps_tensor *t);
/* Maps tails that are aside and free to their lanes again. Lock let go and taken again. */
void ps_places_tidy(struct ps_engine *e);

#endif
