/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor comes back when the device has no memory left, and what is free is still in use: places freed on other
 * streams, one a stream, whose work is queued.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS  6
#define N_STREAMS 8
#define N_FILLERS 4096

static CUdeviceptr fillers[N_FILLERS];

/* Takes all memory the device has. */
static unsigned fill(void)
{
    unsigned n = 0;

    while (n < N_FILLERS && cuMemAlloc(&fillers[n], SC_BYTES) == CUDA_SUCCESS) {
        n++;
    }
    return n;
}

/* Comes and goes on its stream, work and all. */
static void pass(uint64_t seed, CUstream s)
{
    nvtxRangePushA("experts passing");
    const CUdeviceptr p = sc_alloc(SC_BYTES, s);

    nvtxRangePop();
    sc_produce(p, SC_VALID, SC_WORDS, seed, s);
    sc_free(p, s);
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUstream others[N_STREAMS];

    sc_start();
    const CUstream s = sc_stream();

    for (unsigned i = 0; i < N_STREAMS; i++) {
        others[i] = sc_stream();
    }
    for (uint64_t step = 0; step < 2; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
        }
        sc_ok(cuStreamSynchronize(s));
        unsigned n = fill();

        sc_ok(cuMemFree(fillers[--n]));
        for (unsigned i = 0; i < N_STREAMS; i++) {
            pass(i, others[i]);
        }
        sc_digest(layers[0].x, SC_WORDS, s);
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        while (n > 0) {
            sc_ok(cuMemFree(fillers[--n]));
        }
        sc_results_print("step");
    }
    return sc_end();
}
