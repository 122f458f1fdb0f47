/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations by cuMemAlloc inside regions: seen, counted, left alone; some are freed there, some live on, and the
 * region's other tensors go out and come back beside them.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  4

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUdeviceptr segments[N_LAYERS], brief;

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            nvtxRangePushA("moe_experts");
            sc_ok(cuMemAlloc(&segments[i], SC_BYTES));
            sc_produce(segments[i], SC_VALID, SC_WORDS, step * 50 + i, s);
            sc_ok(cuMemAlloc(&brief, SC_BYTES));
            sc_mix(segments[i], segments[i], brief, SC_WORDS, s);
            sc_digest(brief, SC_WORDS, s);
            sc_ok(cuStreamSynchronize(s));
            sc_ok(cuMemFree(brief));
            nvtxRangePop();
            sc_forward(&layers[i], step * 100 + i, s);
            sc_mix(layers[i].x, segments[i], segments[i], SC_WORDS, s);
        }
        for (unsigned i = N_LAYERS; i > 0; i--) {
            sc_digest(segments[i - 1], SC_WORDS, s);
            sc_backward(&layers[i - 1], s);
            sc_ok(cuStreamSynchronize(s));
            sc_ok(cuMemFree(segments[i - 1]));
        }
        sc_results_print("step");
    }
    return sc_end();
}
