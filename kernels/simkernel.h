/* SPDX-License-Identifier: Apache-2.0 */
/* How a kernel built for the host is found by simcuda: rows in the ELF section "ps_sim_kernels". */
#ifndef PS_KERNELS_SIMKERNEL_H
#define PS_KERNELS_SIMKERNEL_H

#include <stddef.h>
#include <stdint.h>

/* The block being run; grids are flattened to one dimension. */
struct ps_sim_block {
    uint64_t block;
    uint64_t n_blocks;
    /* Called where the kernel lets other blocks of its launch go first; NULL: never. */
    void (*yield)(const struct ps_sim_block *block);
    void *yield_arg; /* yield's own */
};

struct ps_sim_kernel {
    const char *name;
    /* Runs one block. params[i] points at a copy of parameter i. */
    void (*run)(const struct ps_sim_block *block, void *const *params);
    size_t n_params;
    const size_t *sizes;  /* bytes of each parameter */
    const size_t *aligns; /* alignment of each; offsets follow from both as nvcc lays them out */
};

#endif
