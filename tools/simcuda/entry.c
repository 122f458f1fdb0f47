/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: the big lock, the threads known, and what every entry point does first and last: one-time set-up, the
 * counters, injected failures, a bit of device work. Any thread.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/simcuda/core.h"
#include "tools/simcuda/late.h"

static pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key; /* its destructor forgets the thread */
static __thread struct sim_thread *self;
__thread bool sim_in_ptds;
struct sim_thread *sim_threads;
unsigned sim_n_threads;
bool sim_initialised;
static struct sim_count *counts;
static bool forked; /* written by the only thread of a child */

void sim_lock(void)
{
    pthread_mutex_lock(&big_lock);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&big_lock);
}

void sim_cond_wait(unsigned ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&progress, &big_lock, &until);
}

void sim_cond_wake(void)
{
    pthread_cond_broadcast(&progress);
}

uint64_t sim_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void thread_gone(void *arg)
{
    struct sim_thread *t = arg;
    if (forked) {
        return;
    }
    sim_lock();
    sim_stream_thread_gone(t);
    sim_check_thread_gone(t);
    sim_sched_thread_gone(t);
    for (struct sim_thread **link = &sim_threads; *link != NULL; link = &(*link)->next) {
        if (*link == t) {
            *link = t->next;
            break;
        }
    }
    sim_n_threads--;
    sim_cond_wake();
    sim_unlock();
    self = NULL;
    free(t);
}

/* A forked child has none of the driver's state: its entry points fail, and nothing is reported by it. */
static void forked_child(void)
{
    forked = true;
}

static void set_up(void)
{
    sim_options_read();
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&progress, &attr);
    pthread_condattr_destroy(&attr);
    pthread_key_create(&thread_key, thread_gone);
    pthread_atfork(NULL, NULL, forked_child);
    sim_sched_init(sim_options.seed);
    sim_phys_init();
    sim_va_init();
}

struct sim_thread *sim_thread_self(void)
{
    if (self == NULL) {
        static uint32_t n_ids;
        struct sim_thread *t = sim_calloc(1, sizeof *t);
        t->id = ++n_ids;
        t->capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        t->next = sim_threads;
        sim_threads = t;
        sim_n_threads++;
        self = t;
        pthread_setspecific(thread_key, t);
    }
    return self;
}

/* The name without the suffixes that tell versions and stream variants apart. */
static void base_name(const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s", name);
    char *mark = strrchr(out, '_');
    while (mark != NULL &&
           (strcmp(mark, "_ptsz") == 0 || strcmp(mark, "_ptds") == 0 ||
            (mark[1] == 'v' && mark[2] >= '1' && mark[2] <= '9' && mark[3] == '\0'))) {
        *mark = '\0';
        mark = strrchr(out, '_');
    }
}

static struct sim_count *count_of(struct sim_fn *fn)
{
    struct sim_count *known = atomic_load_explicit(&fn->count, memory_order_relaxed);
    if (known != NULL) {
        return known;
    }
    char name[sizeof counts->name];
    base_name(fn->name, name, sizeof name);
    for (known = counts; known != NULL && strcmp(known->name, name) != 0; known = known->next) {
    }
    if (known == NULL) {
        known = sim_calloc(1, sizeof *known);
        memcpy(known->name, name, sizeof name);
        known->next = counts;
        counts = known;
    }
    atomic_store_explicit(&fn->count, known,
                          memory_order_relaxed); /* only ever read under the lock */
    return known;
}

struct sim_count *sim_counts(void)
{
    return counts;
}

void simcuda_reseed(uint64_t seed)
{
    pthread_once(&once, set_up);
    sim_lock();
    sim_random_seed(seed);
    sim_sched_seed(seed);
    sim_unlock();
}

static simcuda_watcher *watcher; /* atomic: a test program takes it away at its exit */

void simcuda_watch(simcuda_watcher *fn)
{
    __atomic_store_n(&watcher, fn, __ATOMIC_RELEASE);
}

static simcuda_pauser *pauser; /* atomic, as the watcher */

void simcuda_pause(simcuda_pauser *fn)
{
    __atomic_store_n(&pauser, fn, __ATOMIC_RELEASE);
}

static void pause_before(const struct sim_fn *fn, const void *caller)
{
    simcuda_pauser *const pause = __atomic_load_n(&pauser, __ATOMIC_ACQUIRE);
    char name[sizeof counts->name];

    if (pause != NULL) {
        base_name(fn->name, name, sizeof name);
        pause(name, caller);
    }
}

static CUresult admit(struct sim_thread *t, const char *name, unsigned flags, const void *caller)
{
    if ((flags & SIM_ANYTIME) == 0 && !sim_initialised) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (t->in_callback) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    CUresult injected = sim_options_fail(name);
    simcuda_watcher *const watch = __atomic_load_n(&watcher, __ATOMIC_ACQUIRE);
    if (injected == CUDA_SUCCESS && watch != NULL) {
        injected = watch(name, caller);
    }
    if (injected != CUDA_SUCCESS) {
        sim_log("injected failure %d into %s", (int)injected, name);
        return injected;
    }
    if ((flags & SIM_CTX) != 0) {
        const struct sim_ctx *ctx = sim_ctx_current(t);
        if (ctx == NULL) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (ctx->error != CUDA_SUCCESS) {
            return ctx->error;
        }
        sim_ctx_used(t, ctx, name);
    }
    return (flags & SIM_UNSAFE) != 0 ? sim_capture_unsafe(t) : CUDA_SUCCESS;
}

CUresult sim_enter(struct sim_fn *fn, unsigned flags, const void *caller,
                   struct sim_thread **thread_p)
{
    pthread_once(&once, set_up);
    if (forked) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pause_before(fn, caller);
    sim_sched_yield(fn->name);
    sim_lock();
    struct sim_thread *t = sim_thread_self();
    t->ptds = sim_in_ptds;
    t->waiting = NULL;
    struct sim_count *count = count_of(fn);
    count->calls++;
    const CUresult result = admit(t, count->name, flags, caller);
    if (result != CUDA_SUCCESS) {
        sim_unlock();
        return result;
    }
    sim_progress(sim_sched_eager(t, count->name));
    sim_late_chance();
    *thread_p = t;
    return CUDA_SUCCESS;
}

CUresult sim_leave(CUresult result)
{
    sim_unlock();
    return result;
}

/* After everything else: what the checker found. */
static void __attribute__((destructor)) at_end(void)
{
    if (!sim_options.check || forked) {
        return;
    }
    const uint64_t n = sim_check_finish();
    if (n > 0 && sim_options.check_exit) {
        fflush(NULL);
        _exit(87);
    }
}
