/* SPDX-License-Identifier: Apache-2.0 */
/* The usual shape: layers forward, layers backward, several steps, one stream. */
#include "tests/sim/scenario.h"

#define N_LAYERS 8
#define N_STEPS  4

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
