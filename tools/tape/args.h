/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter of tape_touch, shared by the kernel and the host: plain C, no CUDA header. */
#ifndef TAPE_ARGS_H
#define TAPE_ARGS_H

#include <stdint.h>

#define TAPE_TENSORS_MAX 96    /* of one launch; what more it names is named only */
#define TAPE_RAW_MAX     29696 /* with the rest below the 32,764 bytes that a launch may have */

struct tape_operand {
    uint64_t address;
    uint64_t words;   /* of 8 bytes; all are read */
    uint64_t written; /* that many of them are written, too */
};

/*
 * The sum of what was read is added at `result`. `raw` is what the recorded launch had for
 * parameters; nothing looks at it but those who look for addresses.
 */
struct tape_args {
    uint64_t seed;
    uint64_t result;
    uint32_t n_tensors;
    uint32_t unused;
    struct tape_operand tensors[TAPE_TENSORS_MAX];
    uint8_t raw[TAPE_RAW_MAX];
};

#endif
