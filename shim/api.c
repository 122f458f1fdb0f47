/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of pagedstash.h. Any thread; the lock is taken here, and the driver is not called before some context
 * has an engine.
 */
#include "shim/api.h"

#include <stddef.h>
#include <string.h>

#include "shim/engine_int.h"
#include "shim/entry.h"
#include "shim/pagedstash.h"

#define VISIBLE __attribute__((visibility("default")))

_Atomic bool ps_switched_off;

/* Options may not have been read yet: a constructor may call us. */
static bool active(void)
{
    return ps_entry_active() && !ps_paging_over();
}

/* Reads what the device has told by now in the current context; is a plan in force in any? Lock held. */
static bool poll_engines(CUcontext current)
{
    struct ps_engine *here = ps_engine_find(current);
    bool planned = false;

    if (here != NULL) {
        ps_engine_poll(here);
    }
    for (const struct ps_engine *e = ps_engines(); e != NULL; e = e->next) {
        planned = planned || (e->state == PS_ENGINE_READY && e->places != NULL);
    }
    return planned;
}

VISIBLE int pagedstash_status(struct pagedstash_status *status)
{
    struct pagedstash_status told = {0};
    struct ps_guard guard = {0};

    if (status == NULL || status->size < offsetof(struct pagedstash_status, step)) {
        return PAGEDSTASH_INVALID;
    }
    if (!active()) {
        return PAGEDSTASH_INACTIVE;
    }
    const bool any = ps_engines() != NULL;

    if (any) {
        ps_guard_enter(&guard);
    }
    pthread_mutex_lock(&ps_lock);
    const bool planned = any && poll_engines(guard.current);

    ps_demand_status(&told);
    pthread_mutex_unlock(&ps_lock);
    if (any) {
        ps_guard_leave(&guard);
    }
    told.size = status->size < sizeof(told) ? status->size : sizeof(told);
    told.flags |= (ps_switched_on() ? PAGEDSTASH_ENABLED : 0) | (planned ? PAGEDSTASH_PLANNED : 0);
    memcpy(status, &told, told.size);
    return PAGEDSTASH_OK;
}

VISIBLE int pagedstash_enable(int enabled)
{
    if (!active()) {
        return PAGEDSTASH_INACTIVE;
    }
    atomic_store_explicit(&ps_switched_off, enabled == 0, memory_order_relaxed);
    return PAGEDSTASH_OK;
}

VISIBLE int pagedstash_step(void)
{
    struct ps_guard guard = {0};

    if (!active()) {
        return PAGEDSTASH_INACTIVE;
    }
    const bool any = ps_engines() != NULL;

    if (any) {
        ps_guard_enter(&guard);
    }
    pthread_mutex_lock(&ps_lock);
    struct ps_engine *e = any ? ps_engine_find(guard.current) : NULL;

    if (e != NULL) {
        ps_engine_poll(e);
    }
    ps_demand_step(false);
    if (e != NULL) {
        ps_segment_by_range(&e->learner.segment);
        ps_learn_step(e);
    }
    pthread_mutex_unlock(&ps_lock);
    if (any) {
        ps_guard_leave(&guard);
    }
    return PAGEDSTASH_OK;
}

VISIBLE int pagedstash_reset(void)
{
    if (!active()) {
        return PAGEDSTASH_INACTIVE;
    }
    pthread_mutex_lock(&ps_lock);
    for (struct ps_engine *e = ps_engines(); e != NULL; e = e->next) {
        e->learner.forget = true;
    }
    ps_demand_reset();
    pthread_mutex_unlock(&ps_lock);
    return PAGEDSTASH_OK;
}
