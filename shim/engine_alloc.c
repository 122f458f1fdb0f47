/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations and frees of region tensors. A tensor is handed out zeroed, so that padding which is never written
 * stays uniform. Frees take effect in the order of the free's stream. Neither waits for the device.
 *
 * Any thread. Lock: taken here; let go while memory is mapped (the tensor is PS_MOVING and not yet named).
 */
#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/api.h"
#include "shim/engine_int.h"

#define FILL_ALIGN 4096 /* where a fill begins: the driver's fastest */

static _Atomic uint64_t n_serials;

void ps_group_close(struct ps_group *g)
{
    g->open = false;
    if (g->engine == NULL) {
        free(g);
        return;
    }
    if (g->tensors != NULL) {
        return;
    }
    struct ps_engine *e = g->engine;
    ps_count(kept_resident, g->kept);
    e->learner.step_kept += g->kept;
    ps_places_group_gone(g);
    if (g->prev != NULL) {
        g->prev->next = g->next;
    } else {
        e->groups = g->next;
    }
    if (g->next != NULL) {
        g->next->prev = g->prev;
    } else {
        e->groups_last = g->prev;
    }
    ps_rows_unref(e, g->rows);
    ps_fence_unref(&e->fences, g->home);
    for (uint32_t i = 0; i < g->n_foreign; i++) {
        ps_fence_unref(&e->fences, g->foreign[i]);
    }
    free(g);
}

/* The open instance's group, made with its first tensor; NULL: out of memory, or begun in another context. */
static struct ps_group *open_group(struct ps_engine *e, struct ps_thread *th, CUstream stream)
{
    if (th->group != NULL) {
        return th->group->engine == e ? th->group : NULL;
    }
    struct ps_group *g = calloc(1, sizeof(*g));
    if (g == NULL) {
        return NULL;
    }
    g->engine = e;
    g->open = true;
    g->thread = th->number;
    g->name = th->stack.open_name;
    g->serial = atomic_fetch_add_explicit(&n_serials, 1, memory_order_relaxed) + 1;
    g->stream = stream;
    g->stream_key = ps_stream_key(e->ctx, stream);
    if (th->seg_engine == e) {
        g->seg = th->seg;
    }
    ps_rows_begin(e, g, th);
    ps_learn_group(e, g);
    g->prev = e->groups_last;
    if (e->groups_last != NULL) {
        e->groups_last->next = g;
    } else {
        e->groups = g;
    }
    e->groups_last = g;
    th->group = g;
    return g;
}

static bool same_chunks(const uint32_t a[PS_N_CLASSES], const uint32_t b[PS_N_CLASSES])
{
    return memcmp(a, b, PS_N_CLASSES * sizeof(*a)) == 0;
}

/* A dead tensor of just this shape that the stream may use at once, taken out of the list. */
static struct ps_tensor *reuse_dead(struct ps_engine *e, const uint32_t n[PS_N_CLASSES],
                                    uint64_t stream_key)
{
    for (struct ps_tensor *t = e->dead; t != NULL; t = t->lru_next) {
        if (!same_chunks(t->n_chunks, n)) {
            continue;
        }
        bool ok = true;
        for (int i = 0; i < 2; i++) {
            struct ps_fence *f = t->ready[i];
            ok = ok && (f == NULL || f->stream_key == stream_key || ps_fence_done(f));
        }
        if (ok) {
            ps_list_remove(&e->dead, &e->dead_last, t);
            t->ready[0] = ps_fence_unref(&e->fences, t->ready[0]);
            t->ready[1] = ps_fence_unref(&e->fences, t->ready[1]);
            return t;
        }
    }
    return NULL;
}

/* Would the largest group still find its memory if a dead tensor of this shape were used? */
static bool spares_reserve(const struct ps_engine *e, const uint32_t n[PS_N_CLASSES])
{
    uint32_t spare[PS_N_CLASSES];
    ps_memory_count_spare(e, spare);
    for (unsigned k = 0; k < PS_N_CLASSES; k++) {
        if (spare[k] < n[k]) {
            return false;
        }
    }
    return true;
}

/* Addresses at which something is still mapped are lost. */
static void give_slot(const struct ps_tensor *t)
{
    if (t->stuck == 0) {
        ps_slot_give(&t->slot);
    }
}

static struct ps_tensor *new_tensor(uint64_t bytes)
{
    struct ps_tensor *t = calloc(1, sizeof(*t));
    if (t == NULL || !ps_slot_take(bytes, &t->slot)) {
        if (t != NULL) {
            ps_warn_once(
                "the address window is full: later tensors stay with the driver; raise PAGEDSTASH_WINDOW_BYTES");
        }
        free(t);
        return NULL;
    }
    return t;
}

/* Memory for a new tensor: a dead one of the same shape, else chunks mapped at new addresses. Lock held; let go and
 * taken again. */
static struct ps_tensor *place_tensor(struct ps_engine *e, uint64_t bytes, uint64_t stream_key)
{
    const uint64_t rounded = ps_size_round(bytes, e->granularity);
    uint32_t n[PS_N_CLASSES];
    struct ps_take take;

    ps_size_split(rounded, e->granularity, n);
    struct ps_tensor *t = spares_reserve(e, n) ? reuse_dead(e, n, stream_key) : NULL;
    if (t != NULL) {
        return t;
    }
    t = new_tensor(rounded);
    if (t == NULL) {
        return NULL;
    }
    memcpy(t->n_chunks, n, sizeof(n));
    t->state = PS_MOVING;
    ps_memory_take(e, n, stream_key, true, &take);
    pthread_mutex_unlock(&ps_lock);
    const CUresult r = ps_memory_build(e, t, &take);
    pthread_mutex_lock(&ps_lock);
    if (r != CUDA_SUCCESS) {
        ps_debug("no memory for a region tensor of %llu bytes: %s; it stays with the driver",
                 (unsigned long long)bytes, ps_driver_error_name(&ps_driver, r));
        give_slot(t);
        free(t);
        return NULL;
    }
    return t;
}

/* Fills in identity and links; fills the memory, unless it is a planned place, which is clean. False: the fill failed
 * and the tensor is dead again. */
static bool begin_tensor(struct ps_tensor *t, struct ps_group *g, struct ps_site *site,
                         uint64_t bytes, CUstream stream)
{
    struct ps_engine *e = g->engine;
    CUresult r = CUDA_SUCCESS;
    if (t->place == NULL) {
        ps_rows_choose(g, site, bytes, t);
        r = ps_driver.cuMemsetD32Async(t->slot.base, ps_rows_fill(g), t->slot.bytes / 4, stream);
    }

    t->engine = e;
    t->site = site;
    t->bytes = bytes;
    t->serial = atomic_fetch_add_explicit(&n_serials, 1, memory_order_relaxed) + 1;
    t->state = PS_RESIDENT;
    t->pins = 0;
    t->n_unplanned = 0;
    t->pinned = t->freed = t->was_out = t->seen = t->foreign = t->read_on = false;
    t->late = false;
    t->copy = NULL;
    if (r != CUDA_SUCCESS) {
        CUresult ignored;
        ps_count(errors, 1);
        t->state = PS_DEAD;
        t->ready[0] = ps_fence_record(&e->fences, e->ctx, stream, &ignored);
        ps_list_append(&e->dead, &e->dead_last, t);
        return false;
    }
    t->group = g;
    t->prev = NULL;
    t->next = g->tensors;
    if (g->tensors != NULL) {
        g->tensors->prev = t;
    }
    g->tensors = t;
    ps_site_made(site, bytes);
    ps_group_touched(t, e->ctx, stream);
    e->live_bytes += bytes;
    ps_window_name(&t->slot, t);
    ps_count(tensors, 1);
    ps_count(tensor_bytes, bytes);
    return true;
}

/* Lock held; let go and taken again. */
static struct ps_tensor *alloc_locked(struct ps_engine *e, struct ps_thread *th, uint64_t bytes,
                                      CUstream stream)
{
    struct ps_group *g = open_group(e, th, stream);
    struct ps_site *site = g != NULL ? ps_sites_get(&e->sites, g->name, th->ordinal - 1) : NULL;
    if (site == NULL || e->learner.left_alone || !ps_site_eligible(site)) {
        return NULL;
    }
    if (site->left) {
        th->left_parts = ps_site_exact(site) ? 0 : 1u + site->front_parts;
        return NULL;
    }
    const uint64_t key = ps_stream_key(e->ctx, stream);
    ps_engine_poll(e);
    struct ps_tensor *t = NULL;
    const enum ps_placing placing =
        e->places != NULL ? ps_places_alloc(e, g, site, bytes, stream, &t) : PS_PLACE_NONE;
    if (placing == PS_PLACE_LEFT) {
        th->left_parts = ps_site_exact(site) ? 0 : 1u + site->front_parts;
        return NULL;
    }
    const bool missed = placing == PS_PLACE_MISS || placing == PS_PLACE_TAKEN;
    if (missed) {
        ps_trace("no planned place for allocation %u of group %llu (step %llu, %u)", site->ordinal,
                 (unsigned long long)g->serial, (unsigned long long)g->seg.serial, g->seg.group);
    }
    if (placing != PS_PLACED) {
        ps_count(plan_misses, missed);
        e->learner.step_misses += missed;
        e->learner.step_taken += placing == PS_PLACE_TAKEN;
        (void)ps_mapping_unplanned(missed);
        t = place_tensor(e, bytes, key);
        (void)ps_mapping_unplanned(false);
    }
    if (t == NULL) {
        return NULL;
    }
    if (e->state != PS_ENGINE_READY) {
        return NULL; /* the context went while memory was mapped: so did the memory's owner */
    }
    if (!begin_tensor(t, g, site, bytes, stream)) {
        return NULL;
    }
    ps_learn_alloc(e, t, site->ordinal);
    return t;
}

/* The context a stream belongs to. */
static CUcontext stream_context(CUstream stream, CUcontext current)
{
    CUcontext ctx = current;
    if (stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
        ps_driver.cuStreamGetCtx(stream, &ctx) != CUDA_SUCCESS) {
        return NULL;
    }
    return ctx;
}

/* Most of a job's allocations: no region is open, and nobody wants to know. The driver is not asked of the pool. */
bool ps_engine_alloc_concerns(void)
{
    const struct ps_thread *th = ps_switched_on() ? ps_thread_self() : NULL;
    if ((th != NULL && th->stack.open_depth != 0) ||
        atomic_load_explicit(&ps_learn_watching, memory_order_relaxed) > 0) {
        return true;
    }
    ps_count(async_allocs_seen, 1);
    return false;
}

bool ps_engine_alloc(CUdeviceptr *ptr_p, size_t bytes, CUstream stream)
{
    ps_count(async_allocs_seen, 1);
    struct ps_thread *th = ps_paging() && ps_switched_on() ? ps_thread_self() : NULL;
    const bool watched = atomic_load_explicit(&ps_learn_watching, memory_order_relaxed) > 0;
    if (th == NULL || th->stack.open_depth == 0) {
        if (th != NULL && watched) {
            ps_learn_note_other(bytes);
        }
        return false;
    }
    th->ordinal++;
    th->left_parts = 0;
    th->stream = stream;
    th->streams_ended = ps_streams_ended();
    if (bytes < ps_options.min_bytes || ptr_p == NULL) {
        return false;
    }
    struct ps_guard guard;
    struct ps_tensor *t = NULL;
    ps_guard_enter(&guard);
    /* Memory is of the stream's device, whatever context is current. */
    if (!ps_stream_capturing(stream) && stream_context(stream, guard.current) == guard.current) {
        th->asked = bytes;
        struct ps_engine *e = ps_engine_make(guard.current);
        if (e != NULL) {
            ps_demand_prepare(e, th);
            pthread_mutex_lock(&ps_lock);
            t = alloc_locked(e, th, bytes, stream);
            if (t != NULL) {
                *ptr_p = t->slot.base;
            }
            pthread_mutex_unlock(&ps_lock);
            ps_engine_reap(e);
        }
    }
    ps_guard_leave(&guard);
    if (t == NULL) {
        ps_count(passed_through, 1);
        if (watched) {
            ps_learn_note_other(bytes);
        }
    }
    return t != NULL;
}

bool ps_engine_alloc_again(void)
{
    struct ps_thread *th = ps_paging() && ps_switched_on() ? ps_thread_self() : NULL;
    if (th == NULL || th->stack.open_depth == 0 || th->ordinal == 0) {
        return false;
    }
    pthread_mutex_lock(&ps_lock);
    const struct ps_engine *e = th->group != NULL ? th->group->engine : NULL;
    const bool worth = e != NULL && e->short_of_memory;
    pthread_mutex_unlock(&ps_lock);
    th->ordinal -= worth;
    return worth;
}

void ps_engine_alloc_left(CUdeviceptr ptr, size_t bytes, CUstream stream)
{
    struct ps_thread *th = ps_paging() ? ps_thread_self() : NULL;
    if (th == NULL || th->left_parts == 0) {
        return;
    }
    struct ps_guard guard;
    size_t from = bytes / PS_SITE_PARTS * (th->left_parts - 1) / FILL_ALIGN * FILL_ALIGN;
    uint32_t word = 0;
    th->left_parts = 0;
    if (th->group != NULL && !ps_rows_left(th->group, &from, &word)) {
        return;
    }
    ps_guard_enter(&guard);
    if (ps_driver.cuMemsetD32Async(ptr + from, word, (bytes - from) / 4, stream) != CUDA_SUCCESS) {
        ps_count(errors, 1); /* then more will be moved, that is all */
    }
    ps_guard_leave(&guard);
}

static void leave_group(struct ps_tensor *t)
{
    struct ps_group *g = t->group;
    if (t->prev != NULL) {
        t->prev->next = t->next;
    } else {
        g->tensors = t->next;
    }
    if (t->next != NULL) {
        t->next->prev = t->prev;
    }
    t->group = NULL;
    if (g->tensors == NULL && !g->open) {
        ps_group_close(g);
    }
}

void ps_tensor_die(struct ps_tensor *t)
{
    struct ps_engine *e = t->engine;
    ps_assert(t->pins == 0 && ps_residency_may(t->state, PS_DEAD));
    if (t->was_out) {
        bool *known = t->seen ? &t->site->proven : &t->site->unseen;
        e->learned = e->learned || !*known;
        *known = true;
    }
    if (!t->late) {
        ps_site_named_late(t->site, false);
    }
    const enum ps_residency was = t->state;
    if (was == PS_CACHED) {
        ps_list_remove(&e->cached, &e->cached_last, t);
        t->ready[1] = ps_fence_ref(t->copy->stash);
    }
    t->state = PS_DEAD;
    if (t->copy != NULL) {
        ps_copies_drop(e, &t, 1, NULL);
    }
    leave_group(t);
    if (was == PS_RESIDENT && !ps_fence_done(t->arrived)) {
        t->ready[1] = t->arrived;
        t->arrived = NULL;
    }
    t->arrived = ps_fence_unref(&e->fences, t->arrived);
    if (t->read_on || t->runs_on) {
        ps_fence_unref(&e->fences, t->ready[1]);
        t->ready[1] = ps_fence_never();
    }
    if (t->place != NULL) {
        ps_place_leave(e, t, was == PS_CACHED);
        free(t);
        return;
    }
    if (was == PS_OUT) {
        ps_fence_unref(&e->fences, t->ready[0]);
        give_slot(t);
        free(t);
        return;
    }
    ps_list_append(&e->dead, &e->dead_last, t);
}

/* The live tensor that starts here, once nobody is mapping it. Lock held; waits for another thread's mapping calls. */
static struct ps_tensor *find_base(CUdeviceptr ptr)
{
    for (;;) {
        struct ps_tensor *t = ps_window_find(ptr);
        if (t == NULL || t->slot.base != ptr || t->freed) {
            return NULL;
        }
        if (t->state != PS_MOVING) {
            return t;
        }
        pthread_cond_wait(&ps_moved, &ps_lock);
    }
}

/* From here on the addresses name nothing; the memory is free behind the fence. Lock held. */
static void free_locked(struct ps_tensor *t, struct ps_fence *f)
{
    t->ready[0] = f;
    t->foreign = t->foreign || (f != NULL && f->stream_key != t->group->stream_key);
    t->engine->live_bytes -= t->bytes;
    t->freed = true;
    ps_window_name(&t->slot, NULL);
    struct ps_engine *e = t->engine;
    ps_learn_free(e, t);
    if (t->pins == 0) {
        ps_tensor_die(t);
        ps_learn_freed(e);
    }
}

bool ps_engine_free_async(CUdeviceptr ptr, CUstream stream)
{
    if (!ps_in_window(ptr)) {
        return false;
    }
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    /* Under capture the driver refuses memory that the graph did not allocate; so it shall refuse ours. */
    const enum ps_capture capture = ps_stream_capture(stream);
    struct ps_tensor *t = capture != PS_CAPTURE_YES ? find_base(ptr) : NULL;
    if (t != NULL) {
        struct ps_engine *e = t->engine;
        struct ps_fence *f = NULL;
        if (capture == PS_CAPTURE_NO && stream_context(stream, guard.current) == e->ctx) {
            CUresult r;
            ps_guard_context(&guard, e);
            f = ps_fence_record(&e->fences, e->ctx, stream, &r);
        }
        if (f == NULL) {
            /* A stream of another context, or the driver refuses: order by waiting. */
            pthread_mutex_unlock(&ps_lock);
            ps_count(host_syncs, 1);
            const bool idle = PS_TWICE(ps_driver.cuStreamSynchronize(stream));
            pthread_mutex_lock(&ps_lock);
            f = idle ? NULL : ps_fence_never();
            t = find_base(ptr);
        }
        ps_guard_context(&guard, e);
        if (t != NULL) {
            free_locked(t, f);
        } else {
            ps_fence_unref(&e->fences, f);
        }
    }
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
    return t != NULL;
}

bool ps_engine_free_sync(CUdeviceptr ptr)
{
    if (!ps_in_window(ptr)) {
        return false;
    }
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    struct ps_tensor *t = find_base(ptr);
    pthread_mutex_unlock(&ps_lock);
    if (t != NULL) {
        ps_guard_context(&guard, t->engine);
        const bool idle = PS_TWICE(ps_driver.cuCtxSynchronize());
        pthread_mutex_lock(&ps_lock);
        t = find_base(ptr);
        if (t != NULL) {
            free_locked(t, idle ? NULL : ps_fence_never());
        }
        pthread_mutex_unlock(&ps_lock);
    }
    ps_guard_leave(&guard);
    return t != NULL;
}

void ps_engine_note_alloc(size_t bytes)
{
    const struct ps_thread *th = ps_paging() ? ps_thread_self() : NULL;
    if (th != NULL && th->stack.open_depth != 0) {
        ps_count(left_alone, 1);
        ps_count(left_alone_bytes, bytes);
    }
}
