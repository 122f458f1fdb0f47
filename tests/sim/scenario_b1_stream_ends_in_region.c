/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every layer is made on a stream of its own, which is destroyed inside the layer's region with the work queued: the
 * layer's last use must be known by then, or nothing of it may leave.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 8
#define N_STEPS  3

static void forward(struct sc_layer *l, uint64_t seed, CUstream main_stream)
{
    const CUstream s = sc_stream();

    nvtxRangePushA("experts");
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    sc_produce(l->x, SC_VALID, SC_WORDS, seed, s);
    sc_mix(l->x, l->x, l->y, SC_VALID, s);
    sc_ok(cuMemsetD8Async(l->y + 8 * SC_VALID, 0, SC_BYTES - 8 * SC_VALID, s));
    sc_order(s, main_stream);
    sc_ok(cuStreamDestroy(s));
    nvtxRangePop();
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            forward(&layers[i], step * 100 + i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
