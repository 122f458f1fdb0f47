/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and the job names what is out and not to come yet.
 *
 *   stale    words left over in parameters name tensors of other layers, freed, out, or on their way out
 *   early    each layer reads the one two before it, whose stash is on its way and whose lane is taken, and an
 *            older one
 *   late     backward reads layers whose turn has not come
 *   aside    as early, now and then on a stream of its own
 *   written  backward writes layers whose turn has not come, which leave again and come back
 */
#include "tests/sim/scenario_plan.h"

static struct sc_layer layers[PL_LAYERS];
static struct test_operands left;
static bool stale, early, late, aside, written;

static void multiply(CUdeviceptr a, CUdeviceptr b, CUdeviceptr to, uint64_t n, CUstream s)
{
    struct test_operands o = left;

    o.n_used = 1;
    o.product[0] = (struct test_product){a, b, to, n};
    sc_launch(s, "test_by_value", (void *[]){&o});
    memmove(&left.product[1], &o.product[0], sizeof(o.product) - sizeof(o.product[0]));
    left.scratch[n % 8] = to + 64;
}

static void read_earlier(unsigned i, CUstream s, CUstream side)
{
    for (unsigned back = 2; back <= 5; back += 3) {
        if (i < back) {
            continue;
        }
        if (aside && i % 5 == 0) {
            sc_order(s, side);
            sc_digest_aside(layers[i - back].x, SC_WORDS, side);
            sc_order(side, s);
        } else {
            sc_mix(layers[i - back].x, layers[i].x, layers[i].y, SC_VALID, s);
        }
    }
}

static void forward(uint64_t step, unsigned i, CUstream s, CUstream side)
{
    nvtxRangePushA("moe_experts");
    layers[i].x = sc_alloc(SC_BYTES, s);
    layers[i].y = sc_alloc(SC_BYTES, s);
    pl_fill(&layers[i], step * 100 + i, s);
    if (stale) {
        multiply(layers[i].x, layers[i].x, layers[i].y, SC_VALID - i, s);
    }
    if (early) {
        read_earlier(i, s, side);
    }
    nvtxRangePop();
}

static void backward(int i, CUstream s)
{
    if (late && i >= 3 && i < PL_LAYERS) {
        sc_digest(layers[i - 3].x, SC_WORDS, s);
        sc_digest(layers[0].y, SC_WORDS, s);
    }
    if (written && i >= 3 && i < PL_LAYERS) {
        sc_mix(layers[i].y, layers[i - 3].x, layers[i - 3].x, SC_VALID + 640, s);
        sc_mix(layers[i].y, layers[0].y, layers[0].y, SC_WORDS - 8, s);
    }
    if (stale) {
        const CUdeviceptr grad = sc_alloc(SC_BYTES, s);

        multiply(layers[i].x, layers[i].y, grad, SC_WORDS, s);
        sc_digest(grad, SC_WORDS, s);
        sc_free(grad, s);
    }
    sc_backward(&layers[i], s);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";

    stale = strcmp(kind, "stale") == 0;
    aside = strcmp(kind, "aside") == 0;
    early = aside || strcmp(kind, "early") == 0;
    late = strcmp(kind, "late") == 0;
    written = strcmp(kind, "written") == 0;
    sc_start();
    const CUstream s = sc_stream();
    const CUstream side = sc_stream();

    for (uint64_t step = 0; step < PL_STEPS; step++) {
        for (unsigned i = 0; i < PL_LAYERS; i++) {
            forward(step, i, s, side);
        }
        for (int i = PL_LAYERS - 1; i >= 0; i--) {
            backward(i, s);
        }
    }
    sc_results_print("all");
    return sc_end();
}
