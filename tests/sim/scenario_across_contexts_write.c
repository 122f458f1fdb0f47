/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of another context writes a tensor while its group's boundary is passed: such a use cannot be followed. */
#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);

#define N_LAYERS 4
#define N_STEPS  2

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUcontext other;
    CUmodule modules[2];

    sc_start();
    const CUstream s = sc_stream();

    modules[0] = sc_module;
    sc_ok(cuCtxCreate_v2(&other, 0, 0));
    sc_ok(cuModuleLoadData(&modules[1], ""));
    const CUstream foreign = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_ok(cuCtxSetCurrent(sc_ctx));
            sc_module = modules[0];
            sc_forward(&layers[i], step * 100 + i, s);
            CUevent made;

            sc_ok(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
            sc_ok(cuEventRecord(made, s));
            sc_ok(cuCtxSetCurrent(other));
            sc_module = modules[1];
            sc_ok(cuStreamWaitEvent(foreign, made, 0));
            sc_mix(layers[i].x, layers[i].x, layers[i].y, SC_VALID / 2, foreign);
        }
        CUevent written;

        sc_ok(cuEventCreate(&written, CU_EVENT_DISABLE_TIMING));
        sc_ok(cuEventRecord(written, foreign));
        sc_ok(cuCtxSetCurrent(sc_ctx));
        sc_module = modules[0];
        nvtxRangePushA("experts boundary");
        nvtxRangePop();
        sc_ok(cuStreamWaitEvent(s, written, 0));
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
