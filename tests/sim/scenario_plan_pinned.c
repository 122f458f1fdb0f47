/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No device memory for pages, and host memory takes many steps to be pinned: those steps tell nothing of the padding,
 * and a plan made from them would gain nothing. Once there are pages one is made that does.
 */
#include "tests/sim/scenario_plan.h"

#define N_STEPS 80

int main(void)
{
    static struct sc_layer layers[PL_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (unsigned step = 1; step <= N_STEPS; step++) {
        for (unsigned i = 0; i < PL_LAYERS; i++) {
            pl_forward(&layers[i], step * 100 + i, s);
        }
        for (unsigned i = PL_LAYERS; i-- > 0;) {
            sc_backward(&layers[i], s);
        }
    }
    sc_results_print("all");
    return sc_end();
}
