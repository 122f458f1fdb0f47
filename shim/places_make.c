/* SPDX-License-Identifier: Apache-2.0 */
/* Making the places of a plan and ending them; see places.h. Any thread; lock not held, it is taken for addresses. */
#include "shim/places.h"

#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"
#include "shim/places_int.h"

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

CUresult ps_place_map(const struct ps_engine *e, uint64_t base, uint64_t bytes,
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
    r = ps_place_map(e, base, bytes, h);
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
    if (tail != NULL && ps_place_map(e, place->slot.base + site->home_bytes, tail->bytes,
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
        if (s->bytes > 0 && ps_memory_create_compressible(e, s->bytes, &s->handle,
                                                          &s->compressible) != CUDA_SUCCESS) {
            s->bytes = 0;
            return false;
        }
        p->bytes += s->bytes;
    }
    return make_flags(e, p);
}

void ps_spare_free(const struct ps_places *p, struct ps_spare *spare)
{
    for (uint32_t i = 0; i < p->n_parts; i++) {
        if (spare->part[i] != 0) {
            ps_driver.cuMemRelease(spare->part[i]);
        }
    }
    free(spare);
}

/* Makes the parts that are not there yet. */
static CUresult make_parts(struct ps_engine *e, const struct ps_places *p, struct ps_spare *spare)
{
    uint64_t end = 0;
    for (uint32_t i = 0; end < spare->bytes; i++) {
        end += p->part_bytes[i];
        if (spare->part[i] == 0) {
            const CUresult r = ps_memory_create(e, p->part_bytes[i], &spare->part[i]);
            if (r != CUDA_SUCCESS) {
                spare->part[i] = 0;
                return r;
            }
        }
    }
    return CUDA_SUCCESS;
}

struct ps_spare *ps_spare_make(struct ps_engine *e, const struct ps_places *p, uint64_t bytes,
                               CUresult *r_p)
{
    struct ps_spare *spare = calloc(1, sizeof(*spare));
    if (spare == NULL) {
        *r_p = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    spare->bytes = bytes;
    *r_p = make_parts(e, p, spare);
    if (*r_p == CUDA_ERROR_OUT_OF_MEMORY) {
        ps_memory_trim_pool(e);
        ps_memory_release_idle(e);
        *r_p = make_parts(e, p, spare);
    }
    if (*r_p == CUDA_ERROR_OUT_OF_MEMORY) {
        ps_count(host_syncs, 1);
        ps_driver.cuCtxSynchronize();
        ps_memory_release_idle(e);
        *r_p = make_parts(e, p, spare);
    }
    if (*r_p != CUDA_SUCCESS) {
        ps_spare_free(p, spare);
        return NULL;
    }
    return spare;
}

CUresult ps_spare_map(const struct ps_engine *e, const struct ps_places *p,
                      const struct ps_spare *spare, uint64_t base, uint64_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    uint64_t at = 0;
    for (uint32_t i = 0; r == CUDA_SUCCESS && at < bytes; i++) {
        ps_assert(i < p->n_parts);
        ps_count_map();
        r = ps_driver.cuMemMap(base + at, p->part_bytes[i], 0, spare->part[i], 0);
        at += r == CUDA_SUCCESS ? p->part_bytes[i] : 0;
    }
    ps_assert(r != CUDA_SUCCESS || at == bytes);
    if (r == CUDA_SUCCESS) {
        r = ps_memory_access(e, base, bytes);
    }
    if (r != CUDA_SUCCESS && at > 0) {
        (void)ps_memory_unmap(base, at);
    }
    return r;
}

/* The sizes of the slots, each once and smallest first, are the ends of the parts. */
static void cut_parts(struct ps_places *p)
{
    for (;;) {
        uint64_t next = UINT64_MAX;
        for (uint32_t i = 0; i < p->plan.n_slots; i++) {
            const uint64_t bytes = p->plan.slot_bytes[i];
            next = bytes > p->spare_bytes && bytes < next ? bytes : next;
        }
        if (next == UINT64_MAX) {
            return;
        }
        p->part_bytes[p->n_parts++] = next - p->spare_bytes;
        p->spare_bytes = next;
    }
}

/* One spare for the largest tail: no touch can fail for want of it. */
static bool hold_spare(struct ps_engine *e, struct ps_places *p)
{
    CUresult r;
    cut_parts(p);
    if (p->n_parts == 0) {
        return true;
    }
    p->spares = ps_spare_make(e, p, p->spare_bytes, &r);
    p->bytes += p->spares != NULL ? p->spare_bytes : 0;
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

uint64_t ps_places_pages(const struct ps_engine *e, const struct ps_places *p)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < p->plan.n_sets; i++) {
        for (uint32_t k = 0; k < p->sets[i].n_places; k++) {
            const struct ps_lane_slot *tail = p->sets[i].places[k].tail;
            pages += tail != NULL ? ps_pool_pages(&e->pool, tail->bytes) : 0;
        }
    }
    return pages;
}

static void free_place(struct ps_engine *e, const struct ps_places *p, struct ps_place *place)
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
        ps_spare_free(p, place->spare);
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
            free_place(e, p, &p->sets[i].places[k]);
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
        ps_spare_free(p, spare);
    }
    free(p->sets);
    free(p->slots);
    if (p->plan.sites != NULL) {
        ps_plan_fini(&p->plan);
    }
    free(p);
}

void ps_place_grant(const struct ps_engine *e, const struct ps_place *place)
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
                ps_place_grant(e, place);
            }
        }
    }
}
