/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Touches: a call of the job that names addresses of tensors. Before the call the tensors become resident, in order
 * before what the call's stream does next, and are pinned; after it their group's use is noted. A pinned tensor is
 * neither stashed nor recycled.
 *
 * On the group's own stream the use is recorded at the next boundary only. On any other stream, on a per-thread
 * default stream, and on the legacy stream while the job has blocking streams (a record there is a barrier), it is
 * recorded right after the call, so that no later work of that stream gets in front of us. A product whose operands
 * only the kernel before it was told of names nothing of ours: so until the next boundary it is recorded again after
 * each call in that stream.
 *
 * Words of parameters that name nothing any more are many (what a stack held, in structures that are filled in part).
 * They are told from others without the lock, when they are collected, so that a call with no other words takes none.
 * What did name a tensor then is looked up once more under the lock: another thread may have freed it meanwhile.
 *
 * Any thread. Lock: taken here, never held across the job's call.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"

/* ---- collecting addresses: no lock ---- */

static uint64_t *addresses(struct ps_touches *t)
{
    return t->more != NULL ? t->more : t->inline_addr;
}

void ps_touches_add(struct ps_touches *t, uint64_t address)
{
    if (!ps_in_window(address) || address == t->last) {
        return;
    }
    t->last = address;
    if (!ps_window_names(address)) {
        t->n_stale++;
        return;
    }
    if (t->n == t->capacity) {
        ps_assert(t->capacity > 0);
        uint64_t *more = malloc(2 * (size_t)t->capacity * sizeof(*more));
        if (more == NULL) {
            /* Without the list we cannot know what the call needs: bring everything back, for good. */
            ps_engine_end_paging("no host memory to note what a launch names");
            return;
        }
        memcpy(more, addresses(t), t->n * sizeof(*more));
        free(t->more);
        t->more = more;
        t->capacity *= 2;
    }
    addresses(t)[t->n++] = address;
}

void ps_touches_add_range(struct ps_touches *t, uint64_t address, uint64_t bytes)
{
    if (bytes == 0) {
        return;
    }
    ps_touches_add(t, address);
    ps_touches_add(t, address + bytes - 1);
}

/* Once a call. */
static void count_stale(struct ps_touches *t)
{
    if (t->n_stale != 0) {
        ps_count(stale_touches, t->n_stale);
        t->n_stale = 0;
    }
}

static void end_list(struct ps_touches *t)
{
    free(t->more);
    if (t->held != t->inline_held) {
        free(t->held);
    }
    ps_touches_init(t);
}

/* ---- whose use is ordered how ---- */

_Atomic bool ps_following; /* a hint: some group is followed; set and cleared under the lock */

static void begin_following(struct ps_group *g)
{
    g->followed = true;
    atomic_store_explicit(&ps_following, true, memory_order_relaxed);
}

/* The fences of followed groups on this stream move behind what it has been given by now. Lock held. */
static void follow(CUcontext ctx, CUstream stream)
{
    struct ps_engine *e = ps_engine_find(ctx);
    const uint64_t key = ps_stream_key(ctx, stream);
    struct ps_fence *now = NULL;
    CUresult r;

    if (e == NULL || ps_stream_capturing(stream)) {
        return;
    }
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        for (uint32_t i = 0; g->followed && i <= g->n_foreign; i++) {
            struct ps_fence **at = i < g->n_foreign ? &g->foreign[i] : &g->home;
            const uint64_t its = i < g->n_foreign ? g->foreign[i]->stream_key : g->stream_key;
            if (its != key || (i == g->n_foreign && g->record_due)) {
                continue;
            }
            now = now != NULL ? now : ps_fence_record(&e->fences, ctx, stream, &r);
            if (now == NULL) {
                g->crowded = true;
                continue;
            }
            ps_fence_unref(&e->fences, *at);
            *at = ps_fence_ref(now);
        }
    }
    ps_fence_unref(&e->fences, now);
}

void ps_touch_follow(CUstream stream)
{
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    follow(guard.current, stream);
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
}

void ps_follow_end(uint64_t thread)
{
    bool any = false;
    for (const struct ps_engine *e = ps_engines(); e != NULL; e = e->next) {
        for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
            g->followed = g->followed && (g->thread != thread || g->open);
            any = any || g->followed;
        }
    }
    atomic_store_explicit(&ps_following, any, memory_order_relaxed);
}

static void note_foreign(struct ps_tensor *t, CUcontext ctx, CUstream stream)
{
    struct ps_group *g = t->group;
    struct ps_engine *e = g->engine;
    CUresult r = CUDA_ERROR_INVALID_CONTEXT;
    struct ps_fence *f = ctx == e->ctx ? ps_fence_record(&e->fences, ctx, stream, &r) : NULL;

    if (!t->foreign) {
        t->foreign = true;
        t->site->n_foreign++;
    }
    if (f == NULL) {
        g->crowded = true; /* a use that we cannot follow: the group stays */
        return;
    }
    const bool followed = g->followed;
    begin_following(g);
    for (uint32_t i = 0; i < g->n_foreign; i++) {
        if (g->foreign[i]->stream_key == f->stream_key ||
            (!followed && ps_fence_done(g->foreign[i]))) {
            ps_fence_unref(&e->fences, g->foreign[i]);
            g->foreign[i] = f;
            return;
        }
    }
    if (g->n_foreign == PS_FOREIGN_MAX) {
        g->crowded = true;
        ps_fence_unref(&e->fences, f);
        return;
    }
    g->foreign[g->n_foreign++] = f;
}

void ps_group_touched(struct ps_tensor *t, CUcontext ctx, CUstream stream)
{
    struct ps_group *g = t->group;
    struct ps_engine *e = g->engine;
    const uint64_t key = ps_stream_key(ctx, stream);

    if (!t->late && ps_learn_behind_pop(e, g)) {
        t->late = true;
        ps_site_named_late(t->site, true);
    }
    if (key != g->stream_key) {
        note_foreign(t, ctx, stream);
        return;
    }
    g->stream = stream; /* after a destroyed stream its handle may come back for a new one */
    const bool eager =
        stream == CU_STREAM_PER_THREAD || (stream == CU_STREAM_LEGACY && ps_streams_blocking());
    if (!eager) {
        g->record_due = true;
        return;
    }
    CUresult r;
    struct ps_fence *f = ps_fence_record(&e->fences, ctx, stream, &r);
    if (f == NULL) {
        g->crowded = true;
        return;
    }
    ps_fence_unref(&e->fences, g->home);
    g->home = f;
    begin_following(g);
}

bool ps_group_due(struct ps_engine *e, CUstream stream, bool stays)
{
    const uint64_t key = ps_stream_key(e->ctx, stream);
    bool due = false;
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        if (g->record_due && g->stream_key == key) {
            g->crowded = g->crowded || stays;
            due = !stays;
        }
    }
    return due;
}

void ps_group_flush(struct ps_engine *e, CUstream stream)
{
    const uint64_t key = ps_stream_key(e->ctx, stream);
    struct ps_fence *shared = NULL;
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        if (!g->record_due || g->stream_key != key) {
            continue;
        }
        CUresult r;
        if (shared == NULL) {
            shared = ps_fence_record(&e->fences, e->ctx, stream, &r);
        }
        if (shared == NULL) {
            g->crowded = true;
            continue;
        }
        ps_fence_unref(&e->fences, g->home);
        g->home = ps_fence_ref(shared);
        g->record_due = false;
    }
    ps_fence_unref(&e->fences, shared);
}

/* ---- before the call ---- */

static bool hold(struct ps_touches *t, struct ps_tensor *tensor)
{
    for (unsigned i = 0; i < t->n_held; i++) {
        if (t->held[i] == tensor) {
            return true;
        }
    }
    if (t->n_held == PS_TOUCH_INLINE && t->held == t->inline_held) {
        /* At most one tensor an address. */
        void **more = malloc((size_t)t->n * sizeof(*more));
        if (more == NULL) {
            return false;
        }
        memcpy(more, t->held, sizeof(t->inline_held));
        t->held = more;
    }
    t->held[t->n_held++] = tensor;
    tensor->pins++;
    return true;
}

static bool find_tensors(struct ps_touches *t)
{
    for (unsigned i = 0; i < t->n; i++) {
        struct ps_tensor *tensor = ps_window_find(addresses(t)[i]);
        if (tensor == NULL || tensor->freed) {
            ps_count(stale_touches, 1);
        } else if (!hold(t, tensor)) {
            return false;
        }
    }
    return true;
}

/* The job has freed it meanwhile. What is in a context that is gone went with it. */
static void release_freed(struct ps_tensor *t, struct ps_guard *guard)
{
    struct ps_engine *e = t->engine;
    const bool away = guard->current != e->ctx;
    const bool there = away ? ps_engine_visit(e) : e->state == PS_ENGINE_READY;
    if (--t->pins == 0 && t->state != PS_MOVING && there) {
        ps_guard_context(guard, e);
        ps_tensor_die(t);
        ps_guard_home(guard);
    }
    if (away && there) {
        ps_engine_left(e);
    }
}

/* Lock held; may be let go. */
static void release_held(struct ps_touches *t, struct ps_guard *guard)
{
    for (unsigned i = 0; i < t->n_held; i++) {
        struct ps_tensor *tensor = t->held[i];
        ps_assert(tensor->pins > 0);
        if (tensor->freed) {
            release_freed(tensor, guard);
        } else {
            tensor->pins--;
        }
    }
    t->n_held = 0;
}

static bool last_alive(const struct ps_group *g)
{
    for (const struct ps_group *later = g->next; later != NULL; later = later->next) {
        if (later->open || later->tensors != NULL) {
            return false;
        }
    }
    return true;
}

static bool all_proven(const struct ps_group *g)
{
    for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
        if (t->was_out && !t->site->proven) {
            return false;
        }
    }
    return true;
}

/* What a touch of a tensor that is cached or out brings back, and its counters. */
static enum ps_scope scope_of(struct ps_tensor *t)
{
    struct ps_group *g = t->group;
    if (g->returned) {
        return PS_SCOPE_GROUP;
    }
    const bool expected =
        g->engine->places != NULL ? ps_learn_expects(g->engine, g) : last_alive(g);
    const enum ps_scope scope = ps_group_scope(expected && !g->open, all_proven(g));
    if (scope == PS_SCOPE_RETURN) {
        g->returned = true;
        ps_count(restores_on_demand, 1);
        if (g->engine->places != NULL) {
            ps_move_out_marked(g->engine);
        }
    } else if (t->state == PS_OUT) {
        ps_count(unplanned_touches, 1);
        t->n_unplanned++;
        ps_trace("unplanned touch of group %llu (%s)", (unsigned long long)g->serial,
                 scope == PS_SCOPE_GROUP ? "whole" : "one tensor");
    }
    return scope;
}

/* Tensors to bring in for one that is cached or out, marked PS_MOVING; cached ones are simply taken back. */
static uint32_t choose(struct ps_tensor *t, CUstream stream, struct ps_tensor *out[PS_BATCH_MAX])
{
    struct ps_group *g = t->group;
    const bool whole = scope_of(t) != PS_SCOPE_TENSOR;
    uint32_t n = 0;

    if (t->state == PS_OUT) {
        t->state = PS_MOVING;
        out[n++] = t;
    }
    for (struct ps_tensor *m = whole ? g->tensors : NULL; m != NULL; m = m->next) {
        if (m->state == PS_OUT && !m->freed && n < PS_BATCH_MAX) {
            m->state = PS_MOVING;
            out[n++] = m;
        } else if (m->state == PS_CACHED && !m->freed && m != t) {
            (void)ps_move_back(g->engine, m,
                               stream); /* refused: it stays cached until it is named itself */
        }
    }
    return n;
}

/* Lock held; let go and taken again. */
static CUresult take_back(struct ps_tensor *t, CUstream stream)
{
    struct ps_engine *e = t->engine;
    CUresult r = ps_move_back(e, t, stream);
    if (r != CUDA_SUCCESS) {
        /* The driver refuses the order: wait for the stash instead. */
        struct ps_fence *f = ps_fence_ref(t->copy->stash);
        ps_count(errors, 1);
        ps_count(host_syncs, 1);
        pthread_mutex_unlock(&ps_lock);
        r = ps_driver.cuEventSynchronize(f->event);
        pthread_mutex_lock(&ps_lock);
        f->done = f->done || r == CUDA_SUCCESS;
        ps_fence_unref(&e->fences, f);
    }
    return r;
}

static CUresult make_resident(struct ps_tensor *t, CUstream stream)
{
    struct ps_tensor *in[PS_BATCH_MAX];
    CUresult r = CUDA_SUCCESS;

    while (r == CUDA_SUCCESS && t->state != PS_RESIDENT) {
        if (t->state == PS_MOVING) {
            pthread_cond_wait(&ps_moved, &ps_lock);
            continue;
        }
        const uint32_t n = choose(t, stream, in);
        if (n > 0) {
            r = ps_move_in(t->engine, in, n, stream);
        }
        if (r == CUDA_SUCCESS && t->state == PS_CACHED) {
            r = take_back(t, stream);
        }
    }
    return r;
}

/* What brought the tensor in ran on another stream: this one must not overtake it. Lock held; may be let go. */
static CUresult await_arrival(struct ps_tensor *t, CUcontext current, CUstream stream)
{
    struct ps_engine *e = t->engine;
    t->seen = t->seen || t->was_out;
    if (ps_fence_done(t->arrived)) {
        t->arrived = ps_fence_unref(&e->fences, t->arrived);
        return CUDA_SUCCESS;
    }
    if (ps_fence_wait(t->arrived, ps_stream_key(current, stream), stream) == CUDA_SUCCESS) {
        return CUDA_SUCCESS;
    }
    struct ps_fence *f = ps_fence_ref(t->arrived);
    ps_count(host_syncs, 1);
    pthread_mutex_unlock(&ps_lock);
    const CUresult r = ps_driver.cuEventSynchronize(f->event);
    pthread_mutex_lock(&ps_lock);
    ps_fence_unref(&e->fences, f);
    return r;
}

/*
 * Everything a held tensor needs to be usable. A stream of another context carries no copy of ours: our own stream
 * brings the tensor in, and the job's waits for it (across contexts). stream NULL: the host waits, so that the data
 * is there for every stream. Lock held; let go and taken again.
 */
static CUresult enter_one(struct ps_tensor *t, struct ps_guard *guard, CUstream stream)
{
    struct ps_engine *e = t->engine;
    CUresult r = CUDA_SUCCESS;
    if (t->state != PS_RESIDENT) {
        const bool own = stream != NULL && guard->current == e->ctx;
        ps_guard_context(guard, e);
        r = make_resident(t, own ? stream : e->restore_stream);
        ps_guard_home(guard);
    }
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (t->group->prefetched || (t->group->returned && !t->group->came)) {
        ps_guard_context(guard, e);
        ps_learn_touched(e, t->group);
        ps_guard_home(guard);
    }
    if (stream != NULL) {
        return await_arrival(t, guard->current, stream);
    }
    struct ps_fence *f = ps_fence_ref(t->arrived);
    t->seen = t->seen || t->was_out;
    if (!ps_fence_done(f)) {
        ps_count(host_syncs, 1);
        pthread_mutex_unlock(&ps_lock);
        r = ps_driver.cuEventSynchronize(f->event);
        pthread_mutex_lock(&ps_lock);
    }
    ps_fence_unref(&e->fences, f);
    return r;
}

static CUresult enter_held(struct ps_tensor *t, struct ps_guard *guard, CUstream stream)
{
    struct ps_engine *e = t->engine;
    if (guard->current == e->ctx) {
        return enter_one(t, guard, stream);
    }
    if (t->state == PS_RESIDENT && t->arrived == NULL) {
        t->seen = t->seen || t->was_out;
        return CUDA_SUCCESS;
    }
    if (!ps_engine_visit(e)) {
        return CUDA_SUCCESS; /* a stale word */
    }
    const CUresult r = enter_one(t, guard, stream);
    ps_engine_left(e);
    return r;
}

static CUresult enter_all(struct ps_touches *t, struct ps_guard *guard, CUstream stream, bool pin)
{
    CUresult r = find_tensors(t) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < t->n_held && r == CUDA_SUCCESS; i++) {
        struct ps_tensor *tensor = t->held[i];
        r = enter_held(tensor, guard, stream);
        if (pin && r == CUDA_SUCCESS && !tensor->pinned) {
            tensor->pinned = true;
            ps_count(pins, 1);
        }
    }
    if (r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && guard->refused != CUDA_SUCCESS) {
        return guard->refused; /* the cause */
    }
    return r;
}

/* ---- the usual touch: of what is in its place, with nothing to wait for; the driver is hardly asked ---- */

/* 0: not without a guard. */
static uint64_t key_at_hand(CUstream stream)
{
    const int saved_errno = errno;
    CUcontext ctx = NULL;
    if (stream == CU_STREAM_PER_THREAD) {
        return 0;
    }
    if (stream == CU_STREAM_LEGACY &&
        (ps_driver.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || ctx == NULL)) {
        errno = saved_errno;
        return 0;
    }
    errno = saved_errno;
    return ps_stream_key(ctx, stream);
}

/* enter_held has nothing to do for it, whatever context is current. */
static bool is_at_hand(const struct ps_tensor *t, uint64_t key)
{
    const struct ps_group *g = t->group;
    return t->state == PS_RESIDENT && !g->prefetched && (!g->returned || g->came) &&
           (t->arrived == NULL || t->arrived->stream_key == key);
}

/* False: nothing was done. */
static bool enter_at_hand(struct ps_touches *t)
{
    struct ps_tensor *found[PS_TOUCH_INLINE];
    bool all = t->key != 0 && t->n <= PS_TOUCH_INLINE;
    unsigned n = 0;
    if (!all) {
        return false;
    }
    pthread_mutex_lock(&ps_lock);
    for (unsigned i = 0; i < t->n && all; i++) {
        struct ps_tensor *tensor = ps_window_find(addresses(t)[i]);
        if (tensor != NULL && !tensor->freed) {
            found[n++] = tensor;
            all = is_at_hand(tensor, t->key);
        }
    }
    for (unsigned i = 0; i < n && all; i++) {
        found[i]->seen = found[i]->seen || found[i]->was_out;
        (void)hold(t, found[i]); /* the list is long enough */
    }
    pthread_mutex_unlock(&ps_lock);
    if (all) {
        ps_count(touches, t->n_held);
        if (n < t->n) {
            ps_count(stale_touches, t->n - n);
        }
    }
    return all;
}

/* Nothing is to be told of its use now, and nobody has freed it meanwhile. */
static bool may_go(const struct ps_tensor *t, uint64_t key, bool eager)
{
    return !t->freed && (t->engine->state != PS_ENGINE_READY || t->group == NULL ||
                         (t->group->stream_key == key && !eager));
}

/* False: nothing was done. */
static bool leave_at_hand(struct ps_touches *t, CUstream stream)
{
    const bool eager = stream == CU_STREAM_LEGACY && ps_streams_blocking();
    bool all = t->key != 0 && !atomic_load_explicit(&ps_following, memory_order_relaxed);
    if (!all) {
        return false;
    }
    pthread_mutex_lock(&ps_lock);
    for (unsigned i = 0; i < t->n_held && all; i++) {
        all = may_go(t->held[i], t->key, eager);
    }
    for (unsigned i = 0; i < t->n_held && all; i++) {
        struct ps_tensor *tensor = t->held[i];
        if (tensor->engine->state == PS_ENGINE_READY && tensor->group != NULL) {
            /* The group's own stream, so in its context; nothing is recorded. */
            ps_group_touched(tensor, tensor->engine->ctx, stream);
        }
        tensor->pins--;
    }
    pthread_mutex_unlock(&ps_lock);
    return all;
}

CUresult ps_touch_enter(struct ps_touches *t, CUstream stream)
{
    count_stale(t);
    if (t->n == 0) {
        return CUDA_SUCCESS;
    }
    t->key = key_at_hand(stream);
    if (enter_at_hand(t)) {
        return CUDA_SUCCESS;
    }
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    const CUresult r = enter_all(t, &guard, stream, false);
    if (r != CUDA_SUCCESS) {
        release_held(t, &guard);
    }
    ps_count(touches, t->n_held);
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
    if (r != CUDA_SUCCESS) {
        end_list(t);
    }
    return r;
}

void ps_touch_leave(struct ps_touches *t, CUstream stream)
{
    if (t->n == 0) {
        return;
    }
    if (leave_at_hand(t, stream)) {
        end_list(t);
        return;
    }
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    for (unsigned i = 0; i < t->n_held; i++) {
        struct ps_tensor *tensor = t->held[i];
        if (tensor->engine->state == PS_ENGINE_READY && tensor->group != NULL) {
            ps_group_touched(tensor, guard.current, stream);
        }
    }
    if (atomic_load_explicit(&ps_following, memory_order_relaxed)) {
        follow(guard.current, stream);
    }
    release_held(t, &guard);
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
    end_list(t);
}

CUresult ps_touch_pin(struct ps_touches *t, CUstream stream)
{
    (void)stream;
    count_stale(t);
    if (t->n == 0) {
        return CUDA_SUCCESS;
    }
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    const CUresult r = enter_all(t, &guard, NULL, true);
    release_held(t, &guard);
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
    end_list(t);
    return r;
}
