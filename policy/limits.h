/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the settings allow: device memory for homes and pages together, host memory for pages, the size of a page; and
 * the arithmetic of capacities. Pure functions, any thread; integers only, so that every rank finds the same.
 *
 * Factors have Megatron-LM's meaning: a positive one is of the balanced bytes, or of the largest seen where those are
 * not known; a negative one, without its sign, of the largest seen. The default factor of the device bounds nothing
 * where the balanced bytes are not known.
 *
 * Units: bytes, rows; factors in millionths (PS_FACTOR_ONE).
 */
#ifndef PS_POLICY_LIMITS_H
#define PS_POLICY_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/base/options.h"
#include "policy/plan.h"

#define PS_NO_LIMIT    UINT64_MAX
#define PS_ROOM_SPARED 32 /* such a part of the device: what is rounded up, and what pools keep */

struct ps_limits_settings {
    int64_t factor_cuda;
    bool factor_given;    /* else it is the default */
    int64_t factor_cpu;   /* PS_FACTOR_AUTO: the host budget */
    uint64_t cuda_budget; /* PS_AUTO: by the factor */
    uint64_t host_budget; /* never exceeded */
};

/* Of the tensors of a plan that are alive at one time, the most over its steps. */
struct ps_limits_seen {
    uint64_t balanced_bytes; /* at balanced routing; 0: not known */
    uint64_t largest_bytes;  /* valid */
};

struct ps_limits {
    uint64_t device_bytes; /* homes and pages; PS_NO_LIMIT */
    uint64_t host_bytes;   /* pages */
    bool host_sized;       /* host_bytes is the size asked for, not only a limit */
};

/* Sizes that follow from a factor are rounded up to whole pages, as Megatron-LM rounds up its rows. */
struct ps_limits ps_limits_find(const struct ps_limits_settings *settings,
                                const struct ps_limits_seen *seen, uint64_t page_bytes);
/* Of `wanted` bytes of device pages, what homes of home_bytes leave under the limit. */
uint64_t ps_limits_pages(const struct ps_limits *limits, uint64_t home_bytes, uint64_t wanted);
/* The factor of the device, in hundredths rounded up, that allows so many bytes. 0: there is nothing to multiply. */
int64_t ps_limits_factor(const struct ps_limits_settings *settings,
                         const struct ps_limits_seen *seen, uint64_t bytes);

/* What a region's ranges tell of their rows; or what PAGEDSTASH_CAPACITY_FACTOR does, as a ratio. */
struct ps_capacity {
    uint32_t name;     /* of the region */
    uint64_t capacity; /* rows that its buffers have room for */
    uint64_t balanced; /* rows at balanced routing; 0: not told */
};

/*
 * told: n of them. factor: capacity over balanced rows, for names that do not tell; PS_FACTOR_AUTO: not known. One
 * name of which it is not known makes the balanced bytes unknown.
 */
struct ps_limits_seen ps_limits_look(const struct ps_plan *plan, const struct ps_plan_step *steps,
                                     uint32_t n_steps, const struct ps_capacity *told, uint32_t n,
                                     int64_t factor);
/* The widest row of the steps' tensors, in bytes, rounded up; 0: no capacity is known. */
uint64_t ps_limits_row_bytes(const struct ps_plan_step *steps, uint32_t n_steps,
                             const struct ps_capacity *told, uint32_t n);
/*
 * The page for so many rows of row_bytes: the next power of two. chosen: the user set the rows; else it is from 64 KiB
 * to 2 MiB.
 */
uint64_t ps_limits_page_bytes(uint64_t rows, uint64_t row_bytes, bool chosen);

/* What a plan's memory is to keep to. */
struct ps_limits_ask {
    struct ps_limits_settings settings;
    const struct ps_capacity *told;
    uint32_t n_told;
    int64_t capacity_factor;
};

struct ps_limits_found {
    struct ps_limits_seen seen;
    struct ps_limits limits;
    uint64_t wanted_bytes;  /* homes and pages without a limit */
    uint64_t short_bytes;   /* pages that are to be in host memory for the limit's sake */
    uint32_t moved_percent; /* of the valid bytes, that the plan was made with */
};

/*
 * ps_plan_make, with smaller homes, so that more moves, as far as the device's limit asks for it; the pages get what
 * homes leave (plan_p->pool_bytes). The default limit is no reason for what the host cannot take: then it is none.
 */
enum ps_status PS_MUST_CHECK ps_limits_plan(const struct ps_plan_step *steps, uint32_t n_steps,
                                            const struct ps_plan_settings *settings,
                                            const struct ps_limits_ask *ask, struct ps_plan *plan_p,
                                            struct ps_limits_found *found_p);

/*
 * Does the device hold what comes of the plan, and `ours` beside it? A plan to be adopted must fit with a part spared.
 * Where no plan lowers the peak the job is left to its own allocator, which needs what the job was seen to hold at
 * once. device_bytes: all there are; 0: not known, then nothing is doubted.
 */
bool ps_limits_fits(const struct ps_plan *plan, uint64_t held_bytes, uint64_t ours,
                    uint64_t device_bytes);

/* Rows of a buffer padded to a capacity: balanced rows times the factor, rounded down, then up to whole units. */
uint64_t ps_capacity_rows(uint64_t balanced, int64_t factor, uint64_t unit);
/* The smallest factor, of whole hundredths, at which the buffer holds so many rows. balanced > 0. */
int64_t ps_capacity_factor(uint64_t balanced, uint64_t rows);
/* Pages for so many bytes. */
static inline uint64_t ps_pages_for(uint64_t bytes, uint64_t page_bytes)
{
    return bytes / page_bytes + (bytes % page_bytes != 0);
}

#endif
