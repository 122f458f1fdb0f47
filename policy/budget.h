/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host knows for certain about the page pool, of which one part is device memory and the other pinned host
 * memory. Page use is decided on the device; until the host has seen a stash complete, the stash counts with its worst
 * case. So a stash that ps_budget_reserve allowed can never run out of pages.
 *
 * Why both parts may be counted together. A stash takes a host page only when no device page is free, as far as its
 * kernel sees. Then all the device's pages are with stashes that count here (held, in flight, returning) or with
 * itself. So what it and those in flight have on the device is at least the capacity there less what is held and
 * returning there; what is left of their worst cases, and may need a host page now or later, is no more than the host's
 * capacity less what is held and returning on the host, since the sums fit. Pages that come back meanwhile are a gift:
 * with them more may lie on the device than anybody here counted on.
 *
 * A stash to a sink (shim/sinks.h) reserves only what it may need beyond its stage, and takes that from the host, free
 * device pages or not. It is begun if so much is left of the host's capacity less all that counts here, wherever that
 * lies; stashes run one behind the other, so no later one takes it away.
 *
 * Units: pages. Not thread-safe: the engine's lock guards it.
 */
#ifndef PS_POLICY_BUDGET_H
#define PS_POLICY_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/base/status.h"

/* So many pages of each part. */
struct ps_pages {
    uint64_t device, host;
};

struct ps_budget {
    struct ps_pages capacity; /* pages that exist; shrinks by what nobody holds */
    uint64_t held;            /* stored by stashes seen complete, not being dropped */
    uint64_t in_flight;       /* worst case of stashes not yet seen complete */
    uint64_t returning;       /* being dropped; free once the drop was seen complete */
};

/* Pages that are certainly free, of both parts together: the largest worst case that can be reserved. */
uint64_t ps_budget_available(const struct ps_budget *b);
uint64_t ps_budget_returning(const struct ps_budget *b);
/* False: not certain; nothing changes. */
bool PS_MUST_CHECK ps_budget_reserve(struct ps_budget *b, uint64_t worst);
/* The stash was seen complete and stored so many pages of the `worst` reserved. */
void ps_budget_settle(struct ps_budget *b, uint64_t worst, uint64_t stored);
/* A reserved stash was never launched. */
void ps_budget_cancel(struct ps_budget *b, uint64_t worst);
/* A drop of held pages was enqueued; later it was seen complete. */
void ps_budget_drop(struct ps_budget *b, uint64_t stored);
void ps_budget_dropped(struct ps_budget *b, uint64_t stored);
void ps_budget_grow(struct ps_budget *b, struct ps_pages more);
/* Nothing is out and nothing is on its way. */
bool ps_budget_idle(const struct ps_budget *b);
/* So many pages are held, and none else is out, on its way, or lost to whoever held it. */
bool ps_budget_holds(const struct ps_budget *b, uint64_t held);
/* Nothing is promised that there is not. */
bool ps_budget_check(const struct ps_budget *b);

#endif
