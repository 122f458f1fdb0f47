/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving groups out, at a boundary: stash_stream waits for the fence behind the group's last use on its own stream
 * (recorded at the boundary) and copies; uses on other streams must be complete already. While stashes of groups of one
 * stream of the job are on their way, none of another stream's group is queued behind them. No stream of the job ever
 * waits for stash_stream, except to take back a tensor that is being stashed (engine_return.c).
 *
 * Lock held in every function; let go where it says so.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"
#include "shim/trace_valid.h"

/* Far above any group's compute; a wait that long can only be a cycle through this thread (hazards, A2). */
#define THROTTLE_MAX_S 10

static bool movable(const struct ps_tensor *t)
{
    return t->state == PS_RESIDENT && !t->pinned && !t->freed &&
           t->n_unplanned < PS_UNPLANNED_MAX && ps_tensor_tail(t, t->bytes) > 0 &&
           ps_site_eligible(t->site);
}

/* unused: what has come in ahead and was not named since counts as if it had not. */
static void view_group(const struct ps_engine *e, const struct ps_group *g, uint64_t thread,
                       bool unused, struct ps_group_view *v)
{
    memset(v, 0, sizeof(*v));
    v->open = g->open;
    v->returned = g->returned && !(unused && g->prefetched);
    v->crowded = g->crowded;
    v->same_thread = g->thread == thread;
    if (v->open || v->returned || !v->same_thread) {
        return;
    }
    for (uint32_t i = 0; i < g->n_foreign; i++) {
        v->foreign_pending = v->foreign_pending || !ps_fence_done(g->foreign[i]);
    }
    for (const struct ps_flight *fl = e->flights; fl != NULL; fl = fl->next) {
        v->lane_busy = v->lane_busy || fl->stream_key != g->stream_key;
    }
    v->lane_busy = v->lane_busy || !ps_carrier_takes(&e->stashes, g->stream_key);
    for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
        v->n_pinned += t->pins > 0;
        v->foreign_pending =
            v->foreign_pending ||
            (t->arrived != NULL && t->arrived->stream_key != g->stream_key &&
             !ps_stream_ours(e, t->arrived->stream_key) && !ps_fence_done(t->arrived));
        v->n_movable += movable(t);
    }
}

static bool may_leave(const struct ps_engine *e, const struct ps_group *g, uint64_t thread)
{
    struct ps_group_view v;
    view_group(e, g, thread, false, &v);
    return ps_group_may_leave(&v);
}

/* The oldest stash not known complete, if this boundary has something to stash: the host stays two groups behind. */
static struct ps_fence *throttle_fence(struct ps_engine *e, uint64_t thread)
{
    if (e->flights == NULL) {
        return NULL;
    }
    for (const struct ps_group *g = e->groups; g != NULL; g = g->next) {
        if (may_leave(e, g, thread)) {
            struct ps_fence *last = NULL;
            for (struct ps_flight *fl = e->flights; fl != NULL; fl = fl->next) {
                last = fl->fence;
            }
            return ps_fence_ref(last);
        }
    }
    return NULL;
}

CUresult ps_wait_bounded(CUevent event)
{
    struct timespec start;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (unsigned i = 0;; i++) {
        const CUresult r = ps_driver.cuEventQuery(event);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (r != CUDA_ERROR_NOT_READY || now.tv_sec - start.tv_sec > THROTTLE_MAX_S) {
            return r;
        }
        if (i > 100) {
            const struct timespec pause = {0, 20000};
            nanosleep(&pause, NULL);
        }
    }
}

/*
 * Lock held, so that the stream is not destroyed meanwhile. To ask of one that captures would end the
 * capture.
 */
static bool last_stream_idle(const struct ps_engine *e)
{
    const CUstream stream = e->groups_last != NULL ? e->groups_last->stream : NULL;
    return stream != NULL && stream != CU_STREAM_PER_THREAD && !ps_stream_capturing(stream) &&
           ps_driver.cuStreamQuery(stream) == CUDA_SUCCESS;
}

/*
 * Waits for the stashes of the boundary before this one: behind them the GPU still has the last group's work. False:
 * they do not end, so nothing more may leave now; there is no second wait for them.
 */
static bool throttle(struct ps_engine *e, uint64_t thread)
{
    struct ps_fence *f = throttle_fence(e, thread);
    bool done = ps_fence_done(f);
    if (!done && !e->stalled) {
        pthread_mutex_unlock(&ps_lock);
        const CUresult r = ps_wait_bounded(f->event);
        done = r == CUDA_SUCCESS;
        pthread_mutex_lock(&ps_lock);
        ps_count(throttle_waits, 1);
        ps_count(idle_waits, done && last_stream_idle(e));
        if (r == CUDA_ERROR_NOT_READY) {
            ps_warn(
                "a stash has not ended within %d s: the GPU seems to wait for this thread; groups stay on the "
                "device until it has",
                THROTTLE_MAX_S);
        }
    }
    e->stalled = !done;
    ps_fence_unref(&e->fences, f);
    ps_engine_poll(e);
    return done;
}

static uint64_t group_pages(const struct ps_engine *e, const struct ps_group *g)
{
    uint64_t pages = 0;
    for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
        pages += movable(t) ? ps_pool_pages(&e->pool, ps_tensor_tail(t, t->bytes)) : 0;
    }
    return pages;
}

/*
 * Waits for pages on their way back, if those will do: they were dropped in the backward before this group, so the GPU
 * still has the group's own work queued behind them. Lock held; let go and taken again.
 */
static void await_pages(struct ps_engine *e, uint64_t pages)
{
    struct ps_page_pool *p = &e->pool;
    while (!e->stalled && ps_budget_available(&p->budget) < pages && p->drops != NULL &&
           p->drops->settled &&
           ps_budget_available(&p->budget) + ps_budget_returning(&p->budget) >= pages) {
        struct ps_fence *f = ps_fence_ref(p->drops->dropped);
        if (!ps_fence_done(f)) {
            pthread_mutex_unlock(&ps_lock);
            const bool done = ps_wait_bounded(f->event) == CUDA_SUCCESS;
            pthread_mutex_lock(&ps_lock);
            ps_count(throttle_waits, 1);
            e->stalled = !done;
        }
        ps_fence_unref(&e->fences, f);
        ps_engine_poll(e);
    }
}

/* Makes stash_stream wait for every use of the group. */
static CUresult order_stash(struct ps_engine *e, struct ps_group *g)
{
    if (g->record_due) {
        if (ps_stream_capturing(g->stream)) {
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        ps_group_flush(e, g->stream);
        if (g->record_due) {
            return CUDA_ERROR_UNKNOWN;
        }
    }
    const uint64_t key = ps_stream_key(e->ctx, e->stash_stream);
    CUresult r = ps_fence_wait(g->home, key, e->stash_stream);
    /* What was brought in ahead, or taken back, by a stream of ours may not have been used since. */
    for (const struct ps_tensor *t = g->tensors; t != NULL && r == CUDA_SUCCESS; t = t->next) {
        r = ps_fence_wait(t->arrived, key, e->stash_stream);
    }
    return r;
}

void ps_tail_item(const struct ps_engine *e, const struct ps_tensor *t, const struct ps_copy *c,
                  struct ps_batch_item *item_p)
{
    ps_copy_item(e, c, t->slot.base + t->home_bytes, ps_tensor_tail(t, t->bytes), item_p);
    ps_rows_item(c, item_p);
    item_p->flags = t->place != NULL && !t->place->aside ? t->place->tail->flags : 0;
}

static void describe(const struct ps_tensor *t, struct ps_copy *c)
{
    c->site = t->site;
    c->seg = t->seg;
    c->traced = ps_trace_number(t->slot.base);
    c->bytes = t->bytes;
    c->home_bytes = t->home_bytes;
    ps_rows_copy(t, c);
}

/*
 * early: at the pop, without what is usually named behind it. To a sink goes all of it; pages that it may take beyond
 * the stage are reserved for all tensors together.
 */
static uint32_t gather(struct ps_engine *e, struct ps_group *g, bool early, struct ps_batch *b,
                       struct ps_tensor **t_p, struct ps_flight *fl)
{
    struct ps_page_pool *p = &e->pool;
    struct ps_sink *const sink = fl->sink;
    uint32_t n = 0;

    ps_pool_batch(e, b);
    for (struct ps_tensor *t = g->tensors; t != NULL && n < PS_BATCH_MAX; t = t->next) {
        if (!movable(t) || (early && ps_site_late(t->site))) {
            continue;
        }
        const uint32_t pages = ps_pool_pages(p, ps_tensor_tail(t, t->bytes));
        struct ps_copy *c = ps_copy_make(e, pages,
                                         sink == NULL ? pages
                                         : n == 0     ? (uint32_t)fl->overflow
                                                      : 0);
        if (c == NULL) {
            break;
        }
        c->sink = sink;
        describe(t, c);
        ps_tail_item(e, t, c, &b->items[n]);
        fl->copy[n] = c;
        t_p[n++] = t;
    }
    b->free_list = sink != NULL ? ps_sink_list(sink) : b->free_list;
    b->n_items = n;
    fl->n = n;
    return n;
}

/*
 * The group's sink, if the plan has one for it, all of it leaves now, and what the stage may be too small for finds
 * host pages. NULL: pages of the pool.
 */
static struct ps_sink *open_sink(struct ps_engine *e, const struct ps_group *g, bool early,
                                 uint64_t *overflow_p)
{
    const uint32_t planned = ps_sink_pages(e, g);
    uint32_t n = 0;
    bool whole = planned > 0;

    for (const struct ps_tensor *t = g->tensors; t != NULL && whole; t = t->next) {
        whole = t->copy == NULL && !(early && movable(t) && ps_site_late(t->site));
        n += movable(t);
    }
    const uint64_t pages = whole ? group_pages(e, g) : 0;
    *overflow_p = pages > planned ? pages - planned : 0;
    return whole && n > 0 && n <= PS_BATCH_MAX && *overflow_p <= ps_pool_available_host(e)
               ? ps_sink_open(e, g, planned)
               : NULL;
}

static void undo(struct ps_engine *e, struct ps_flight *fl)
{
    for (uint32_t i = 0; i < fl->n; i++) {
        ps_copy_free(e, fl->copy[i]);
    }
    free(fl);
}

static void mark_cached(struct ps_engine *e, struct ps_tensor *t, struct ps_copy *c,
                        struct ps_fence *f)
{
    ps_assert(ps_residency_may(t->state, PS_CACHED));
    c->stash = ps_fence_ref(f);
    t->copy = c;
    t->state = PS_CACHED;
    t->was_out = true;
    ps_place_scanned(t);
    ps_list_append(&e->cached, &e->cached_last, t);
    ps_count(stashes, 1);
}

/* The stash runs, but no event could be recorded behind it: wait for it. False: the driver refuses that as well. */
static bool wait_stash(struct ps_engine *e)
{
    ps_count(errors, 1);
    ps_count(host_syncs, 1);
    return PS_TWICE(ps_driver.cuStreamSynchronize(e->stash_stream)) ||
           PS_TWICE(ps_driver.cuCtxSynchronize());
}

/* Nobody knows when the stash ends: what it writes is never used, and what it reads never anything else's. */
static void lose_stash(struct ps_group *g, struct ps_tensor *const *t, uint32_t n)
{
    g->crowded = true;
    for (uint32_t i = 0; i < n; i++) {
        t[i]->read_on = true;
    }
}

/* The next group waits for the only lane. */
static enum ps_pace stash_pace(const struct ps_engine *e)
{
    if (e->pool.spilling) {
        return PS_HOST;
    }
    return e->places != NULL && e->places->plan.n_lanes > 1 ? PS_QUIET : PS_FAST;
}

/* One launch, one flight: at most PS_BATCH_MAX tensors of the group. Returns how many went. */
static uint32_t stash_batch(struct ps_engine *e, struct ps_group *g, bool early)
{
    struct ps_batch b;
    struct ps_tensor *t[PS_BATCH_MAX];
    struct ps_flight *fl = calloc(1, sizeof(*fl));
    struct ps_sink *sink = fl != NULL ? open_sink(e, g, early, &fl->overflow) : NULL;
    if (fl != NULL) {
        fl->sink = sink;
    }
    const uint32_t n = fl != NULL ? gather(e, g, early, &b, t, fl) : 0;
    CUresult r = CUDA_SUCCESS;
    if (n > 0) {
        ps_rows_tell(e, g);
        r = ps_kernels_stash(&ps_driver, &e->kernels, e->stash_stream, &b, stash_pace(e));
    }
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1);
        ps_error("cannot stash a group: %s; it stays on the device",
                 ps_driver_error_name(&ps_driver, r));
        undo(e, fl);
        fl = NULL;
    }
    if (n == 0 || fl == NULL) {
        if (sink != NULL) {
            ps_sink_stashed(e, sink, 0, NULL);
        }
        free(fl);
        return 0;
    }
    fl->fence = ps_fence_record(&e->fences, e->ctx, e->stash_stream, &r);
    if (fl->fence != NULL) {
        fl->fence->behind_key = g->stream_key;
    }
    if (fl->fence == NULL && !wait_stash(e)) {
        free(fl); /* but not the copies: the kernel may yet write them */
        lose_stash(g, t, n);
        if (sink != NULL) {
            ps_sink_lost(sink);
        }
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        mark_cached(e, t[i], fl->copy[i], fl->fence);
    }
    if (sink != NULL) {
        ps_sink_stashed(e, sink, n, fl->fence);
    }
    if (fl->fence == NULL) {
        ps_flight_end(e, fl);
        return n;
    }
    fl->stream_key = g->stream_key;
    *e->flights_end = fl;
    e->flights_end = &fl->next;
    return n;
}

static void stash_group(struct ps_engine *e, struct ps_group *g, bool early)
{
    uint32_t n = PS_BATCH_MAX;
    ps_carrier_open(&e->stashes, g->stream_key);
    if (order_stash(e, g) != CUDA_SUCCESS) {
        g->kept = true;
        n = 0;
    } else {
        g->full = false; /* until it is seen once more */
    }
    while (n == PS_BATCH_MAX && !g->full) {
        n = stash_batch(e, g, early);
        g->kept = g->kept && n == 0;
    }
    ps_carrier_close(&e->stashes, &e->fences, e->ctx, e->stash_stream);
}

/* The group of that serial, else the next one; NULL when neither is there. */
static struct ps_group *group_from(const struct ps_engine *e, uint64_t serial)
{
    struct ps_group *g = e->groups;
    while (g != NULL && g->serial < serial) {
        g = g->next;
    }
    return g;
}

/* Waits for the oldest stash on its way. False: it does not end. Lock held; let go and taken again. */
static bool await_oldest(struct ps_engine *e)
{
    struct ps_fence *f = ps_fence_ref(e->flights->fence);
    bool done = ps_fence_done(f);
    if (!done) {
        pthread_mutex_unlock(&ps_lock);
        done = ps_wait_bounded(f->event) == CUDA_SUCCESS;
        pthread_mutex_lock(&ps_lock);
        ps_count(throttle_waits, 1);
        ps_count(idle_waits, done && last_stream_idle(e));
    }
    ps_fence_unref(&e->fences, f);
    e->stalled = !done;
    ps_engine_poll(e);
    return done;
}

/*
 * Room for the worst case of a planned group, without a mapping call: what is on its way is waited for only when it
 * holds the pages this one needs, the oldest first: the GPU has the work of all later ones. Lock held; let go and
 * taken again.
 */
static void await_room(struct ps_engine *e, uint64_t pages)
{
    while (ps_pool_available(e) < pages && e->flights != NULL && !e->stalled && await_oldest(e)) {
    }
    await_pages(e, pages);
}

void ps_move_group_out(struct ps_engine *e, struct ps_group *g)
{
    struct ps_group_view v;
    ps_engine_poll(e);
    view_group(e, g, g->thread, true, &v);
    /* Something since the last boundary may yet be used by what no call names. */
    if (!g->record_due && ps_group_may_leave(&v) && !ps_gain_none(&e->gain) && !e->pool.broken &&
        !e->ended && ps_pool_available(e) >= group_pages(e, g)) {
        ps_count(late_stashes, 1);
        g->returned = false;
        g->prefetched = false;
        stash_group(e, g, false);
    }
}

static bool any_late(const struct ps_group *g)
{
    bool late = false;
    for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
        late = late || (movable(t) && ps_site_late(t->site));
    }
    return late;
}

void ps_move_out_early(struct ps_engine *e, struct ps_group *g)
{
    ps_engine_poll(e);
    if (ps_sink_pages(e, g) > 0 && any_late(g)) {
        return; /* all of it goes at once, at the next boundary */
    }
    if (may_leave(e, g, g->thread) && !ps_gain_none(&e->gain) && !e->pool.broken && !e->ended &&
        ps_pool_available(e) >= group_pages(e, g)) {
        stash_group(e, g, true);
    }
}

/*
 * The group stays at a boundary at which it might have left. Should memory run out before the next one, it is known
 * what of it was used before this one.
 */
static void keep(struct ps_engine *e, struct ps_group *g)
{
    g->kept = true;
    if (g->record_due && !ps_stream_capturing(g->stream)) {
        ps_group_flush(e, g->stream);
    }
}

void ps_move_out(struct ps_engine *e, uint64_t thread)
{
    ps_follow_end(thread);
    const bool planned = e->places != NULL;
    const bool may = planned || throttle(e, thread);
    e->stalled = e->stalled && e->flights != NULL && !ps_fence_done(e->flights->fence);
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        if ((planned && g->stays) || !may_leave(e, g, thread)) {
            continue;
        }
        if (g->full || ps_gain_none(&e->gain) || !may || e->pool.broken || e->ended) {
            ps_pool_stand_by(e, group_pages(e, g));
            keep(e, g);
            continue;
        }
        const uint64_t pages = group_pages(e, g);
        const uint64_t serial = g->serial;
        if (planned) {
            await_room(e, pages);
        } else {
            await_pages(e, pages);
            ps_pool_ensure(e, pages);
        }
        /* The lock was let go: the group may have gone, or be in use. */
        g = group_from(e, serial);
        if (g == NULL) {
            return;
        }
        if (g->serial != serial || !may_leave(e, g, thread)) {
            continue;
        }
        if (ps_pool_available(e) < group_pages(e, g)) {
            keep(e, g);
            continue;
        }
        stash_group(e, g, false);
    }
}

void ps_move_out_marked(struct ps_engine *e)
{
    struct ps_group_view v;
    ps_engine_poll(e);
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        const uint64_t serial = g->serial;
        if (g->stays || ps_gain_none(&e->gain) || e->pool.broken || e->ended) {
            continue;
        }
        view_group(e, g, g->thread, false, &v);
        if (!ps_group_may_leave(&v)) {
            continue;
        }
        await_room(e, group_pages(e, g));
        /* The lock was let go: the group may have gone, or be in use. */
        g = group_from(e, serial);
        if (g == NULL) {
            return;
        }
        view_group(e, g, g->thread, false, &v);
        if (g->serial == serial && ps_group_may_leave(&v) &&
            ps_pool_available(e) >= group_pages(e, g)) {
            stash_group(e, g, false);
        }
    }
}
