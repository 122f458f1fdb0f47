/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved tensors that the job writes again: while their stash is on its way (the copy in the pages is stale then), and
 * long after they went out. What backward reads is the last thing written.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 8
#define N_STEPS  3

static void write_again(struct sc_layer *l, uint64_t seed, CUstream s)
{
    /* Not all of it: the rest must be what it was. */
    sc_produce(l->x + 8192, 100, 256, seed, s);
    sc_ok(cuMemsetD32Async(l->y + 16384, (unsigned)seed, 512, s));
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
            nvtxRangePushA(
                "moe_experts"); /* a boundary, so that the layer before is on its way out */
            nvtxRangePop();
            if (i >= 1) {
                write_again(&layers[i - 1], step + i, s);
            }
            if (i >= 5 && i % 2 == step % 2) {
                write_again(&layers[i - 5], 50 + step + i, s);
            }
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
