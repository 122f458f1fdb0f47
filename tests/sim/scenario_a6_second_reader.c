/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward on two streams that are ordered after forward but not with each other: what one of them brings back, the
 * other must wait for, and neither's end is behind the other's.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 8
#define N_STEPS  4

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream(), side = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
        }
        sc_order(s, side);
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            const bool side_first = i % 2 == 0;

            if (side_first) {
                sc_digest_aside(layers[i].y, SC_WORDS, side);
            }
            sc_digest(layers[i].y, SC_WORDS, s);
            sc_digest(layers[i].x, SC_WORDS, s);
            if (!side_first) {
                sc_digest_aside(layers[i].x, SC_WORDS, side);
            }
        }
        sc_order(side, s);
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_free(layers[i].y, s);
            sc_free(layers[i].x, s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
