/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice from what was counted: what happened, what it costs, and which setting changes it, a line each. The library
 * writes it at exit (level info), `pagedstash advise` from the metrics files of a whole job. Pure, any thread.
 */
#ifndef PS_POLICY_ADVICE_H
#define PS_POLICY_ADVICE_H

#include <stdint.h>

#define PS_ADVICE_REGIONS_MAX 16
#define PS_ADVICE_NAME_MAX    64
#define PS_ADVICE_LINE_MAX    400

/* What the regions of one name needed of their capacity. */
struct ps_advice_region {
    char name[PS_ADVICE_NAME_MAX];
    uint64_t capacity, balanced; /* rows; 0: not known */
    uint64_t needed;             /* the most rows to be delivered; 0: no range tells */
    uint64_t n_over;             /* instances that had to deliver more than the capacity */
    uint64_t used_ppm;           /* of a padded tensor, the most that held data; 0: not known */
};

/* PS_FACT(name): counters of the library, by their names (shim/observe.h has what they count). */
#define PS_ADVICE_COUNTERS                                                                         \
    PS_FACT(steps)                                                                                 \
    PS_FACT(plans)                                                                                 \
    PS_FACT(plan_misses)                                                                           \
    PS_FACT(kept_resident)                                                                         \
    PS_FACT(bytes_spilled)                                                                         \
    PS_FACT(pool_bytes)                                                                            \
    PS_FACT(pages_used_peak)                                                                       \
    PS_FACT(limit_bytes)                                                                           \
    PS_FACT(limit_wanted_bytes)                                                                    \
    PS_FACT(limit_short_bytes)

struct ps_advice_facts {
#define PS_FACT(_name) uint64_t _name;
    PS_ADVICE_COUNTERS
#undef PS_FACT
    uint64_t
        limit_factor_percent;  /* of the device, that would do; 0: there is nothing to multiply */
    uint64_t limit_is_largest; /* that factor is of the largest bytes seen: below 0 */
    uint32_t n_regions;
    struct ps_advice_region regions[PS_ADVICE_REGIONS_MAX];
};

enum ps_advice {
    PS_ADVICE_OVER_CAPACITY, /* rows were dropped */
    PS_ADVICE_CAPACITY,      /* buffers are larger than anything that lay in them */
    PS_ADVICE_BUDGET,        /* the device's limit is too small, and what that costs */
    PS_ADVICE_SPILL,         /* pages went to the host without a limit that asks for it */
    PS_ADVICE_PAGES,         /* pages that were never used */
    PS_ADVICE_RESIDENT,      /* groups that stayed for want of pages */
    PS_ADVICE_PLAN,          /* steps that went otherwise than planned */
    PS_ADVICE_KINDS
};

/* weight: how bad it is, among advice of the same kind. */
typedef void ps_advice_fn(void *arg, enum ps_advice kind, uint64_t weight, const char *line);
void ps_advise(const struct ps_advice_facts *facts, ps_advice_fn *tell_to, void *arg);

#endif
