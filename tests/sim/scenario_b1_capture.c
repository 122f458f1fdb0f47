/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A capture begins on the region's stream between the last touch and the boundary at which it would have been recorded;
 * the captured work names a tensor of the region, and the graph is launched again when others have gone out.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  3

static CUgraphExec capture(struct sc_layer *l, CUdeviceptr to, CUstream s)
{
    CUgraph graph;
    CUgraphExec exec;

    sc_ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    sc_mix(l->x, l->y, to, SC_WORDS, s);
    sc_ok(cuStreamEndCapture(s, &graph));
    sc_ok(cuGraphInstantiate(&exec, graph, 0));
    sc_ok(cuGraphDestroy(graph));
    return exec;
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUdeviceptr kept;

    sc_start();
    const CUstream s = sc_stream();

    sc_ok(cuMemAlloc(&kept, SC_BYTES));
    for (uint64_t step = 0; step < N_STEPS; step++) {
        CUgraphExec exec = NULL;

        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
            if (i == 1) {
                exec = capture(&layers[i], kept, s);
            }
            if (i >= 1) {
                sc_ok(cuGraphLaunch(exec, s));
                sc_digest(kept, SC_WORDS, s);
            }
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
            if (i == 1) {
                sc_ok(cuStreamSynchronize(s));
                sc_ok(cuGraphExecDestroy(exec));
            }
        }
        sc_results_print("step");
    }
    return sc_end();
}
