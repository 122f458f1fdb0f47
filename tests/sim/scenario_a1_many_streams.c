/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tensor written in parts on more streams than are followed, the last of them the slowest: what waits for it joins
 * only in backward.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS  6
#define N_STEPS   2
#define N_STREAMS 8u
#define PART      (SC_BYTES / N_STREAMS)

static CUstream own, others[N_STREAMS];

static void forward(struct sc_layer *l, uint64_t step, uint64_t i)
{
    char range[32];

    /* A site of its own each time: what is named elsewhere too often is not moved at all. */
    snprintf(range, sizeof(range), "experts %u %u", (unsigned)step, (unsigned)i);
    nvtxRangePushA(range);
    l->x = sc_alloc(SC_BYTES, own);
    l->y = sc_alloc(SC_BYTES, own);
    sc_produce(l->x, SC_VALID, SC_WORDS, step * 100 + i, own);
    for (unsigned n = 0; n < N_STREAMS; n++) {
        const CUdeviceptr at = l->y + (CUdeviceptr)n * PART;

        sc_order(own, others[n]);
        for (unsigned again = 0; again <= n; again++) {
            sc_mix(l->x, l->x, at, PART / 8, others[n]);
        }
    }
    nvtxRangePop();
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    own = sc_stream();
    for (unsigned n = 0; n < N_STREAMS; n++) {
        others[n] = sc_stream();
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        struct sc_layer plain[2];

        for (uint64_t i = 0; i < 2; i++) {
            sc_forward(&plain[i], step * 10 + i, own);
        }
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            forward(&layers[i], step, i);
        }
        for (unsigned n = 0; n < N_STREAMS; n++) {
            sc_order(others[n], own);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], own);
        }
        sc_backward(&plain[1], own);
        sc_backward(&plain[0], own);
        sc_results_print("step");
    }
    return sc_end();
}
