/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the process near a device: which NUMA node of the host is closest, and pages put there. No state; any
 * thread, no lock.
 */
#ifndef PS_SHIM_NUMA_H
#define PS_SHIM_NUMA_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/driver.h"

/* -1: the host has no nodes, or the driver (before 12.2) does not tell. */
int ps_numa_node(CUdevice device);
/*
 * What is touched first from here on lies on the node as long as that has room, else elsewhere. `at`: of a page;
 * `bytes`: of pages. Where the kernel has no nodes or a container forbids it, nothing changes; false then.
 */
bool ps_numa_prefer(void *at, uint64_t bytes, int node);

#endif
