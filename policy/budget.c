/* SPDX-License-Identifier: Apache-2.0 */
/* Page accounting; see budget.h. Called with the engine's lock held. */
#include "policy/budget.h"

#include "policy/base/assert.h"

static void add(struct ps_pages *to, struct ps_pages n)
{
    to->device += n.device;
    to->host += n.host;
}

static bool covers(const struct ps_pages *p, struct ps_pages n)
{
    return p->device >= n.device && p->host >= n.host;
}

static void take(struct ps_pages *from, struct ps_pages n)
{
    ps_assert(covers(from, n));
    from->device -= n.device;
    from->host -= n.host;
}

static struct ps_pages taken(const struct ps_budget *b)
{
    struct ps_pages n = b->held;
    add(&n, b->in_flight);
    add(&n, b->returning);
    return n;
}

/* Never below nothing: a stash that failed is held with its worst case, which others of its launch may have used. */
static uint64_t rest(uint64_t capacity, uint64_t taken)
{
    return capacity > taken ? capacity - taken : 0;
}

struct ps_pages ps_budget_free(const struct ps_budget *b)
{
    const struct ps_pages n = taken(b);
    return (struct ps_pages){rest(b->capacity.device, n.device), rest(b->capacity.host, n.host)};
}

uint64_t ps_budget_available(const struct ps_budget *b)
{
    const struct ps_pages free = ps_budget_free(b);
    return free.device + free.host;
}

uint64_t ps_budget_returning(const struct ps_budget *b)
{
    return b->returning.device + b->returning.host;
}

bool ps_budget_reserve(struct ps_budget *b, uint64_t worst, struct ps_pages *reserved_p)
{
    const struct ps_pages free = ps_budget_free(b);
    const uint64_t device = worst < free.device ? worst : free.device;
    if (worst - device > free.host) {
        return false;
    }
    *reserved_p = (struct ps_pages){device, worst - device};
    add(&b->in_flight, *reserved_p);
    return true;
}

void ps_budget_settle(struct ps_budget *b, struct ps_pages reserved, struct ps_pages stored)
{
    take(&b->in_flight, reserved);
    add(&b->held, stored);
}

void ps_budget_cancel(struct ps_budget *b, struct ps_pages reserved)
{
    take(&b->in_flight, reserved);
}

void ps_budget_drop(struct ps_budget *b, struct ps_pages stored)
{
    take(&b->held, stored);
    add(&b->returning, stored);
}

void ps_budget_dropped(struct ps_budget *b, struct ps_pages stored)
{
    take(&b->returning, stored);
}

void ps_budget_grow(struct ps_budget *b, struct ps_pages more)
{
    add(&b->capacity, more);
}

bool ps_budget_idle(const struct ps_budget *b)
{
    const struct ps_pages n = taken(b);
    return n.device == 0 && n.host == 0;
}

bool ps_budget_check(const struct ps_budget *b)
{
    return covers(&b->capacity, taken(b));
}
