/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host knows for certain about the page pool. Page use is decided on the device; until the host has seen a
 * stash complete, the stash counts with its worst case. So a stash that ps_budget_reserve allowed can never run out
 * of pages. Units: pages. Not thread-safe: the engine's lock guards it.
 */
#ifndef PS_POLICY_BUDGET_H
#define PS_POLICY_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/base/status.h"

struct ps_budget {
    uint64_t capacity;  /* pages that exist */
    uint64_t held;      /* stored by stashes seen complete, not being dropped */
    uint64_t in_flight; /* worst case of stashes not yet seen complete */
    uint64_t returning; /* being dropped; free once the drop was seen complete */
};

/* Pages that are certainly free. */
uint64_t ps_budget_available(const struct ps_budget *b);
/* False: not certain; nothing changes. */
bool PS_MUST_CHECK ps_budget_reserve(struct ps_budget *b, uint64_t worst);
/* The stash reserved with `worst` was seen complete and stored `stored` <= worst pages. */
void ps_budget_settle(struct ps_budget *b, uint64_t worst, uint64_t stored);
/* A reserved stash was never launched. */
void ps_budget_cancel(struct ps_budget *b, uint64_t worst);
/* A drop of `stored` held pages was enqueued; later it was seen complete. */
void ps_budget_drop(struct ps_budget *b, uint64_t stored);
void ps_budget_dropped(struct ps_budget *b, uint64_t stored);
void ps_budget_grow(struct ps_budget *b, uint64_t pages);
/* Nothing is out and nothing is on its way. */
bool ps_budget_idle(const struct ps_budget *b);
bool ps_budget_check(const struct ps_budget *b);

#endif
