/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page pool grows at a boundary while a tensor of an earlier group is taken back: both give pages to the free list,
 * on two streams. With little memory the pool grows in small steps; every other boundary is followed by a touch.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 18
#define N_STEPS  3

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
            if (i > 0 && i % 2 == 0) {
                nvtxRangePushA("experts boundary");
                nvtxRangePop();
                sc_digest(layers[i - 1].x, SC_WORDS, s);
                sc_digest(layers[i].y, SC_WORDS, s);
            }
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
