/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and now and then a side stream uses what is out behind a word that the job writes only after what
 * follows, as another rank would. What makes that wait for the side stream hangs.
 *
 *   reads     the side stream reads layers in forward; the word comes behind the last layer
 *   backward  later layers are the side stream's, and so is their backward; the word comes behind that of the others
 */
#include "tests/sim/scenario_plan.h"

#define N_STEPS 20
#define LEARNED 8 /* steps in which nothing of this happens */
#define AT      3 /* layers that are there when the side stream reads */
#define OTHERS  4 /* layers that are not the side stream's */

static struct sc_layer layers[PL_LAYERS];
static CUdeviceptr word;

static void wait_for(cuuint32_t value, CUstream side)
{
    sc_ok(cuStreamWaitValue32(side, word, value, CU_STREAM_WAIT_VALUE_GEQ));
}

static void write_word(cuuint32_t value, CUstream s)
{
    sc_ok(cuStreamWriteValue32(s, word, value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

/* So many layers; what they were stashed by is over. */
static void read_aside(cuuint32_t value, unsigned n, CUstream side)
{
    sc_ok(cuCtxSynchronize());
    wait_for(value, side);
    for (unsigned i = 0; i < n; i++) {
        sc_digest_aside(layers[i].x, SC_WORDS, side);
    }
}

static void step_reads(cuuint32_t step, CUstream s, CUstream side)
{
    for (unsigned i = 0; i < PL_LAYERS; i++) {
        if (i == AT && step > LEARNED && step % 2 == 0) {
            read_aside(step, 1 + step % AT, side);
        }
        pl_forward(&layers[i], step * 100 + i, s);
    }
    write_word(step, s);
    sc_order(side, s);
    for (int i = PL_LAYERS - 1; i >= 0; i--) {
        sc_backward(&layers[i], s);
    }
}

static void step_backward(cuuint32_t step, CUstream s, CUstream side)
{
    const bool late = step > LEARNED && step % 2 == 0;

    for (unsigned i = 0; i < PL_LAYERS; i++) {
        pl_forward(&layers[i], step * 100 + i, i < OTHERS ? s : side);
    }
    if (late) {
        sc_ok(cuCtxSynchronize());
        wait_for(step, side);
    }
    for (unsigned i = PL_LAYERS; i > OTHERS; i--) {
        sc_digest_aside(layers[i - 1].y, SC_WORDS, side);
        sc_digest_aside(layers[i - 1].x, SC_WORDS, side);
        sc_free(layers[i - 1].y, side);
        sc_free(layers[i - 1].x, side);
    }
    for (int i = OTHERS - 1; i >= 0; i--) {
        sc_backward(&layers[i], s);
    }
    write_word(step, s);
}

int main(int argc, char **argv)
{
    const bool reads = argc < 2 || strcmp(argv[1], "reads") == 0;

    sc_start();
    const CUstream s = sc_stream(), side = sc_stream();

    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    for (cuuint32_t step = 1; step <= N_STEPS; step++) {
        (reads ? step_reads : step_backward)(step, s, side);
    }
    sc_results_print("all");
    return sc_end();
}
