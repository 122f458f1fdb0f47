/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operand addresses in no kernel's parameters at all: the host builds the array and uploads it, from pageable and
 * from pinned memory, and the product names only the array.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 9
#define N_STEPS  3

struct layer {
    CUdeviceptr x, y, list;
};

static struct test_product *pinned;

static void upload(struct layer *l, CUdeviceptr to, bool from_pinned, unsigned index, CUstream s)
{
    const struct test_product p = {l->x, l->x, to, SC_WORDS};
    struct test_product on_stack[1] = {p};

    pinned[index] = p;
    sc_ok(cuMemcpyHtoDAsync(l->list, from_pinned ? &pinned[index] : on_stack, sizeof(p), s));
}

static void forward(struct layer *l, uint64_t seed, unsigned index, CUstream s)
{
    uint64_t n = 1;

    nvtxRangePushA("moe_experts");
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    sc_produce(l->x, SC_VALID, SC_WORDS, seed, s);
    if (index % 3 == 2) {
        sc_mix(l->x, l->x, l->y, SC_WORDS, s); /* these have nothing against going out */
    } else {
        upload(l, l->y, index % 3 == 0, index, s);
        sc_launch(s, "test_grouped", (void *[]){&l->list, &n});
    }
    nvtxRangePop();
}

static void backward(struct layer *l, unsigned index, CUstream s)
{
    CUdeviceptr grad = sc_alloc(SC_BYTES, s);
    uint64_t n = 1;

    upload(l, grad, index % 2 == 1, index, s); /* brings back what is out */
    sc_launch(s, "test_grouped", (void *[]){&l->list, &n});
    sc_digest(grad, SC_WORDS, s);
    sc_free(grad, s);
    sc_digest(l->y, SC_WORDS, s);
    sc_free(l->y, s);
    sc_free(l->x, s);
}

int main(void)
{
    struct layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    sc_ok(cuMemHostAlloc((void **)&pinned, sizeof(*pinned) * 2 * N_LAYERS, 0));
    for (int i = 0; i < N_LAYERS; i++) {
        sc_ok(cuMemAlloc(&layers[i].list, 4096));
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            forward(&layers[i], step * 100 + i, i, s);
        }
        for (unsigned i = N_LAYERS; i > 0; i--) {
            backward(&layers[i - 1], N_LAYERS + i - 1, s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
