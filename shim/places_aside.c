/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tails that are aside, and the spares they lie in; see places.h. Any thread; the lock is held, and let go around
 * mapping calls and waits: the place is `busy` meanwhile, and its tensor PS_MOVING.
 */
#include "shim/places.h"

#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"
#include "shim/places_int.h"

/* The smallest that is large enough; NULL: there is none. */
static struct ps_spare *pop_spare(struct ps_places *p, uint64_t bytes)
{
    struct ps_spare **best = NULL;
    for (struct ps_spare **at = &p->spares; *at != NULL; at = &(*at)->next) {
        if ((*at)->bytes >= bytes && (best == NULL || (*at)->bytes < (*best)->bytes)) {
            best = at;
        }
    }
    struct ps_spare *spare = best != NULL ? *best : NULL;
    if (spare != NULL) {
        *best = spare->next;
    }
    return spare;
}

static void push_spare(struct ps_places *p, struct ps_spare *spare)
{
    spare->next = p->spares;
    p->spares = spare;
}

/* All spares beyond the largest, taken out: nothing is aside, so nobody needs them soon. */
static struct ps_spare *surplus(struct ps_engine *e, struct ps_places *p)
{
    struct ps_spare *keep = p->n_aside == 0 ? pop_spare(p, p->spare_bytes) : NULL;
    struct ps_spare *out = keep != NULL ? p->spares : NULL;
    if (keep != NULL) {
        keep->next = NULL;
        p->spares = keep;
    }
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
    const bool was = ps_mapping_unplanned(true);
    if (spare != NULL) {
        r = ps_memory_unmap(base, place->tail->bytes);
    }
    const bool unmapped = r == CUDA_SUCCESS;
    if (unmapped) {
        r = ps_place_map(e, base, place->tail->bytes, place->tail->handle);
    }
    (void)ps_mapping_unplanned(was);
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
            ps_place_grant(e, place);
        }
    }
}

/* One step for a place that is aside. True: the lock was let go. */
static bool settle_aside(struct ps_engine *e, struct ps_place *place)
{
    struct ps_tensor *t = place->owner;
    if (t == NULL) {
        if (ps_first_pending(place->ready) != NULL) {
            return false;
        }
        map_back(e, place);
        return true;
    }
    if (t->state == PS_CACHED && t->pins == 0 && !t->freed && t->copy->settled) {
        ps_list_remove(&e->cached, &e->cached_last, t);
    } else if (t->state != PS_OUT || t->freed || t->runs_on) {
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

/* Maps back what can be. False: the places have gone. Lock let go and taken again. */
static bool settle_all(struct ps_engine *e, struct ps_places *p)
{
    for (uint32_t i = 0; i < p->plan.n_sets; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places; k++) {
            struct ps_place *place = &p->sets[i].places[k];
            if (place->aside && !place->busy && settle_aside(e, place) && e->places != p) {
                return false;
            }
        }
    }
    return true;
}

/* A spare that is there; what is aside goes back to its lane for it, if it can. Lock let go and taken again. */
static struct ps_spare *find_spare(struct ps_engine *e, struct ps_places *p, uint64_t bytes)
{
    struct ps_spare *spare = pop_spare(p, bytes);
    if (spare == NULL) {
        (void)settle_all(e, p);
        spare = pop_spare(p, bytes);
    }
    return spare;
}

/* However long it takes: nothing else gives the launch its bytes. Lock not held. */
static CUresult await_stash(CUevent event)
{
    CUresult r = ps_wait_bounded(event);
    if (r == CUDA_ERROR_NOT_READY) {
        ps_warn_once(
            "a launch names a tensor whose stash the device does not come to: waiting for it; if the device waits "
            "for what this thread does next, the job stands still (then PAGEDSTASH_PLAN=n helps)");
        r = ps_driver.cuEventSynchronize(event);
    }
    return r;
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
    struct ps_spare *spare = find_spare(e, p, place->tail->bytes);
    const bool made = spare == NULL;
    struct ps_fence *f = t->copy != NULL ? ps_fence_ref(t->copy->stash) : NULL;
    const bool over = f == NULL || ps_fence_done(f);
    pthread_mutex_unlock(&ps_lock);
    if (!over) {
        /* It still reads through these addresses. */
        ps_count(unplanned_waits, 1);
        r = await_stash(f->event);
    }
    if (r == CUDA_SUCCESS && made) {
        spare = ps_spare_make(e, p, place->tail->bytes, &r);
    }
    bool unmapped = !mapped;
    if (r == CUDA_SUCCESS && mapped) {
        r = ps_memory_unmap(base, place->tail->bytes);
        unmapped = r == CUDA_SUCCESS;
    }
    if (r == CUDA_SUCCESS) {
        r = ps_spare_map(e, p, spare, base, place->tail->bytes);
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
            ps_place_grant(e, place); /* a peer came while this was being mapped */
        }
    } else if (spare != NULL) {
        push_spare(p, spare);
    }
    return r;
}

void ps_places_tidy(struct ps_engine *e)
{
    struct ps_places *p = e->places;
    if (p == NULL || p->n_aside == 0) {
        return;
    }
    if (!settle_all(e, p)) {
        return;
    }
    struct ps_spare *spare = surplus(e, p);
    if (spare != NULL) {
        pthread_mutex_unlock(&ps_lock);
        while (spare != NULL) {
            struct ps_spare *next = spare->next;
            ps_spare_free(p, spare);
            spare = next;
        }
        pthread_mutex_lock(&ps_lock);
    }
}
