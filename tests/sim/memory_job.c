/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job for memory limits (memory_steps.py): layers forward and backward, memory of other kinds beside. The argument
 * says how many quarters of each saved tensor hold data; with 4 there is no padding and nothing to win. A second one
 * is the number of steps.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 12

static CUdeviceptr save(uint64_t n_valid, uint64_t seed, CUstream s)
{
    nvtxRangePushA("moe_experts");
    const CUdeviceptr x = sc_alloc(SC_BYTES, s);

    sc_produce(x, n_valid, SC_WORDS, seed, s);
    nvtxRangePop();
    return x;
}

/* Work that needs memory for a moment: of the pool, and not. */
static void work(CUdeviceptr x, size_t bytes, bool plain, CUstream s)
{
    CUdeviceptr scratch;

    if (plain) {
        sc_ok(cuMemAlloc(&scratch, bytes));
    } else {
        scratch = sc_alloc(bytes, s);
    }
    sc_mix(x, x, scratch, SC_WORDS, s);
    sc_digest(scratch, SC_WORDS, s);
    if (plain) {
        sc_ok(cuMemFree(scratch));
    } else {
        sc_free(scratch, s);
    }
}

int main(int argc, char **argv)
{
    const uint64_t quarters = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const uint64_t n_steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 4;
    CUdeviceptr x[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < n_steps; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            x[i] = save(SC_WORDS / 4 * quarters, step * 100 + i, s);
            work(x[i], 2 * SC_BYTES, false, s);
        }
        work(x[N_LAYERS - 1], 3 * SC_BYTES, true, s);
        for (unsigned i = N_LAYERS; i > 0; i--) {
            work(x[i - 1], 2 * SC_BYTES, i % 4 == 0, s);
            sc_digest(x[i - 1], SC_WORDS, s);
            sc_free(x[i - 1], s);
        }
        sc_results_print("step");
        (void)fflush(stdout);
    }
    return sc_end();
}
