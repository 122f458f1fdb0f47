/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of spill.h share: the step as a list of stops. Times are in bytes that the link carries meanwhile, so
 * that nothing is rounded on the way.
 */
#ifndef PS_POLICY_SPILL_INT_H
#define PS_POLICY_SPILL_INT_H

#include "policy/spill.h"

/* At one event in this order. */
enum ps_spill_stop_kind { PS_SPILL_LEAVE, PS_SPILL_GONE, PS_SPILL_COME, PS_SPILL_DUE };

struct ps_spill_stop {
    int64_t time;
    uint32_t event, item;
    uint8_t kind;
};

struct ps_spill_stops {
    struct ps_spill_stop *list;
    uint32_t n;
};

/* Sorted. PS_ERR_INVALID as of ps_spill_plan. */
enum ps_status ps_spill_stops_make(const struct ps_spill_step *step,
                                   const struct ps_spill_settings *settings,
                                   struct ps_spill_stops *stops_p);
/* Whole nanoseconds, rounded up. */
uint64_t ps_spill_ns(const struct ps_spill_settings *settings, int64_t bytes);
/* The other rule: moves are zero. */
enum ps_status ps_spill_first_come(const struct ps_spill_step *step,
                                   const struct ps_spill_settings *settings,
                                   const struct ps_spill_stops *stops, struct ps_spill *spill);

#endif
