/* SPDX-License-Identifier: Apache-2.0 */
/* Regions pushed while the region's stream is capturing: nothing that a boundary does may end the capture. */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  4

static CUgraphExec capture(CUdeviceptr from, CUdeviceptr to, CUstream s)
{
    CUgraph graph;
    CUgraphExec exec;

    sc_ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    nvtxRangePushA("moe_experts");
    sc_mix(from, from, to, SC_WORDS, s);
    nvtxRangePop();
    sc_ok(cuStreamEndCapture(s, &graph));
    sc_ok(cuGraphInstantiate(&exec, graph, 0));
    sc_ok(cuGraphDestroy(graph));
    return exec;
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUdeviceptr kept[2];

    sc_start();
    const CUstream s = sc_stream();

    sc_ok(cuMemAlloc(&kept[0], SC_BYTES));
    sc_ok(cuMemAlloc(&kept[1], SC_BYTES));
    for (uint64_t step = 0; step < N_STEPS; step++) {
        sc_produce(kept[0], SC_VALID, SC_WORDS, step, s);
        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);

            CUgraphExec exec = capture(kept[0], kept[1], s);

            sc_ok(cuGraphLaunch(exec, s));
            sc_digest(kept[1], SC_WORDS, s);
            sc_ok(cuGraphExecDestroy(exec));
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
