/* SPDX-License-Identifier: Apache-2.0 */
/* A context is destroyed with work on tensors of its regions queued; what that work writes elsewhere is read later. */
#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);

#define N_LAYERS   5
#define N_CONTEXTS 4

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUcontext first = sc_ctx;
    const CUmodule module = sc_module;

    for (uint64_t n = 0; n < N_CONTEXTS; n++) {
        sc_ok(cuCtxCreate_v2(&sc_ctx, 0, 0));
        sc_ok(cuModuleLoadData(&sc_module, ""));
        const CUstream s = sc_stream();

        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], n * 100 + i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_digest(layers[i].y, SC_WORDS, s);
            sc_digest(layers[i].x, SC_WORDS, s);
        }
        sc_ok(cuCtxDestroy_v2(sc_ctx));
        sc_ctx = first;
        sc_module = module;
        sc_ok(cuCtxSetCurrent(first));
    }
    sc_results_print("contexts");
    return sc_end();
}
