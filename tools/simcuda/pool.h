/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: what poolapi.c asks of pool.c. Needs the big lock. */
#ifndef SIMCUDA_POOL_H
#define SIMCUDA_POOL_H

#include "tools/simcuda/core.h"

struct sim_pool *sim_pool_new(int device, bool explicit_);
/* What cuMemAllocAsync uses on the device. */
struct sim_pool *sim_pool_current(int device);
void sim_pool_set_current(int device, struct sim_pool *p);
/* Gives unused memory back whose frees are done, until at most `keep` bytes are reserved. */
void sim_pool_trim(struct sim_pool *p, uint64_t keep);
/* Goes when its last allocation does. */
void sim_pool_destroy(struct sim_pool *p);

#endif
