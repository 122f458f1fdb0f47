/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bringing tensors back: the restore runs on the stream of the call that needs it, or ahead of that on a stream of
 * ours, behind the tensor's own stash; its pages go back on drop_stream, behind the restore. No stream of the job ever
 * waits for drop_stream.
 *
 * Lock held in every function; let go where it says so.
 */
#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"

CUresult ps_move_back(struct ps_engine *e, struct ps_tensor *t, CUstream stream)
{
    ps_assert(t->state == PS_CACHED && ps_residency_may(t->state, PS_RESIDENT));
    /* The stash still reads the place: what the stream does next may write it. */
    const CUresult r = ps_fence_wait(t->copy->stash, ps_stream_key(e->ctx, stream), stream);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    ps_list_remove(&e->cached, &e->cached_last, t);
    t->state = PS_RESIDENT;
    ps_place_touched(t);
    ps_fence_unref(&e->fences, t->arrived);
    t->arrived = ps_fence_ref(t->copy->stash);
    ps_count(cache_hits, 1);
    ps_copies_drop(e, &t, 1, NULL);
    return CUDA_SUCCESS;
}

/* Ahead of its use, or the job waits for it. */
static enum ps_pace restore_pace(const struct ps_engine *e, struct ps_tensor *const *t, uint32_t n,
                                 CUstream stream)
{
    uint64_t pages = 0, spilled = 0;
    for (uint32_t i = 0; i < n; i++) {
        pages += t[i]->copy->n_pages;
        spilled += t[i]->copy->spilled; /* 0 as long as nobody has seen the stash complete */
    }
    if (ps_mostly_host(spilled, pages)) {
        return PS_HOST;
    }
    return stream == e->ahead_stream ? PS_QUIET : PS_FAST;
}

/* Most of what lies there is what belongs there: backward seldom writes what it was saved for. */
static bool reads_faster(const struct ps_tensor *t)
{
    return t->place != NULL && !t->place->aside && t->place->tail->compressible;
}

/* Those whose pages are of that sink (NULL: of the pool). */
static void batch_of(const struct ps_engine *e, struct ps_tensor *const *t, uint32_t n,
                     const struct ps_sink *sink, struct ps_batch *b)
{
    ps_pool_batch(e, b);
    for (uint32_t i = 0; i < n; i++) {
        if (t[i]->copy->sink != sink) {
            continue;
        }
        struct ps_batch_item *item = &b->items[b->n_items++];
        ps_tail_item(e, t[i], t[i]->copy, item);
        item->rows_kind |= t[i]->flags_known ? PS_ITEM_KNOWN : 0;
        item->rows_kind |= reads_faster(t[i]) ? PS_ITEM_COMPARE : 0;
    }
}

static bool is_first(struct ps_tensor *const *t, uint32_t i)
{
    bool first = true;
    for (uint32_t k = 0; k < i; k++) {
        first = first && t[k]->copy->sink != t[i]->copy->sink;
    }
    return first;
}

/* All that lie where t[i] does, if it is the first of them. */
static CUresult restore_batch(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n,
                              uint32_t i, CUstream stream)
{
    const struct ps_sink *sink = t[i]->copy->sink;
    struct ps_batch b;
    bool on_host = false;

    if (!is_first(t, i)) {
        return CUDA_SUCCESS;
    }
    batch_of(e, t, n, sink, &b);
    if (sink != NULL) {
        (void)ps_sink_source(e, sink, &b.pool, &on_host);
    }
    const enum ps_pace pace = on_host ? PS_HOST : restore_pace(e, t, n, stream);
    CUresult r = ps_kernels_restore(&ps_driver, &e->kernels, stream, &b, pace);
    if (r != CUDA_SUCCESS) {
        /* Once more: a driver that has just had its memory back may do it now, and the data has no other way home. */
        ps_count(errors, 1);
        r = ps_kernels_restore(&ps_driver, &e->kernels, stream, &b, pace);
    }
    return r;
}

/* Waits for a restore of which nobody knew the end: the next one is not ordered behind it. Lock let go meanwhile. */
static CUresult end_lost_restore(struct ps_tensor *t)
{
    ps_count(host_syncs, 1);
    pthread_mutex_unlock(&ps_lock);
    const bool idle = PS_TWICE(ps_driver.cuCtxSynchronize());
    pthread_mutex_lock(&ps_lock);
    t->runs_on = !idle;
    return idle ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/* Memory for tensors that are PS_MOVING: mapped and ready for the stream. Lock let go meanwhile. */
static CUresult place_all(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n,
                          CUstream stream)
{
    const uint64_t stream_key = ps_stream_key(e->ctx, stream);
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < n && r == CUDA_SUCCESS; i++) {
        struct ps_take take;
        r = t[i]->runs_on ? end_lost_restore(t[i]) : CUDA_SUCCESS;
        if (r != CUDA_SUCCESS) {
            break;
        }
        if (t[i]->place != NULL) {
            if (ps_place_enter(e, t[i], stream)) {
                continue;
            }
            r = ps_place_step_aside(e, t[i]);
            if (r != CUDA_SUCCESS) {
                r = ps_place_step_aside(e, t[i]); /* once more: the data has no other way home */
            }
            continue;
        }
        if (t[i]->chunks != NULL) {
            t[i]->stuck = 0;
            continue; /* unplace_all could not take it away */
        }
        ps_memory_take(e, t[i]->n_chunks, stream_key, false, &take);
        pthread_mutex_unlock(&ps_lock);
        r = ps_memory_build(e, t[i], &take);
        if (r != CUDA_SUCCESS) {
            /* Once more: the data has no other way home. */
            const bool full = r == CUDA_ERROR_OUT_OF_MEMORY;
            ps_count(errors, !full);
            if (full) {
                /* The reserve is in use: what is freed but not yet finished is the last resort, */
                ps_count(host_syncs, 1);
                ps_driver.cuCtxSynchronize();
            }
            pthread_mutex_lock(&ps_lock);
            ps_engine_poll(e);
            if (full) {
                ps_engine_squeeze(e); /* and what the host has room for */
            }
            ps_memory_take(e, t[i]->n_chunks, stream_key, false, &take);
            pthread_mutex_unlock(&ps_lock);
            ps_engine_reap(e);
            r = ps_memory_build(e, t[i], &take);
        }
        pthread_mutex_lock(&ps_lock);
    }
    return r;
}

/* Takes mapped places away again after a failure, unless they may be in use: the tensors are out as before. Lock let go
 * meanwhile. */
static void unplace_all(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (t[i]->chunks != NULL) {
            pthread_mutex_unlock(&ps_lock);
            /* A restore may have been enqueued before the failure. */
            const bool idle = PS_TWICE(ps_driver.cuCtxSynchronize());
            if (idle) {
                (void)ps_memory_unmap_tensor(t[i], t[i]->slot.bytes);
            }
            pthread_mutex_lock(&ps_lock);
            if (idle) {
                ps_memory_take_back(e, t[i]);
            } else {
                t[i]->stuck = t[i]->slot.bytes; /* and may run on: the place stands */
                t[i]->runs_on = true;
            }
        } else if (t[i]->place != NULL) {
            pthread_mutex_unlock(&ps_lock);
            const bool idle = PS_TWICE(ps_driver.cuCtxSynchronize());
            pthread_mutex_lock(&ps_lock);
            ps_place_exit(e, t[i], idle);
        }
        t[i]->state = PS_OUT;
    }
}

/* Waits for a fence with the lock let go, where the driver refuses to order a stream behind it. */
static CUresult wait_unlocked(struct ps_engine *e, struct ps_fence *f)
{
    ps_fence_ref(f);
    ps_count(errors, 1);
    ps_count(host_syncs, 1);
    pthread_mutex_unlock(&ps_lock);
    const CUresult r = ps_driver.cuEventSynchronize(f->event);
    pthread_mutex_lock(&ps_lock);
    f->done = f->done || r == CUDA_SUCCESS;
    ps_fence_unref(&e->fences, f);
    return r;
}

/*
 * The stream waits until what sinks and stages are to hold is there. Where bytes lie may change whenever the lock is
 * let go: then all are looked at again.
 */
static CUresult order_sinks(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n,
                            CUstream stream)
{
    const uint64_t key = ps_stream_key(e->ctx, stream);
    CUresult r = CUDA_SUCCESS;
    uint64_t pool;
    bool on_host;

    for (uint32_t i = 0; i < n && r == CUDA_SUCCESS;) {
        const struct ps_sink *s = t[i]->copy->sink;
        struct ps_fence *f = s != NULL ? ps_sink_source(e, s, &pool, &on_host) : NULL;
        if (f == NULL || ps_fence_wait(f, key, stream) == CUDA_SUCCESS) {
            i++;
        } else {
            r = wait_unlocked(e, f);
            i = 0;
        }
    }
    return r;
}

static bool any_sunk(struct ps_tensor *const *t, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        any = any || t[i]->copy->sink != NULL;
    }
    return any;
}

/* Restore enqueued on the stream, behind the tensors' stashes; the fence behind it, or NULL if it is complete. */
static CUresult enqueue_restore(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n,
                                CUstream stream, struct ps_fence **f_p)
{
    const uint64_t key = ps_stream_key(e->ctx, stream);
    CUresult r = CUDA_SUCCESS;

    for (uint32_t i = 0; i < n && r == CUDA_SUCCESS; i++) {
        r = ps_fence_wait(t[i]->copy->stash, key, stream);
        if (r != CUDA_SUCCESS) {
            r = wait_unlocked(e, t[i]->copy->stash);
        }
    }
    if (r == CUDA_SUCCESS) {
        r = order_sinks(e, t, n, stream);
    }
    for (uint32_t i = 0; i < n && r == CUDA_SUCCESS; i++) {
        r = restore_batch(e, t, n, i, stream);
    }
    if (r != CUDA_SUCCESS) {
        return r;
    }
    *f_p = ps_fence_record(&e->fences, e->ctx, stream, &r);
    if (*f_p != NULL) {
        (*f_p)->behind_key = stream == e->ahead_stream ? e->ahead.key : key;
        return CUDA_SUCCESS;
    }
    ps_count(errors, 1);
    ps_count(host_syncs, 1);
    if (any_sunk(t, n)) {
        return ps_driver.cuStreamSynchronize(
            stream); /* nobody else may know of the stage meanwhile */
    }
    pthread_mutex_unlock(&ps_lock);
    r = ps_driver.cuStreamSynchronize(stream);
    pthread_mutex_lock(&ps_lock);
    return r;
}

CUresult ps_move_in(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n, CUstream stream)
{
    struct ps_fence *f = NULL;
    (void)ps_mapping_unplanned(e->places != NULL ||
                               (t[0]->group != NULL && !t[0]->group->returned));
    CUresult r = place_all(e, t, n, stream);
    (void)ps_mapping_unplanned(false);

    if (r == CUDA_SUCCESS) {
        r = enqueue_restore(e, t, n, stream, &f);
    }
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1);
        ps_error("cannot bring back %u tensors: %s; the job's call fails with that", n,
                 ps_driver_error_name(&ps_driver, r));
        unplace_all(e, t, n);
    } else {
        for (uint32_t i = 0; i < n; i++) {
            ps_assert(ps_residency_may(t[i]->state, PS_RESIDENT));
            t[i]->state = PS_RESIDENT;
            ps_fence_unref(&e->fences, t[i]->arrived);
            t[i]->arrived = ps_fence_ref(f);
            if (f != NULL && t[i]->group != NULL && t[i]->group->stream_key == f->stream_key) {
                ps_fence_unref(&e->fences, t[i]->group->home);
                t[i]->group->home = ps_fence_ref(f);
            }
            ps_count(restores, 1);
            ps_count(bytes_restored, (uint64_t)t[i]->copy->stored * e->pool.page_bytes);
        }
        ps_copies_drop(e, t, n, f);
        ps_fence_unref(&e->fences, f);
    }
    pthread_cond_broadcast(&ps_moved);
    for (uint32_t i = 0; i < n; i++) {
        if (t[i]->freed && t[i]->pins == 0) {
            ps_tensor_die(t[i]);
        }
    }
    return r;
}

void ps_prefetch(struct ps_engine *e, struct ps_group *g)
{
    struct ps_tensor *out[PS_BATCH_MAX];
    uint32_t n = 0;
    bool vacant = e->state == PS_ENGINE_READY && !e->ended && !g->open &&
                  ps_carrier_takes(&e->ahead, g->stream_key);

    for (struct ps_tensor *t = g->tensors; t != NULL && vacant; t = t->next) {
        if (t->state == PS_OUT && !t->freed) {
            vacant = n < PS_BATCH_MAX && ps_place_vacant(e, t);
            out[n++ % PS_BATCH_MAX] = t;
        }
        vacant = vacant && t->state != PS_MOVING;
    }
    if (!vacant || n == 0) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        out[i]->state = PS_MOVING;
    }
    g->returned = true;
    g->prefetched = true;
    ps_count(prefetches, 1);
    ps_carrier_open(&e->ahead, g->stream_key);
    (void)ps_move_in(e, out, n, e->ahead_stream); /* not now: then at its first touch */
    ps_carrier_close(&e->ahead, &e->fences, e->ctx, e->ahead_stream);
}
