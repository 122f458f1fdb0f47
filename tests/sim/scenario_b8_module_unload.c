/* SPDX-License-Identifier: Apache-2.0 */
/* Modules come and go: a function's handle may be another function's later, with fewer parameters. */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  6

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        CUfunction f;

        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
        }
        sc_ok(cuStreamSynchronize(s));
        sc_ok(cuModuleUnload(sc_module));
        sc_ok(cuModuleLoadData(&sc_module, ""));
        /* In another order each time, so that handles change places. */
        sc_ok(cuModuleGetFunction(&f, sc_module, step % 2 == 0 ? "test_by_value" : "test_grouped"));
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
