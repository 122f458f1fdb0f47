/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines: making, finding and ending them; what every entry does first and last. See engine_int.h for the lock.
 * An engine is made by the first region allocation in its context and lives until the context is destroyed. It is
 * never freed: a late call of another thread may still hold it, and there are few.
 */
#include "shim/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"

/* A driver that has not refused by then does end the context; guests that have not left by then wait for it. */
#define ENDING_MAX_S 10

pthread_mutex_t ps_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t ps_moved = PTHREAD_COND_INITIALIZER;

static struct ps_engine
    *_Atomic engines; /* changed under ps_lock; a hint elsewhere whether there is one */
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;
static bool thread_key_made;
static __thread struct ps_thread *self __attribute__((tls_model("initial-exec")));
static _Atomic uint64_t n_threads;
static _Atomic uint64_t n_ended = 1; /* streams destroyed, or about to be */

static void thread_end(void *p)
{
    struct ps_thread *th = p;
    pthread_mutex_lock(&ps_lock);
    if (th->group != NULL) {
        ps_group_close(th->group);
    }
    pthread_mutex_unlock(&ps_lock);
    self = NULL;
    free(th);
}

static void make_thread_key(void)
{
    thread_key_made = pthread_key_create(&thread_key, thread_end) == 0;
}

struct ps_thread *ps_thread_self(void)
{
    if (self == NULL) {
        struct ps_thread *th = calloc(1, sizeof(*th));
        if (th == NULL) {
            return NULL;
        }
        pthread_once(&thread_once, make_thread_key);
        if (!thread_key_made || pthread_setspecific(thread_key, th) != 0) {
            free(th);
            return NULL;
        }
        th->number = atomic_fetch_add_explicit(&n_threads, 1, memory_order_relaxed) + 1;
        self = th;
    }
    return self;
}

uint64_t ps_thread_number(void)
{
    const struct ps_thread *th = ps_thread_self();
    return th != NULL ? th->number : 0;
}

void ps_guard_enter(struct ps_guard *g)
{
    g->saved_errno = errno;
    g->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    g->pushed = NULL;
    g->current = NULL;
    g->refused = ps_driver.cuThreadExchangeStreamCaptureMode(&g->mode);
    if (g->refused != CUDA_SUCCESS) {
        g->refused = ps_driver.cuThreadExchangeStreamCaptureMode(&g->mode);
    }
    g->relaxed = g->refused == CUDA_SUCCESS;
    if (ps_driver.cuCtxGetCurrent(&g->current) != CUDA_SUCCESS) {
        g->current = NULL;
    }
}

void ps_guard_context(struct ps_guard *g, const struct ps_engine *e)
{
    if ((g->pushed != NULL ? g->pushed : g->current) == e->ctx) {
        return;
    }
    ps_guard_home(g);
    if (g->current != e->ctx && PS_TWICE(ps_driver.cuCtxPushCurrent(e->ctx))) {
        g->pushed = e->ctx;
    }
}

void ps_guard_home(struct ps_guard *g)
{
    CUcontext ctx;
    if (g->pushed != NULL && ps_driver.cuCtxPopCurrent(&ctx) != CUDA_SUCCESS &&
        ps_driver.cuCtxPopCurrent(&ctx) != CUDA_SUCCESS) {
        /* One too many on the thread's stack, but the right one on top. */
        ps_count(errors, 1);
        ps_driver.cuCtxSetCurrent(g->current);
    }
    g->pushed = NULL;
}

void ps_guard_leave(struct ps_guard *g)
{
    ps_guard_home(g);
    if (g->relaxed && ps_driver.cuThreadExchangeStreamCaptureMode(&g->mode) != CUDA_SUCCESS) {
        ps_driver.cuThreadExchangeStreamCaptureMode(&g->mode);
    }
    errno = g->saved_errno;
}

/* Until there are none. Lock held; let go meanwhile. */
static bool await_none(const uint32_t *n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ENDING_MAX_S;
    while (*n > 0 && pthread_cond_timedwait(&ps_moved, &ps_lock, &until) == 0) {
    }
    return *n == 0;
}

bool ps_engine_visit(struct ps_engine *e)
{
    if (!await_none(&e->n_ending) || e->state != PS_ENGINE_READY) {
        return false;
    }
    e->n_guests++;
    return true;
}

void ps_engine_left(struct ps_engine *e)
{
    ps_assert(e->n_guests > 0);
    e->n_guests--;
    if (e->n_ending > 0) {
        pthread_cond_broadcast(&ps_moved);
    }
}

enum ps_capture ps_stream_capture(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = ps_driver.cuStreamIsCapturing(stream, &status);
    /* Asking of the legacy stream while another blocking stream captures is an error that says just that. */
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
        r = ps_driver.cuStreamIsCapturing(stream, &status);
    }
    if (r == CUDA_SUCCESS) {
        return status == CU_STREAM_CAPTURE_STATUS_NONE ? PS_CAPTURE_NO : PS_CAPTURE_YES;
    }
    return r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ? PS_CAPTURE_YES : PS_CAPTURE_UNKNOWN;
}

static _Atomic uint32_t n_blocking; /* of all contexts: counted before any engine exists */

bool ps_streams_blocking(void)
{
    return atomic_load_explicit(&n_blocking, memory_order_relaxed) > 0;
}

void ps_engine_stream_created(CUstream stream, unsigned flags)
{
    (void)stream;
    if ((flags & CU_STREAM_NON_BLOCKING) == 0) {
        atomic_fetch_add_explicit(&n_blocking, 1, memory_order_relaxed);
    }
}

/*
 * A new stream may get the handle of one whose work still runs: nothing of the old one's is taken for
 * the new one's. Lock held.
 */
static void retire_stream(struct ps_engine *e, CUstream stream)
{
    static uint64_t n_retired; /* guarded by ps_lock */
    const uint64_t key = ps_stream_key(e->ctx, stream);
    const uint64_t gone = (uint64_t)1 << 62 | ++n_retired;

    ps_fences_retire(&e->fences, key, gone);
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        g->stream = g->stream == stream ? NULL : g->stream;
        g->stream_key = g->stream_key == key ? gone : g->stream_key;
    }
    for (struct ps_flight *fl = e->flights; fl != NULL; fl = fl->next) {
        fl->stream_key = fl->stream_key == key ? gone : fl->stream_key;
    }
    e->stashes.key = e->stashes.key == key ? gone : e->stashes.key;
    e->ahead.key = e->ahead.key == key ? gone : e->ahead.key;
    ps_sinks_retire(e->sinks, key, gone);
}

/* What is to be recorded on the stream at a boundary is recorded now: later it cannot be. */
static void flush_stream(CUstream stream, bool gone)
{
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    for (struct ps_engine *e = engines; e != NULL; e = e->next) {
        if (e->state != PS_ENGINE_READY ||
            (guard.current != e->ctx && stream == CU_STREAM_LEGACY)) {
            continue;
        }
        if (guard.current == e->ctx || ps_group_due(e, stream, e->n_ending > 0)) {
            /* The lock is not let go, so the context cannot begin to end. */
            ps_guard_context(&guard, e);
            ps_group_flush(e, stream);
            ps_guard_home(&guard);
        }
        if (gone) {
            retire_stream(e, stream);
        }
    }
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
}

uint64_t ps_streams_ended(void)
{
    return atomic_load_explicit(&n_ended, memory_order_acquire);
}

bool ps_engine_stream_destroying(CUstream stream)
{
    unsigned flags = 0;
    atomic_fetch_add_explicit(&n_ended, 1, memory_order_release);
    if (!ps_driver_init() || stream == NULL) {
        return false;
    }
    /* Asked now: afterwards nobody knows. */
    const bool blocking = ps_streams_blocking() &&
                          ps_driver.cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS &&
                          (flags & CU_STREAM_NON_BLOCKING) == 0;
    if (engines != NULL) {
        flush_stream(stream, true);
    }
    return blocking;
}

void ps_engine_stream_destroyed(bool blocking)
{
    if (blocking) {
        atomic_fetch_sub_explicit(&n_blocking, 1, memory_order_relaxed);
    }
}

void ps_engine_capture_beginning(CUstream stream)
{
    if (engines != NULL) {
        flush_stream(stream, false);
    }
}

struct ps_engine *ps_engines(void)
{
    return engines;
}

static struct ps_engine *find_any(CUcontext ctx)
{
    for (struct ps_engine *e = engines; e != NULL; e = e->next) {
        if (e->ctx == ctx) {
            return e;
        }
    }
    return NULL;
}

struct ps_engine *ps_engine_find(CUcontext ctx)
{
    struct ps_engine *e = ctx != NULL ? find_any(ctx) : NULL;
    return e != NULL && e->state == PS_ENGINE_READY ? e : NULL;
}

static int attribute(CUdevice device, CUdevice_attribute a)
{
    int value = 0;
    return ps_driver.cuDeviceGetAttribute(&value, a, device) == CUDA_SUCCESS ? value : 0;
}

/* Does the device's primary context have this handle? One that is not active is not made for the question. */
static bool is_primary(CUcontext ctx, CUdevice device)
{
    CUcontext primary = NULL;
    unsigned flags = 0;
    int active = 0;
    if (ps_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS ||
        active == 0 || ps_driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) {
        return false;
    }
    ps_driver.cuDevicePrimaryCtxRelease(device);
    return primary == ctx;
}

static enum ps_status query_device(struct ps_engine *e)
{
    CUmemAllocationProp prop;
    size_t granularity = 0;

    if (ps_driver.cuCtxGetDevice(&e->device) != CUDA_SUCCESS) {
        return PS_ERR_DEVICE;
    }
    e->primary = is_primary(e->ctx, e->device);
    if (attribute(e->device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0 ||
        attribute(e->device, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 0) {
        ps_warn_once(
            "device %d has no virtual memory management: nothing is paged there, the job runs as without us",
            e->device);
        return PS_ERR_UNSUPPORTED;
    }
    e->rdma =
        attribute(e->device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
    e->compressible = ps_options.compress &&
                      ps_driver.cuMemGetAllocationPropertiesFromHandle != NULL &&
                      attribute(e->device, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED) != 0;
    ps_memory_describe(e, &prop);
    const CUresult r = ps_driver.cuMemGetAllocationGranularity(&granularity, &prop,
                                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (r != CUDA_SUCCESS || granularity == 0) {
        ps_warn_once("no mapping granularity: %s; nothing is paged",
                     ps_driver_error_name(&ps_driver, r));
        return PS_ERR_DEVICE;
    }
    e->granularity = granularity;
    return PS_OK;
}

static CUresult make_streams(struct ps_engine *e)
{
    int least = 0;
    int greatest = 0;
    CUresult r = ps_driver.cuCtxGetStreamPriorityRange(&least, &greatest);
    if (r == CUDA_SUCCESS) {
        r = ps_driver.cuStreamCreateWithPriority(&e->stash_stream, CU_STREAM_NON_BLOCKING, least);
    }
    if (r == CUDA_SUCCESS) {
        r = ps_driver.cuStreamCreateWithPriority(&e->drop_stream, CU_STREAM_NON_BLOCKING, least);
    }
    if (r == CUDA_SUCCESS) {
        r = ps_driver.cuStreamCreateWithPriority(&e->restore_stream, CU_STREAM_NON_BLOCKING,
                                                 greatest);
    }
    if (r == CUDA_SUCCESS) {
        r = ps_driver.cuStreamCreateWithPriority(&e->ahead_stream, CU_STREAM_NON_BLOCKING,
                                                 greatest);
    }
    return r;
}

/* Once more if refused: what follows takes memory away from under the work. */
static bool idle_stream(CUstream stream)
{
    return stream == NULL || PS_TWICE(ps_driver.cuStreamSynchronize(stream));
}

/* Gives back what set_up has made so far. Lock not held. */
static void tear_down(struct ps_engine *e)
{
    CUstream *const streams[] = {&e->stash_stream, &e->drop_stream, &e->restore_stream,
                                 &e->ahead_stream};
    for (int i = 0; i < 4; i++) {
        /* The arena's first fill may still run. */
        if (!idle_stream(*streams[i])) {
            ps_count(errors, 1);
            return; /* our own memory stays until the process ends */
        }
    }
    ps_pool_fini(e);
    ps_kernels_unload(&ps_driver, &e->kernels);
    for (int i = 0; i < 4; i++) {
        if (*streams[i] != NULL) {
            ps_driver.cuStreamDestroy(*streams[i]);
            *streams[i] = NULL;
        }
    }
    ps_fences_fini(&e->fences);
}

static enum ps_status reserve_window(const struct ps_engine *e)
{
    size_t total = 0;
    uint64_t bytes = ps_options.window_bytes;
    if (bytes == PS_AUTO) {
        /* Addresses of everything out and in, twice over for changing sizes, on every device of a node. */
        ps_driver.cuDeviceTotalMem(&total, e->device);
        bytes = (uint64_t)total * 16;
    }
    pthread_mutex_lock(&ps_lock);
    const enum ps_status s = ps_window_reserve(bytes, e->granularity);
    pthread_mutex_unlock(&ps_lock);
    return s;
}

/* What an engine needs of the driver. Lock not held; nobody else uses the engine yet. */
static enum ps_status set_up(struct ps_engine *e)
{
    enum ps_status s = query_device(e);
    if (s == PS_OK) {
        s = reserve_window(e);
    }
    if (s != PS_OK) {
        return s;
    }
    CUresult r = make_streams(e);
    if (r == CUDA_SUCCESS) {
        r = ps_kernels_load(&ps_driver, &e->kernels);
    }
    if (r != CUDA_SUCCESS) {
        ps_warn_once("cannot load the stash kernels on device %d: %s; nothing is paged there",
                     e->device, ps_driver_error_name(&ps_driver, r));
        tear_down(e);
        return PS_ERR_DEVICE;
    }
    s = ps_pool_init(e);
    if (s != PS_OK) {
        tear_down(e);
    }
    return s;
}

struct ps_engine *ps_engine_make(CUcontext ctx)
{
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = ctx != NULL ? find_any(ctx) : NULL;
    if (e != NULL || ctx == NULL) {
        if (e != NULL && (e->state != PS_ENGINE_READY || e->n_ending > 0)) {
            e = NULL; /* being made, ending or broken: this allocation passes through */
        }
        pthread_mutex_unlock(&ps_lock);
        return e;
    }
    e = calloc(1, sizeof(*e));
    if (e != NULL) {
        e->ctx = ctx;
        e->state = PS_ENGINE_MAKING;
        e->flights_end = &e->flights;
        ps_segment_init(&e->learner.segment, ps_options.step[0] != '\0');
        e->next = engines;
        engines = e;
    }
    pthread_mutex_unlock(&ps_lock);
    if (e == NULL) {
        return NULL;
    }
    const enum ps_status s = set_up(e);
    pthread_mutex_lock(&ps_lock);
    e->state = s == PS_OK ? PS_ENGINE_READY : PS_ENGINE_BROKEN;
    pthread_mutex_unlock(&ps_lock);
    return s == PS_OK ? e : NULL;
}

static bool carries(const struct ps_flight *fl, const struct ps_copy *c)
{
    for (uint32_t i = 0; i < fl->n; i++) {
        if (fl->copy[i] == c) {
            return true;
        }
    }
    return false;
}

/*
 * Copies without padding gain nothing, and in device pages they take what the way back needs: while the tensors' places
 * stand, they are taken back.
 */
static void take_back(struct ps_engine *e, const struct ps_flight *fl)
{
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        for (struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            if (t->state == PS_CACHED && carries(fl, t->copy)) {
                g->full = ps_move_back(e, t, e->stash_stream) == CUDA_SUCCESS || g->full;
            }
        }
    }
}

void ps_flight_end(struct ps_engine *e, struct ps_flight *fl)
{
    const bool spills = e->short_of_memory && e->pool.budget.capacity.host > 0;
    uint32_t uniform = 0;
    if (fl->sink != NULL) {
        ps_flight_settle(e, fl);
    }
    for (uint32_t i = 0; i < fl->n; i++) {
        ps_copy_settle(e, fl->copy[i]);
        uniform += fl->copy[i]->uniform;
        if (spills && fl->copy[i]->site != NULL) {
            fl->copy[i]->site->n_stashed = 0; /* the gain is that it leaves the device */
        }
    }
    const bool before = ps_gain_none(&e->gain);
    if (uniform > 0 || !spills) {
        ps_gain_seen(&e->gain, uniform > 0);
    }
    if (!e->gain.padded && !spills) {
        take_back(e, fl);
    }
    if (!before && ps_gain_none(&e->gain)) {
        ps_info(
            "stashed groups held no padding: later groups stay where they are until memory runs out");
    }
    ps_fence_unref(&e->fences, fl->fence);
    free(fl);
}

void ps_engine_poll(struct ps_engine *e)
{
    while (e->flights != NULL && ps_fence_done(e->flights->fence)) {
        struct ps_flight *fl = e->flights;
        e->flights = fl->next;
        if (e->flights == NULL) {
            e->flights_end = &e->flights;
        }
        ps_flight_end(e, fl);
    }
    ps_pool_poll(e);
    ps_demand_poll(e);
}

void ps_engine_reap(struct ps_engine *e)
{
    struct ps_unmap *ready = NULL;
    pthread_mutex_lock(&ps_lock);
    for (struct ps_unmap **at = &e->unmaps; *at != NULL;) {
        struct ps_unmap *u = *at;
        if (ps_fence_done(u->ready[0]) && ps_fence_done(u->ready[1])) {
            *at = u->next;
            u->next = ready;
            ready = u;
        } else {
            at = &u->next;
        }
    }
    pthread_mutex_unlock(&ps_lock);
    if (ready == NULL) {
        return;
    }
    for (struct ps_unmap *u = ready; u != NULL; u = u->next) {
        u->failed = ps_memory_unmap(u->slot.base, u->slot.bytes) != CUDA_SUCCESS;
    }
    pthread_mutex_lock(&ps_lock);
    while (ready != NULL) {
        struct ps_unmap *u = ready;
        ready = u->next;
        if (u->failed) {
            /* Its addresses cannot be used again before: the next reaping tries once more. */
            u->next = e->unmaps;
            e->unmaps = u;
            continue;
        }
        ps_fence_unref(&e->fences, u->ready[0]);
        ps_fence_unref(&e->fences, u->ready[1]);
        ps_slot_give(&u->slot);
        free(u);
    }
    pthread_mutex_unlock(&ps_lock);
}

/* ---- the end of a context, of paging, of the process ---- */

static void release_place(struct ps_tensor *t)
{
    if (t->chunks == NULL) {
        return;
    }
    if (ps_driver.cuMemUnmap(t->slot.base, t->slot.bytes) != CUDA_SUCCESS) {
        t->stuck = t->slot.bytes;
    }
    while (t->chunks != NULL) {
        struct ps_chunk *c = t->chunks;
        t->chunks = c->next;
        ps_driver.cuMemRelease(c->handle);
        free(c);
    }
}

/* The addresses may be another context's from now on, but for those that a call still holds. Lock not held. */
static void give_slot(const struct ps_tensor *t)
{
    pthread_mutex_lock(&ps_lock);
    if (t->stuck == 0 && t->pins == 0) {
        ps_slot_give(&t->slot);
    }
    pthread_mutex_unlock(&ps_lock);
}

/* Takes the engine and everything in it out of sight. The tensors, linked by next. Lock held. */
static struct ps_tensor *forget(struct ps_engine *e)
{
    if (engines == e) {
        engines = e->next;
    }
    for (struct ps_engine *at = engines; at != NULL; at = at->next) {
        if (at->next == e) {
            at->next = e->next;
        }
    }
    e->state = PS_ENGINE_BROKEN;
    struct ps_tensor *all = NULL;
    struct ps_tensor **end = &all;
    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        *end = g->tensors;
        for (; *end != NULL; end = &(*end)->next) {
            ps_window_name(&(*end)->slot, NULL);
        }
        g->tensors = NULL;
        /* Of the others a few hundred bytes stay. */
        g->engine = g->open ? NULL : e;
    }
    e->groups = NULL;
    e->groups_last = NULL;
    return all;
}

/*
 * The context is gone: nothing of it runs any more. Lock not held; nobody can find the engine, but calls in flight may
 * hold tensors that they name by stale words, so those stay, a few hundred bytes each.
 */
static void release_memory(struct ps_engine *e, struct ps_tensor *tensors)
{
    for (struct ps_tensor *t = tensors; t != NULL; t = t->next) {
        release_place(t);
        if (t->place == NULL) {
            give_slot(t);
        }
    }
    while (e->dead != NULL) {
        struct ps_tensor *t = e->dead;
        e->dead = t->lru_next;
        release_place(t);
        give_slot(t);
        free(t);
    }
    while (e->unmaps != NULL) {
        struct ps_unmap *u = e->unmaps;
        e->unmaps = u->next;
        if (ps_driver.cuMemUnmap(u->slot.base, u->slot.bytes) == CUDA_SUCCESS) {
            pthread_mutex_lock(&ps_lock);
            ps_slot_give(&u->slot);
            pthread_mutex_unlock(&ps_lock);
        }
        free(u);
    }
    ps_sinks_free(e, e->sinks, true);
    e->sinks = NULL;
    if (e->places != NULL) {
        ps_places_free(e, e->places);
        e->places = NULL;
    }
    ps_learn_fini(e);
    for (unsigned k = 0; k < PS_N_CLASSES; k++) {
        while (e->free_chunks[k] != NULL) {
            struct ps_chunk *c = e->free_chunks[k];
            e->free_chunks[k] = c->next;
            ps_driver.cuMemRelease(c->handle);
            free(c);
        }
    }
}

/*
 * Until the driver has destroyed the context it may refuse to, and everything lives on. But its handle may be a new
 * context's at once: the engine takes nothing in meanwhile. And threads in other contexts leave it alone. Lock held.
 */
static void begin_ending(struct ps_engine *e)
{
    if (e != NULL) {
        e->n_ending++;
        (void)await_none(&e->n_guests);
    }
}

struct ps_engine *ps_engine_context_ending(CUcontext ctx)
{
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = ps_engine_find(ctx);
    begin_ending(e);
    pthread_mutex_unlock(&ps_lock);
    if (e != NULL) {
        ps_host_pause(e);
    }
    return e;
}

struct ps_engine *ps_engine_primary_ending(CUdevice device)
{
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = engines;
    /* The state first: what an engine is while it is being made belongs to another thread. */
    while (e != NULL && (e->state != PS_ENGINE_READY || e->device != device || !e->primary)) {
        e = e->next;
    }
    begin_ending(e);
    pthread_mutex_unlock(&ps_lock);
    if (e != NULL) {
        ps_host_pause(e);
    }
    return e;
}

/* With the context went its streams, events, modules and pinned memory. */
void ps_engine_ended(struct ps_engine *e, bool gone)
{
    struct ps_guard g;
    if (e == NULL) {
        return;
    }
    ps_guard_enter(&g);
    pthread_mutex_lock(&ps_lock);
    e->n_ending--;
    gone = gone && e->state == PS_ENGINE_READY;
    struct ps_tensor *const tensors = gone ? forget(e) : NULL;
    if (!gone) {
        ps_host_resume(e);
    }
    pthread_cond_broadcast(&ps_moved);
    pthread_mutex_unlock(&ps_lock);
    if (gone) {
        release_memory(e, tensors);
        e->pool.ledger = NULL;
        ps_pool_fini(e);
        ps_rows_fini(e, true);
        ps_demand_fini(e, true);
    }
    ps_guard_leave(&g);
}

bool ps_engine_forked(void)
{
    const bool used = engines != NULL;
    /* The lock may have been held by a thread that does not exist here. */
    engines = NULL;
    atomic_store(&ps_coming_home, false);
    atomic_store(&ps_window_size, 0);
    pthread_mutex_init(&ps_lock, NULL);
    pthread_cond_init(&ps_moved, NULL);
    if (self != NULL) {
        self->group = NULL;
    }
    ps_observe_forked();
    return used;
}

void ps_engine_exit(void)
{
    ps_observe_exit();
}
