/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A touch is not a use: the operands of a grouped product are named by the kernel that prepares its address array
 * only, which is the last launch of the region that names them; the product reads and writes them later.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  3

struct layer {
    CUdeviceptr x, y, z, list;
};

static void add(struct test_operands *o, CUdeviceptr a, CUdeviceptr b, CUdeviceptr to)
{
    o->product[o->n_used++] = (struct test_product){a, b, to, SC_WORDS};
}

static void forward(struct layer *l, uint64_t seed, CUstream s)
{
    struct test_operands o = {.n_used = 0};
    uint64_t n;

    nvtxRangePushA("moe_experts");
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    l->z = sc_alloc(SC_BYTES, s);
    l->list = sc_alloc(4096, s);
    sc_produce(l->x, SC_VALID, SC_WORDS, seed, s);
    add(&o, l->x, l->x, l->y);
    add(&o, l->y, l->x, l->z);
    n = o.n_used;
    sc_launch(s, "test_prepare", (void *[]){&o, &l->list});
    nvtxRangePop();
    /* Outside of the region, and in the next region's time: names only the list. */
    sc_launch(s, "test_grouped", (void *[]){&l->list, &n});
}

static void backward(struct layer *l, CUstream s)
{
    struct test_operands o = {.n_used = 0};
    CUdeviceptr grad = sc_alloc(SC_BYTES, s), list = sc_alloc(4096, s);
    uint64_t n;

    add(&o, l->z, l->y, grad);
    n = o.n_used;
    sc_launch(s, "test_prepare", (void *[]){&o, &list});
    sc_launch(s, "test_grouped", (void *[]){&list, &n});
    sc_digest(grad, SC_WORDS, s);
    sc_digest(l->x, SC_WORDS, s);
    sc_free(list, s);
    sc_free(grad, s);
    sc_free(l->list, s);
    sc_free(l->z, s);
    sc_free(l->y, s);
    sc_free(l->x, s);
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
            backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
