/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A launch by a function of a version that nobody knows yet, looked up early and called for the first time while
 * earlier layers are out: what it names must be there, and from then on everything is.
 */
#include "tests/sim/future.h"

#define N_LAYERS 8
#define N_STEPS  3

static void digest_by_future(CUdeviceptr p, CUstream s)
{
    uint64_t n = SC_WORDS;
    CUdeviceptr to = sc_results + (CUdeviceptr)8 * sc_n_results++;
    CUfunction f;

    sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
    sc_ok(future_launch(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n, &to}, NULL));
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    look_up();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
        }
        for (int i = 0; i < N_LAYERS && step > 0; i++) {
            digest_by_future(layers[i].x, s);
            digest_by_future(layers[i].y, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
