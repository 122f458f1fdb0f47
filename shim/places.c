/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See places.h. Events: a slot's next owner is put behind the last one's stash (copy->stash) or its end (ready), on
 * the stream that will write it first; a home's next owner likewise behind the end of the last. An end on another
 * stream that is not over yet is never waited for: it could hang the job, so the newcomer does without the place.
 */
#include "shim/places.h"

#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"
#include "shim/places_int.h"

struct ps_fence *ps_first_pending(struct ps_fence *const ready[2])
{
    for (int i = 0; i < 2; i++) {
        if (!ps_fence_done(ready[i])) {
            return ready[i];
        }
    }
    return NULL;
}

bool ps_places_open_elsewhere(const struct ps_places *p)
{
    bool open = false;
    for (uint32_t i = 0; i < p->plan.n_lanes * p->plan.n_slots && !open; i++) {
        open = p->slots[i].elsewhere && ps_first_pending(p->slots[i].ready) != NULL;
    }
    for (uint32_t i = 0; i < p->plan.n_sets && !open; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places && !open; k++) {
            const struct ps_place *place = &p->sets[i].places[k];
            open = place->elsewhere && ps_first_pending(place->ready) != NULL;
        }
    }
    return open;
}

bool ps_places_idle(const struct ps_places *p)
{
    bool busy = p->n_aside > 0;
    for (uint32_t i = 0; i < p->plan.n_sets; i++) {
        busy = busy || p->sets[i].group != NULL;
    }
    return !busy;
}

struct ps_fence *ps_places_pending(const struct ps_places *p)
{
    struct ps_fence *f = NULL;
    for (uint32_t i = 0; i < p->plan.n_lanes * p->plan.n_slots && f == NULL; i++) {
        f = ps_first_pending(p->slots[i].ready);
    }
    for (uint32_t i = 0; i < p->plan.n_sets && f == NULL; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places && f == NULL; k++) {
            f = ps_first_pending(p->sets[i].places[k].ready);
        }
    }
    return f;
}

/* ---- from here on the lock is held ---- */

/* Over, in the order of the stream, or on a stream of ours behind nothing but that: those may be waited for. */
static bool ready_for(struct ps_fence *const ready[2], uint64_t key)
{
    for (int i = 0; i < 2; i++) {
        if (ready[i] != NULL && ready[i]->behind_key != key && !ps_fence_done(ready[i])) {
            return false;
        }
    }
    return true;
}

static void drop_ready(struct ps_engine *e, struct ps_fence *ready[2])
{
    ready[0] = ps_fence_unref(&e->fences, ready[0]);
    ready[1] = ps_fence_unref(&e->fences, ready[1]);
}

/* A stashed owner that no call in flight names may lose the slot. */
static bool may_evict(const struct ps_tensor *t)
{
    return t->state == PS_CACHED && t->pins == 0 && !t->freed;
}

enum lane_state { LANE_FREE, LANE_LEAVING, LANE_TAKEN };

static enum lane_state lane_state(const struct ps_places *p, uint32_t lane)
{
    enum lane_state s = LANE_FREE;
    for (uint32_t i = 0; i < p->plan.n_slots && lane < p->plan.n_lanes; i++) {
        const struct ps_tensor *t = p->slots[lane * p->plan.n_slots + i].owner;
        if (t != NULL && !may_evict(t)) {
            return LANE_TAKEN;
        }
        s = t != NULL ? LANE_LEAVING : s;
    }
    return s;
}

/* Free, mapped to its lane or to spares, and the last users' ends are in the stream's order. */
static bool set_ready(const struct ps_place_set *set, uint64_t key)
{
    if (set->group != NULL) {
        return false;
    }
    for (uint32_t k = 0; k < set->n_places; k++) {
        const struct ps_place *place = &set->places[k];
        if (place->owner != NULL || (place->aside && place->spare == NULL) || place->busy ||
            !ready_for(place->ready, key)) {
            return false;
        }
    }
    return true;
}

/* The planned set if it can be had, else the lowest of the name that is free now, in the best lane. */
static struct ps_place_set *choose_set(const struct ps_engine *e, uint32_t name, uint32_t wanted,
                                       uint64_t key, enum lane_state *state_p)
{
    struct ps_places *p = e->places;
    struct ps_place_set *best = NULL;
    if (wanted < p->plan.n_sets && p->sets[wanted].name == name &&
        set_ready(&p->sets[wanted], key)) {
        best = &p->sets[wanted];
        *state_p = lane_state(p, best->lane);
        if (*state_p != LANE_TAKEN) {
            return best;
        }
    }
    for (uint32_t i = 0; i < p->plan.n_sets; i++) {
        struct ps_place_set *set = &p->sets[i];
        if (set->name != name || !set_ready(set, key)) {
            continue;
        }
        const enum lane_state s = lane_state(p, set->lane);
        if (best == NULL || s < *state_p) {
            best = set;
            *state_p = s;
        }
    }
    return best;
}

/* The groups in a lane that may leave now do: the newcomer waits for their stash. Lock let go and taken again. */
static void clear_lane(struct ps_engine *e, const struct ps_places *p, uint32_t lane)
{
    for (uint32_t i = 0; i < p->plan.n_slots && lane < p->plan.n_lanes; i++) {
        const struct ps_tensor *t = p->slots[lane * p->plan.n_slots + i].owner;
        if (t != NULL && t->state == PS_RESIDENT) {
            ps_move_group_out(e, t->group);
        }
    }
}

static struct ps_place_set *set_of(struct ps_engine *e, struct ps_group *g, uint64_t key)
{
    struct ps_places *p = e->places;
    enum lane_state s = LANE_TAKEN;
    if (g->set != NULL || g->set_refused) {
        return g->set;
    }
    struct ps_place_set *set = choose_set(e, g->name, ps_learn_set(e, g), key, &s);
    if (set != NULL && s == LANE_TAKEN) {
        clear_lane(e, p, set->lane);
    }
    g->set = set;
    g->set_refused = set == NULL;
    if (set != NULL) {
        set->group = g;
    }
    return set;
}

/* The owner loses the slot; it is out from here on. */
static void evict(struct ps_engine *e, struct ps_lane_slot *s)
{
    struct ps_tensor *t = s->owner;
    ps_list_remove(&e->cached, &e->cached_last, t);
    ps_assert(may_evict(t));
    t->state = PS_OUT;
    s->owner = NULL;
    drop_ready(e, s->ready);
    s->ready[0] = ps_fence_ref(t->copy->stash);
}

/* Makes the stream wait until the slot's memory is nobody's. False: that cannot be ordered. */
static bool order_slot(struct ps_engine *e, struct ps_lane_slot *s, CUstream stream)
{
    const uint64_t key = ps_stream_key(e->ctx, stream);
    for (int i = 0; i < 2; i++) {
        if (ps_fence_wait(s->ready[i], key, stream) != CUDA_SUCCESS) {
            return false;
        }
    }
    return true;
}

/*
 * Zeroes the pages that the last scan found not zero, if there are flags, and makes the slot the new address's.
 */
static CUresult clean_flagged(struct ps_engine *e, uint64_t base, const struct ps_lane_slot *s,
                              uint64_t flags, CUstream stream)
{
    struct ps_batch b;
    memset(&b, 0, offsetof(struct ps_batch, items));
    memset(&b.items[0], 0, sizeof(b.items[0]));
    b.page_bytes = e->pool.page_bytes;
    b.n_items = 1;
    b.items[0].data = base;
    b.items[0].bytes = s->bytes;
    b.items[0].flags = flags;
    return ps_kernels_clean(&ps_driver, &e->kernels, stream, &b);
}

/* A tail in the order of the stream, uniform from end to end, unless nobody will look. */
static CUresult clean_tail(struct ps_engine *e, const struct ps_group *g, const struct ps_tensor *t,
                           CUstream stream)
{
    const struct ps_lane_slot *s = t->place->tail;
    const uint64_t base = t->slot.base + t->home_bytes;
    if (t->row_mode == PS_ROW_MODE_TRUSTED) {
        return clean_flagged(e, base, s, 0, stream);
    }
    if (g->row_mode == PS_ROW_MODE_CHECK) {
        return ps_driver.cuMemsetD32Async(base, ps_rows_fill(g), s->bytes / 4, stream);
    }
    return s->scanned ? clean_flagged(e, base, s, s->flags, stream)
                      : ps_driver.cuMemsetD32Async(base, 0, s->bytes / 4, stream);
}

/* The same for a tail that is aside. */
static CUresult clean_aside(const struct ps_group *g, const struct ps_tensor *t, CUstream stream)
{
    return t->row_mode == PS_ROW_MODE_TRUSTED
               ? CUDA_SUCCESS
               : ps_driver.cuMemsetD32Async(t->slot.base + t->home_bytes, ps_rows_fill(g),
                                            t->place->tail->bytes / 4, stream);
}

/* The last owner's tail went aside, and the device has not come to its end yet: the next one has its spare. */
static bool take_spare(struct ps_engine *e, const struct ps_group *g, const struct ps_tensor *t,
                       CUstream stream)
{
    const struct ps_place *place = t->place;
    const uint64_t key = ps_stream_key(e->ctx, stream);
    if (ps_fence_wait(place->ready[0], key, stream) == CUDA_SUCCESS &&
        ps_fence_wait(place->ready[1], key, stream) == CUDA_SUCCESS &&
        clean_aside(g, t, stream) == CUDA_SUCCESS) {
        return true;
    }
    ps_count(errors, 1);
    return false;
}

/* The slot for a new tensor: it waits for a stash of ours, but never for another stream's work. */
static bool take_tail(struct ps_engine *e, const struct ps_group *g, struct ps_tensor *t,
                      CUstream stream)
{
    struct ps_place *place = t->place;
    struct ps_lane_slot *s = place->tail;
    const uint64_t key = ps_stream_key(e->ctx, stream);

    if (place->aside) {
        return place->spare != NULL && take_spare(e, g, t, stream);
    }
    if (s->owner != NULL) {
        if (!may_evict(s->owner)) {
            const struct ps_group *in = s->owner->group;
            ps_trace("group %u is in the lane: state %u, %u pins%s%s%s%s%s", in->seg.group,
                     (unsigned)s->owner->state, s->owner->pins, in->returned ? ", returned" : "",
                     in->kept ? ", kept" : "", in->stays ? ", stays" : "",
                     in->crowded ? ", crowded" : "", in->record_due ? ", touched" : "");
            return false;
        }
        evict(e, s);
    } else if (!ready_for(s->ready, key)) {
        return false;
    }
    if (!order_slot(e, s, stream)) {
        ps_count(errors, 1);
        return false; /* nothing of this stream runs in it, and it is behind what it was */
    }
    if (clean_tail(e, g, t, stream) != CUDA_SUCCESS) {
        ps_count(errors, 1);
        /* Whatever was enqueued is part of the slot's past now. */
        CUresult r;
        struct ps_fence *f = ps_fence_record(&e->fences, e->ctx, stream, &r);
        ps_fence_unref(&e->fences, s->ready[1]);
        s->ready[1] = f != NULL ? f : ps_fence_never();
        s->elsewhere = true;
        s->scanned = false;
        return false;
    }
    drop_ready(e, s->ready);
    s->owner = t;
    s->scanned = false;
    return true;
}

/*
 * The slot is taken: by what a touch that no plan foresaw has brought back. The newcomer's tail begins aside, if
 * nothing runs through its addresses any more. Lock let go and taken again.
 */
static bool begin_aside(struct ps_engine *e, const struct ps_group *g, struct ps_tensor *t,
                        CUstream stream)
{
    struct ps_place *place = t->place;
    if (place->aside || ps_first_pending(place->ready) != NULL) {
        return false;
    }
    t->engine = e;
    t->state = PS_MOVING;
    (void)ps_mapping_unplanned(true);
    CUresult r = ps_place_step_aside(e, t);
    (void)ps_mapping_unplanned(false);
    if (r == CUDA_SUCCESS && e->state == PS_ENGINE_READY) {
        r = clean_aside(g, t, stream);
    }
    return r == CUDA_SUCCESS && e->state == PS_ENGINE_READY;
}

enum ps_placing ps_places_alloc(struct ps_engine *e, struct ps_group *g, struct ps_site *site,
                                uint64_t bytes, CUstream stream, struct ps_tensor **t_p)
{
    const struct ps_plan_site *planned = ps_plan_find(&e->places->plan, g->name, site->ordinal);
    if (planned == NULL) {
        return PS_PLACE_MISS;
    }
    if (planned->class == PS_PLAN_TEMPORARY) {
        return PS_PLACE_LEFT;
    }
    struct ps_place_set *set = set_of(e, g, ps_stream_key(e->ctx, stream));
    if (set == NULL) {
        return PS_PLACE_MISS;
    }
    struct ps_place *place = &set->places[planned - e->places->plan.sites - set->first_site];
    /* The set was ready for the stream of the group's first allocation; this may be another. */
    if (place->owner != NULL || place->slot.bytes < bytes ||
        !ready_for(place->ready, ps_stream_key(e->ctx, stream))) {
        return PS_PLACE_MISS;
    }
    struct ps_tensor *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        return PS_PLACE_MISS;
    }
    t->slot = place->slot;
    t->place = place;
    t->home_bytes = place->home_bytes;
    ps_rows_choose(g, site, bytes, t);
    place->owner = t;
    if (place->tail != NULL && ps_tensor_tail(t, bytes) > 0 && !take_tail(e, g, t, stream) &&
        !begin_aside(e, g, t, stream)) {
        if (e->state == PS_ENGINE_READY) {
            place->owner = NULL;
        }
        free(t);
        return PS_PLACE_TAKEN;
    }
    drop_ready(e, place->ready);
    if (g->row_mode == PS_ROW_MODE_CHECK && t->home_bytes > 0) {
        /* What is computed of it shall be uniform as well. */
        ps_count(errors, ps_driver.cuMemsetD32Async(t->slot.base, ps_rows_fill(g),
                                                    t->home_bytes / 4, stream) != CUDA_SUCCESS);
    }
    ps_trace("group %u (%llu) allocation %u: %llx, home %llu, tail %llu of %llu, slot %ld lane %u",
             g->seg.group, (unsigned long long)g->serial, site->ordinal,
             (unsigned long long)place->slot.base, (unsigned long long)place->home_bytes,
             (unsigned long long)ps_tensor_tail(t, bytes), (unsigned long long)bytes,
             place->tail != NULL ? (long)(place->tail - e->places->slots) : -1L, set->lane);
    *t_p = t;
    return PS_PLACED;
}

void ps_place_leave(struct ps_engine *e, struct ps_tensor *t, bool was_stashed)
{
    struct ps_place *place = t->place;
    struct ps_lane_slot *s = place->tail;

    if (s != NULL && s->owner == t) {
        drop_ready(e, s->ready);
        s->owner = NULL;
        s->ready[0] = ps_fence_ref(t->ready[0]);
        s->ready[1] = ps_fence_ref(t->ready[1]);
        s->elsewhere = t->foreign;
        s->scanned = s->scanned && was_stashed;
    }
    place->owner = NULL;
    place->ready[0] = t->ready[0];
    place->ready[1] = t->ready[1];
    place->elsewhere = t->foreign;
    t->ready[0] = t->ready[1] = NULL;
    t->place = NULL;
}

void ps_places_group_gone(const struct ps_group *g)
{
    if (g->set != NULL) {
        g->set->group = NULL;
    }
}

/* A region whose instance is still open has taken the lane, or will: its next tensors must find their slots. */
static bool lane_claimed(const struct ps_engine *e, const struct ps_group *g)
{
    const struct ps_places *p = e->places;
    const uint32_t coming = ps_learn_coming_set(e);
    bool claimed = g->set != NULL && coming < p->plan.n_sets && &p->sets[coming] != g->set &&
                   p->sets[coming].lane == g->set->lane;
    for (uint32_t i = 0; g->set != NULL && i < p->plan.n_sets && !claimed; i++) {
        const struct ps_place_set *set = &p->sets[i];
        claimed =
            set != g->set && set->lane == g->set->lane && set->group != NULL && set->group->open;
    }
    return claimed;
}

bool ps_places_in_return(const struct ps_engine *e, const struct ps_group *g)
{
    const struct ps_places *p = e->places;
    bool in = false;
    for (uint32_t i = 0; p != NULL && g->set != NULL && i < p->plan.n_slots && !in; i++) {
        const struct ps_tensor *t = g->set->lane < p->plan.n_lanes
                                        ? p->slots[g->set->lane * p->plan.n_slots + i].owner
                                        : NULL;
        in = t != NULL && t->group != NULL && t->group != g && t->group->returned && !t->freed;
    }
    return in;
}

bool ps_place_vacant(const struct ps_engine *e, const struct ps_tensor *t)
{
    const struct ps_place *place = t->place;
    return place != NULL && !place->aside &&
           (place->tail->owner == NULL || may_evict(place->tail->owner)) &&
           !lane_claimed(e, t->group);
}

bool ps_place_enter(struct ps_engine *e, struct ps_tensor *t, CUstream stream)
{
    struct ps_place *place = t->place;
    struct ps_lane_slot *s = place->tail;
    const uint64_t key = ps_stream_key(e->ctx, stream);

    t->flags_known = false;
    if (!place->aside && s->owner == t) {
        return true; /* ps_place_exit could not take it away */
    }
    if (place->aside || (s->owner != NULL && !may_evict(s->owner)) || lane_claimed(e, t->group)) {
        if (s->owner != NULL && s->owner->group != NULL) {
            ps_trace(
                "the tail of group %u cannot come in: group %u is in its lane (state %u, %u pins%s%s%s)",
                t->group->seg.group, s->owner->group->seg.group, s->owner->state, s->owner->pins,
                s->owner->group->open ? ", open" : "",
                s->owner->group->returned ? ", returned" : "",
                s->owner->group->stays ? ", stays" : "");
        }
        return false;
    }
    if (s->owner != NULL) {
        evict(e, s);
    }
    /* An end on another stream than this and the group's may depend on this thread. */
    if (!ready_for(s->ready, key) && !ready_for(s->ready, t->group->stream_key)) {
        return false;
    }
    if (!order_slot(e, s, stream)) {
        return false;
    }
    drop_ready(e, s->ready);
    s->owner = t;
    /* Of a shorter tail's last page the flag does not speak for all. */
    t->flags_known = s->scanned && ps_tensor_tail(t, t->bytes) <= s->scanned_bytes;
    s->scanned = false;
    return true;
}

void ps_place_exit(struct ps_engine *e, struct ps_tensor *t, bool idle)
{
    const struct ps_place *place = t->place;
    struct ps_lane_slot *s = place->tail;
    if (!idle) {
        /* The slot, or the spare, stays its own. */
        t->runs_on = place->aside ? place->spare != NULL : s->owner == t;
    } else if (!place->aside && s->owner == t) {
        drop_ready(e, s->ready);
        s->owner = NULL;
        s->scanned = false;
    }
}

void ps_place_scanned(struct ps_tensor *t)
{
    if (t->place != NULL && !t->place->aside) {
        t->place->tail->scanned = true;
        t->place->tail->scanned_bytes = ps_tensor_tail(t, t->bytes);
    }
}

void ps_place_touched(struct ps_tensor *t)
{
    if (t->place != NULL && !t->place->aside && t->place->tail != NULL) {
        t->place->tail->scanned = false;
    }
}
