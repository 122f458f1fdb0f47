/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain allocation that fits only in memory which was freed a moment ago, with work on it still queued: the call must
 * wait for that, as it would without us.
 */
#include "tests/sim/scenario.h"

#define N_TENSORS 24
#define N_STEPS   4

int main(void)
{
    CUdeviceptr tensors[N_TENSORS], plain;

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        nvtxRangePushA("experts");
        for (uint64_t i = 0; i < N_TENSORS; i++) {
            tensors[i] = sc_alloc(SC_BYTES, s);
            sc_produce(tensors[i], SC_WORDS, SC_WORDS, step * 100 + i, s);
        }
        for (int i = 0; i < N_TENSORS; i++) {
            sc_digest(tensors[i], SC_WORDS, s);
            sc_free(tensors[i], s);
        }
        nvtxRangePop();
        sc_ok(cuMemAlloc(&plain, N_TENSORS * SC_BYTES));
        sc_produce(plain, SC_WORDS, SC_WORDS, step, s);
        sc_digest(plain, SC_WORDS, s);
        sc_ok(cuMemFree(plain));
        sc_results_print("step");
    }
    return sc_end();
}
