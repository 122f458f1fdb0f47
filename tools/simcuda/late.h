/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of host memory that kernels write: the host sees them only when it has learned that the kernel is done, or by
 * chance earlier. Needs the big lock.
 */
#ifndef SIMCUDA_LATE_H
#define SIMCUDA_LATE_H

#include "tools/simcuda/sim.h"

/* Before each step of a kernel: its words go elsewhere first. */
void sim_late_begin(struct sim_op *op);
/* The kernel has run to its end. */
void sim_late_done(struct sim_op *op);
/* The launch's words are never seen. */
void sim_late_drop(struct sim_launch *launch);
/* The host has learned something. */
void sim_late_learned(void);
/* At an entry: some word becomes visible by chance. */
void sim_late_chance(void);
/* The host memory is gone. */
void sim_late_forget(const void *base, size_t bytes);

#endif
