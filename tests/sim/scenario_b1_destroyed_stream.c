/* SPDX-License-Identifier: Apache-2.0 */
/* Every step has a stream of its own, destroyed with work still queued, while tensors it touched are out. */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  4

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    for (uint64_t step = 0; step < N_STEPS; step++) {
        const CUstream forward = sc_stream(), backward = sc_stream();

        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, forward);
        }
        sc_order(forward, backward);
        sc_ok(cuStreamDestroy(forward));
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], backward);
        }
        sc_ok(cuStreamDestroy(backward));
        sc_results_print("step");
    }
    return sc_end();
}
