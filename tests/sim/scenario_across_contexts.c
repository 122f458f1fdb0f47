/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts whose tensors are named by calls made in one of them, on its default stream, while they are out; and
 * frees on a stream of a context that is not the current one.
 */
#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);

#define N_LAYERS 5
#define N_STEPS  3

static struct side {
    CUcontext ctx;
    CUmodule module;
    CUstream stream;
    struct sc_layer layers[N_LAYERS];
} sides[2];

static void enter(const struct side *side)
{
    sc_ok(cuCtxSetCurrent(side->ctx));
    sc_module = side->module;
}

int main(void)
{
    sc_start();
    sides[0] = (struct side){.ctx = sc_ctx, .module = sc_module, .stream = sc_stream()};
    sc_ok(cuCtxCreate_v2(&sides[1].ctx, 0, 0));
    sc_ok(cuModuleLoadData(&sides[1].module, ""));
    sides[1].stream = sc_stream();

    CUdeviceptr out;

    sc_ok(cuMemAlloc(&out, SC_BYTES));
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            for (int d = 0; d < 2; d++) {
                enter(&sides[d]);
                sc_forward(&sides[d].layers[i], step * 100 + (uint64_t)(10 * i + d),
                           sides[d].stream);
            }
        }
        for (int d = 0; d < 2; d++) {
            enter(&sides[d]);
            sc_ok(cuCtxSynchronize());
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            /* The other context's tensor first, then one of this context's own. */
            sc_mix(sides[0].layers[i].y, sides[1].layers[i].y, out, SC_WORDS, NULL);
            sc_digest(out, SC_WORDS, NULL);
            sc_digest(sides[0].layers[i].x, SC_WORDS, NULL);
            sc_digest(sides[1].layers[i].x, SC_WORDS, NULL);
            sc_ok(cuStreamSynchronize(NULL));
            for (int d = 0; d < 2; d++) {
                sc_free(sides[d].layers[i].y, sides[d].stream);
                sc_free(sides[d].layers[i].x, sides[d].stream);
            }
        }
        sc_results_print("step");
    }
    return sc_end();
}
