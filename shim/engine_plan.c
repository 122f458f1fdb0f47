/* SPDX-License-Identifier: Apache-2.0 */
/* See engine_plan.h. What needs the driver for long (places, waiting) is in engine_adopt.c. */
#include "shim/engine_plan.h"

#include <string.h>
#include <time.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"
#include "shim/trace_valid.h"

#define LOOK 16 /* groups looked ahead for those to be copied to stages */
#define LEAD 2  /* groups looked ahead for one that is out */

_Atomic uint32_t ps_learn_watching;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void ps_learn_watch(struct ps_engine *e, bool watch)
{
    struct ps_learner *l = &e->learner;
    if (l->watching != watch) {
        l->watching = watch;
        atomic_fetch_add_explicit(&ps_learn_watching, watch ? 1 : (uint32_t)-1,
                                  memory_order_relaxed);
    }
}

static const struct ps_plan_moves *moves_of(const struct ps_engine *e)
{
    const struct ps_learner *l = &e->learner;
    return e->places != NULL && l->way < e->places->plan.n_moves ? &e->places->plan.moves[l->way]
                                                                 : NULL;
}

/* Which planned kind of step this one is so far: the last choice while it holds. */
static void choose_way(struct ps_engine *e)
{
    struct ps_learner *l = &e->learner;
    const uint32_t matching = ps_segment_matching(&l->segment);
    uint32_t way = PS_PLAN_NONE;

    for (uint32_t i = 0; i < l->n_ways; i++) {
        for (uint32_t k = 0; k < PS_KINDS_MAX; k++) {
            const bool fits = (matching >> k & 1) != 0 && l->segment.kinds[k].id == l->way_kind[i];
            if (fits && (way == PS_PLAN_NONE || i == l->way)) {
                way = i;
            }
        }
    }
    l->way = way;
}

static bool of_step(const struct ps_engine *e, const struct ps_group *g)
{
    return g->seg.serial != 0 && g->seg.serial == e->learner.segment.serial;
}

/* A push since its own, or a return: the last group of a pipeline's step has only those. */
static bool followed(const struct ps_engine *e, const struct ps_group *g)
{
    const struct ps_learner *l = &e->learner;
    return l->segment.now.n_groups > g->seg.group + 1 || l->last_returned;
}

bool ps_learn_boundary_since(const struct ps_engine *e, const struct ps_group *g)
{
    return of_step(e, g) && !g->open && followed(e, g);
}

bool ps_learn_behind_pop(const struct ps_engine *e, const struct ps_group *g)
{
    return of_step(e, g) && !g->open && !followed(e, g);
}

static void mark_group(const struct ps_engine *e, struct ps_group *g)
{
    const struct ps_plan_moves *m = moves_of(e);
    g->stays = m != NULL && of_step(e, g) && g->seg.group < m->n_groups && !m->stash[g->seg.group];
}

static struct ps_group *at_position(const struct ps_engine *e, uint32_t position)
{
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        if (of_step(e, g) && g->seg.group == position) {
            return g;
        }
    }
    return NULL;
}

static bool any_out(const struct ps_group *g)
{
    for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
        if (t->state == PS_OUT && !t->freed) {
            return true;
        }
    }
    return false;
}

/*
 * Who comes back next, of those whose bytes are on the host: as many as there are stages, the first of them first. A
 * chain of returns ends where a push is next, so no stage is taken from who leaves before.
 */
static void bring_to_stages(struct ps_engine *e, const struct ps_plan_moves *m, uint32_t next)
{
    struct ps_group *g[PS_STAGES_MAX];
    uint32_t n = 0;

    for (uint32_t k = 0; k < LOOK && n < PS_STAGES_MAX && next < m->n_groups; k++) {
        struct ps_group *at = at_position(e, next);
        if (at != NULL && ps_sink_pages(e, at) > 0 && any_out(at)) {
            g[n++] = at;
        }
        next = m->after_return[next];
    }
    if (n > 0) {
        ps_sinks_ahead(e, g, n);
    }
}

/* Who comes back next, of those that are out: brought in if its places are vacant. Nobody overtakes it. */
static void advance(struct ps_engine *e)
{
    const struct ps_learner *l = &e->learner;
    const struct ps_plan_moves *m = moves_of(e);
    if (m == NULL || l->last >= m->n_groups) {
        return;
    }
    uint32_t next = l->last_returned ? m->after_return[l->last] : m->after_push[l->last];
    if (e->sinks != NULL) {
        bring_to_stages(e, m, next);
    }
    for (uint32_t n = 0; n < LEAD && next < m->n_groups; next = m->after_return[next]) {
        struct ps_group *g = at_position(e, next);
        if (g == NULL) {
            continue;
        }
        if (any_out(g)) {
            ps_prefetch(e, g);
            return;
        }
        n++;
    }
}

/* In the middle of a region's forward nothing returns, as far as a plan goes: what is touched there is a stale word. */
static bool in_forward(const struct ps_learner *l)
{
    return !l->last_returned && l->last < l->segment.now.n_groups &&
           !l->segment.now.groups[l->last].closed;
}

bool ps_learn_expects(const struct ps_engine *e, const struct ps_group *g)
{
    const struct ps_learner *l = &e->learner;
    const struct ps_plan_moves *m = moves_of(e);
    if (m == NULL || g->open || !of_step(e, g) || l->last >= m->n_groups || in_forward(l) ||
        ps_places_in_return(e, g)) {
        return false;
    }
    uint32_t next = l->last_returned ? m->after_return[l->last] : m->after_push[l->last];
    for (uint32_t n = 0; n < LEAD && next < m->n_groups; next = m->after_return[next]) {
        if (next == g->seg.group) {
            return true;
        }
        n += at_position(e, next) != NULL;
    }
    return false;
}

static void came_to(struct ps_engine *e, struct ps_seg_id id, bool returned)
{
    struct ps_learner *l = &e->learner;
    if (id.serial == l->segment.serial) {
        l->last = id.group;
        l->last_returned = returned;
    }
}

void ps_learn_push(struct ps_engine *e, struct ps_thread *th)
{
    struct ps_learner *l = &e->learner;
    struct ps_cut cut;

    if (e->state != PS_ENGINE_READY || e->ended) {
        return;
    }
    th->seg = ps_segment_push(&l->segment, th->stack.open_name, now_ns(), &cut);
    th->seg_engine = e;
    if (cut.cut) {
        ps_demand_step(true);
        ps_learn_cut(e, &cut);
        if (e->state != PS_ENGINE_READY) {
            return;
        }
    }
    choose_way(e);
    came_to(e, th->seg, false);
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        mark_group(e, g);
    }
}

void ps_learn_step(struct ps_engine *e)
{
    struct ps_cut cut;

    if (e->state != PS_ENGINE_READY || e->ended) {
        return;
    }
    ps_segment_step(&e->learner.segment, now_ns(), &cut);
    if (cut.cut) {
        ps_demand_step(true);
        ps_learn_cut(e, &cut);
    }
}

void ps_learn_pop(struct ps_engine *e, struct ps_seg_id id, struct ps_group *g)
{
    ps_segment_pop(&e->learner.segment, id, now_ns());
    if (g != NULL && g->engine == e && e->places != NULL && !g->stays) {
        ps_move_out_early(e, g);
    }
    advance(e);
}

void ps_learn_group(struct ps_engine *e, struct ps_group *g)
{
    mark_group(e, g);
}

void ps_learn_alloc(struct ps_engine *e, struct ps_tensor *t, uint32_t ordinal)
{
    t->seg = ps_segment_alloc(&e->learner.segment, t->group->seg, ordinal, t->bytes, now_ns());
}

static void returns(struct ps_engine *e, struct ps_group *g)
{
    if (!g->came && ps_learn_boundary_since(e, g)) {
        g->came = true;
        came_to(e, g->seg, true);
    }
}

/* A touch may be a stale word; a free behind a boundary is backward's. */
void ps_learn_free(struct ps_engine *e, const struct ps_tensor *t)
{
    if (!t->group->told && ps_learn_boundary_since(e, t->group)) {
        t->group->told = true;
        ps_segment_return(&e->learner.segment, t->group->seg, now_ns());
    }
    returns(e, t->group);
    ps_segment_free(&e->learner.segment, t->seg, now_ns());
}

void ps_learn_freed(struct ps_engine *e)
{
    if (e->places != NULL) {
        advance(e);
    }
}

void ps_learn_touched(struct ps_engine *e, struct ps_group *g)
{
    if (e->places != NULL && in_forward(&e->learner)) {
        return;
    }
    if (g->prefetched) {
        g->prefetched = false;
        ps_move_out_marked(e);
    }
    returns(e, g);
    advance(e);
}

void ps_learn_stashed(struct ps_engine *e, const struct ps_copy *c, uint64_t stored)
{
    const uint64_t whole = c->home_bytes + stored;
    const uint64_t valid = whole < c->bytes ? whole : c->bytes;
    ps_count(valid_bytes_stashed, valid);
    e->learner.step_moved += stored;
    e->learner.step_valid += valid;
    ps_segment_valid(&e->learner.segment, c->seg, valid);
    ps_demand_stashed(c, stored == 0 ? 0 : valid);
    ps_trace_valid(c->traced, valid);
}

uint32_t ps_learn_way(const struct ps_engine *e, const struct ps_group *g)
{
    const struct ps_plan_moves *m = moves_of(e);
    return m != NULL && of_step(e, g) && g->seg.group < m->n_groups ? e->learner.way : PS_PLAN_NONE;
}

uint32_t ps_learn_set(const struct ps_engine *e, const struct ps_group *g)
{
    const struct ps_plan_moves *m = moves_of(e);
    return m != NULL && of_step(e, g) && g->seg.group < m->n_groups ? m->set[g->seg.group]
                                                                    : PS_PLAN_NONE;
}

uint32_t ps_learn_coming_set(const struct ps_engine *e)
{
    const struct ps_learner *l = &e->learner;
    const struct ps_plan_moves *m = moves_of(e);
    return m != NULL && l->last < m->n_groups && in_forward(l) ? m->set[l->last] : PS_PLAN_NONE;
}

void ps_learn_note_other(uint64_t bytes)
{
    struct ps_guard guard;
    CUmemoryPool pool;
    uint64_t used = 0;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = ps_engine_find(guard.current);
    if (e != NULL && e->learner.watching &&
        ps_driver.cuDeviceGetDefaultMemPool(&pool, e->device) == CUDA_SUCCESS &&
        ps_driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) ==
            CUDA_SUCCESS) {
        const uint64_t held = used + e->live_bytes;

        e->learner.held_bytes = held > e->learner.held_bytes ? held : e->learner.held_bytes;
        ps_segment_other(&e->learner.segment, used + bytes);
    }
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
}
