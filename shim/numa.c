/* SPDX-License-Identifier: Apache-2.0 */
/* See numa.h. The system call itself: libnuma is no part of libc, and the preloaded object needs nothing else. */
#include "shim/numa.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/driver.h"

#define WORD_BITS (sizeof(unsigned long) * CHAR_BIT)
#define NODES_MAX 1024 /* CONFIG_NODES_SHIFT is at most 10 */

int ps_numa_node(CUdevice device)
{
    int node = -1;
    const CUresult r =
        ps_driver.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device);
    return r == CUDA_SUCCESS && node >= 0 && node < NODES_MAX ? node : -1;
}

bool ps_numa_prefer(void *at, uint64_t bytes, int node)
{
    unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
    if (node < 0 || node >= NODES_MAX) {
        return false;
    }
    nodes[(unsigned)node / WORD_BITS] = 1UL << (unsigned)node % WORD_BITS;
    /* The kernel reads one bit less than it is told. */
    return syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, nodes, NODES_MAX + 1, 0) == 0;
}
