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

/* ---- making and ending: lock not held ---- */

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static CUresult map_one(const struct ps_engine *e, uint64_t base, uint64_t bytes,
                        CUmemGenericAllocationHandle handle)
{
    ps_count_map();
    CUresult r = ps_driver.cuMemMap(base, bytes, 0, handle, 0);
    if (r == CUDA_SUCCESS) {
        r = ps_memory_access(e, base, bytes);
        if (r != CUDA_SUCCESS) {
            (void)ps_memory_unmap(base, bytes);
        }
    }
    return r;
}

static bool take_slot(uint64_t bytes, struct ps_slot *slot_p)
{
    pthread_mutex_lock(&ps_lock);
    const bool ok = ps_slot_take(bytes, slot_p);
    pthread_mutex_unlock(&ps_lock);
    return ok;
}

static void give_slot(struct ps_slot *slot)
{
    pthread_mutex_lock(&ps_lock);
    ps_slot_give(slot);
    pthread_mutex_unlock(&ps_lock);
    slot->bytes = 0;
}

/* Memory of `bytes` mapped at base; *handle_p stays 0 on failure. */
static CUresult make_mapped(struct ps_engine *e, uint64_t base, uint64_t bytes,
                            CUmemGenericAllocationHandle *handle_p)
{
    CUmemGenericAllocationHandle h;
    CUresult r = ps_memory_create(e, bytes, &h);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    r = map_one(e, base, bytes, h);
    if (r != CUDA_SUCCESS) {
        ps_driver.cuMemRelease(h);
        return r;
    }
    *handle_p = h;
    return CUDA_SUCCESS;
}

static bool make_place(struct ps_engine *e, struct ps_places *p, const struct ps_place_set *set,
                       const struct ps_plan_site *site, struct ps_place *place)
{
    struct ps_lane_slot *tail = site->class == PS_PLAN_STASH && set->lane < p->plan.n_lanes
                                    ? &p->slots[set->lane * p->plan.n_slots + site->slot]
                                    : NULL;
    const uint64_t tail_bytes = tail != NULL ? tail->bytes : 0;

    if (site->class == PS_PLAN_TEMPORARY || site->home_bytes + tail_bytes == 0) {
        return true;
    }
    if (!take_slot(site->home_bytes + tail_bytes, &place->slot)) {
        return false;
    }
    place->home_bytes = site->home_bytes;
    if (site->home_bytes > 0 &&
        make_mapped(e, place->slot.base, site->home_bytes, &place->home) != CUDA_SUCCESS) {
        return false;
    }
    p->bytes += site->home_bytes;
    if (tail != NULL && map_one(e, place->slot.base + site->home_bytes, tail->bytes,
                                tail->handle) != CUDA_SUCCESS) {
        return false;
    }
    place->tail = tail;
    return true;
}

static bool make_set(struct ps_engine *e, struct ps_places *p, uint32_t i)
{
    struct ps_place_set *set = &p->sets[i];
    const struct ps_plan *plan = &p->plan;

    set->name = plan->sets[i].name;
    set->lane = plan->sets[i].lane;
    while (set->first_site < plan->n_sites && plan->sites[set->first_site].name != set->name) {
        set->first_site++;
    }
    uint32_t end = set->first_site;
    while (end < plan->n_sites && plan->sites[end].name == set->name) {
        end++;
    }
    set->places = calloc(end - set->first_site + 1, sizeof(*set->places));
    if (set->places == NULL) {
        return false;
    }
    set->n_places = end - set->first_site;
    for (uint32_t k = 0; k < set->n_places; k++) {
        if (!make_place(e, p, set, &plan->sites[set->first_site + k], &set->places[k])) {
            return false;
        }
    }
    return true;
}

static uint64_t slot_pages(const struct ps_engine *e, uint64_t bytes)
{
    return round_up(ps_pool_pages(&e->pool, bytes), 16);
}

/* One byte a page of every slot, all "not known". */
static bool make_flags(struct ps_engine *e, struct ps_places *p)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->plan.n_lanes * p->plan.n_slots; i++) {
        bytes += slot_pages(e, p->slots[i].bytes);
    }
    bytes = round_up(bytes != 0 ? bytes : 1, e->granularity);
    if (!take_slot(bytes, &p->flags) ||
        make_mapped(e, p->flags.base, bytes, &p->flags_handle) != CUDA_SUCCESS) {
        return false;
    }
    p->bytes += bytes;
    uint64_t at = p->flags.base;
    for (uint32_t i = 0; i < p->plan.n_lanes * p->plan.n_slots; i++) {
        p->slots[i].flags = at;
        at += slot_pages(e, p->slots[i].bytes);
    }
    return true;
}

static bool make_lanes(struct ps_engine *e, struct ps_places *p)
{
    for (uint32_t i = 0; i < p->plan.n_lanes * p->plan.n_slots; i++) {
        struct ps_lane_slot *s = &p->slots[i];
        s->bytes = p->plan.slot_bytes[i % p->plan.n_slots];
        if (s->bytes > 0 && ps_memory_create(e, s->bytes, &s->handle) != CUDA_SUCCESS) {
            s->bytes = 0;
            return false;
        }
        p->bytes += s->bytes;
    }
    return make_flags(e, p);
}

/* Memory for a tail that is aside; the last resort is what was freed and is not over yet. Lock not held. */
static struct ps_spare *make_spare(struct ps_engine *e, uint64_t bytes, CUresult *r_p)
{
    struct ps_spare *spare = calloc(1, sizeof(*spare));
    if (spare == NULL) {
        *r_p = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    spare->bytes = bytes;
    *r_p = ps_memory_create(e, bytes, &spare->handle);
    if (*r_p == CUDA_ERROR_OUT_OF_MEMORY) {
        ps_memory_trim_pool(e);
        ps_memory_release_idle(e);
        *r_p = ps_memory_create(e, bytes, &spare->handle);
    }
    if (*r_p == CUDA_ERROR_OUT_OF_MEMORY) {
        ps_count(host_syncs, 1);
        ps_driver.cuCtxSynchronize();
        ps_memory_release_idle(e);
        *r_p = ps_memory_create(e, bytes, &spare->handle);
    }
    if (*r_p != CUDA_SUCCESS) {
        free(spare);
        return NULL;
    }
    return spare;
}

/* One spare for the largest tail: no touch can fail for want of it. */
static bool hold_spare(struct ps_engine *e, struct ps_places *p)
{
    uint64_t largest = 0;
    CUresult r;
    for (uint32_t i = 0; i < p->plan.n_slots; i++) {
        largest = p->plan.slot_bytes[i] > largest ? p->plan.slot_bytes[i] : largest;
    }
    if (largest == 0) {
        return true;
    }
    p->spares = make_spare(e, largest, &r);
    p->bytes += p->spares != NULL ? largest : 0;
    return p->spares != NULL;
}

struct ps_places *ps_places_make(struct ps_engine *e, struct ps_plan *plan)
{
    struct ps_places *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return NULL;
    }
    p->plan = *plan;
    p->sets = calloc(plan->n_sets + 1, sizeof(*p->sets));
    p->slots = calloc((size_t)plan->n_lanes * plan->n_slots + 1, sizeof(*p->slots));
    bool ok = p->sets != NULL && p->slots != NULL && make_lanes(e, p) && hold_spare(e, p);
    for (uint32_t i = 0; ok && i < plan->n_sets; i++) {
        ok = make_set(e, p, i);
    }
    if (!ok) {
        memset(&p->plan, 0, sizeof(p->plan)); /* it stays the caller's */
        p->plan.n_sets = p->sets != NULL ? plan->n_sets : 0;
        p->plan.n_lanes = p->slots != NULL ? plan->n_lanes : 0;
        p->plan.n_slots = plan->n_slots;
        ps_places_free(e, p);
        return NULL;
    }
    return p;
}

static void free_place(struct ps_engine *e, struct ps_place *place)
{
    bool stuck = false;
    if (place->slot.bytes == 0) {
        return;
    }
    if (place->home != 0) {
        stuck = ps_memory_unmap(place->slot.base, place->home_bytes) != CUDA_SUCCESS;
        ps_driver.cuMemRelease(place->home);
    }
    if (place->spare != NULL) {
        stuck = ps_memory_unmap(place->slot.base + place->home_bytes, place->tail->bytes) !=
                    CUDA_SUCCESS ||
                stuck;
        ps_driver.cuMemRelease(place->spare->handle);
        free(place->spare);
    }
    if (place->tail != NULL && !place->aside) {
        stuck = ps_memory_unmap(place->slot.base + place->home_bytes, place->tail->bytes) !=
                    CUDA_SUCCESS ||
                stuck;
    }
    if (!stuck) {
        give_slot(&place->slot);
    }
    pthread_mutex_lock(&ps_lock);
    place->ready[0] = ps_fence_unref(&e->fences, place->ready[0]);
    place->ready[1] = ps_fence_unref(&e->fences, place->ready[1]);
    pthread_mutex_unlock(&ps_lock);
}

void ps_places_free(struct ps_engine *e, struct ps_places *p)
{
    for (uint32_t i = 0; i < p->plan.n_sets; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places; k++) {
            free_place(e, &p->sets[i].places[k]);
        }
        free(p->sets[i].places);
    }
    if (p->flags_handle != 0) {
        (void)ps_memory_unmap(p->flags.base, p->flags.bytes);
        ps_driver.cuMemRelease(p->flags_handle);
    }
    if (p->flags.bytes != 0) {
        give_slot(&p->flags);
    }
    for (uint32_t i = 0; i < p->plan.n_lanes * p->plan.n_slots; i++) {
        struct ps_lane_slot *s = &p->slots[i];
        if (s->bytes != 0) {
            ps_driver.cuMemRelease(s->handle);
        }
        pthread_mutex_lock(&ps_lock);
        s->ready[0] = ps_fence_unref(&e->fences, s->ready[0]);
        s->ready[1] = ps_fence_unref(&e->fences, s->ready[1]);
        pthread_mutex_unlock(&ps_lock);
    }
    while (p->spares != NULL) {
        struct ps_spare *spare = p->spares;
        p->spares = spare->next;
        ps_driver.cuMemRelease(spare->handle);
        free(spare);
    }
    free(p->sets);
    free(p->slots);
    if (p->plan.sites != NULL) {
        ps_plan_fini(&p->plan);
    }
    free(p);
}

static struct ps_fence *first_pending(struct ps_fence *const ready[2])
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
        open = p->slots[i].elsewhere && first_pending(p->slots[i].ready) != NULL;
    }
    for (uint32_t i = 0; i < p->plan.n_sets && !open; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places && !open; k++) {
            const struct ps_place *place = &p->sets[i].places[k];
            open = place->elsewhere && first_pending(place->ready) != NULL;
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
        f = first_pending(p->slots[i].ready);
    }
    for (uint32_t i = 0; i < p->plan.n_sets && f == NULL; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places && f == NULL; k++) {
            f = first_pending(p->sets[i].places[k].ready);
        }
    }
    return f;
}

/* ---- from here on the lock is held ---- */

/*
 * Over, in the order of the stream, or on a stream of ours, which waits for nothing but what the job's stream had
 * before: those may be waited for.
 */
static bool ready_for(const struct ps_engine *e, struct ps_fence *const ready[2], uint64_t key)
{
    const uint64_t stash = ps_stream_key(e->ctx, e->stash_stream);
    const uint64_t restore = ps_stream_key(e->ctx, e->restore_stream);
    for (int i = 0; i < 2; i++) {
        if (ready[i] != NULL && ready[i]->stream_key != key && ready[i]->stream_key != stash &&
            ready[i]->stream_key != restore && !ps_fence_done(ready[i])) {
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
static bool set_ready(const struct ps_engine *e, const struct ps_place_set *set, uint64_t key)
{
    if (set->group != NULL) {
        return false;
    }
    for (uint32_t k = 0; k < set->n_places; k++) {
        const struct ps_place *place = &set->places[k];
        if (place->owner != NULL || (place->aside && place->spare == NULL) || place->busy ||
            !ready_for(e, place->ready, key)) {
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
        set_ready(e, &p->sets[wanted], key)) {
        best = &p->sets[wanted];
        *state_p = lane_state(p, best->lane);
        if (*state_p != LANE_TAKEN) {
            return best;
        }
    }
    for (uint32_t i = 0; i < p->plan.n_sets; i++) {
        struct ps_place_set *set = &p->sets[i];
        if (set->name != name || !set_ready(e, set, key)) {
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

/* Zeroes the pages that the last scan found not uniform, and makes the slot the new address's. */
static CUresult clean_flagged(struct ps_engine *e, uint64_t base, const struct ps_lane_slot *s,
                              CUstream stream)
{
    struct ps_batch b;
    memset(&b, 0, offsetof(struct ps_batch, items));
    memset(&b.items[0], 0, sizeof(b.items[0]));
    b.page_bytes = e->pool.page_bytes;
    b.n_items = 1;
    b.items[0].data = base;
    b.items[0].bytes = s->bytes;
    b.items[0].flags = s->flags;
    return ps_kernels_clean(&ps_driver, &e->kernels, stream, &b);
}

/* A tail in the order of the stream, uniform from end to end. */
static CUresult clean_tail(struct ps_engine *e, const struct ps_place *place, CUstream stream)
{
    const struct ps_lane_slot *s = place->tail;
    const uint64_t base = place->slot.base + place->home_bytes;
    if (s->scanned) {
        return clean_flagged(e, base, s, stream);
    }
    return ps_driver.cuMemsetD32Async(base, 0, s->bytes / 4, stream);
}

/* The last owner's tail went aside, and the device has not come to its end yet: the next one has its spare. */
static bool take_spare(struct ps_engine *e, const struct ps_place *place, CUstream stream)
{
    const uint64_t key = ps_stream_key(e->ctx, stream);
    if (ps_fence_wait(place->ready[0], key, stream) == CUDA_SUCCESS &&
        ps_fence_wait(place->ready[1], key, stream) == CUDA_SUCCESS &&
        ps_driver.cuMemsetD32Async(place->slot.base + place->home_bytes, 0, place->spare->bytes / 4,
                                   stream) == CUDA_SUCCESS) {
        return true;
    }
    ps_count(errors, 1);
    return false;
}

/* The slot for a new tensor: it waits for a stash of ours, but never for another stream's work. */
static bool take_tail(struct ps_engine *e, struct ps_tensor *t, CUstream stream)
{
    struct ps_place *place = t->place;
    struct ps_lane_slot *s = place->tail;
    const uint64_t key = ps_stream_key(e->ctx, stream);

    if (place->aside) {
        return place->spare != NULL && take_spare(e, place, stream);
    }
    if (s->owner != NULL) {
        if (!may_evict(s->owner)) {
            const struct ps_group *g = s->owner->group;
            ps_trace("group %u is in the lane: state %u, %u pins%s%s%s%s%s", g->seg.group,
                     (unsigned)s->owner->state, s->owner->pins, g->returned ? ", returned" : "",
                     g->kept ? ", kept" : "", g->stays ? ", stays" : "",
                     g->crowded ? ", crowded" : "", g->record_due ? ", touched" : "");
            return false;
        }
        evict(e, s);
    } else if (!ready_for(e, s->ready, key)) {
        return false;
    }
    if (!order_slot(e, s, stream) || clean_tail(e, place, stream) != CUDA_SUCCESS) {
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
 * The slot is taken: by what a touch that no plan foresaw has brought back. The newcomer's tail begins aside, if nothing
 * runs through its addresses any more. Lock let go and taken again.
 */
static bool begin_aside(struct ps_engine *e, struct ps_tensor *t, CUstream stream)
{
    struct ps_place *place = t->place;
    if (place->aside || first_pending(place->ready) != NULL) {
        return false;
    }
    t->engine = e;
    t->state = PS_MOVING;
    ps_mapping_unplanned(true);
    CUresult r = ps_place_step_aside(e, t);
    ps_mapping_unplanned(false);
    if (r == CUDA_SUCCESS && e->state == PS_ENGINE_READY) {
        r = ps_driver.cuMemsetD32Async(t->slot.base + t->home_bytes, 0, place->tail->bytes / 4,
                                       stream);
    }
    return r == CUDA_SUCCESS && e->state == PS_ENGINE_READY;
}

enum ps_placing ps_places_alloc(struct ps_engine *e, struct ps_group *g, const struct ps_site *site,
                                uint64_t bytes, CUstream stream, struct ps_tensor **t_p)
{
    const struct ps_plan_site *planned = ps_plan_find(&e->places->plan, g->name, site->ordinal);
    if (planned == NULL) {
        return PS_PLACE_MISS;
    }
    if (planned->class == PS_PLAN_TEMPORARY) {
        return ps_site_exact(site) ? PS_PLACE_LEFT : PS_PLACE_NONE;
    }
    struct ps_place_set *set = set_of(e, g, ps_stream_key(e->ctx, stream));
    if (set == NULL) {
        return PS_PLACE_MISS;
    }
    struct ps_place *place = &set->places[planned - e->places->plan.sites - set->first_site];
    /* The set was ready for the stream of the group's first allocation; this may be another. */
    if (place->owner != NULL || place->slot.bytes < bytes ||
        !ready_for(e, place->ready, ps_stream_key(e->ctx, stream))) {
        return PS_PLACE_MISS;
    }
    struct ps_tensor *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        return PS_PLACE_MISS;
    }
    t->slot = place->slot;
    t->place = place;
    t->home_bytes = place->home_bytes;
    place->owner = t;
    if (place->tail != NULL && ps_tensor_tail(t, bytes) > 0 && !take_tail(e, t, stream) &&
        !begin_aside(e, t, stream)) {
        if (e->state == PS_ENGINE_READY) {
            place->owner = NULL;
        }
        free(t);
        return PS_PLACE_MISS;
    }
    drop_ready(e, place->ready);
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

bool ps_place_vacant(const struct ps_tensor *t)
{
    const struct ps_place *place = t->place;
    return place != NULL && !place->aside &&
           (place->tail->owner == NULL || may_evict(place->tail->owner));
}

bool ps_place_enter(struct ps_engine *e, struct ps_tensor *t, CUstream stream)
{
    struct ps_place *place = t->place;
    struct ps_lane_slot *s = place->tail;
    const uint64_t key = ps_stream_key(e->ctx, stream);

    if (place->aside || (s->owner != NULL && !may_evict(s->owner))) {
        if (s->owner != NULL) {
            ps_trace(
                "the tail of group %u cannot come in: group %u is in its lane (state %u, %u pins%s%s%s)",
                t->group->seg.group, s->owner->group != NULL ? s->owner->group->seg.group : 0,
                s->owner->state, s->owner->pins, s->owner->group->open ? ", open" : "",
                s->owner->group->returned ? ", returned" : "",
                s->owner->group->stays ? ", stays" : "");
        }
        return false;
    }
    if (s->owner != NULL) {
        evict(e, s);
    }
    /* An end on another stream than this and the group's may depend on this thread. */
    if (!ready_for(e, s->ready, key) && !ready_for(e, s->ready, t->group->stream_key)) {
        return false;
    }
    if (!order_slot(e, s, stream)) {
        return false;
    }
    drop_ready(e, s->ready);
    s->owner = t;
    s->scanned = false;
    return true;
}

void ps_place_exit(struct ps_engine *e, struct ps_tensor *t, bool idle)
{
    struct ps_lane_slot *s = t->place->tail;
    if (!t->place->aside && s->owner == t) {
        drop_ready(e, s->ready);
        s->ready[0] = idle ? NULL : ps_fence_never();
        s->owner = NULL;
        s->scanned = false;
    }
}

void ps_place_scanned(struct ps_tensor *t)
{
    if (t->place != NULL && !t->place->aside) {
        t->place->tail->scanned = true;
    }
}

void ps_place_touched(struct ps_tensor *t)
{
    if (t->place != NULL && !t->place->aside && t->place->tail != NULL) {
        t->place->tail->scanned = false;
    }
}

static struct ps_spare *pop_spare(struct ps_places *p, uint64_t bytes)
{
    for (struct ps_spare **at = &p->spares; *at != NULL; at = &(*at)->next) {
        if ((*at)->bytes == bytes) {
            struct ps_spare *spare = *at;
            *at = spare->next;
            return spare;
        }
    }
    return NULL;
}

static void push_spare(struct ps_places *p, struct ps_spare *spare)
{
    spare->next = p->spares;
    p->spares = spare;
}

/* All spares beyond one for the largest tail, taken out: nothing is aside, so nobody needs them soon. */
static struct ps_spare *surplus(struct ps_engine *e, struct ps_places *p)
{
    struct ps_spare *out = NULL;
    struct ps_spare **largest = &p->spares;
    if (p->n_aside > 0 || p->spares == NULL) {
        return NULL;
    }
    for (struct ps_spare **at = &p->spares; *at != NULL; at = &(*at)->next) {
        largest = (*at)->bytes > (*largest)->bytes ? at : largest;
    }
    struct ps_spare *keep = *largest;
    *largest = keep->next;
    out = p->spares;
    p->spares = keep;
    keep->next = NULL;
    for (const struct ps_spare *spare = out; spare != NULL; spare = spare->next) {
        p->bytes -= spare->bytes;
        e->chunk_bytes -= spare->bytes;
    }
    return out;
}

static void count_spare(struct ps_engine *e, struct ps_places *p, uint64_t bytes)
{
    p->bytes += bytes;
    e->chunk_bytes += bytes;
    ps_counter_peak(&ps_counters.place_bytes_peak, e->chunk_bytes);
}

static void grant_tail(const struct ps_engine *e, const struct ps_place *place)
{
    if (place->tail != NULL && (!place->aside || place->spare != NULL) &&
        ps_memory_access(e, place->slot.base + place->home_bytes, place->tail->bytes) !=
            CUDA_SUCCESS) {
        ps_count(errors, 1);
        ps_error_once(
            "cannot grant a peer access to region tensors: its accesses to them will fail");
    }
}

void ps_places_grant(const struct ps_engine *e, const struct ps_places *p)
{
    for (uint32_t i = 0; i < p->plan.n_sets; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places; k++) {
            const struct ps_place *place = &p->sets[i].places[k];
            if (place->home != 0 &&
                ps_memory_access(e, place->slot.base, place->home_bytes) != CUDA_SUCCESS) {
                ps_count(errors, 1);
            }
            if (!place->busy) {
                grant_tail(e, place);
            }
        }
    }
}

CUresult ps_place_step_aside(struct ps_engine *e, struct ps_tensor *t)
{
    struct ps_places *p = e->places;
    struct ps_place *place = t->place;
    const uint64_t base = place->slot.base + place->home_bytes;
    const bool mapped = !place->aside;
    const uint32_t n_peers = e->n_peers;
    CUresult r = CUDA_SUCCESS;

    ps_assert(t->state == PS_MOVING);
    if (place->spare != NULL) {
        return CUDA_SUCCESS;
    }
    place->busy = true;
    struct ps_spare *spare = pop_spare(p, place->tail->bytes);
    const bool made = spare == NULL;
    struct ps_fence *f = t->copy != NULL ? ps_fence_ref(t->copy->stash) : NULL;
    const bool over = ps_fence_done(f);
    pthread_mutex_unlock(&ps_lock);
    if (!over) {
        /* It still reads through these addresses. */
        ps_count(unplanned_waits, 1);
        r = ps_driver.cuEventSynchronize(f->event);
    }
    if (r == CUDA_SUCCESS && made) {
        spare = make_spare(e, place->tail->bytes, &r);
    }
    bool unmapped = !mapped;
    if (r == CUDA_SUCCESS && mapped) {
        r = ps_memory_unmap(base, place->tail->bytes);
        unmapped = r == CUDA_SUCCESS;
    }
    if (r == CUDA_SUCCESS) {
        r = map_one(e, base, spare->bytes, spare->handle);
    }
    pthread_mutex_lock(&ps_lock);
    ps_fence_unref(&e->fences, f);
    if (made && spare != NULL) {
        count_spare(e, p, spare->bytes);
    }
    p->n_aside += mapped && unmapped;
    place->aside = unmapped;
    place->busy = false;
    if (r == CUDA_SUCCESS) {
        place->spare = spare;
        if (n_peers != e->n_peers) {
            grant_tail(e, place); /* a peer came while this was being mapped */
        }
    } else if (spare != NULL) {
        push_spare(p, spare);
    }
    return r;
}

/* The tail's addresses are the lane's again; nothing runs through them. Lock let go and taken again. */
static void map_back(struct ps_engine *e, struct ps_place *place)
{
    struct ps_places *p = e->places;
    const uint64_t base = place->slot.base + place->home_bytes;
    struct ps_spare *spare = place->spare;
    const uint32_t n_peers = e->n_peers;
    CUresult r = CUDA_SUCCESS;

    place->busy = true;
    pthread_mutex_unlock(&ps_lock);
    ps_mapping_unplanned(true);
    if (spare != NULL) {
        r = ps_memory_unmap(base, spare->bytes);
    }
    const bool unmapped = r == CUDA_SUCCESS;
    if (unmapped) {
        r = map_one(e, base, place->tail->bytes, place->tail->handle);
    }
    ps_mapping_unplanned(false);
    pthread_mutex_lock(&ps_lock);
    place->busy = false;
    if (unmapped && spare != NULL) {
        place->spare = NULL;
        push_spare(p, spare);
    }
    if (r == CUDA_SUCCESS) {
        place->aside = false;
        p->n_aside--;
        if (n_peers != e->n_peers) {
            grant_tail(e, place);
        }
    }
}

/* One step for a place that is aside. True: the lock was let go. */
static bool settle_aside(struct ps_engine *e, struct ps_place *place)
{
    struct ps_tensor *t = place->owner;
    if (t == NULL) {
        if (first_pending(place->ready) != NULL) {
            return false;
        }
        map_back(e, place);
        return true;
    }
    if (t->state == PS_CACHED && t->pins == 0 && !t->freed && t->copy->settled) {
        ps_list_remove(&e->cached, &e->cached_last, t);
    } else if (t->state != PS_OUT || t->freed) {
        return false;
    }
    t->state = PS_MOVING;
    map_back(e, place);
    t->state = PS_OUT;
    pthread_cond_broadcast(&ps_moved);
    if (t->freed && t->pins == 0) {
        ps_tensor_die(t);
    }
    return true;
}

void ps_places_tidy(struct ps_engine *e)
{
    struct ps_places *p = e->places;
    if (p == NULL || p->n_aside == 0) {
        return;
    }
    for (uint32_t i = 0; i < p->plan.n_sets; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places; k++) {
            struct ps_place *place = &p->sets[i].places[k];
            if (place->aside && !place->busy && settle_aside(e, place) && e->places != p) {
                return;
            }
        }
    }
    struct ps_spare *spare = surplus(e, p);
    if (spare != NULL) {
        pthread_mutex_unlock(&ps_lock);
        while (spare != NULL) {
            struct ps_spare *next = spare->next;
            ps_driver.cuMemRelease(spare->handle);
            free(spare);
            spare = next;
        }
        pthread_mutex_lock(&ps_lock);
    }
}
