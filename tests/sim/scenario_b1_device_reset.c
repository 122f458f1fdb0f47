/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primary context is reset, and at the end released, while tensors of another context of the device are out: they
 * are not touched by that.
 */
#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);

#define N_LAYERS 6
#define N_STEPS  3

static void step_in_primary(uint64_t step)
{
    struct sc_layer layers[N_LAYERS];
    CUmodule module;

    sc_ok(cuCtxPushCurrent(sc_ctx));
    sc_ok(cuModuleLoadData(&module, ""));

    const CUmodule outer = sc_module;
    const CUstream s = sc_stream();

    sc_module = module;
    for (int i = 0; i < N_LAYERS; i++) {
        sc_forward(&layers[i], 7000 + step * 100 + (uint64_t)i, s);
    }
    for (int i = N_LAYERS - 1; i >= 2; i--) {
        sc_free(layers[i].y, s);
        sc_free(layers[i].x, s);
    }
    sc_module = outer;
    sc_ok(cuCtxSynchronize());
    sc_ok(cuCtxPopCurrent(&sc_ctx));
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUcontext primary, ctx;

    sc_start();
    primary = sc_ctx;
    sc_ok(cuCtxCreate_v2(&ctx, 0, 0));
    sc_ok(cuModuleLoadData(&sc_module, ""));
    sc_ok(cuMemAlloc(&sc_results, SC_RESULTS * 8));
    sc_ok(cuMemsetD8(sc_results, 0, SC_RESULTS * 8));
    sc_ok(cuCtxSynchronize());

    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
        }
        sc_ctx = primary;
        step_in_primary(step);
        sc_ok(step + 1 < N_STEPS ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxRelease(0));
        if (step + 1 < N_STEPS) {
            sc_ok(cuDevicePrimaryCtxRetain(&primary, 0));
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
