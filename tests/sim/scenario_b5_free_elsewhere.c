/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors freed on another stream than the one that used them, which the job made wait for all users; the memory must
 * not go to anybody before that point of the free's stream.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  4

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream(), side = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_digest(layers[i].y, SC_WORDS, s);
            sc_order(s, side);
            sc_digest_aside(layers[i].x, SC_WORDS, side);
            sc_free(layers[i].y, side);
            sc_free(layers[i].x, side);
        }
        sc_order(side, s);
        sc_results_print("step");
    }
    return sc_end();
}
