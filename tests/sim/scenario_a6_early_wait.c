/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream waits for a word that another writes after the next boundaries, in places where a record made later, or a
 * stash queued behind another stream's, would wait for it too: the writer takes back a tensor first, and would never
 * get there.
 */
#include "tests/sim/scenario.h"

#define N_STEPS 4

static CUdeviceptr word;

static void await(uint32_t value, CUstream s)
{
    sc_ok(cuStreamWaitValue32(s, word, value, CU_STREAM_WAIT_VALUE_GEQ));
}

static void tell(uint32_t value, CUstream s)
{
    sc_ok(cuStreamWriteValue32(s, word, value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

/* A record in the legacy stream waits for all blocking streams: one made at the boundary would wait for the word. */
static void beside_the_legacy_stream(uint32_t value, CUstream blocking, CUstream s)
{
    struct sc_layer first, more[3];

    sc_forward(&first, value, NULL);
    sc_order(NULL, s);
    await(value, blocking);
    for (uint64_t i = 0; i < 3; i++) {
        sc_forward(&more[i], value * 10 + i, s);
    }
    sc_digest(first.x, SC_WORDS, s);
    tell(value, s);
    for (int i = 2; i >= 0; i--) {
        sc_backward(&more[i], s);
    }
    sc_backward(&first, s);
    sc_results_print("legacy");
}

/* The stash of the first group waits for the word; one of the others' behind it would too. */
static void beside_another_lane(uint32_t value, CUstream waiting, CUstream s)
{
    struct sc_layer first, more[4];

    sc_forward(&first, value, waiting);
    await(value, waiting);
    for (uint64_t i = 0; i < 4; i++) {
        sc_forward(&more[i], value * 10 + i, s);
    }
    sc_digest(more[0].x, SC_WORDS, s);
    sc_digest(more[1].y, SC_WORDS, s);
    tell(value, s);
    for (int i = 3; i >= 0; i--) {
        sc_backward(&more[i], s);
    }
    sc_order(waiting, s);
    sc_backward(&first, s);
    sc_results_print("lane");
}

int main(void)
{
    CUstream blocking;

    sc_start();
    const CUstream s = sc_stream(), waiting = sc_stream();

    sc_ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    for (uint32_t step = 0; step < N_STEPS; step++) {
        beside_the_legacy_stream(2 * step + 1, blocking, s);
        beside_another_lane(2 * step + 2, waiting, s);
    }
    return sc_end();
}
