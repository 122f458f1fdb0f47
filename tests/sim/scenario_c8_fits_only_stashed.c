/* SPDX-License-Identifier: Apache-2.0 */
/* A job that does not fit into the device's memory without the stash: it runs from its first step. */
#include "tests/sim/scenario.h"

#define N_LAYERS 24
#define N_STEPS  3
#define BIG      (8 * SC_BYTES)

int main(void)
{
    CUdeviceptr x[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            nvtxRangePushA("moe_experts");
            x[i] = sc_alloc(BIG, s);
            sc_produce(x[i], BIG / 8 / 16, BIG / 8, step * 100 + (uint64_t)i, s);
            nvtxRangePop();
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_digest(x[i], BIG / 8, s);
            sc_free(x[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
