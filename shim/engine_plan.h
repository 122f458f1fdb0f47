/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learning and following a plan: the engine's events go into the segmenter (policy/segment.h), a step seen twice is
 * planned (policy/plan.h), and at a cut, when nothing of a region is alive, the plan's places are made or made anew.
 * In between the plan says which groups stay, which set a group gets, and who comes back next.
 *
 * Any thread; lock held, but for ps_plan_note_other.
 */
#ifndef PS_SHIM_ENGINE_PLAN_H
#define PS_SHIM_ENGINE_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "policy/limits.h"
#include "policy/segment.h"
#include "policy/sinks.h"

/* What an engine knows of its steps. */
struct ps_learner {
    struct ps_segment segment;
    struct ps_plan next; /* made, not in force yet */
    uint64_t next_kind[PS_KINDS_MAX],
        way_kind[PS_KINDS_MAX]; /* kinds of step that next, and the plan in force, are for */
    uint32_t n_next, n_ways;
    uint32_t way;               /* of the plan in force, that this step goes; PS_PLAN_NONE */
    uint32_t last;              /* position of the last push or return */
    bool last_returned;         /* it was a return */
    struct ps_sinks next_sinks; /* of it */
    bool have_next;
    bool watching;       /* the job's other memory is noted */
    bool busy;           /* a thread is planning */
    bool left_alone;     /* no plan gains anything */
    bool fill_whole;     /* temporaries are handed out uniform from end to end */
    bool forget;         /* all that was learned, at the next cut */
    uint32_t n_off;      /* steps in a row that went otherwise than planned */
    uint32_t n_failures; /* of making places */
    uint32_t step_kept;  /* groups that stayed for want of pages */
    uint32_t n_doubts;   /* plans that gained nothing because of such, */
    uint32_t doubt_cuts; /* and how many cuts pass before the next */
    uint32_t step_misses;
    uint32_t step_taken; /* of those, for slots that were taken */
    bool crowded;        /* a plan was made anew for nothing but those: another would be the same */
    uint32_t n_sweeps;   /* steps at whose end memory of misses is yet to be given back */
    uint64_t step_moved, step_valid; /* bytes */
    struct ps_limits_found found;    /* when a plan was made last */
    uint64_t held_bytes; /* by the job at once, the most seen: so much it would take without us */
    uint32_t page_tries; /* times the pool's pages were to become others */
};

struct ps_copy;
struct ps_engine;
struct ps_group;
struct ps_tensor;
struct ps_thread;

/* A region's push; may make a plan and its places: lock let go and taken again. */
void ps_learn_push(struct ps_engine *e, struct ps_thread *th);
/* The push of the range that begins steps (PAGEDSTASH_STEP); likewise. */
void ps_learn_step(struct ps_engine *e);
/* The instance's end; `g`: its group, if that is there. */
void ps_learn_pop(struct ps_engine *e, struct ps_seg_id id, struct ps_group *g);
void ps_learn_group(struct ps_engine *e, struct ps_group *g); /* made in the thread's instance */
void ps_learn_alloc(struct ps_engine *e, struct ps_tensor *t, uint32_t ordinal);
/* Before the tensor leaves its group, and after. */
void ps_learn_free(struct ps_engine *e, const struct ps_tensor *t);
void ps_learn_freed(struct ps_engine *e);
/* Backward has come to a group that was brought in ahead. */
void ps_learn_touched(struct ps_engine *e, struct ps_group *g);
/* A stash was seen complete: `stored` bytes of the tail. */
void ps_learn_stashed(struct ps_engine *e, const struct ps_copy *c, uint64_t stored);
/* Has there been a push, or another group's return, since the group's instance ended? */
bool ps_learn_boundary_since(const struct ps_engine *e, const struct ps_group *g);
/* Has its instance ended, and was there neither since? */
bool ps_learn_behind_pop(const struct ps_engine *e, const struct ps_group *g);
/* Does the plan say that this group, or one that is in and before it, returns next, and can it be its time by now? */
bool ps_learn_expects(const struct ps_engine *e, const struct ps_group *g);
/* Which of the steps that the plan in force was made from is the group's; PS_PLAN_NONE. */
uint32_t ps_learn_way(const struct ps_engine *e, const struct ps_group *g);
/* The set the plan gives the group; PS_PLAN_NONE. */
uint32_t ps_learn_set(const struct ps_engine *e, const struct ps_group *g);
/* The set for the region whose forward has begun; PS_PLAN_NONE: none has, or it has no set. */
uint32_t ps_learn_coming_set(const struct ps_engine *e);
/* The places go, as far as nobody is in them, and come back at the next cut. Lock not held. */
void ps_learn_release(struct ps_engine *e);
/* Nothing of it is in use any more. Lock not held. */
void ps_learn_fini(struct ps_engine *e);

/* engine_adopt.c: a step has ended. Lock let go and taken again. */
void ps_learn_cut(struct ps_engine *e, const struct ps_cut *cut);
/* The job's other memory is, or is not, to be noted. */
void ps_learn_watch(struct ps_engine *e, bool watch);

/* engine_limits.c: what the settings allow. */
/* What a region's range tells: rows its buffers have room for, and at balanced routing (0: not told). */
void ps_learn_capacity(uint32_t name, uint64_t capacity, uint64_t balanced);
/* ps_plan_make, within the limits. */
enum ps_status PS_MUST_CHECK ps_learn_make(struct ps_engine *e, const struct ps_plan_step *steps,
                                           uint32_t n, const struct ps_plan_settings *settings,
                                           struct ps_plan *plan_p);
/* What of a plan to be adopted goes to the host by copies; nothing, if it was not limited. */
enum ps_status PS_MUST_CHECK ps_learn_sinks(struct ps_engine *e, const struct ps_plan_step *steps,
                                            uint32_t n, const struct ps_plan *plan,
                                            struct ps_sinks *sinks_p);
/* Of the pages that the plan is to have: as the limits allow. */
void ps_learn_limit(struct ps_engine *e, const struct ps_plan *plan, const struct ps_sinks *sinks,
                    uint64_t *device_p, uint64_t *host_p);
uint64_t ps_learn_host_most(const struct ps_engine *e);
/* Of the valid bytes: when more moves in a step, the plan is made anew. */
uint64_t ps_learn_remake_percent(const struct ps_engine *e, uint64_t usual);
/* The page that the allocation asks for which makes the engine, if its range tells a capacity; 0. Lock not held. */
uint64_t ps_learn_first_page(void);
/* The page that the capacities told ask for; 0: none does. */
uint64_t ps_learn_page(const struct ps_segment *segment);

/* Some engine wants to know what the job's other memory comes to. */
extern _Atomic uint32_t ps_learn_watching;
/* `bytes` more are about to be allocated in the current context's pool. Lock not held; makes a driver call. */
void ps_learn_note_other(uint64_t bytes);

#endif
