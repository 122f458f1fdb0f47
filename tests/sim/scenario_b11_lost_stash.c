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
#define N_TRIES  500

static void digest_again(CUdeviceptr p, CUstream s)
{
    uint64_t n = SC_WORDS;
    CUdeviceptr to = sc_results + (CUdeviceptr)8 * sc_n_results++;
    CUfunction f;
    CUresult r = CUDA_ERROR_UNKNOWN;

    sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
    for (int i = 0; i < N_TRIES && r != CUDA_SUCCESS; i++) {
        r = cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n, &to}, NULL);
    }
    sc_ok(r);
}

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
            digest_again(layers[i].y, s);
            digest_again(layers[i].x, s);
            sc_free(layers[i].y, s);
            sc_free(layers[i].x, s);
        }
    }
    sc_results_print("all");
    return sc_end();
}
