/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host knows for certain about the page pool, of which one part is device memory and the other pinned host
 * memory. Page use is decided on the device; until the host has seen a stash complete, the stash counts with its worst
 * case. So a stash that ps_budget_reserve allowed can never run out of pages.
 *
 * The stashes of one launch share their device pages, since the first come take them: one may take more of them than
 * was reserved for it, and another fewer. So all of a launch are settled (or cancelled) together, and between the first
 * and the last of them the numbers mean nothing.
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
    struct ps_pages capacity;  /* pages that exist */
    struct ps_pages held;      /* stored by stashes seen complete, not being dropped */
    struct ps_pages in_flight; /* worst case of stashes not yet seen complete */
    struct ps_pages returning; /* being dropped; free once the drop was seen complete */
};

/* Pages that are certainly free. */
struct ps_pages ps_budget_free(const struct ps_budget *b);
/* The same, of both parts together: the largest worst case that can be reserved. */
uint64_t ps_budget_available(const struct ps_budget *b);
/* Both parts together. */
uint64_t ps_budget_returning(const struct ps_budget *b);
/* Device pages as far as they are certain, host pages for the rest. False: not certain; nothing changes. */
bool PS_MUST_CHECK ps_budget_reserve(struct ps_budget *b, uint64_t worst,
                                     struct ps_pages *reserved_p);
/* The stash was seen complete. Over a launch, no more was stored of either part than was reserved of it. */
void ps_budget_settle(struct ps_budget *b, struct ps_pages reserved, struct ps_pages stored);
/* A reserved stash was never launched. */
void ps_budget_cancel(struct ps_budget *b, struct ps_pages reserved);
/* A drop of held pages was enqueued; later it was seen complete. */
void ps_budget_drop(struct ps_budget *b, struct ps_pages stored);
void ps_budget_dropped(struct ps_budget *b, struct ps_pages stored);
void ps_budget_grow(struct ps_budget *b, struct ps_pages more);
/* Nothing is out and nothing is on its way. */
bool ps_budget_idle(const struct ps_budget *b);
/* Nothing is promised that there is not. */
bool ps_budget_check(const struct ps_budget *b);

#endif
