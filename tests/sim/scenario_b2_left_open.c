/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges left open by an exception: the pop never runs in every other layer, and the next push comes deeper. */
#include "tests/sim/scenario.h"

#define N_LAYERS 8
#define N_STEPS  3

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            if (i % 2 == 1) {
                nvtxRangePushA("moe_experts"); /* recomputation gave up here */
                const CUdeviceptr lost = sc_alloc(SC_BYTES, s);

                sc_produce(lost, SC_VALID, SC_WORDS, step, s);
                sc_digest(lost, SC_WORDS, s);
                sc_free(lost, s);
            }
            nvtxRangePushA("layer");
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
            nvtxRangePop();
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
