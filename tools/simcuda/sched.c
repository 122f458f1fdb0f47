/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes first: streams and host threads have random priorities, drawn anew at change points. A stream of low
 * priority makes no step while another one can, however long that takes: so a wait that is missing shows at any
 * distance. In some eras the device does nothing until somebody waits for it, in others it runs at once.
 *
 * Seed 0: operations run in the order they were queued, and threads are left alone.
 *
 * Streams and operations: under the big lock, and decided by the seed alone, so that a program of one thread runs
 * the same way each time. Host threads: sched_lock; taken without the big lock or inside it, never around it.
 */
#include "tools/simcuda/sched.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "tools/simcuda/sim.h"

#define WAIT_NS 200000 /* a thread lets others go first for as long, once */
#define TURNS   8      /* or until a thread of higher priority has entered so many times */

/* ---- random numbers ---- */

void sched_random_init(struct sched_random *r, uint64_t seed)
{
    /* splitmix64: neighbouring seeds give unrelated sequences */
    uint64_t z = seed + 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    r->x = (z ^ z >> 31) | 1;
}

uint64_t sched_random(struct sched_random *r)
{
    r->x ^= r->x << 13;
    r->x ^= r->x >> 7;
    r->x ^= r->x << 17;
    return r->x * 0x2545f4914f6cdd1du;
}

uint64_t sched_below(struct sched_random *r, uint64_t n)
{
    return (sched_random(r) >> 11) % n;
}

void sched_era_next(struct sched_era *era, struct sched_random *r)
{
    const uint64_t kind = sched_below(r, 8);

    era->number++;
    era->uniform = kind == 0;
    era->oldest = kind == 1;
    static const unsigned times[] = {0, 0, 1, 2, 4, 6, 8, 8};

    era->eager_times = times[sched_below(r, 8)];
    era->mixed = sched_below(r, 2) == 0;
    era->visible_times = times[sched_below(r, 7)];
    /* Of any order of magnitude: a stream can stay behind for thousands of operations. */
    era->left = (1ull << sched_below(r, 13)) + sched_below(r, 4);
}

/* ---- streams ---- */

struct stream_state {
    uint64_t era; /* of the priority */
    uint64_t priority;
};

static struct sched_random random_state;
static struct sched_era era;
static bool in_order; /* seed 0 */

static uint64_t stream_priority(struct sim_stream *s)
{
    struct stream_state *state = s->sched;

    if (state == NULL) {
        state = calloc(1, sizeof(*state));
        if (state == NULL) {
            return 0;
        }
        s->sched = state;
    }
    if (state->era != era.number) {
        state->era = era.number;
        state->priority = sched_random(&random_state);
    }
    return state->priority;
}

static size_t pick_oldest(struct sim_op *const *ready, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++) {
        if (ready[i]->serial < ready[best]->serial) {
            best = i;
        }
    }
    return best;
}

static size_t pick_highest(struct sim_op *const *ready, size_t n)
{
    size_t best = 0;
    uint64_t highest = 0;

    for (size_t i = 0; i < n; i++) {
        const uint64_t priority = stream_priority(ready[i]->stream);

        if (i == 0 || priority > highest) {
            best = i;
            highest = priority;
        }
    }
    return best;
}

/* One of the kernels whose blocks take turns; n if there are not two of them. */
static size_t pick_mixed(struct sim_op *const *ready, size_t n)
{
    size_t n_mixed = 0;
    size_t chosen = n;

    for (size_t i = 0; i < n; i++) {
        if (ready[i]->kind == SIM_OP_KERNEL && ready[i]->launch.gives_way) {
            n_mixed++;
            if (sched_below(&random_state, n_mixed) == 0) {
                chosen = i;
            }
        }
    }
    return n_mixed < 2 ? n : chosen;
}

static void count_down(void)
{
    if (era.left == 0) {
        sched_era_next(&era, &random_state);
    } else {
        era.left--;
    }
}

size_t sim_sched_pick(struct sim_op *const *ready, size_t n)
{
    if (in_order) {
        return pick_oldest(ready, n);
    }
    count_down();
    const size_t mixed = era.mixed ? pick_mixed(ready, n) : n;

    if (mixed < n) {
        return mixed;
    }
    if (era.oldest) {
        return pick_oldest(ready, n);
    }
    return era.uniform ? sched_below(&random_state, n) : pick_highest(ready, n);
}

uint64_t sim_sched_blocks(struct sim_op *op, uint64_t left)
{
    (void)op;
    if (in_order || left <= 1 || sched_below(&random_state, 2) == 0) {
        return left;
    }
    /* In a few steps only: each of them closes and opens the memory again. */
    const uint64_t least = (left + 7) / 8;

    return least + sched_below(&random_state, left - least + 1);
}

uint64_t sim_sched_turns(void)
{
    if (in_order) {
        return 0;
    }
    static const uint64_t most[] = {1, 4, 16, 64};

    return 1 + sched_below(&random_state, most[sched_below(&random_state, 4)]);
}

uint64_t sim_sched_draw(void)
{
    return sched_random(&random_state) >> 11;
}

bool sim_sched_visible(void)
{
    return in_order || sched_below(&random_state, 8) < era.visible_times;
}

unsigned sim_sched_eager(struct sim_thread *thread, const char *entry)
{
    (void)thread;
    (void)entry;
    if (in_order || sim_options.eager == 0) {
        return sim_options.eager;
    }
    count_down();
    if (sched_below(&random_state, 8) >= era.eager_times) {
        return 0;
    }
    return 1 + (unsigned)sched_below(&random_state, sim_options.eager);
}

void sim_sched_stream_gone(struct sim_stream *stream)
{
    free(stream->sched);
    stream->sched = NULL;
}

void sim_sched_op_gone(struct sim_op *op)
{
    (void)op; /* nothing is kept for single operations */
}

/* ---- host threads ---- */

/* A thread that has entered the driver. */
struct host_thread {
    struct host_thread *next;
    uint64_t priority;
    bool blocked; /* waits inside the driver */
    bool absent;  /* was waited for in vain: computes, or waits outside of the driver */
};

static pthread_mutex_t sched_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t entered;
static struct host_thread *host_threads;
static atomic_uint
    n_host_threads; /* read without the lock as a hint; a new thread is noticed a call later */
static struct sched_random thread_random;
static pthread_key_t thread_key;
static __thread struct host_thread *self;

static void host_thread_gone(void *arg)
{
    struct host_thread *t = arg;

    pthread_mutex_lock(&sched_lock);
    for (struct host_thread **link = &host_threads; *link != NULL; link = &(*link)->next) {
        if (*link == t) {
            *link = t->next;
            break;
        }
    }
    atomic_fetch_sub_explicit(&n_host_threads, 1, memory_order_relaxed);
    pthread_cond_broadcast(&entered);
    pthread_mutex_unlock(&sched_lock);
    self = NULL;
    free(t);
}

void sim_sched_seed(uint64_t seed)
{
    in_order = seed == 0;
    sched_random_init(&random_state, seed);
    pthread_mutex_lock(&sched_lock);
    sched_random_init(&thread_random, ~seed);
    pthread_mutex_unlock(&sched_lock);
    sched_era_next(&era, &random_state);
}

void sim_sched_init(uint64_t seed)
{
    pthread_condattr_t attr;

    sim_sched_seed(seed);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&entered, &attr);
    pthread_condattr_destroy(&attr);
    (void)pthread_key_create(&thread_key, host_thread_gone);
}

static struct host_thread *host_thread_locked(void)
{
    if (self == NULL) {
        struct host_thread *t = calloc(1, sizeof(*t));

        if (t == NULL) {
            return NULL;
        }
        t->priority = sched_random(&thread_random);
        t->next = host_threads;
        host_threads = t;
        self = t;
        (void)pthread_setspecific(thread_key, t);
        atomic_fetch_add_explicit(&n_host_threads, 1, memory_order_relaxed);
    }
    return self;
}

/* Some thread that could go first is ahead of t. */
static bool others_first_locked(const struct host_thread *t)
{
    for (const struct host_thread *o = host_threads; o != NULL; o = o->next) {
        if (o != t && !o->blocked && !o->absent && o->priority > t->priority) {
            return true;
        }
    }
    return false;
}

static struct timespec deadline(uint64_t ns)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    return until;
}

/* Waits until the threads ahead have had some turns; those that do not come at all are not waited for again. */
static void let_others_locked(struct host_thread *t)
{
    const struct timespec until = deadline(WAIT_NS);

    for (unsigned turns = 0; turns < TURNS && others_first_locked(t); turns++) {
        if (pthread_cond_timedwait(&entered, &sched_lock, &until) == 0) {
            continue;
        }
        for (struct host_thread *o = host_threads; o != NULL && turns == 0; o = o->next) {
            o->absent = o->absent || (o != t && o->priority > t->priority);
        }
        return;
    }
}

void sim_sched_yield(const char *entry)
{
    (void)entry;
    if (in_order ||
        (self != NULL && atomic_load_explicit(&n_host_threads, memory_order_relaxed) == 1)) {
        return;
    }
    pthread_mutex_lock(&sched_lock);
    struct host_thread *t = host_thread_locked();

    if (t != NULL) {
        t->absent = false;
        pthread_cond_broadcast(&entered);
        if (sched_below(&thread_random, 16) == 0) {
            t->priority = sched_random(&thread_random);
        }
        let_others_locked(t);
    }
    pthread_mutex_unlock(&sched_lock);
}

void sim_sched_blocked(struct sim_thread *thread, bool blocked)
{
    (void)thread; /* always the calling one */
    if (self == NULL) {
        return;
    }
    pthread_mutex_lock(&sched_lock);
    self->blocked = blocked;
    pthread_cond_broadcast(&entered);
    pthread_mutex_unlock(&sched_lock);
}

void sim_sched_thread_gone(struct sim_thread *thread)
{
    (void)thread; /* host_thread_gone does it, in the thread itself */
}
