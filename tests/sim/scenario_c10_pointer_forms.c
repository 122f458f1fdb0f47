/* SPDX-License-Identifier: Apache-2.0 */
/* Pointers that are not the base of what they mean: base - k, inside, and one past the end. */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  3

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    CUdeviceptr to;

    sc_start();
    const CUstream s = sc_stream();

    sc_ok(cuMemAlloc(&to, SC_BYTES));
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            uint64_t n = SC_WORDS, k = 100, half = SC_WORDS / 2;
            CUdeviceptr end = layers[i].x + SC_BYTES, before = layers[i].y - 8 * k;
            CUdeviceptr inside = layers[i].y + SC_BYTES / 2;

            sc_launch(s, "test_from_end", (void *[]){&end, &n, &to});
            sc_digest(to, SC_WORDS, s);
            sc_launch(s, i % 2 == 0 ? "test_from_before" : "test_copy",
                      i % 2 == 0 ? (void *[]){&before, &k, &to, &n}
                                 : (void *[]){&inside, &to, &half, NULL});
            sc_digest(to, SC_WORDS, s);
            sc_free(layers[i].y, s);
            sc_free(layers[i].x, s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
