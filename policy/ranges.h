/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First-fit allocator of number ranges: addresses of the window, entries of the page-table arena. It holds no
 * memory of what it hands out beyond the free ranges, sorted and merged. Not thread-safe: the caller's lock guards it.
 */
#ifndef PS_POLICY_RANGES_H
#define PS_POLICY_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/base/status.h"

struct ps_range {
    uint64_t base;
    uint64_t size;
};

struct ps_ranges {
    struct ps_range *free; /* ascending, never adjacent */
    size_t n_free;
    size_t n_room;
    uint64_t base, size; /* the whole */
    uint64_t free_total;
};

/* One free range [base, base + size); base + size must not wrap. PS_ERR_MEMORY on failure. */
enum ps_status PS_MUST_CHECK ps_ranges_init(struct ps_ranges *r, uint64_t base, uint64_t size);
void ps_ranges_fini(struct ps_ranges *r);
/* False when no free range is large enough (or size is 0). */
bool PS_MUST_CHECK ps_ranges_take(struct ps_ranges *r, uint64_t size, uint64_t *base_p);
/* Gives back exactly what a take returned. On host memory exhaustion the range is leaked, never corrupted. */
void ps_ranges_give(struct ps_ranges *r, uint64_t base, uint64_t size);
/* Invariants; for assertions. */
bool ps_ranges_check(const struct ps_ranges *r);

#endif
