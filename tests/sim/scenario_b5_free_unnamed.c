/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A touch of one tensor brings its whole group back, while another tensor of the group, which nobody names any more, is
 * freed on a stream that knows nothing of that, and its memory wanted there at once.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  4

/* A new tensor on the stream that freed one. */
static void reuse(uint64_t seed, CUstream s)
{
    nvtxRangePushA("experts aside");
    const CUdeviceptr p = sc_alloc(SC_BYTES, s);

    sc_produce(p, SC_WORDS, SC_WORDS, seed, s);
    nvtxRangePop();
    sc_digest_aside(p, SC_WORDS, s);
    sc_free(p, s);
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream(), other = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
        }
        sc_order(s, other);
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_digest(layers[i].x, SC_WORDS, s);
            sc_free(layers[i].y, other);
            reuse(step * 100 + (uint64_t)i, other);
            sc_free(layers[i].x, s);
        }
        sc_order(other, s);
        sc_results_print("step");
    }
    return sc_end();
}
