/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries out a plan as an engine would, on memory that is only imagined, and checks at every event what must hold: no
 * two tensors share a place while both are in, who is touched is in, no more memory than the plan says. It keeps its
 * own books of what lies where, and believes the rules in nothing. Ends the test at the first that does not hold.
 */
#ifndef PS_TESTS_PLAN_CHECK_H
#define PS_TESTS_PLAN_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/plan.h"

struct plan_checked {
    uint32_t n_conflicts, n_late;
    uint64_t moved_bytes, pool_bytes; /* in the step; the most at once */
    uint64_t peak_bytes;              /* with all of the plan's memory */
};

/* The plan's own numbers: sites, slots, sets. */
void plan_check_sums(const struct ps_plan *plan, const struct ps_plan_settings *settings);
/*
 * The step, as number `kind` of those that the plan was made from, or one that it does not know (kind PS_PLAN_NONE:
 * nothing is wanted, every group is marked, nothing comes in ahead).
 */
void plan_check_step(const struct ps_plan *plan, const struct ps_plan_settings *settings,
                     const struct ps_plan_step *step, uint32_t kind,
                     struct plan_checked *checked_p);

#endif
