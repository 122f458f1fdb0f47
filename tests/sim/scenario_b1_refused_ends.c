/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver refuses to destroy a primary context, to reset a device that is not there, and to end streams and contexts
 * by the oldest entries; whatever was out comes back as if nobody had asked. Named in the middle of the steps.
 */
#include "tests/sim/scenario.h"

/* Exported by every driver; headers name them in their own way. */
#undef cuCtxDestroy
#undef cuStreamDestroy
#undef cuDevicePrimaryCtxReset
CUresult CUDAAPI cuCtxDestroy(CUcontext ctx);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);
CUresult CUDAAPI cuStreamDestroy(CUstream stream);
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev);
CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev);

#define N_LAYERS 6
#define N_STEPS  4

static void refused(CUresult r)
{
    if (r == CUDA_SUCCESS) {
        sc_ok(CUDA_ERROR_UNKNOWN);
    }
    printf("refused: %d\n", (int)r);
}

static void ask(uint64_t step, CUstream s)
{
    switch (step) {
    case 0:
        refused(cuCtxDestroy_v2(sc_ctx));
        break;
    case 1:
        refused(cuDevicePrimaryCtxReset(0));
        break;
    case 2:
        refused(cuCtxDestroy(sc_ctx));
        break;
    default:
        refused(cuStreamDestroy(s));
        refused(cuDevicePrimaryCtxReset_v2(7));
        break;
    }
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
        }
        ask(step, s);
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
