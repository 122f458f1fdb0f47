/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions as NVTX tells them, per thread. A push of a matching range is the boundary at which groups leave.
 *
 * Any thread. Names are interned under the lock; a thread's stack is its own.
 */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "policy/base/log.h"
#include "shim/api.h"
#include "shim/engine_int.h"

static struct ps_patterns patterns;
static pthread_once_t patterns_once = PTHREAD_ONCE_INIT;
static struct {
    uint32_t n;
    char name[PS_REGION_NAMES_MAX][PS_REGION_NAME_MAX];
} names; /* guarded by ps_lock */

static void read_patterns(void)
{
    if (!ps_patterns_init(&patterns, ps_options.regions)) {
        ps_warn("PAGEDSTASH_REGIONS holds more than %d patterns: the first %u count",
                PS_PATTERNS_MAX, patterns.n);
    }
}

/* Number of a name, from 1. */
static uint32_t intern(const char *name)
{
    uint32_t number = 0;
    pthread_mutex_lock(&ps_lock);
    for (uint32_t i = 0; i < names.n && number == 0; i++) {
        number = strcmp(names.name[i], name) == 0 ? i + 1 : 0;
    }
    if (number == 0 && names.n < PS_REGION_NAMES_MAX) {
        memcpy(names.name[names.n], name, PS_REGION_NAME_MAX);
        number = ++names.n;
    }
    pthread_mutex_unlock(&ps_lock);
    return number != 0 ? number : PS_REGION_NAMES_MAX;
}

const char *ps_region_name(uint32_t number)
{
    return number > 0 && number <= names.n ? names.name[number - 1] : "";
}

static uint32_t match(const char *range)
{
    char name[PS_REGION_NAME_MAX];
    pthread_once(&patterns_once, read_patterns);
    if (!ps_patterns_match(&patterns, range, name)) {
        return 0;
    }
    return intern(name);
}

static void close_instance(struct ps_thread *th)
{
    struct ps_engine *e = th->seg_engine;
    if (th->group == NULL && e == NULL) {
        return;
    }
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    struct ps_group *g = th->group;
    ps_demand_pop(th, guard.current);
    if (g != NULL) {
        ps_rows_pop(g, guard.current);
        const bool there = g->engine != NULL && g->tensors != NULL;
        ps_group_close(g);
        g = there ? g : NULL;
        th->group = NULL;
    }
    if (e != NULL && e->state == PS_ENGINE_READY) {
        ps_guard_context(&guard, e);
        ps_learn_pop(e, th->seg, g);
    }
    th->seg_engine = NULL;
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
}

/* The boundary: groups of this thread leave. */
static void at_push(struct ps_thread *th)
{
    struct ps_guard guard;
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = ps_engine_find(guard.current);
    if (e != NULL && e->learned && e->places == NULL) {
        pthread_mutex_unlock(&ps_lock);
        ps_engine_settle_down(e);
        pthread_mutex_lock(&ps_lock);
    }
    if (e != NULL) {
        ps_engine_poll(e);
        ps_learn_push(e, th);
        ps_places_tidy(e);
        ps_move_out(e, th->number);
        if (ps_gain_none(&e->gain)) {
            ps_pool_shrink(e);
        }
    }
    pthread_mutex_unlock(&ps_lock);
    if (e != NULL) {
        ps_rows_prepare(e, th);
        ps_engine_reap(e);
    }
    ps_guard_leave(&guard);
}

/* A range that may begin a step, in the current context. */
static void at_range(const char *range)
{
    struct ps_guard guard;
    if (ps_options.step[0] == '\0' || fnmatch(ps_options.step, range, 0) != 0) {
        return;
    }
    ps_count(step_ranges, 1);
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = ps_engine_find(guard.current);
    if (e != NULL) {
        ps_engine_poll(e);
        ps_learn_step(e);
    }
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
}

void ps_region_push(const char *name)
{
    struct ps_thread *th = ps_paging() ? ps_thread_self() : NULL;
    if (th == NULL) {
        return;
    }
    const uint32_t number = ps_switched_on() ? match(name) : 0;
    ps_count(ranges_seen, 1);
    if (number == 0) {
        ps_observe_range(name);
    }
    at_range(name);
    const enum ps_region_act act = ps_region_stack_push(&th->stack, number);
    if (act == PS_REGION_CLOSE_OPEN) {
        close_instance(th);
    }
    if (act == PS_REGION_OPEN || act == PS_REGION_CLOSE_OPEN) {
        th->ordinal = 0;
        th->streams_ended = 0;
        th->name = number;
        ps_rows_named(th, number, name);
        ps_count(region_instances, 1);
        at_push(th);
    }
}

void ps_region_pop(void)
{
    struct ps_thread *th = ps_paging() ? ps_thread_self() : NULL;
    if (th != NULL && ps_region_stack_pop(&th->stack) == PS_REGION_CLOSE) {
        close_instance(th);
    }
}
