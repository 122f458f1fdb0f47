/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations in regions that fail for want of memory: the job sees the driver's error where the plain run sees it or
 * later, frees something, tries again, and its bytes are right. Prints only what does not depend on how much fits.
 */
#include "tests/sim/scenario.h"

#define N_MAX 64

int main(void)
{
    CUdeviceptr tensors[N_MAX];

    sc_start();
    const CUstream s = sc_stream();

    for (unsigned round = 0; round < 3; round++) {
        unsigned n = 0;
        CUresult result = CUDA_SUCCESS;

        while (n < N_MAX && result == CUDA_SUCCESS) {
            nvtxRangePushA("moe_experts");
            result = cuMemAllocAsync(&tensors[n], SC_BYTES, s);
            if (result == CUDA_SUCCESS) {
                /* Nothing uniform: the stash gains nothing here and must not lose anything either. */
                sc_produce(tensors[n], SC_WORDS, SC_WORDS, round * 100 + n, s);
                n++;
            }
            nvtxRangePop();
        }
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
            sc_ok(result);
        }
        for (unsigned i = 0; i < n && i < 8; i++) {
            sc_digest(tensors[i], SC_WORDS, s);
        }
        while (n > 0) {
            sc_free(tensors[--n], s);
        }
        sc_results_print("round");
    }
    return sc_end();
}
