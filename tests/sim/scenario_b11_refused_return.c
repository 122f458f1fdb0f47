/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are out come back while the driver refuses some of what that takes; the job tries its launch again until
 * it is let through. Which calls are refused: FAULT (fault_watch.h), else some records and the waits in their place.
 */
#include "tests/sim/scenario.h"

#ifndef PS_FAULTS
#    error "needs the watcher of failing calls"
#endif

#define N_LAYERS 8
#define N_STEPS  3

static CUdeviceptr out[2 * N_LAYERS];

int main(void)
{
    static CUdeviceptr fillers[SC_FILLERS];
    struct sc_layer layers[N_LAYERS];

    setenv("FAULT", "cuEventRecord:~30;cuStreamSynchronize:~50", 0);
    sc_start();
    const CUstream s = sc_stream(), other = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
            fw_live(out[2 * i] = layers[i].x);
            fw_live(out[2 * i + 1] = layers[i].y);
        }
        sc_order(s, other);
        const unsigned n = sc_fill_device(fillers, 3 * N_LAYERS * SC_BYTES);

        for (int i = N_LAYERS - 1; i >= 0; i--) {
            const bool aside = i % 3 == 0;
            const size_t at = 2 * (step * N_LAYERS + (size_t)i) + (aside ? SC_RESULTS / 2 : 0);

            sc_digest_again(layers[i].y, SC_WORDS, at, aside ? other : s);
            sc_digest_again(layers[i].x, SC_WORDS, at + 1, aside ? other : s);
        }
        for (unsigned i = 0; i < 2 * N_LAYERS; i++) {
            fw_dead(out[i]);
        }
        sc_order(other, s);
        for (unsigned i = 0; i < N_LAYERS; i++) {
            sc_free(layers[i].y, s);
            sc_free(layers[i].x, s);
        }
        sc_free_fillers(fillers, n);
        sc_results_print("step");
    }
    return sc_end();
}
