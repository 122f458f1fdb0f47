/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands for any kernel of a recorded job: it reads the tensors it is told and writes some of
 * them anew, so that every byte depends on all that was there before. One source for nvcc and the
 * host compiler.
 */
#include "kernels/dual.h"

#include "tools/tape/args.h"

PS_DEVICE uint64_t tape_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A word of a tensor depends on words of the same index only: no order of threads matters. */
PS_KERNEL1(tape_touch, struct tape_args, args)
{
    const uint64_t step = PS_N_BLOCKS * PS_N_THREADS;
    uint64_t longest = 0;
    uint64_t sum = 0;

    for (uint32_t k = 0; k < args.n_tensors; k++) {
        longest = args.tensors[k].words > longest ? args.tensors[k].words : longest;
    }
    for (uint64_t i = PS_BLOCK * PS_N_THREADS + PS_THREAD; i < longest; i += step) {
        uint64_t all = args.seed ^ i;

        for (uint32_t k = 0; k < args.n_tensors; k++) {
            if (i < args.tensors[k].words) {
                all = tape_mix(all ^ ((const uint64_t *)ps_address(args.tensors[k].address))[i]);
            }
        }
        for (uint32_t k = 0; k < args.n_tensors; k++) {
            if (i < args.tensors[k].written) {
                ((uint64_t *)ps_address(args.tensors[k].address))[i] = tape_mix(all + k);
            }
        }
        sum += all;
    }
    if (longest != 0) {
        ps_atomic_add((uint64_t *)ps_address(args.result), sum);
    }
}
