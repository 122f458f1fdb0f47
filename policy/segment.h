/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts what happens in one context into steps, and knows the kinds of step again. Pure; the caller's lock guards it
 * (one for each context). Every event takes constant time, memory is linear in the events kept.
 *
 * A step begins at a push at which no group born since the last cut is alive; or, when made so, at the pushes of the
 * range that the user named. A group is *alive* while it has live tensors. It *dies* when the last of them is freed
 * after its instance was closed; if none is left by then, nobody sees it die.
 *
 * What never dies must not keep a step open: groups that are all there is alive at a push, again and again, while
 * others are born and die in between, are taken for *background* and count no more. At first twice is enough; each
 * time such a group dies after all, twice as often is needed.
 *
 * A *kind* of step is its pushes (with their names), pops and deaths, in order. Sizes, touches and single tensors are
 * no part of it, and a group that has no tensor in one of two steps (zero rows) does not make them differ. Steps of a
 * single group never push another kind out of the table: an evaluation loop is made of them.
 */
#ifndef PS_POLICY_SEGMENT_H
#define PS_POLICY_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"

#define PS_KINDS_MAX            16
#define PS_SEGMENT_EVENTS_MAX   (1u << 20) /* a longer step is given up */
#define PS_SEGMENT_BACKGROUND   64         /* groups remembered as background */
#define PS_SEGMENT_OBSERVATIONS 2
#define PS_KIND_NONE            UINT32_MAX

/* A tensor of a step, or (tensor PS_PLAN_NONE) a group: its position, the number of pushes before it since the cut. */
struct ps_seg_id {
    uint64_t serial; /* of the step; ids of steps that have ended are known by it. 0: none */
    uint32_t group;
    uint32_t tensor;
};

struct ps_seg_group {
    uint32_t n_live;
    uint32_t pushes, pop; /* when it was popped: pushes, events by then */
    uint32_t touch;       /* its latest place of touches, plus one */
    bool closed;
    bool held; /* something was alive when it was closed */
    bool returned;
};

/*
 * Where a group was touched after its pop. Half of all touches may be stale words in parameters, and the same ones
 * come back in step after step; but they name one tensor of a group, rarely two, where backward names all at one place.
 */
struct ps_seg_touch {
    uint64_t place; /* between which items */
    uint32_t group;
    uint32_t event; /* events before the first of them */
    uint32_t n_tensors, n_touches;
    uint64_t time_ns; /* of the first, since the step's begin; 0: not known */
};

/* A step as it was recorded. */
struct ps_record {
    uint64_t serial; /* 0: empty */
    struct ps_plan_event *events;
    struct ps_plan_tensor *tensors;
    uint32_t *names;             /* of the groups */
    struct ps_seg_group *groups; /* how they stood at the end */
    uint32_t *items;             /* what makes the kind; see segment.c */
    uint32_t *touched;           /* of the tensors: the latest touch that counts it, plus one */
    struct ps_seg_touch *touches;
    uint32_t n_events, n_tensors, n_groups, n_items, n_touches, n_live;
    uint32_t events_room, tensors_room, groups_room, items_room, touches_room;
    uint64_t signature; /* of the items */
};

struct ps_kind {
    uint64_t id;                /* unique for the segmenter; 0: the slot is free */
    uint64_t count;             /* of steps of this kind */
    uint64_t last;              /* serial of the latest */
    struct ps_record record[2]; /* the latest first */
    /* Does the step now being recorded go this way? */
    bool alive;
    uint32_t cursor; /* into record[0].items */
};

struct ps_segment {
    bool by_range;
    bool broken;     /* host memory or length exhausted: nothing is recorded until the next cut */
    bool begun;      /* not before the first cut, when by_range */
    uint64_t serial; /* of the current step, from 1 */
    uint64_t begin_ns, other_bytes, n_kinds_made;
    struct ps_record now;
    struct ps_kind kinds[PS_KINDS_MAX];
    uint32_t n_alive; /* groups of the current step that are alive */
    /* Candidates for background: all groups before this one that are alive. */
    uint32_t watch_before, watch_alive; /* 0: no candidate */
    uint32_t n_seen, n_needed;
    bool born_and_dead; /* since the candidate was seen last */
    struct ps_background {
        uint64_t serial;
        uint32_t group, n_live;
    } background[PS_SEGMENT_BACKGROUND];
    uint32_t n_background;
};

/* What a push (or a step's range) did. Of the step that ended there: */
struct ps_cut {
    bool cut;
    bool known;    /* one of its kind was recorded before */
    bool complete; /* every tensor of it was freed */
    uint32_t kind; /* index of its kind; PS_KIND_NONE: it was not kept */
    uint64_t serial;
};

void ps_segment_init(struct ps_segment *s, bool by_range);
/* Events that come later do nothing. */
void ps_segment_fini(struct ps_segment *s);

/* From here on steps begin at ps_segment_step only. */
void ps_segment_by_range(struct ps_segment *s);
/* The kinds known are known no more; the current step goes on being recorded. */
void ps_segment_forget(struct ps_segment *s);

/* name: a number, the same for the same name. time_ns: any clock, 0 when there is none. A push that cuts begins the
 * new step; the answer is the group's id in it. */
struct ps_seg_id ps_segment_push(struct ps_segment *s, uint32_t name, uint64_t time_ns,
                                 struct ps_cut *cut_p);
void ps_segment_pop(struct ps_segment *s, struct ps_seg_id group, uint64_t time_ns);
/* Only of tensors that are to be planned. The answer's serial is 0 if the group is of a step that has ended. */
struct ps_seg_id ps_segment_alloc(struct ps_segment *s, struct ps_seg_id group, uint32_t ordinal,
                                  uint64_t bytes, uint64_t time_ns);
void ps_segment_free(struct ps_segment *s, struct ps_seg_id tensor, uint64_t time_ns);
/*
 * A touch of any kind. ps_kind_merge finds from these where groups return: at the first touch at the first place at
 * which enough of the group's tensors are named, in both steps.
 */
void ps_segment_touch(struct ps_segment *s, struct ps_seg_id tensor, uint64_t time_ns);
/* The group returns here, whatever the touches say. Further calls do nothing, nor one before its pop. */
void ps_segment_return(struct ps_segment *s, struct ps_seg_id group, uint64_t time_ns);
/* The job's other memory is this much from now on. */
void ps_segment_other(struct ps_segment *s, uint64_t bytes);
/* May come late, for as long as the step is kept. */
void ps_segment_valid(struct ps_segment *s, struct ps_seg_id tensor, uint64_t bytes);
/* The range that begins steps was pushed (by_range only). */
void ps_segment_step(struct ps_segment *s, uint64_t time_ns, struct ps_cut *cut_p);
/* Ends the current step as a cut would. */
void ps_segment_end(struct ps_segment *s, struct ps_cut *cut_p);

/* Bit k: so far the current step goes the way of kinds[k]. At its first push: all that begin with that name. */
uint32_t ps_segment_matching(const struct ps_segment *s);

/*
 * The kind's last two steps as one, in arrays of its own: tensors of either, the larger sizes and other
 * bytes, the mean of the valid bytes.
 * *same_returns_p: both return the same groups at the same places; if not, they stand as in the latest.
 */
enum ps_status PS_MUST_CHECK ps_kind_merge(const struct ps_kind *kind, struct ps_plan_step *step_p,
                                           bool *same_returns_p);
void ps_plan_step_free(struct ps_plan_step *step);
/*
 * Where each group returns, as an index into the record's touches; PS_PLAN_NONE: it does not, or was told to. `other`
 * (may be NULL): a step of the same kind; *same_p: nothing had to be chosen without it. False: no memory.
 */
bool ps_record_returns(const struct ps_record *r, const struct ps_record *other, uint32_t *touch_p,
                       bool *same_p);

#endif
