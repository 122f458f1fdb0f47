/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A receive posted early: a side stream waits for a word that the job writes only after the next boundaries, as another
 * rank would. A host that waits for all streams at a boundary hangs.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  4

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUdeviceptr word;

    sc_start();
    const CUstream s = sc_stream(), side = sc_stream();

    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    for (uint64_t step = 0; step < N_STEPS; step++) {
        sc_ok(cuStreamWaitValue32(side, word, (cuuint32_t)step + 1, CU_STREAM_WAIT_VALUE_GEQ));
        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
        }
        sc_ok(cuStreamWriteValue32(s, word, (cuuint32_t)step + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
