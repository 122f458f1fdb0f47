/* SPDX-License-Identifier: Apache-2.0 */
/* Two contexts taking turns in one thread: on two devices, or both on the only one. */
#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);

#define N_LAYERS 5
#define N_STEPS  3

static struct side {
    CUcontext ctx;
    CUmodule module;
    CUdeviceptr results;
    CUstream stream;
    struct sc_layer layers[N_LAYERS];
} sides[2];

static void enter(const struct side *side)
{
    sc_ok(cuCtxSetCurrent(side->ctx));
    sc_ctx = side->ctx;
    sc_module = side->module;
    sc_results = side->results;
}

static void make(struct side *side, int n)
{
    CUdevice dev;
    int n_devices;

    sc_ok(cuDeviceGetCount(&n_devices));
    sc_ok(cuDeviceGet(&dev, n % n_devices));
    if (n < n_devices) {
        sc_ok(cuDevicePrimaryCtxRetain(&side->ctx, dev));
    } else {
        sc_ok(cuCtxCreate_v2(&side->ctx, 0, dev));
    }
    sc_ok(cuCtxSetCurrent(side->ctx));
    sc_ok(cuModuleLoadData(&side->module, ""));
    sc_ok(cuMemAlloc(&side->results, SC_RESULTS * 8));
    sc_ok(cuMemsetD8(side->results, 0, SC_RESULTS * 8));
    sc_ok(cuCtxSynchronize());
    side->stream = sc_stream();
}

int main(void)
{
    sc_ok(cuInit(0));
    for (int d = 0; d < 2; d++) {
        make(&sides[d], d);
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            for (int d = 0; d < 2; d++) {
                enter(&sides[d]);
                sc_forward(&sides[d].layers[i], step * 100 + (uint64_t)(10 * i + d),
                           sides[d].stream);
            }
        }
        for (int d = 1; d >= 0; d--) {
            enter(&sides[d]);
            for (int i = N_LAYERS - 1; i >= 0; i--) {
                sc_backward(&sides[d].layers[i], sides[d].stream);
            }
            sc_results_print(d == 0 ? "device 0" : "device 1");
        }
    }
    return sc_end();
}
