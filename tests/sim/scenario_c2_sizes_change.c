/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes that change with every step and layer, sites that come and go, and experts that get no row at all. */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  6

struct layer {
    CUdeviceptr x, y;
    uint64_t n;
};

static void forward(struct layer *l, uint64_t seed, CUstream s)
{
    l->n = seed % 5 == 0 ? 0 : 256 + test_mix(seed) % SC_WORDS;
    nvtxRangePushA("moe_experts");
    if (l->n > 0) {
        l->x = sc_alloc(8 * l->n, s);
        l->y = sc_alloc(8 * l->n + 24, s);
        sc_produce(l->x, l->n / 3, l->n, seed, s);
        sc_mix(l->x, l->x, l->y, l->n, s);
    }
    nvtxRangePop();
}

int main(void)
{
    struct layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            forward(&layers[i], step * 7 + i, s);
        }
        for (unsigned i = N_LAYERS; i > 0; i--) {
            const struct layer *l = &layers[i - 1];

            if (l->n > 0) {
                sc_digest(l->y, l->n, s);
                sc_digest(l->x, l->n, s);
                sc_free(l->x, s);
                sc_free(l->y, s);
            }
        }
        sc_results_print("step");
    }
    return sc_end();
}
