/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What regions needed: how many rows had to be delivered (the counters that ranges name by `need`), how much of the
 * buffers was used, and what was counted in each step. At a region's pop the counter is copied into pinned memory of
 * ours, in the order of the group's stream; it is read once the copy is seen complete. Nothing here waits.
 *
 * Any thread; the engine's lock is held, but where it says otherwise. What is counted is of the whole process.
 */
#ifndef PS_SHIM_DEMAND_H
#define PS_SHIM_DEMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/driver.h"

struct ps_copy;
struct ps_demand_memory;
struct ps_engine;
struct ps_group;
struct ps_thread;
struct pagedstash_status;

/* Of the regions of one name. */
struct ps_demand {
    uint32_t name;
    uint64_t capacity, balanced; /* rows, as told last; 0: not told */
    uint64_t n_read;             /* counters read */
    uint64_t n_over;             /* of them, more than the capacity */
    uint64_t needed;             /* the most rows; 0: none was read */
    uint64_t told_factor;        /* hundredths, of the last line that was written */
    uint64_t used_ppm; /* of a padded tensor, the most that held data; 0: none was stashed */
};

/* An instance of a region allocates: memory for its counter's copies. Lock not held. */
void ps_demand_prepare(struct ps_engine *e, const struct ps_thread *th);
/* It ends, in this context: its counter is copied. */
void ps_demand_pop(const struct ps_thread *th, CUcontext current);
/* What the device has told is read. */
void ps_demand_poll(struct ps_engine *e);
/* A stash was seen complete; `valid` bytes of the tensor hold data. */
void ps_demand_stashed(const struct ps_copy *c, uint64_t valid);
/* A step has ended; found: by the library itself, which counts for nothing once the job tells of its steps. */
void ps_demand_step(bool found);
/* All but `size`; flags as far as it is known here. */
void ps_demand_status(struct pagedstash_status *status_p);
void ps_demand_reset(void);
/* The context's memory goes. Lock not held; nobody uses it any more. gone: the context no longer exists. */
void ps_demand_fini(struct ps_engine *e, bool gone);

/* For what is said at exit: up to n, in the order in which they came. Takes the lock if it is to be had. */
uint32_t ps_demand_look(struct ps_demand *demand_p, uint32_t n);

#endif
