/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and a capture begins between a touch and the boundary, or holds a boundary. What the graph names
 * is launched again when its layer would be out.
 */
#include "tests/sim/scenario_plan.h"

static CUgraphExec capture(struct sc_layer *l, CUdeviceptr to, struct sc_layer *inside,
                           uint64_t seed, CUstream s, CUstream other)
{
    CUgraph graph;
    CUgraphExec exec;

    sc_ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    sc_mix(l->x, l->y, to, SC_WORDS, s);
    if (inside != NULL) {
        pl_forward(inside, seed, other);
    }
    sc_ok(cuStreamEndCapture(s, &graph));
    sc_ok(cuGraphInstantiate(&exec, graph, 0));
    sc_ok(cuGraphDestroy(graph));
    return exec;
}

int main(void)
{
    struct sc_layer layers[PL_LAYERS];
    CUdeviceptr kept;

    sc_start();
    const CUstream s = sc_stream();
    const CUstream other = sc_stream();

    sc_ok(cuMemAlloc(&kept, SC_BYTES));
    for (uint64_t step = 0; step < 2 * PL_STEPS; step++) {
        const bool captures = step >= 5 && step % 3 != 0;
        const uint64_t at = step % (PL_LAYERS - 1);
        CUgraphExec exec = NULL;

        for (uint64_t i = 0; i < PL_LAYERS; i++) {
            if (captures && i == at + 1 && step % 2 == 1) {
                exec = capture(&layers[at], kept, &layers[i], step * 100 + i, s, other);
                sc_order(other, s);
            } else {
                pl_forward(&layers[i], step * 100 + i, s);
            }
            if (captures && i == at && step % 2 == 0) {
                exec = capture(&layers[at], kept, NULL, 0, s, other);
            }
        }
        for (int i = PL_LAYERS - 1; i >= 0; i--) {
            if (exec != NULL && (uint64_t)i == at) {
                sc_ok(cuGraphLaunch(exec, s));
                sc_digest(kept, SC_WORDS, s);
            }
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
        if (exec != NULL) {
            sc_ok(cuGraphExecDestroy(exec));
        }
    }
    return sc_end();
}
