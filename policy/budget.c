/* SPDX-License-Identifier: Apache-2.0 */
/* Page accounting; see budget.h. Called with the engine's lock held. */
#include "policy/budget.h"

#include "policy/base/assert.h"

static uint64_t capacity(const struct ps_budget *b)
{
    return b->capacity.device + b->capacity.host;
}

static uint64_t taken(const struct ps_budget *b)
{
    return b->held + b->in_flight + b->returning;
}

static void take(uint64_t *from, uint64_t n)
{
    ps_assert(*from >= n);
    *from -= n;
}

uint64_t ps_budget_available(const struct ps_budget *b)
{
    return capacity(b) - taken(b);
}

uint64_t ps_budget_returning(const struct ps_budget *b)
{
    return b->returning;
}

bool ps_budget_reserve(struct ps_budget *b, uint64_t worst)
{
    if (worst > ps_budget_available(b)) {
        return false;
    }
    b->in_flight += worst;
    return true;
}

void ps_budget_settle(struct ps_budget *b, uint64_t worst, uint64_t stored)
{
    ps_assert(stored <= worst);
    take(&b->in_flight, worst);
    b->held += stored;
}

void ps_budget_cancel(struct ps_budget *b, uint64_t worst)
{
    take(&b->in_flight, worst);
}

void ps_budget_drop(struct ps_budget *b, uint64_t stored)
{
    take(&b->held, stored);
    b->returning += stored;
}

void ps_budget_dropped(struct ps_budget *b, uint64_t stored)
{
    take(&b->returning, stored);
}

void ps_budget_grow(struct ps_budget *b, struct ps_pages more)
{
    b->capacity.device += more.device;
    b->capacity.host += more.host;
}

bool ps_budget_idle(const struct ps_budget *b)
{
    return taken(b) == 0;
}

bool ps_budget_holds(const struct ps_budget *b, uint64_t held)
{
    return b->held == held && taken(b) == held;
}

bool ps_budget_check(const struct ps_budget *b)
{
    return taken(b) <= capacity(b);
}
