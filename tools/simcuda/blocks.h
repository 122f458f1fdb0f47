/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of one kernel that take turns, as on a device that runs several at once. Needs the big lock. */
#ifndef SIMCUDA_BLOCKS_H
#define SIMCUDA_BLOCKS_H

#include "tools/simcuda/sim.h"

/* Kernels whose blocks give way (PS_YIELD): those with a name that begins with ps_. */
bool sim_blocks_give_way(const struct ps_sim_kernel *row);
/*
 * Some turns of the launch's blocks, a turn from one PS_YIELD to the next; inside of sim_access_run. False: a block
 * touched an address it has no right to, and the launch is over.
 */
bool sim_blocks_turns(struct sim_op *op, uint64_t n);
/* Every block has run to its end. */
bool sim_blocks_over(const struct sim_op *op);
void sim_blocks_drop(struct sim_launch *launch);

#endif
