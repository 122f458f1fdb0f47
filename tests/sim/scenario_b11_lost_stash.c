/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stashes of which nobody knows the end: the driver refuses some records and then every wait for a stream but the
 * first. What they still read is freed meanwhile. The job tries its launches again until it is let through.
 */
#include "tests/sim/scenario.h"

#ifndef PS_FAULTS
#    error "needs the watcher of failing calls"
#endif

#define N_LAYERS 8
#define N_STEPS  6

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    setenv("FAULT", "!cuEventRecord:~40;!cuStreamSynchronize:2+", 0);
    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_digest_again(layers[i].y, SC_WORDS, sc_n_results++, s);
            sc_digest_again(layers[i].x, SC_WORDS, sc_n_results++, s);
            sc_free(layers[i].y, s);
            sc_free(layers[i].x, s);
        }
    }
    sc_results_print("all");
    return sc_end();
}
