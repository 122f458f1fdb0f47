/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and now and then a side stream reads what is out, behind a word that the job writes only after
 * the layers that follow, as another rank would. What makes those layers wait for the side stream hangs.
 */
#include "tests/sim/scenario_plan.h"

#define N_STEPS 20
#define LEARNED 8 /* steps in which nothing is read aside: else it would be planned */
#define AT      3 /* layers that are there by then */

static struct sc_layer layers[PL_LAYERS];
static CUdeviceptr word;

/* So many layers; what they were stashed by is over. */
static void read_aside(cuuint32_t value, unsigned n, CUstream side)
{
    sc_ok(cuCtxSynchronize());
    sc_ok(cuStreamWaitValue32(side, word, value, CU_STREAM_WAIT_VALUE_GEQ));
    for (unsigned i = 0; i < n; i++) {
        sc_digest_aside(layers[i].x, SC_WORDS, side);
    }
}

int main(void)
{
    sc_start();
    const CUstream s = sc_stream(), side = sc_stream();

    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    for (cuuint32_t step = 1; step <= N_STEPS; step++) {
        for (unsigned i = 0; i < PL_LAYERS; i++) {
            if (i == AT && step > LEARNED && step % 2 == 0) {
                read_aside(step, 1 + step % AT, side);
            }
            pl_forward(&layers[i], step * 100 + i, s);
        }
        sc_ok(cuStreamWriteValue32(s, word, step, CU_STREAM_WRITE_VALUE_DEFAULT));
        sc_order(side, s);
        for (int i = PL_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
    }
    sc_results_print("all");
    return sc_end();
}
