/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures passed by value whose unused words still name tensors of other layers, some of them out, some freed:
 * each such launch may cost time and must not change a bit.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 8
#define N_STEPS  4

struct layer {
    CUdeviceptr x, y;
};

/* Kept between calls, as a stack frame's old content is. */
static struct test_operands stale;

static void multiply(CUdeviceptr a, CUdeviceptr b, CUdeviceptr to, uint64_t n, CUstream s)
{
    struct test_operands o = stale;

    o.n_used = 1;
    o.product[0] = (struct test_product){a, b, to, n};
    sc_launch(s, "test_by_value", (void *[]){&o});
    /* What the next caller finds: this one's operands, further up. */
    memmove(&stale.product[1], &o.product[0], sizeof(o.product) - sizeof(o.product[0]));
    stale.scratch[n % 8] = to + 64;
    stale.spare[n % 3] = a;
}

static void forward(struct layer *l, uint64_t seed, CUstream s)
{
    nvtxRangePushA("moe_experts");
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    sc_produce(l->x, SC_VALID, SC_WORDS, seed, s);
    multiply(l->x, l->x, l->y, SC_WORDS - seed % 5, s);
    sc_ok(cuMemsetD8Async(l->y + 8 * (SC_WORDS - 5), 1, 40, s));
    nvtxRangePop();
    CUdeviceptr dense = sc_alloc(SC_BYTES, s);

    multiply(l->y, l->y, dense, SC_WORDS, s);
    sc_digest(dense, SC_WORDS, s);
    sc_free(dense, s);
}

int main(void)
{
    struct layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            forward(&layers[i], step * 100 + (uint64_t)i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            CUdeviceptr grad = sc_alloc(SC_BYTES, s);

            multiply(layers[i].x, layers[i].y, grad, SC_WORDS, s);
            sc_digest(grad, SC_WORDS, s);
            sc_free(grad, s);
            sc_free(layers[i].y, s);
            sc_free(layers[i].x, s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
