/* SPDX-License-Identifier: Apache-2.0 */
/* A plan is in force, and a thousand evaluation layers come between two steps: the same regions, nothing saved. */
#include "tests/sim/scenario_plan.h"

int main(void)
{
    struct sc_layer l;

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t turn = 0; turn < 3; turn++) {
        pl_steps(turn * 10, 4, s);
        sc_results_print("steps");
        for (uint64_t i = 0; i < (turn == 1 ? 1000 : 60); i++) {
            pl_forward(&l, 50000 + turn * 2000 + i, s);
            sc_backward(&l, s);
        }
        sc_results_print("evaluation");
    }
    return sc_end();
}
