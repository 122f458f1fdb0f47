/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that a region made and nobody ever frees: a workspace of the first use, an output kept for a log. */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  4

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUdeviceptr workspace = 0, kept[N_STEPS];

    sc_start();
    const CUstream s = sc_stream();

    for (unsigned step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            nvtxRangePushA("moe_experts");
            if (workspace == 0) {
                workspace = sc_alloc(SC_BYTES, s);
            }
            if (i == 2) {
                kept[step] = sc_alloc(SC_BYTES, s);
                sc_produce(kept[step], SC_VALID, SC_WORDS, step, s);
            }
            nvtxRangePop();
            sc_forward(&layers[i], step * 100 + i, s);
            sc_mix(layers[i].x, layers[i].y, workspace, SC_WORDS, s);
            sc_digest(workspace, SC_WORDS, s);
        }
        for (unsigned i = N_LAYERS; i > 0; i--) {
            sc_backward(&layers[i - 1], s);
        }
    }
    for (unsigned step = 0; step < N_STEPS; step++) {
        sc_digest(kept[step], SC_WORDS, s);
    }
    sc_results_print("all");
    return sc_end();
}
