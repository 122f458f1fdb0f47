/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: parameter structures of the kernels in testkernels.c. */
#ifndef SIMCUDA_TESTKERNELS_H
#define SIMCUDA_TESTKERNELS_H

#include <stdint.h>

struct sim_operands {
    uint64_t out, a, b;
};

struct __attribute__((packed)) sim_packed_args {
    uint8_t kind;
    uint16_t rows;
    uint8_t unused[9]; /* never set: stale bytes of whoever had the stack before */
    uint64_t dst;
    uint32_t n;
    uint64_t src;
    uint8_t more_unused[64];
};

#endif
