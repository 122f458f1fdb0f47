/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving back: what we hold unused when a call of the job runs out of memory or trims its pool, and everything when
 * paging ends. Any thread; takes the lock. These may wait for the device: without us the call would have failed.
 */
#include <stdlib.h>

#include "policy/base/log.h"
#include "shim/engine_int.h"

/* How often memory is given back because something was learned: each time the next step makes anew what it needs. */
#define TRIMS_MAX 4

_Atomic bool ps_coming_home;

uint64_t ps_engine_release_unused(struct ps_engine *e)
{
    uint64_t bytes;
    pthread_mutex_lock(&ps_lock);
    ps_engine_poll(e);
    bytes = e->pool.mapped;
    ps_pool_shrink(e);
    bytes -= e->pool.mapped;
    pthread_mutex_unlock(&ps_lock);
    return bytes + ps_memory_release_idle(e);
}

/* Is any tensor cached or out, or on its way back? Then a step is going on: what brings it may wait for this thread. */
static bool any_moved(const struct ps_engine *e)
{
    for (const struct ps_group *g = e->groups; g != NULL; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            if (t->copy != NULL || t->state == PS_MOVING || !ps_fence_done(t->arrived)) {
                return true;
            }
        }
    }
    return false;
}

/* What freed memory still waits for, but for what freed_aside() is about. Lock held. */
static struct ps_fence *pending(const struct ps_engine *e)
{
    for (const struct ps_tensor *t = e->dead; t != NULL; t = t->lru_next) {
        for (int i = 0; i < 2 && !t->foreign; i++) {
            if (!ps_fence_done(t->ready[i])) {
                return t->ready[i];
            }
        }
    }
    return ps_fence_done(e->pool.pushed) ? NULL : e->pool.pushed;
}

/*
 * Memory freed on another stream than its group's is not idle: that stream may wait for another rank, and that rank for
 * what this thread has yet to do. Lock held.
 */
static bool freed_aside(const struct ps_engine *e)
{
    for (const struct ps_tensor *t = e->dead; t != NULL; t = t->lru_next) {
        if (t->foreign && !(ps_fence_done(t->ready[0]) && ps_fence_done(t->ready[1]))) {
            return true;
        }
    }
    return false;
}

/*
 * Waits until freed memory is idle. Only for that, and not for ever: another stream may wait for what this thread has
 * yet to do, and a capture ends when somebody waits for its context. Lock held; let go and taken again.
 */
bool ps_engine_await_idle(struct ps_engine *e)
{
    CUresult r = CUDA_SUCCESS;
    struct ps_fence *f = pending(e);
    ps_count(host_syncs, f != NULL);
    while (f != NULL && r == CUDA_SUCCESS) {
        ps_fence_ref(f);
        pthread_mutex_unlock(&ps_lock);
        r = ps_wait_bounded(f->event);
        pthread_mutex_lock(&ps_lock);
        ps_fence_unref(&e->fences, f);
        f = pending(e);
    }
    return f == NULL;
}

void ps_engine_settle_down(struct ps_engine *e)
{
    pthread_mutex_lock(&ps_lock);
    const bool due = e->learned && e->n_trims < TRIMS_MAX && !any_moved(e) &&
                     (e->dead != NULL || e->pool.mapped > 0) && !freed_aside(e);
    if (due) {
        e->learned = false;
        e->n_trims = ps_engine_await_idle(e) ? e->n_trims + 1 : TRIMS_MAX;
    }
    pthread_mutex_unlock(&ps_lock);
    if (due) {
        ps_engine_release_unused(e);
    }
}

bool ps_engine_give_back(void)
{
    struct ps_guard guard;
    bool worth = false;
    if (!ps_driver_init() || ps_engines() == NULL) {
        return false;
    }
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = ps_engine_find(guard.current);
    pthread_mutex_unlock(&ps_lock);
    /* While a stream of this context captures, waiting for the context fails, and nothing may be changed. */
    if (e != NULL && ps_driver.cuCtxSynchronize() == CUDA_SUCCESS) {
        ps_count(give_backs, 1);
        pthread_mutex_lock(&ps_lock);
        e->gain.n_full = 0;
        e->learner.left_alone = false;
        ps_sites_forget_gain(&e->sites);
        pthread_mutex_unlock(&ps_lock);
        ps_learn_release(e);
        uint64_t bytes = ps_engine_release_unused(e);
        ps_memory_trim_pool(e);
        pthread_mutex_lock(&ps_lock);
        ps_engine_squeeze(e);
        pthread_mutex_unlock(&ps_lock);
        bytes += ps_engine_release_unused(e);
        ps_info(
            "a call of the job ran out of memory: gave back %llu MiB of ours and the pool's unused memory",
            (unsigned long long)(bytes >> 20));
        worth = true;
    }
    ps_guard_leave(&guard);
    return worth;
}

/*
 * A plan's memory is in use from step to step: given back it would have to be mapped anew in each. When memory runs out
 * it goes all the same. Lock not held.
 */
static void release_beside_plan(struct ps_engine *e)
{
    pthread_mutex_lock(&ps_lock);
    const bool planned = e->places != NULL;
    pthread_mutex_unlock(&ps_lock);
    if (planned) {
        ps_memory_sweep(e);
    } else {
        ps_engine_release_unused(e);
    }
}

void ps_engine_trim(CUmemoryPool pool)
{
    struct ps_guard guard;
    if (!ps_driver_init() || ps_engines() == NULL) {
        return;
    }
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = ps_engine_find(guard.current);
    pthread_mutex_unlock(&ps_lock);
    CUmemoryPool own;
    if (e != NULL && ps_driver.cuDeviceGetDefaultMemPool(&own, e->device) == CUDA_SUCCESS &&
        own == pool) {
        release_beside_plan(e);
    }
    ps_guard_leave(&guard);
}

/* One step towards having everything in its place. False when nothing is left to do, or on failure.
 * Lock held; let go and taken again. */
static bool bring_one(struct ps_engine *e, CUresult *r_p)
{
    bool moving = false;
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        g->crowded = true; /* nothing of it leaves again */
        for (struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            if (t->state == PS_OUT) {
                t->state = PS_MOVING;
                *r_p = ps_move_in(e, &t, 1, e->restore_stream);
                return *r_p == CUDA_SUCCESS;
            }
            if (t->state == PS_CACHED) {
                *r_p = ps_move_back(e, t, e->restore_stream);
                return *r_p == CUDA_SUCCESS;
            }
            if (t->state == PS_RESIDENT && !ps_fence_done(t->arrived)) {
                /* Later nobody makes other streams wait for what brought it. */
                struct ps_fence *f = ps_fence_ref(t->arrived);
                pthread_mutex_unlock(&ps_lock);
                *r_p = ps_wait_bounded(f->event);
                pthread_mutex_lock(&ps_lock);
                ps_fence_unref(&e->fences, f);
                return *r_p == CUDA_SUCCESS;
            }
            moving = moving || t->state == PS_MOVING;
        }
    }
    if (moving) {
        pthread_cond_wait(&ps_moved, &ps_lock);
    }
    return moving;
}

static bool bring_all(struct ps_engine *e, struct ps_guard *guard)
{
    CUresult r = CUDA_SUCCESS;
    bool cut = true; /* short, so that the context may end */
    pthread_mutex_lock(&ps_lock);
    e->ended = true;
    while (cut && ps_engine_visit(e)) {
        ps_guard_context(guard, e);
        while (e->state == PS_ENGINE_READY && e->n_ending == 0 && bring_one(e, &r)) {
        }
        cut = e->n_ending > 0;
        ps_guard_home(guard);
        ps_engine_left(e);
    }
    cut = cut && e->state == PS_ENGINE_READY;
    pthread_mutex_unlock(&ps_lock);
    return r == CUDA_SUCCESS && !cut;
}

/* The next engine after e that can have tensors out; NULL: the first. */
static struct ps_engine *ready_after(const struct ps_engine *e)
{
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *at = e != NULL ? e->next : ps_engines();
    while (at != NULL && at->state != PS_ENGINE_READY) {
        at = at->next;
    }
    pthread_mutex_unlock(&ps_lock);
    return at;
}

/* Addresses are watched until everything is in its place: other threads go on launching meanwhile. */
void ps_engine_end_paging(const char *why)
{
    struct ps_guard guard;
    const bool first = ps_paging();
    bool all = true;
    if (!first && !atomic_load(&ps_coming_home)) {
        return;
    }
    atomic_store(&ps_coming_home, true);
    ps_paging_off();
    if (ps_driver_init() && ps_engines() != NULL) {
        ps_guard_enter(&guard);
        for (struct ps_engine *e = ready_after(NULL); e != NULL; e = ready_after(e)) {
            all = bring_all(e, &guard) && all;
        }
        ps_guard_leave(&guard);
    }
    if (all) {
        atomic_store(&ps_coming_home, false);
    }
    if (first && all) {
        ps_warn("paging ends here: %s; everything is back in its place, the job runs on without us",
                why);
    } else if (first) {
        ps_error(
            "paging ends here: %s; some tensors could not be brought back: they come when they "
            "are named",
            why);
    }
}
